"""Builds the test bed's pinned programs from Go modules, once, into a cache outside the tree.

tools/*/go.mod pin the versions, one module for each group of programs that share dependencies, and each version of
Kubernetes has one. To add a program, add its package here and as a `tool` there, then run
`GOFLAGS=-mod=mod go mod tidy` in that folder.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from beds.cluster.errors import ClusterError

MODULES = Path(__file__).with_name("tools")
PACKAGES = {
    "coredns": ("coredns", "github.com/coredns/coredns"),
    "etcd": ("etcd", "go.etcd.io/etcd/server/v3"),
    "helm": ("helm", "helm.sh/helm/v3/cmd/helm"),
    "kube-apiserver": ("kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver"),
    "kube-controller-manager": ("kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    "kube-scheduler": ("kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler"),
    "kube-apiserver-1.36": ("kubernetes-1.36", "k8s.io/kubernetes/cmd/kube-apiserver"),
    "kube-controller-manager-1.36": ("kubernetes-1.36", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    "kube-scheduler-1.36": ("kubernetes-1.36", "k8s.io/kubernetes/cmd/kube-scheduler"),
    "kubectl": ("kubernetes", "k8s.io/kubernetes/cmd/kubectl"),
    "kubelet": ("kubernetes", "k8s.io/kubernetes/cmd/kubelet"),
    "kueue": ("kueue", "sigs.k8s.io/kueue/cmd/kueue"),
    "kwok": ("kwok", "sigs.k8s.io/kwok/cmd/kwok"),
    "prometheus": ("prometheus-operator", "github.com/prometheus/prometheus/cmd/prometheus"),
    "prometheus-operator": ("prometheus-operator", "github.com/prometheus-operator/prometheus-operator/cmd/operator"),
    "versitygw": ("versitygw", "github.com/versity/versitygw/cmd/versitygw"),
}
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
GANG_CONTROL_PLANE = (
    "etcd",
    "kube-apiserver-1.36",
    "kube-controller-manager-1.36",
    "kube-scheduler-1.36",
    "kubectl",
)
NODE = ("coredns", "kubelet")
HELM = ("helm",)
KUEUE = ("helm", "kueue")
MONITORING = ("prometheus", "prometheus-operator")
OBJECT_STORAGE = ("versitygw",)
# Prometheus finds its targets in Kubernetes alone here: the clients of all clouds would take minutes more.
_TAGS = {"prometheus": "remove_all_sd,enable_kubernetes_sd"}
_KUBERNETES = "kubernetes"  # the module of all but those who ask for another version
_ERROR_LINES = 10


def unavailable(names: Iterable[str] = CONTROL_PLANE) -> str:
    """Why programs can neither be found nor built here, and how to fix it; empty if they can."""
    if not shutil.which("openssl"):
        return "there is no openssl here to make certificates with; install the package openssl"
    missing = [name for name in names if not _given(name)]
    if missing and not shutil.which("go"):
        return (
            f"there is no Go here to build {', '.join(missing)} with; "
            "install Go, or set KUBEBUILDER_ASSETS to a folder that holds them"
        )
    return ""


def programs(names: Iterable[str]) -> dict[str, Path]:
    """Paths of the programs; builds the missing ones, which takes minutes and shows its progress on stderr.

    Raises `ClusterError` if that is impossible here.
    """
    names = list(names)
    if reason := unavailable(names):
        raise ClusterError(reason)
    found = {name: path for name in names if (path := _given(name))}
    missing = [name for name in names if name not in found]
    return found | _built(missing) if missing else found


def missing(names: Iterable[str]) -> list[str]:
    """Programs that have to be built first."""
    wanted = [name for name in names if not _given(name)]
    if not wanted or not shutil.which("go"):
        return wanted
    return [name for name, path in _paths(wanted).items() if not path.exists()]


def _given(name: str) -> Path | None:
    """The program in KUBEBUILDER_ASSETS, which other Kubernetes test beds use too."""
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    path = Path(folder or "/", name)
    return path if folder and path.is_file() else None


def _built(names: list[str]) -> dict[str, Path]:
    paths = _paths(names)
    if not all(path.exists() for path in paths.values()):
        with locked(_tools(), "is building the programs"):
            missing = [name for name, path in paths.items() if not path.exists()]
            for number, name in enumerate(missing, start=1):
                _build(name, paths[name], f"{number}/{len(missing)}")
    return paths


def _paths(names: Iterable[str]) -> dict[str, Path]:
    """Where programs are, or will be: in a folder for each module with these versions, compiled by this Go."""
    compiler = _go("env", "GOVERSION", "GOARCH")
    return {name: _tools() / _folder_name(PACKAGES[name][0], compiler) / _own_name(name) for name in names}


def _folder_name(module: str, compiler: str) -> str:
    """A new one only when a program of this module becomes another one, as those of Kubernetes take minutes each."""
    digest = hashlib.sha256(compiler.encode())
    digest.update(_linker_flags(module).encode())
    for file in sorted((MODULES / module).glob("go.*")):
        digest.update(file.read_bytes())
    return f"{module}-{digest.hexdigest()[:16]}"


def _own_name(name: str) -> str:
    """Without the version: Kubernetes' parts tell the API server what their file is called."""
    return re.sub(r"-[0-9.]+$", "", name)


