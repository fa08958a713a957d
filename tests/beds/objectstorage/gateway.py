"""The gateway as a context manager; it can be stopped and started again on the same port, as in an outage."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, Self

from beds.cluster import build
from beds.cluster.processes import Processes
from beds.ports import free_port

_NAME = "versitygw"
BUCKET = "bucket"


class Place(Protocol):
    """Where programs run and are reached under an address."""

    address: str

    def command(self, *command: str | Path) -> Sequence[str | Path]:
        """The command line that runs a command there."""


class Gateway:
    """A running gateway with one bucket, on loopback or where a `place` says, such as a node whose pods reach it."""

    def __init__(self, place: Place | None = None) -> None:
        """The place's `command` makes the command line of a program that runs there."""
        self._place = place
        self._address = "127.0.0.1" if place is None else place.address

    def __enter__(self) -> Self:
        self._program = build.programs(build.OBJECT_STORAGE)[_NAME]
        self.folder = Path(tempfile.mkdtemp(prefix="resnetboost-s3-"))
        self._processes, self._port = Processes(self.folder), free_port()
        self._buckets = self.folder / "buckets"
        self.bucket.mkdir(parents=True)
        try:
            self.start()
        except BaseException:
            self._processes.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._processes.stop()

    @property
    def bucket(self) -> Path:
        """The folder of the bucket: an object is a file in it."""
        return self._buckets / BUCKET

    @property
    def variables(self) -> dict[str, str]:
        """The environment of its clients."""
        return {
            "AWS_ENDPOINT_URL": f"http://{self._address}:{self._port}",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "access",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }

    def start(self) -> None:
        """Start to answer."""
        keys = {"ROOT_ACCESS_KEY": "access", "ROOT_SECRET_KEY": "secret"}
        options = ["--port", f"{self._address}:{self._port}", "--quiet", "posix", str(self._buckets)]
        command = self._there(self._program, *options)
        self._process: subprocess.Popen[bytes] = self._processes.start(_NAME, *command, env=keys)
        self._processes.wait_until(self._answers, "an S3 gateway that answers")

    def stop(self) -> None:
        """Answer nothing: connections are refused."""
        self._process.kill()
        self._process.wait()

    @property
    def running(self) -> bool:
        """False after `stop`."""
        return self._process.poll() is None

    def empty(self) -> None:
        """Delete all objects."""
        shutil.rmtree(self.bucket, ignore_errors=True)
        self.bucket.mkdir()

    def _answers(self) -> bool:
        probe = f"import socket, sys; sys.exit(socket.socket().connect_ex(({self._address!r}, {self._port})))"
        return subprocess.run(self._there(sys.executable, "-I", "-S", "-c", probe), check=False).returncode == 0

    def _there(self, *command: str | Path) -> Sequence[str | Path]:
        return command if self._place is None else self._place.command(*command)
