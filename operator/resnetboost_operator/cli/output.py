"""Standard output for as long as somebody reads it: losing the reader must not end a training; it formats nothing."""

import os
import sys
from typing import Any, TextIO

from rich.console import Console

from resnetboost_operator import readable


class Output:
    """A stream that falls silent when its reader is gone (a closed pipe or terminal) instead of raising."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        readable.make_plain(stream)

    def write(self, text: str) -> int:
        """Write, or pretend to."""
        try:
            return self._stream.write(text)
        except OSError:
            self.close()
            return len(text)

    def flush(self) -> None:
        """Flush, or pretend to."""
        try:
            self._stream.flush()
        except OSError:
            self.close()

    def close(self) -> None:
        """Write nowhere from now on; what Python still holds and flushes at its end goes there too."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        """Everything else is the stream's."""
        return getattr(self._stream, name)


def console(output: Output) -> Console:
    """A console on it that shows text as it is."""
    stream: Any = output
    return Console(file=stream, highlight=False, markup=False)


def standard_output() -> Output:
    """This process' own."""
    return Output(sys.stdout)
