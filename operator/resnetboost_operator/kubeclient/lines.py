"""Cuts a stream of bytes into lines of bounded length; it knows nothing of what they say."""

from collections.abc import AsyncIterator


class LineTooLong(Exception):
    """A line is longer than anything an API server has a reason to send."""


async def split(chunks: AsyncIterator[bytes], limit_bytes: int) -> AsyncIterator[bytes]:
    """The lines, without their ends; an unfinished last one is no line."""
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
