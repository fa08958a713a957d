"""Splits a stream of bytes into lines of bounded length."""

from collections.abc import AsyncIterator


class LineTooLong(Exception):
    """A line is longer than any object of an API server."""


async def split(chunks: AsyncIterator[bytes], limit_bytes: int) -> AsyncIterator[bytes]:
    """Yield the lines without line ends; drop an incomplete last line."""
    rest = bytearray()
    async for chunk in chunks:
        *lines, last = chunk.split(b"\n")
        for line in lines:
            if len(rest) + len(line) > limit_bytes:
                raise LineTooLong
            if rest or line:
                yield bytes(rest) + line
            rest.clear()
        rest += last
        if len(rest) > limit_bytes:
            raise LineTooLong
