#!/usr/bin/env python3
"""Builds what a release consists of into build/release: wheels, source archives, the chart, bills of materials, sums.

It builds the commit that is checked out, and refuses changes that are not committed. Two builds of a commit are equal
to the byte: every time stamp is the commit's, and files are packed in the order of their names.

`release.py operator trainer-cpu` adds these images, as OCI archives. They need buildah and a base image (BASE_IMAGE),
and two builds of one differ: they hold the times at which files were installed, which Python's bytecode depends on.
"""

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from resnetboost_api import __version__

ROOT = Path(__file__).parents[1]
OUT = ROOT / "build" / "release"
TOOLS = ROOT / "build" / "release-tools"
UV = Path(sys.executable).parent / "uv"
PROJECTS = ("api", "operator", "trainer")
# The program that a lock file is of.
LOCKED = ("operator", "trainer")
CHART = "resnetboost"


def main() -> None:
    """Build everything anew."""
    if changes := _git("status", "--porcelain"):
        sys.exit(f"make release: commit these changes first, or stash them:\n{changes}")
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    stamp = int(_git("log", "-1", "--format=%ct"))
    os.environ |= {"SOURCE_DATE_EPOCH": str(stamp), "LC_ALL": "C.UTF-8", "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryDirectory(prefix="release-") as folder:
        tree = Path(folder)
        _export(tree)
        for project in PROJECTS:
            options = ("--quiet", "--python", sys.executable, "--no-build-isolation", "--offline")
            _run(UV, "build", *options, "--out-dir", OUT, tree / project)
        pack(tree / "charts" / CHART, OUT / f"{CHART}-{__version__}.tgz", stamp)
        _bills(tree)
        _images(tree, sys.argv[1:])
    (OUT / ".gitignore").unlink(missing_ok=True)  # uv's
    files = sorted(OUT.iterdir())
    (OUT / "SHA256SUMS").write_text("".join(f"{_digest(file)}  {file.name}\n" for file in files))
    for file in files:
        print(f"{file.stat().st_size / 1024:9.0f} KiB  {file.name}")
    images = "" if sys.argv[1:] else '; with images: make release IMAGES="operator trainer-cpu"'
    print(f"written: {OUT.relative_to(ROOT)}, with SHA256SUMS{images}")


def _export(tree: Path) -> None:
    """Unpack the commit: files that git ignores, such as compiled operators, stay out."""
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(tree, filter="data")


def pack(folder: Path, target: Path, stamp: int) -> None:
    """Pack a chart as `helm package` does, but with one time for all files."""
    lines = (folder / ".helmignore").read_text().splitlines()
    ignored = [line.rstrip("/") for line in lines if line and not line.startswith("#")]
    with (
        target.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=stamp) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder)
            if path.is_file() and not any(fnmatch(part, pattern) for part in name.parts for pattern in ignored):
                entry = tarfile.TarInfo(f"{folder.name}/{name.as_posix()}")
                entry.size, entry.mtime, entry.mode = path.stat().st_size, stamp, 0o644
                with path.open("rb") as content:
                    tar.addfile(entry, content)


def _bills(tree: Path) -> None:
    """CycloneDX bills of materials of what the images install, from their lock files."""
    if not (TOOLS / "bin" / "cyclonedx-py").exists():
        _run(UV, "venv", "--quiet", "--clear", "--python", sys.executable, TOOLS)
        lock = ROOT / "scripts" / "release.lock"
        _run(UV, "pip", "sync", "--quiet", "--require-hashes", "--python", TOOLS / "bin" / "python", lock)
    for name in LOCKED:
        target = OUT / f"resnetboost-{name}-{__version__}.cdx.json"
        lock, project = tree / "images" / "locks" / f"{name}.lock", tree / name / "pyproject.toml"
        options = ("--pyproject", project, "--mc-type", "application", "--output-reproducible", "--output-file", target)
        _run(TOOLS / "bin" / "cyclonedx-py", "requirements", *options, lock)


def _images(tree: Path, names: Sequence[str]) -> None:
    """Build images of the commit and save each as an OCI archive, which `skopeo copy` and `ctr images import` read."""
    if names and shutil.which("buildah") is None:
        sys.exit("make release: images need buildah; scripts/install-system-packages installs it")
    if names:
        _run(tree / "scripts" / "build-images", *names)
    for name in names:
        image = f"resnetboost/{name}:{__version__}"
        archive = OUT / f"resnetboost-{name}-{__version__}.oci.tar"
        _run("buildah", "push", "--quiet", f"docker.io/{image}", f"oci-archive:{archive}:docker.io/{image}")


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def _run(*words: str | Path) -> None:
    command: Sequence[str] = [str(word) for word in words]
    if code := subprocess.run(command, check=False).returncode:
        sys.exit(f"make release: failed with {code}: {' '.join(command)}")


if __name__ == "__main__":
    main()
