"""Builds the C++ operators beside their sources: python -m resnetboost_trainer.kernels.build.

Needs a C++20 compiler (CXX, else g++ or clang++) and the installed MindSpore, whose oneDNN the operators call. If one
of them is missing, it prints so and succeeds: training then uses MindSpore's own operators.
"""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from resnetboost_trainer.kernels import library

OPTIONS = ("-std=c++20", "-O3", "-ffp-contract=off", "-Wall", "-Wextra", "-shared", "-fPIC", "-fvisibility=hidden")


def main() -> None:
    """Build the library unless it is up to date."""
    reason = _obstacle()
    if reason:
        print(f"operators: not built, {reason}; training on CPUs will take longer", file=sys.stderr)
    elif library.problem() != "":
        try:
            build(library.FILE)
        except subprocess.CalledProcessError as error:
            print(f"operators: not built, {error}; training on CPUs will take longer", file=sys.stderr)


def build(target: Path) -> None:
    """Compile and link `target` atomically. Raises CalledProcessError if the compiler fails."""
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        subprocess.run(_command(partial), check=True)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _obstacle() -> str:
    if platform.machine() not in library.MACHINES:
        return f"they are not written for {platform.machine()}"
    if compiler() is None:
        return "there is no C++ compiler (g++, clang++ or CXX)"
    return "" if library.onednn().exists() else "there is no MindSpore"


def compiler() -> str | None:
    """Return the path of the C++ compiler that would be used, None if there is none."""
    return shutil.which(os.environ.get("CXX", "")) or shutil.which("g++") or shutil.which("clang++")


def _command(target: Path) -> Sequence[str]:
    program = compiler()
    assert program is not None, "asked before"
    sources = [str(path) for path in library.sources() if path.suffix == ".cpp"]
    digest = f'-DRESNETBOOST_SOURCES="{library.digest()}"'
    onednn = library.onednn()
    return [program, *OPTIONS, digest, *sources, f"-L{onednn.parent}", f"-l:{onednn.name}", "-o", str(target)]


if __name__ == "__main__":
    main()
