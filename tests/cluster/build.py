"""Builds the pinned programs of the test bed, once, from Go modules into a cache outside the tree; it runs none of them.

tools/*/go.mod pin the versions, one module for each group of programs that share dependencies. To add a program, add
its package here and as a `tool` there, then run `GOFLAGS=-mod=mod go mod tidy` in that folder.
"""

import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cluster.errors import ClusterError

MODULES = Path(__file__).with_name("tools")
PACKAGES = {
    "etcd": ("etcd", "go.etcd.io/etcd/server/v3"),
    "kube-apiserver": ("kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver"),
    "kube-controller-manager": ("kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    "kube-scheduler": ("kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler"),
    "kubectl": ("kubernetes", "k8s.io/kubernetes/cmd/kubectl"),
    "kwok": ("kwok", "sigs.k8s.io/kwok/cmd/kwok"),
}
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
_ERROR_LINES = 10


def unavailable(names: Sequence[str] = CONTROL_PLANE) -> str:
    """Why programs can neither be found nor built here, with the remedy; empty if they can."""
    if not shutil.which("openssl"):
        return "there is no openssl here to make certificates with; install the package openssl"
    missing = [name for name in names if not _given(name)]
    if missing and not shutil.which("go"):
        return (
            f"there is no Go here to build {', '.join(missing)} with; "
            "install Go, or set KUBEBUILDER_ASSETS to a folder that holds them"
        )
    return ""


def programs(names: Sequence[str]) -> dict[str, Path]:
    """Paths of programs, built first if need be, which takes minutes and shows its progress on stderr.

    Raises `ClusterError` if that is impossible here.
    """
    found = {name: _given(name) or _cache() / name for name in names}
    if any(not path.exists() for path in found.values()):
        with _lock(_cache()):
            missing = [name for name, path in found.items() if not path.exists()]
            for number, name in enumerate(missing, start=1):
                _build(name, f"{number}/{len(missing)}")
    return found


def _given(name: str) -> Path | None:
    """The program in KUBEBUILDER_ASSETS, the folder that other Kubernetes test beds look into as well."""
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    path = Path(folder or "/", name)
    return path if folder and path.is_file() else None


@functools.cache
def _cache() -> Path:
    """The folder of programs of these versions, compiled by this Go."""
    if reason := unavailable():
        raise ClusterError(reason)
    digest = hashlib.sha256(_go("env", "GOVERSION", "GOARCH").encode())
    for file in sorted(MODULES.glob("*/go.*")):
        digest.update(file.read_bytes())
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "resnetboost" / "tools" / digest.hexdigest()[:16]


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Hold a folder: of several runs one builds, and the others wait for what it builds."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _tell("cluster: another run is building the programs; waiting for it\n")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(name: str, count: str) -> None:
    """Build into another name first: a program under its own name is always whole."""
    module, package = PACKAGES[name]
    unfinished = _cache() / f".{name}"
    started = time.monotonic()
    _tell(f"cluster: building {name} ({count}) ... ")
    _go("build", "-trimpath", "-ldflags", _linker_flags(), "-o", str(unfinished), package, folder=MODULES / module)
    unfinished.rename(_cache() / name)
    _tell(f"{time.monotonic() - started:.0f} s\n")


@functools.cache
def _linker_flags() -> str:
    """No debugging symbols, and the version, which Kubernetes' own build would have put in."""
    found = re.search(r"k8s.io/kubernetes (v(\d+)\.(\d+)\.\d+)", (MODULES / "kubernetes" / "go.mod").read_text())
    if found is None:
        raise ClusterError(f"{MODULES}/kubernetes/go.mod does not require k8s.io/kubernetes; add it")
    version = {"gitVersion": found[1], "gitMajor": found[2], "gitMinor": found[3]}
    return " ".join(["-s -w", *(f"-X k8s.io/component-base/version.{key}={text}" for key, text in version.items())])


def _go(*arguments: str, folder: Path = MODULES) -> str:
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}
    done = subprocess.run(["go", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        words = "\n".join(done.stderr.splitlines()[-_ERROR_LINES:])
        raise ClusterError(
            f"`go {' '.join(arguments)}` failed; it needs a Go module proxy and 2 GB of memory:\n{words}"
        )
    return done.stdout


def _tell(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)
