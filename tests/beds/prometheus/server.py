"""A real Prometheus server as a context manager."""

import contextlib
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import yaml

from beds.cluster.controlplane import Here, Place
from beds.cluster.errors import ClusterError
from beds.cluster.processes import Processes
from beds.ports import free_port
from beds.prometheus.api import Api

_PROGRAM = "prometheus"


class Prometheus:
    """A Prometheus as a context manager, which stops it and removes its files, even after a kill.

    configuration: content of its file. rules: rule files. place: where it runs. program: another one than Debian's.
    """

    def __init__(
        self,
        configuration: Mapping[str, Any],
        rules: Sequence[Path] = (),
        place: Place | None = None,
        program: str | Path = _PROGRAM,
    ) -> None:
        self._text = _text(configuration, rules)
        self._place: Place = place or Here()
        self._program = program

    def __enter__(self) -> Self:
        if self._program == _PROGRAM and (reason := unavailable()):
            raise ClusterError(reason)
        with contextlib.ExitStack() as stack:
            self.folder = Path(tempfile.mkdtemp(prefix="resnetboost-prometheus-"))
            self.processes = Processes(self.folder)
            stack.callback(self.processes.stop)
            self._start()
            self._resources = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def configure(self, configuration: Mapping[str, Any], rules: Sequence[Path] = ()) -> None:
        """Replace its configuration and its rule files. Raises `ClusterError` if it refuses them."""
        self._text = _text(configuration, rules)
        self._file.write_text(self._text)
        self.api.reload()

    @property
    def _file(self) -> Path:
        return self.folder / "prometheus.yaml"

    def _start(self) -> None:
        port = free_port()
        self._file.write_text(self._text)
        self._place.open(self.processes, port)
        options = [
            f"--config.file={self._file}",
            "--web.enable-lifecycle",
            f"--storage.tsdb.path={self.folder}/data",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        self.processes.start(_PROGRAM, *self._place.command(self._program, *options), vital=True)
        self.api = Api(f"http://127.0.0.1:{port}")
        self.processes.wait_until(self.api.is_ready, "a ready Prometheus")


def _text(configuration: Mapping[str, Any], rules: Sequence[Path]) -> str:
    return yaml.safe_dump({**configuration, "rule_files": [str(path.resolve()) for path in rules]})


def unavailable() -> str:
    """Why there can be no Prometheus here, and how to fix it; empty if there can."""
    if not shutil.which(_PROGRAM):
        return "there is no prometheus here; run scripts/install-system-packages"
    return ""
