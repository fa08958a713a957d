"""Forwards TCP connections into a network namespace; run as a program.

`relay.py PID PORT ADDRESS:PORT`: connections to the port on this side's loopback, or to the address inside the
namespaces of PID, are forwarded to that port of the loopback inside.
"""

import asyncio
import contextlib
import ctypes
import os
import socket
import sys

_libc = ctypes.CDLL(None, use_errno=True)
_PIECE = 1 << 16


def main() -> None:
    """Listen outside, enter the namespaces, listen inside."""
    process, port, inside = sys.argv[1:]
    address, _, inner_port = inside.rpartition(":")
    listening = [listen("127.0.0.1", int(port))]
    with open(f"/proc/{process}/ns/net") as namespace:
        if _libc.setns(namespace.fileno(), 0):
            sys.exit(f"cannot enter the network of {process}: {os.strerror(ctypes.get_errno())}")
    listening.append(listen(address, int(inner_port)))
    asyncio.run(serve(listening, int(port), os.pidfd_open(int(process))))


def listen(address: str, port: int) -> socket.socket:
    """Listen on a port that may be reserved by a socket that does not listen."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listening.bind((address, port))
    listening.listen(256)
    return listening


async def serve(listening: list[socket.socket], port: int, process: int) -> None:
    """Accept and forward connections until the process ends."""

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError), contextlib.closing(writer):
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.closing(there_writer):
                await asyncio.gather(pass_on(reader, there_writer), pass_on(there_reader, writer))

    asyncio.get_running_loop().add_reader(process, sys.exit)
    servers = [await asyncio.start_server(connect, sock=one) for one in listening]
    await asyncio.gather(*(server.serve_forever() for server in servers))


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Forward one direction of a connection until its end."""
    while piece := await reader.read(_PIECE):
        writer.write(piece)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


if __name__ == "__main__":
    main()
