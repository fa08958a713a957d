"""Standard output that survives the loss of its reader: a closed terminal must not end a training."""

import os
import sys
from typing import Any, TextIO

from rich.console import Console

from resnetboost_operator import readable


class Output:
    """A stream that discards output once its reader is gone (a closed pipe or terminal), instead of raising."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        readable.make_plain(stream)

    def write(self, text: str) -> int:
        """Write, or discard the text if the reader is gone."""
        try:
            return self._stream.write(text)
        except OSError:
            self.close()
            return len(text)

    def flush(self) -> None:
        """Flush, or do nothing if the reader is gone."""
        try:
            self._stream.flush()
        except OSError:
            self.close()

    def close(self) -> None:
        """Discard all further output, including what Python flushes at exit."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        """Delegate everything else to the stream."""
        return getattr(self._stream, name)


def console(output: Output) -> Console:
    """A rich console on this output that prints text unchanged."""
    stream: Any = output
    return Console(file=stream, highlight=False, markup=False)


def standard_output() -> Output:
    """The standard output of this process."""
    return Output(sys.stdout)
