"""A real MLflow server as a context manager, with its database and artifacts in a folder that goes with it."""

import contextlib
import os
import signal
import tempfile
import urllib.request
from pathlib import Path
from typing import Any, Self

import msgspec

from beds.cluster.processes import Processes
from beds.kubelet.sandbox import Sandbox
from beds.ports import free_port
from beds.trackers import packages

_START_SECONDS = 240


class MLflow:
    """MLflow's server with SQLite; it serves artifacts itself, which is its default. `stop` and `start` keep all.

    With a node it runs there, and the node's pods reach it at `address_for_pods`.
    """

    def __init__(self, node: Sandbox | None = None) -> None:
        self._node = node

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self.folder = Path(tempfile.mkdtemp(prefix="resnetboost-mlflow-"))
            self._processes = Processes(self.folder)
            stack.callback(self._processes.stop)
            self._port = free_port()
            self.address = self.address_for_pods = f"http://127.0.0.1:{self._port}"
            if self._node is not None:
                inside = f"{self._node.address}:{self._port}"
                self._node.let_in(self._processes, self._port, inside)
                self.address_for_pods = f"http://{inside}"
            self.start()
            self._resources = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def start(self) -> None:
        """Start the server and wait until it answers."""
        command: list[str | Path] = [
            *(packages.python(), "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self._port)),
            *("--workers", "1", "--backend-store-uri", f"sqlite:///{self.folder}/mlflow.db"),
            *("--artifacts-destination", self.folder / "artifacts"),
        ]
        if self._node is not None:
            command = list(self._node.command(*command))
        self._server = self._processes.start("mlflow", *command, vital=True)
        self._processes.wait_until(self._answers, "an MLflow server that answers", seconds=_START_SECONDS)

    def stop(self) -> None:
        """End the server as an outage does, with the processes that it started."""
        for pid in _descendants(self._server.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._processes.end("mlflow", signal.SIGKILL)

    def post(self, path: str, **body: Any) -> Any:
        """Call a method of its REST API."""
        request = urllib.request.Request(
            f"{self.address}/api/2.0/mlflow/{path}", msgspec.json.encode(body), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            return msgspec.json.decode(response.read())

    def get(self, path: str) -> Any:
        """Read from its REST API."""
        with urllib.request.urlopen(f"{self.address}/api/2.0/mlflow/{path}", timeout=30) as response:
            return msgspec.json.decode(response.read())

    def runs(self, experiment: str) -> list[Any]:
        """All runs of an experiment."""
        found = self.get(f"experiments/get-by-name?experiment_name={experiment}")["experiment"]["experiment_id"]
        runs: list[Any] = self.post("runs/search", experiment_ids=[found]).get("runs", [])
        return runs

    def history(self, run: str, metric: str) -> list[tuple[int, float]]:
        """(step, value) of each point of a metric, as the server has them."""
        found = self.get(f"metrics/get-history?run_id={run}&metric_key={metric}").get("metrics", [])
        return [(int(point.get("step", 0)), float(point["value"])) for point in found]

    def artifacts(self, run: str) -> dict[str, int]:
        """Size of each artifact of a run by name."""
        found = self.get(f"artifacts/list?run_id={run}").get("files", [])
        return {file["path"]: int(file.get("file_size", 0)) for file in found}

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/health", timeout=5) as response:
                return bool(response.status == 200)
        except OSError:
            return False


def _descendants(pid: int) -> list[int]:
    """The processes that it started, and those that they started."""
    try:
        found = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [*found, *(grandchild for child in found for grandchild in _descendants(child))]
