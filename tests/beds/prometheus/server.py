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

    configuration: content of its file. rules: rule files. place: where it runs.
    """

    def __init__(
        self, configuration: Mapping[str, Any], rules: Sequence[Path] = (), place: Place | None = None
    ) -> None:
        self._configuration = {**configuration, "rule_files": [str(path.resolve()) for path in rules]}
        self._place: Place = place or Here()

    def __enter__(self) -> Self:
        if reason := unavailable():
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

    def _start(self) -> None:
        file, port = self.folder / "prometheus.yaml", free_port()
        file.write_text(yaml.safe_dump(self._configuration))
        self._place.open(self.processes, port)
        options = [
            f"--config.file={file}",
            f"--storage.tsdb.path={self.folder}/data",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        self.processes.start(_PROGRAM, *self._place.command(_PROGRAM, *options), vital=True)
        self.api = Api(f"http://127.0.0.1:{port}")
        self.processes.wait_until(self.api.is_ready, "a ready Prometheus")


def unavailable() -> str:
    """Why there can be no Prometheus here, and how to fix it; empty if there can."""
    if not shutil.which(_PROGRAM):
        return "there is no prometheus here; run scripts/install-system-packages"
    return ""
