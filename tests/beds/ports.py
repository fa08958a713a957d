"""Picks ports for programs of the test beds that open them themselves."""

import contextlib
import random
import socket

# Below the ports that the kernel gives to outgoing connections, one of which could take a port before its program does.
_FIRST, _LAST = 15000, 32000


def free_port() -> int:
    """A port of 127.0.0.1 on which nothing listens. It is not held."""
    while True:
        port = random.randint(_FIRST, _LAST)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
