"""Installs the packages of the bed, once, into a cache outside the tree."""

import functools
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from beds.cluster.build import home, locked
from beds.cluster.errors import ClusterError

_LOCK = Path(__file__).with_name("requirements.lock")
_DONE = ".installed"
_INSTALL_SECONDS = 500
_ERROR_CHARACTERS = 500


def python() -> Path:
    """The interpreter of the environment; the first call installs it. Raises ClusterError."""
    folder = _folder()
    if not (folder / _DONE).exists():
        with locked(folder.parent, "is installing MLflow"):
            if not (folder / _DONE).exists():
                _install(folder)
    return folder / "bin" / "python"


@functools.cache
def unavailable() -> str:
    """Why the bed cannot be used here, and how to fix it; empty if it can."""
    try:
        python()
    except ClusterError as error:
        return str(error)
    return ""


def _folder() -> Path:
    digest = hashlib.sha256(_LOCK.read_bytes() + sys.version.encode()).hexdigest()[:16]
    return home() / "trackers" / digest


def _install(folder: Path) -> None:
    """Install into the folder. It counts as installed once it holds the mark, which is written last."""
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        raise ClusterError("there is no uv here to install MLflow with; run make setup")
    shutil.rmtree(folder, ignore_errors=True)
    environment = {**os.environ, "UV_LINK_MODE": "copy"}
    for words in (
        ("venv", "--quiet", "--python", sys.executable, folder),
        (
            "pip",
            "sync",
            "--quiet",
            "--python",
            folder / "bin" / "python",
            "--require-hashes",
            "--compile-bytecode",
            _LOCK,
        ),
    ):
        try:
            done = subprocess.run(
                [uv, *words], env=environment, capture_output=True, text=True, check=False, timeout=_INSTALL_SECONDS
            )
        except subprocess.TimeoutExpired:
            raise ClusterError(f"uv did not install MLflow within {_INSTALL_SECONDS} s; try again") from None
        if done.returncode:
            said = " ".join(done.stderr.split())[-_ERROR_CHARACTERS:]
            raise ClusterError(f"MLflow cannot be installed here, a package index is needed once: {said}")
    (folder / _DONE).touch()
