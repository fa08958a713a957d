"""Runs further programs on a node of the test bed, where they and pods reach each other by their addresses."""

from collections.abc import Sequence
from pathlib import Path

from beds.cluster.processes import Processes
from beds.kubelet import texts
from beds.kubelet.sandbox import Sandbox


class OnNode:
    """In the namespaces of a node, reachable from outside by the same port."""

    folders: Sequence[Path] = ()

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def open(self, processes: Processes, port: int) -> None:
        """Start forwarding the port, also for the API server, which is inside."""
        self._sandbox.let_in(processes, port, f"{texts.GATEWAY}:{port}")

    def command(self, *command: str | Path) -> Sequence[str | Path]:
        """The command line that runs a command there."""
        return self._sandbox.command(*command)
