"""The operator as a process, as in a cluster: started, awaited, signalled and killed."""

import contextlib
import os
import signal
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from beds.cluster import ControlPlane
from beds.cluster.processes import Process
from beds.operator.service_account import NAMESPACE
from beds.operator.wait import eventually
from beds.ports import free_port
from support.forkserver.process import Forked

_READY_SECONDS = 60.0
_LOG_LINES = 40
_SECONDS = 5.0


class Operator:
    """One replica. With the same identity, its next start need not wait for the previous one's lease.

    namespace: the only one it watches; all by default.
    lease_namespace: operators with their leases in one namespace are replicas of each other.
    options: further ones, placed first.
    forked: from a process that has the imports behind it; otherwise started as in a container, which takes longer.
    packages: folder of another release's resnetboost_operator, which knows no launchers and takes no key for them.
    """

    def __init__(
        self,
        plane: ControlPlane,
        kubeconfig: Path,
        name: str = "operator",
        *,
        namespace: str = "",
        lease_namespace: str = NAMESPACE,
        options: Sequence[str] = (),
        forked: bool = False,
        packages: Path | None = None,
    ) -> None:
        self._plane = plane
        self._kubeconfig = kubeconfig
        self._namespace = namespace
        self._lease_namespace = lease_namespace
        self._options = options
        self._forked = forked
        self._packages = packages
        self._ending = threading.Lock()
        self.name = name
        self.log_path = plane.folder / f"{name}.log"

    def start(self) -> None:
        """Start it and wait until its caches are filled."""
        self.launch()
        self.until_ready()

    def launch(self) -> None:
        """Start it without waiting."""
        self._address = f"127.0.0.1:{free_port()}"
        options = [
            *self._options,
            f"--listen={self._address}",
            f"--lease-namespace={self._lease_namespace}",
            f"--identity={self.name}",
            *([] if self._packages else [f"--token-key-file={self._key_file()}"]),
            *([f"--namespace={self._namespace}"] if self._namespace else []),
        ]
        environment = {
            "PATH": os.environ["PATH"],
            "KUBECONFIG": str(self._kubeconfig),
            "NO_PROXY": "*",
            "PYTHONFAULTHANDLER": "1",
            **({"PYTHONPATH": str(self._packages)} if self._packages else {}),
        }
        self._process = self._start(["-m", "resnetboost_operator", *options], environment)

    def _start(self, arguments: Sequence[str], environment: Mapping[str, str]) -> Process:
        processes = self._plane.processes
        if not self._forked:
            return processes.start(self.name, sys.executable, *arguments, env=environment)
        with self.log_path.open("ab") as log:
            process = Forked("operator", arguments, environment, self._plane.folder, log)
        processes.adopt(self.name, process)
        return process

    def _key_file(self) -> Path:
        """The key that all operators of the cluster share, as by the chart."""
        path = self._plane.folder / "launcher-key"
        with contextlib.suppress(FileExistsError), path.open("x") as file:
            file.write("k" * 64)
        return path

    def until_ready(self) -> None:
        """Wait until it reports that it is ready."""
        eventually(self.readiness, lambda answer: answer == "ready", f"{self.name} is ready", _READY_SECONDS)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether its process exists."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        """Send SIGTERM; returns its exit code."""
        self._end(signal.SIGTERM)
        return self._process.wait()

    def send(self, number: signal.Signals) -> None:
        """Send a signal that need not end it."""
        self._process.send_signal(number)

    def exit_code(self, seconds: float = 30.0) -> int:
        """Wait until it exits by itself; returns its exit code."""
        code = self._process.wait(seconds)
        self._end(signal.SIGKILL)
        return code

    def answer(self, path: str) -> str:
        """Response to GET on its own port."""
        with urllib.request.urlopen(f"http://{self._address}{path}", timeout=_SECONDS) as answer:
            return str(answer.read().decode())

    def log(self) -> str:
        """Its output since the first start."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_tail(self) -> str:
        """The last lines of its log, for failure messages."""
        return "\n".join(self.log().splitlines()[-_LOG_LINES:])

    def readiness(self) -> str:
        """`ready`, or what it is waiting for."""
        assert self.running, f"{self.name} ended with code {self._process.returncode}:\n{self.log_tail()}"
        try:
            self.answer("/readyz")
        except urllib.error.HTTPError as error:
            with error:
                return f"{error.code}: {error.read().decode()}"
        except OSError as error:
            return str(error)
        return "ready"

    def _end(self, how: signal.Signals) -> None:
        with self._ending:
            if self._plane.processes.runs(self.name):
                self._plane.processes.end(self.name, how)