def _tools() -> Path:
    return home() / "tools"


def module(folder: str, name: str) -> Path:
    """The unpacked files of a module that tools/<folder>/go.mod pins; checked against its go.sum.

    Raises `ClusterError`.
    """
    if not shutil.which("go"):
        raise ClusterError(f"there is no Go here to fetch the module {name} with; install Go")
    told = json.loads(_go("mod", "download", "-json", name, folder=MODULES / folder))
    return Path(told["Dir"])


def home() -> Path:
    """The cache folder shared by all clones and runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "resnetboost"


@contextmanager
def locked(folder: Path, doing: str) -> Iterator[None]:
    """Lock a folder: of several runs one builds, and the others wait for the result."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell(f"cluster: another run {doing}; waiting for it\n")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(name: str, path: Path, count: str) -> None:
    """Build in a scratch folder, so that the cache never holds partial programs or leftovers of an aborted build."""
    module, package = PACKAGES[name]
    started = time.monotonic()
    tell(f"cluster: building {name} ({count}) ... ")
    with _scratch(_tools() / ".scratch") as scratch:
        flags = ["-tags", _TAGS.get(name, ""), "-trimpath", "-ldflags", _linker_flags(module)]
        _go("build", *flags, "-o", str(scratch / name), package, folder=MODULES / module, GOTMPDIR=str(scratch))
        path.parent.mkdir(exist_ok=True)
        (scratch / name).rename(path)
    tell(f"{time.monotonic() - started:.0f} s\n")


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """An empty folder, removed afterwards; clears what a killed run left in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _linker_flags(module: str) -> str:
    """No debugging symbols, and the versions, which Kubernetes' and helm's own builds would have put in.

    A helm without them renders for Kubernetes 1.20, which the chart refuses.
    """
    own = module if module.startswith(_KUBERNETES) else _KUBERNETES
    kubernetes = _version(own, "k8s.io/kubernetes")
    major, minor, _ = kubernetes.removeprefix("v").split(".")
    values = {
        "k8s.io/component-base/version.gitVersion": kubernetes,
        "k8s.io/component-base/version.gitMajor": major,
        "k8s.io/component-base/version.gitMinor": minor,
    }
    if module == "helm":
        values |= _values_of_helm(major, minor)
    return " ".join(["-s -w", *(f"-X {name}={text}" for name, text in values.items())])


def _values_of_helm(major: str, minor: str) -> dict[str, str]:
    """Its own version, and the Kubernetes that it renders for without a cluster."""
    packages = [f"helm.sh/helm/v3/pkg/{package}.k8sVersion" for package in ("chartutil", "lint/rules")]
    return {
        "helm.sh/helm/v3/internal/version.version": _version("helm", "helm.sh/helm/v3"),
        **{f"{package}Major": major for package in packages},
        **{f"{package}Minor": minor for package in packages},
    }


def _version(folder: str, module: str) -> str:
    """The version of a module pinned in tools/<folder>/go.mod."""
    (version,) = re.findall(rf"{re.escape(module)} (v[0-9.]+)", (MODULES / folder / "go.mod").read_text())
    return str(version)


def _go(*arguments: str, folder: Path = MODULES, **variables: str) -> str:
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off", **variables}
    done = subprocess.run(["go", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        words = "\n".join(done.stderr.splitlines()[-_ERROR_LINES:])
        raise ClusterError(
            f"`go {' '.join(arguments)}` failed; it needs a Go module proxy and 2 GB of memory:\n{words}"
        )
    return done.stdout


def tell(text: str) -> None:
    """Print progress to stderr."""
    print(text, end="", file=sys.stderr, flush=True)
