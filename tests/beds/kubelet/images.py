"""Builds the container images that the bed's pods run, from this tree's Dockerfiles, into the cache.

It uses no registry: debootstrap makes the base image, and a C compiler the pause program.
"""

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from beds.cluster.build import home, locked, tell
from beds.cluster.errors import ClusterError
from beds.kubelet import texts
from resnetboost_operator import __version__

ROOT = Path(__file__).parents[3]
PROGRAMS = ("buildah", "containerd", "ctr", "debootstrap", "gcc", "ip", "runc")
_SUITE = "bookworm"
_BASE_PACKAGES = "ca-certificates,libgomp1,python3,python3-venv"
_BASE_FILE = "FROM scratch\nADD base.tar /\nENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
_COMMON_INPUTS = (".dockerignore", "api", "images/locks/build.lock", "operator/pyproject.toml", "scripts/build-images")
_TRAINER_INPUTS = ("images/trainer-cpu", "images/locks/trainer.lock", "trainer")
_OPERATOR_INPUTS = ("Dockerfile", "images/locks/operator.lock", "operator")
_PATIENCE_SECONDS = 30
_MOST_BYTES = 15 << 30


class Image(NamedTuple):
    """One of our images; `inputs` are the files and folders of the tree that determine its content."""

    name: str
    inputs: tuple[str, ...]

    @property
    def tag(self) -> str:
        """Name and tag as in a pod's manifest."""
        return f"resnetboost/{self.name}:{__version__}"


OPERATOR = Image("operator", _COMMON_INPUTS + _OPERATOR_INPUTS)
TRAINER = Image("trainer-cpu", _COMMON_INPUTS + _TRAINER_INPUTS)


def give(own: Path, images: Sequence[Image] = (OPERATOR, TRAINER)) -> None:
    """Create a folder for containerd with these images, built from this tree.

    Rebuilds images whose inputs have changed, which may take minutes and shows its progress. Raises `ClusterError`.
    """
    cache = home() / "images"
    with locked(cache, "is building images"):
        builder = _Builder(cache)
        builder.tidy()
        if not builder.has("pause", texts.PAUSE_IMAGE):
            builder.keep("pause", texts.PAUSE_IMAGE, _pause_archive)
        for image in images:
            digest = _digest(image, builder.base_key)
            if not builder.has(image.name, digest):
                builder.keep(image.name, digest, lambda path, image=image: builder.build(image, path))
        _link(builder.containerd_root, own)


def _link(stored: Path, own: Path) -> None:
    """Copy with hard links: unpacked files never change; only databases are really copied."""
    _run("cp", "--archive", "--link", stored, own)
    for part in own.iterdir():
        for database in part.glob("*.db"):
            database.unlink()
            shutil.copy2(stored / part.name / database.name, database)


def sizes() -> dict[str, int]:
    """Bytes of each image's unpacked layers."""
    found = json.loads((home() / "images" / "kept.json").read_text())
    return {name: entry["bytes"] for name, entry in found.items()}


