"""Takes out of a bug report what is nobody else's business: names, addresses, serial numbers, secrets. Pure."""

import re
from collections.abc import Mapping

LIMIT = 8 << 10  # characters of one text
_SECRETS = "token|password|passwd|secret|credential|api[-_]?key|access[-_]?key"
_PATTERNS = (
    # A word such as token or password, and what follows it.
    (re.compile(rf"(?i)([\w-]{{0,40}}(?:{_SECRETS})[\w-]{{0,40}}['\"]?\s*[=: ]\s*)\S+"), r"\1***"),
    (re.compile(r"(?i)\b(bearer\s+|basic\s+|authorization:\s*(?!bearer|basic))\S+"), r"\1***"),
    (re.compile(r"([a-z][a-z0-9+.-]*://)[^/@\s]+@"), r"\1***@"),
    (re.compile(r"\b(?!127\.)(?:\d{1,3}\.){3}\d{1,3}\b"), "<address>"),
    (re.compile(r"\b(?:[0-9a-fA-F]{1,4}:){4,7}[0-9a-fA-F]{1,4}\b"), "<address>"),
    (re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"), "<uuid>"),
)


def text(raw: str, names: Mapping[str, str]) -> str:
    """The text without secrets, and with each of the `names` (a user's, a host's, a folder's) replaced; bounded."""
    raw = _end(raw)
    for name in sorted(names, key=len, reverse=True):
        if len(name) > 2:
            raw = raw.replace(name, names[name])
    for pattern, shown in _PATTERNS:
        raw = pattern.sub(shown, raw)
    return raw


def _end(raw: str) -> str:
    """The last LIMIT characters, from a word's beginning on: half a secret would not be known for one."""
    if len(raw) <= LIMIT:
        return raw
    _, space, rest = raw[-LIMIT:].partition("\n" if "\n" in raw[-LIMIT:] else " ")
    return f"... {rest if space else ''}"
