"""A pod as a process of this machine, with its state in Kubernetes' form."""

import asyncio
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from resnetboost_api import names
from resnetboost_operator.local import container
from resnetboost_operator.observed import pods

Manifest = dict[str, Any]

MESSAGE_LIMIT_BYTES = 4096  # kubelet's limits of a termination message and of the log tail in its place
LOG_TAIL_BYTES = 2048
LOG_TAIL_LINES = 80


class PodProcess:
    """One pod, from start to end.

    `ended` is called after the process has ended. A pidfd watches it: no thread, no polling, and no signal can reach
    another process that was given the same pid.
    """

    def __init__(self, manifest: Manifest, address: str, ended: Callable[[], None]) -> None:
        self.manifest = manifest
        self.name: str = manifest["metadata"]["name"]
        self.address = address
        self.uid = str(uuid.uuid4())
        self.deleting_since: float | None = None
        self.gone = asyncio.Event()
        self._grace_seconds = 0
        self._notify = ended
        self._created_at = time.time()
        self._terminated: Manifest | None = None
        self._kill_timer: asyncio.TimerHandle | None = None

    @property
    def running(self) -> bool:
        """True while the process runs."""
        return self._terminated is None

    def start(self, environment: Mapping[str, str], cores: Sequence[int], log: Path, message: Path) -> None:
        """Start the container's command in its own session, so that Ctrl-C does not reach it."""
        self._log, self._message = log, message
        command = [*self._container.get("command", ()), *self._container.get("args", ())]
        if tuple(command) == names.TRAINER_COMMAND and names.ENV_CONFIG in environment:
            command.append(environment[names.ENV_CONFIG])  # once more, so that ps shows whose rank it is
        if command[0] in ("python", "python3"):
            command[0] = sys.executable  # the image's Python is this one
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                container.tied(command, cores),
                env=dict(environment),
                cwd=message.parent,  # MindSpore writes files to its working directory
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._pidfd = os.pidfd_open(self._process.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._end)

    def delete(self, grace_seconds: float) -> None:
        """Send SIGTERM now and SIGKILL after the grace period; a later call may shorten it."""
        if not self.running:
            self.deleting_since = self.deleting_since or time.time()
            return
        if self.deleting_since is None:
            self.deleting_since = time.time()
            signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)
        self._grace_seconds = int(grace_seconds)
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        self._kill_timer = asyncio.get_running_loop().call_later(grace_seconds, self.kill)

    def kill(self) -> None:
        """Send SIGKILL to the container's processes."""
        if self.running:
            os.killpg(self._process.pid, signal.SIGKILL)

    def _end(self) -> None:
        """Reap the process. While it is a zombie its pid is not reused, so its process group can be killed safely."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        os.killpg(self._process.pid, signal.SIGKILL)  # a container's other processes end with its first
        self._terminated = self._termination(self._process.wait())
        self.gone.set()
        self._notify()

    def _termination(self, code: int) -> Manifest:
        """The container's terminated state; `code` is negative for a signal, as in subprocess."""
        exit_code = code if code >= 0 else 128 - code
        ended: Manifest = {
            "exitCode": exit_code,
            "reason": "Completed" if exit_code == 0 else "Error",
            "message": self._last_words(exit_code),
            "startedAt": pods.timestamp(self._created_at),
            "finishedAt": pods.timestamp(time.time()),
        }
        return ended if code >= 0 else ended | {"signal": -code}

    def _last_words(self, exit_code: int) -> str:
        message = _head(self._message, MESSAGE_LIMIT_BYTES)
        if message or exit_code == 0 or self._container.get("terminationMessagePolicy") != "FallbackToLogsOnError":
            return message
        return _tail(self._log, LOG_TAIL_BYTES, LOG_TAIL_LINES)

    @property
    def _container(self) -> Manifest:
        container: Manifest = self.manifest["spec"]["containers"][0]
        return container

    def to_dict(self) -> Manifest:
        """The pod as a manifest of the API server."""
        return {
            **self.manifest,
            "metadata": self._metadata(),
            "status": {
                "phase": self._phase(),
                "podIP": self.address,
                "startTime": pods.timestamp(self._created_at),
                "containerStatuses": [self._container_status()],
            },
        }

    def _metadata(self) -> Manifest:
        metadata: Manifest = dict(self.manifest["metadata"])
        metadata |= {"uid": self.uid, "creationTimestamp": pods.timestamp(self._created_at)}
        if self.deleting_since is not None:
            metadata["deletionTimestamp"] = pods.timestamp(self.deleting_since + self._grace_seconds)
            metadata["deletionGracePeriodSeconds"] = self._grace_seconds
        return metadata

    def _phase(self) -> str:
        if self._terminated is None:
            return "Running"
        return "Succeeded" if self._terminated["exitCode"] == 0 else "Failed"

    def _container_status(self) -> Manifest:
        state: Manifest = {"running": {"startedAt": pods.timestamp(self._created_at)}}
        if self._terminated is not None:
            state = {"terminated": self._terminated}
        return {
            "name": self._container["name"],
            "image": self._container.get("image", ""),
            "ready": self.running,
            "started": self.running,
            "restartCount": 0,
            "state": state,
        }


def _head(path: Path, limit: int) -> str:
    try:
        with path.open("rb") as file:
            return file.read(limit).decode(errors="replace")
    except OSError:
        return ""


def _tail(path: Path, limit: int, lines: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - limit))
            text = file.read(limit).decode(errors="replace")
    except OSError:
        return ""
    return "".join(text.splitlines(keepends=True)[-lines:])
