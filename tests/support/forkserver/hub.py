"""Routes requests to one forking process per program and OMP_NUM_THREADS, which libraries read when they are loaded.

usage: python -m support.forkserver.hub SOCKET; ends, with every process it started, when its input is closed.
"""

import contextlib
import json
import os
import selectors
import socket
import subprocess
import sys

THREADS = "OMP_NUM_THREADS"
MESSAGE_BYTES = 1 << 20
DESCRIPTORS = 3  # a request carries stdin, stdout and stderr


class Hub:
    """The forking processes by program and number of threads; "" if the environment does not set it."""

    def __init__(self) -> None:
        self._zygotes: dict[tuple[str, str], socket.socket] = {}

    def pass_on(self, connection: socket.socket) -> None:
        """Pass a request on, with the connection for its answers."""
        message, descriptors, *_ = socket.recv_fds(connection, MESSAGE_BYTES, DESCRIPTORS)
        if message:
            request = json.loads(message)
            zygote = self._zygote(request["program"], request["environment"].get(THREADS, ""))
            socket.send_fds(zygote, [message], [*descriptors, connection.fileno()])
        for descriptor in descriptors:
            os.close(descriptor)

    def _zygote(self, program: str, threads: str) -> socket.socket:
        if (program, threads) not in self._zygotes:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                subprocess.Popen(
                    [sys.executable, "-m", "support.forkserver.zygote", program, str(theirs.fileno())],
                    env=_environment(threads),
                    stdin=subprocess.DEVNULL,
                    stdout=sys.stderr,
                    pass_fds=[theirs.fileno()],
                )
            self._zygotes[program, threads] = ours
        return self._zygotes[program, threads]


def _environment(threads: str) -> dict[str, str]:
    variables = {**os.environ, "GLOG_v": "3"}  # the trainer's log level, which MindSpore reads when it is loaded
    variables.pop(THREADS, None)
    return variables | ({THREADS: threads} if threads else {})


def main() -> None:
    """Serve until stdin is closed."""
    hub = Hub()
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
        selectors.DefaultSelector() as selector,
    ):
        listener.bind(sys.argv[1])
        listener.listen(64)
        os.write(sys.stdout.fileno(), b"ready\n")
        selector.register(listener, selectors.EVENT_READ)
        selector.register(sys.stdin, selectors.EVENT_READ)
        while all(key.fileobj is listener for key, _ in selector.select()):
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):  # the client may be gone already
                hub.pass_on(connection)


if __name__ == "__main__":
    main()
