"""What the checks see of a machine: files, programs with a time limit, sockets, folders. Tests give it another root."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

READ_LIMIT = 64 << 10
OUTPUT_LIMIT = 32 << 10
PROGRAM_SECONDS = 10.0


class Output(msgspec.Struct, frozen=True):
    """What a program printed, both streams together. `code` is None if it did not end in time."""

    code: int | None
    text: str

    @property
    def last_line(self) -> str:
        """The last line that is not empty, where most programs say what is wrong."""
        return next((line.strip() for line in reversed(self.text.splitlines()) if line.strip()), "")


class Space(msgspec.Struct, frozen=True):
    """A file system's bytes."""

    total: int
    free: int


class Host:
    """A machine, seen from this process. `root` is where its files are, `variables` its environment."""

    def __init__(self, root: Path = Path("/"), variables: Mapping[str, str] | None = None) -> None:
        self.root = root
        self.variables = os.environ if variables is None else variables

    def path(self, name: str) -> Path:
        """A path below the root."""
        return self.root / name.lstrip("/")

    def read(self, name: str) -> str:
        """The beginning of a file; '' if it cannot be read."""
        try:
            with self.path(name).open("rb") as file:
                return file.read(READ_LIMIT).decode(errors="replace")
        except OSError:
            return ""

    def find(self, pattern: str) -> list[str]:
        """The paths that match, sorted, as they are named below the root."""
        return sorted(f"/{path.relative_to(self.root)}" for path in self.root.glob(pattern.lstrip("/")))

    def which(self, program: str) -> str | None:
        """The path of a program, None if there is none of that name."""
        return shutil.which(program, path=self.variables.get("PATH", os.defpath))

    def run(self, words: Sequence[str], seconds: float = PROGRAM_SECONDS, **more: str) -> Output:
        """Run a program; `more` are further variables. A driver that hangs takes the program with it: that ends it.

        Its output goes to a file: a pipe would stay open in a child of the program that outlives it.
        """
        with tempfile.TemporaryFile() as file:
            try:
                process = subprocess.Popen(
                    words,
                    env={**self.variables, **more},
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                return Output(127, error.strerror or "")
            code: int | None = None
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                pass
            finally:
                _end(process)
            file.seek(max(0, os.fstat(file.fileno()).st_size - OUTPUT_LIMIT))
            return Output(code, file.read(OUTPUT_LIMIT).decode(errors="replace"))

    def python(self, script: str, seconds: float, **more: str) -> Output:
        """Run a script in a Python like this one, in a process of its own: what it loads may crash or hang."""
        return self.run([sys.executable, "-c", script], seconds, **more)

    def space(self, name: str) -> Space | None:
        """Size and free bytes of the file system that a path lies on; None if there is none."""
        try:
            found = os.statvfs(self.path(name))
        except OSError:
            return None
        return Space(found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail)

    def binds(self, address: str, port: int) -> bool:
        """Whether a process could listen there. Nothing that listens is disturbed."""
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind((address, port))
            except OSError:
                return False
        return True


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what the program left. One in an uninterruptible call of its driver cannot be waited for."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
    try:
        process.wait(1.0)
    except subprocess.TimeoutExpired:
        process.returncode = -signal.SIGKILL  # else Python would say that it still runs
