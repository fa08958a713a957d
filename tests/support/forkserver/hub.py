"""Routes requests to one forking process per OMP_NUM_THREADS, which libraries read when they are loaded.

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
DESCRIPTORS = 3  # a request brings input, output and error output


class Hub:
    """The processes that fork, by the number of threads; "" if the environment does not say."""

    def __init__(self) -> None:
        self._zygotes: dict[str, socket.socket] = {}

    def pass_on(self, connection: socket.socket) -> None:
        """Pass a request on, together with the connection that its answers go to."""
        message, descriptors, *_ = socket.recv_fds(connection, MESSAGE_BYTES, DESCRIPTORS)
        if message:
            threads = json.loads(message)["environment"].get(THREADS, "")
            socket.send_fds(self._zygote(threads), [message], [*descriptors, connection.fileno()])
        for descriptor in descriptors:
            os.close(descriptor)

    def _zygote(self, threads: str) -> socket.socket:
        if threads not in self._zygotes:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                subprocess.Popen(
                    [sys.executable, "-m", "support.forkserver.zygote", str(theirs.fileno())],
                    env=_environment(threads),
                    stdin=subprocess.DEVNULL,
                    stdout=sys.stderr,
                    pass_fds=[theirs.fileno()],
                )
            self._zygotes[threads] = ours
        return self._zygotes[threads]


def _environment(threads: str) -> dict[str, str]:
    variables = {**os.environ, "GLOG_v": "3"}  # as the trainer has it, which MindSpore reads when it is loaded, too
    variables.pop(THREADS, None)
    return variables | ({THREADS: threads} if threads else {})


def main() -> None:
    """Serve until the input is closed."""
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
            with connection, contextlib.suppress(OSError):  # who asks may be gone already
                hub.pass_on(connection)


if __name__ == "__main__":
    main()