class _Builder:
    """Builds images into a locked folder of the cache."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._record = cache / "kept.json"
        self.containerd_root = cache / "containerd"
        self.base_key = hashlib.sha256(f"{_SUITE} {_BASE_PACKAGES} {_BASE_FILE}".encode()).hexdigest()[:12]

    def tidy(self) -> None:
        """Remove the leftovers of killed runs, and all layers when there are too many, as each change adds some."""
        for left in self._cache.glob("tmp*"):
            shutil.rmtree(left)
        layers = self._cache / "buildah"
        if layers.exists() and int(_run("du", "--summarize", "--block-size=1", layers).split()[0]) > _MOST_BYTES:
            _run("buildah", "rmi", "--all", "--force", **self._environment())

    def has(self, name: str, digest: str) -> bool:
        """Whether an image of these inputs is cached."""
        return bool(self._kept().get(name, {}).get("digest") == digest)

    def keep(self, name: str, digest: str, make: object) -> None:
        """Archive an image and import it into containerd."""
        assert callable(make)
        with tempfile.TemporaryDirectory(dir=self._cache) as scratch:
            archive = Path(scratch, "image.tar")
            make(archive)
            with _told(f"importing the image {name}"), _containerd(self.containerd_root, Path(scratch)) as socket:
                _run("ctr", "--address", socket, "--namespace", "k8s.io", "images", "import", archive)
            entry = {"digest": digest, "bytes": archive.stat().st_size}
        self._record.write_text(json.dumps({**self._kept(), name: entry}, indent=1))

    def build(self, image: Image, archive: Path) -> None:
        """Build an image from its Dockerfile."""
        base = self._base()
        with _told(f"building the image {image.name}"), tempfile.TemporaryDirectory(dir=self._cache) as scratch:
            _copy_inputs(image, Path(scratch))
            builder = Path(scratch, "scripts", "build-images")
            _run(builder, image.name, **self._environment(), BASE_IMAGE=base)
        with _told(f"packing the image {image.name}"):
            source = f"docker.io/{image.tag}"
            _run("buildah", "push", "--quiet", source, f"docker-archive:{archive}:{source}", **self._environment())

    def _kept(self) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = json.loads(self._record.read_text()) if self._record.exists() else {}
        return found

    def _base(self) -> str:
        """Base image in place of python:3.11-slim."""
        tag = f"localhost/resnetboost-base:{self.base_key}"
        known = _run("buildah", "images", "--quiet", "--filter", f"reference={tag}", **self._environment())
        if not known.strip():
            with _told("making a base image by debootstrap"), tempfile.TemporaryDirectory(dir=self._cache) as scratch:
                _bootstrap(Path(scratch))
                command = ["buildah", "build", "--quiet", "--isolation=chroot", f"--tag={tag}", scratch]
                _run(*command, **self._environment())
        return tag

    def _environment(self) -> dict[str, str]:
        """Environment with buildah's own storage, separate from the machine's."""
        file = self._cache / "storage.conf"
        roots = f'graphroot = "{self._cache}/buildah"\nrunroot = "{self._cache}/buildah-run"\n'
        file.write_text(f'[storage]\ndriver = "overlay"\n{roots}')
        return {"CONTAINERS_STORAGE_CONF": str(file)}


def _copy_inputs(image: Image, folder: Path) -> None:
    """Copy the inputs with fixed modification times; otherwise each clone would rebuild all layers."""
    for source in _files(image):
        target = folder / source.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
    for path in folder.rglob("*"):
        os.utime(path, (0, 0))


def _files(image: Image) -> list[Path]:
    found = [file for name in image.inputs for file in [ROOT / name, *(ROOT / name).rglob("*")]]
    return sorted(file for file in found if file.is_file() and "__pycache__" not in file.parts)


def _digest(image: Image, base_key: str) -> str:
    digest = hashlib.sha256(base_key.encode())
    for file in _files(image):
        digest.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def _bootstrap(folder: Path) -> None:
    """A tar file of a small Debian and a Dockerfile for it, from debootstrap's default mirror."""
    system = folder / "system"
    # It mounts /proc there: in namespaces of its own, so that a kill leaves none, through which `tidy` would delete.
    command = ["unshare", "--mount", "debootstrap", "--variant=minbase", f"--include={_BASE_PACKAGES}"]
    _run(*command, _SUITE, system)
    for waste in ("var/cache/apt/archives", "var/lib/apt/lists", "var/log"):
        shutil.rmtree(system / waste)
        (system / waste).mkdir()
    _run("tar", "--directory", system, "--create", "--file", folder / "base.tar", ".")
    (folder / "Dockerfile").write_text(_BASE_FILE)
    shutil.rmtree(system)


def _pause_archive(archive: Path) -> None:
    """The pause image in docker's archive format: one static program in one layer."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "pause")
        _run("gcc", "-static", "-Os", "-s", "-o", program, Path(__file__).with_name("pause.c"))
        layer = _tar({"pause": program.read_bytes()}, mode=0o755)
    rootfs = {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]}
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    config = {"architecture": architecture, "os": "linux", "config": {"Entrypoint": ["/pause"]}, "rootfs": rootfs}
    manifest = [{"Config": "config.json", "RepoTags": [texts.PAUSE_IMAGE], "Layers": ["layer.tar"]}]
    files = {"config.json": config, "manifest.json": manifest}
    contents = {name: json.dumps(content).encode() for name, content in files.items()}
    archive.write_bytes(_tar({**contents, "layer.tar": layer}))


def _tar(files: dict[str, bytes], mode: int = 0o644) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


@contextmanager
def _containerd(root: Path, folder: Path) -> Iterator[Path]:
    """Run a containerd on a root folder; its mounts are private."""
    configuration, socket = folder / "containerd.toml", folder / "c.sock"
    configuration.write_text(texts.containerd(root, folder / "state", socket, folder / "network"))
    command = ["unshare", "--mount", "containerd", "--config", str(configuration)]
    with (folder / "containerd.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            deadline = time.monotonic() + _PATIENCE_SECONDS
            while not socket.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise ClusterError(f"containerd did not come:\n{(folder / 'containerd.log').read_text()[-2000:]}")
                time.sleep(0.05)
            yield socket
        finally:
            process.terminate()


@contextmanager
def _told(what: str) -> Iterator[None]:
    started = time.monotonic()
    tell(f"cluster: {what} ... ")
    yield
    tell(f"{time.monotonic() - started:.0f} s\n")


def _run(*command: str | Path, **variables: str) -> str:
    done = subprocess.run(
        ["nice", "-n", "15", *command],
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        words = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise ClusterError(f"`{' '.join(map(str, command))}` failed:\n{words}")
    return done.stdout
