"""Format of the operator's log lines, and the job that a line is about."""

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
    """Make every line logged inside, also by tasks started there, name the job (namespace/name)."""
    token = _job.set(job)
    try:
        yield
    finally:
        _job.reset(token)


def configure(kind: Format, level: str) -> None:
    """Log to stderr; from kopf, aiohttp and others only warnings, except at level debug."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(kind))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    if level.upper() != "DEBUG":
        for name in ("kopf", "aiohttp", "asyncio", "kubernetes"):
            logging.getLogger(name).setLevel(logging.WARNING)
        # `resync` logs failed requests, in one line each.
        logging.getLogger("kopf._cogs.clients").setLevel(logging.CRITICAL)


def formatter(kind: Format) -> logging.Formatter:
    """The formatter of that kind."""
    return _Json() if kind == "json" else _Plain()


class _Plain(logging.Formatter):
    """2026-11-21T10:00:00Z INFO    default/digits: what happened."""

    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(about)s%(message)s", _TIME)

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Escape control characters, since some lines contain text from ranks."""
        record.about = f"{_job.get()}: " if _job.get() else ""
        record.message = readable.printable(record.message)
        return super().formatMessage(record)


class _Json(logging.Formatter):
    """One JSON object per line, with the key `job` if the line is about one."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        line = {"time": self.formatTime(record, _TIME), "level": record.levelname, "logger": record.name}
        if _job.get():
            line["job"] = _job.get()
        line["message"] = record.getMessage()
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()
