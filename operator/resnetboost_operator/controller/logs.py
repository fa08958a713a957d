"""How the operator's log lines look, and whose job they are about; it logs nothing itself."""

import contextlib
import contextvars
import logging
import sys
import time
from collections.abc import Iterator
from typing import Literal

import msgspec

from resnetboost_operator import readable

Format = Literal["plain", "json"]

_TIME = "%Y-%m-%dT%H:%M:%SZ"
_job: contextvars.ContextVar[str] = contextvars.ContextVar("job", default="")


@contextlib.contextmanager
def about(job: str) -> Iterator[None]:
    """Every line logged inside, also by tasks begun there, names the job: namespace/name."""
    token = _job.set(job)
    try:
        yield
    finally:
        _job.reset(token)


def configure(kind: Format, level: str) -> None:
    """Log to stderr. kopf and aiohttp say more than anybody reads, so they have to have a reason."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(kind))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    if level.upper() != "DEBUG":
        for name in ("kopf", "aiohttp", "asyncio", "kubernetes"):
            logging.getLogger(name).setLevel(logging.WARNING)
        logging.getLogger("kopf._cogs.clients").setLevel(logging.CRITICAL)  # what it says of requests, we say shorter


def formatter(kind: Format) -> logging.Formatter:
    """Makes a line of a record."""
    return _Json() if kind == "json" else _Plain()


class _Plain(logging.Formatter):
    """2026-11-21T10:00:00Z INFO    default/digits: what happened."""

    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(about)s%(message)s", _TIME)

    def formatMessage(self, record: logging.LogRecord) -> str:
        """What ranks say is in some lines: it must not look like more lines, or worse, to a terminal."""
        record.about = f"{_job.get()}: " if _job.get() else ""
        record.message = readable.printable(record.message)
        return super().formatMessage(record)


class _Json(logging.Formatter):
    """One object a line; `job` is there where the line is about one."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        line = {"time": self.formatTime(record, _TIME), "level": record.levelname, "logger": record.name}
        if _job.get():
            line["job"] = _job.get()
        line["message"] = record.getMessage()
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()
