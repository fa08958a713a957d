"""Takes out of a bug report what is nobody else's business: names, addresses, serial numbers, secrets. Pure."""

import re
from collections.abc import Mapping

LIMIT = 8 << 10  # characters of one text
_SECRETS = r"token|password|passwd|passphrase|(?<![^\W_])pwd?(?![^\W_])|secret|credential|api[-_]?key|access[-_]?key"
# In quotes, also escaped ones, up to the line's end if the closing one is missing; else a word.
_VALUE = r"""(?:"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?|\\"[^"\n]*"?|\S+)"""
_HEX = "[0-9a-fA-F]{1,4}"
_GROUPS = f"{_HEX}(?::{_HEX}){{0,6}}"
_PATTERNS = (
    # A word such as token or password, and what follows it.
    (
        re.compile(
            rf"(?i)([\w-]{{0,40}}(?:{_SECRETS})[\w-]{{0,40}}\\?['\"]?[\t\r\n]*[=: ][\s=:]*)"
            rf"(?:(?:bearer|basic)\s+)?{_VALUE}"
        ),
        r"\1***",
    ),
    (re.compile(r"(?i)\b(bearer\s+|basic\s+|authorization:\s*(?!bearer|basic))\S+"), r"\1***"),
    (re.compile(r"(?<![^\W_])(?:hf_|gh[opsru]_|github_pat_|glpat-|xox[a-z]-)[\w-]{6,}"), "***"),
    (re.compile(r"(?<![^\W_])(?:(?:AKIA|ASIA)[A-Z0-9]{8,}|sk-[\w-]{16,}|eyJ[\w-]{8,}(?:\.[\w-]+)*)"), "***"),
    # Without a colon it must look like a number.
    (
        re.compile(
            r"(?i)(?<![^\W_])((?:serial(?:[ _-]?(?:numbers?|num|no)\.?)?|s/n)\\?['\"]?"
            rf"(?:\s*[=:#]\s*|[ \t]+(?=[\w-]*\d)(?=[\w-]{{4}}))){_VALUE}"
        ),
        r"\1***",
    ),
    (re.compile(r"([a-z][a-z0-9+.-]*://)[^/@\s]+@"), r"\1***@"),
    (re.compile(r"\b(?!127\.)(?:\d{1,3}\.){3}\d{1,3}\b"), "<address>"),
    # IPv6 with `::`, but for `::` and `::1`, which every machine has; then IPv6 in full, and the addresses of cards.
    (re.compile(rf"(?<![^\W_])(?!::1?(?![0-9a-fA-F:]))(?:{_GROUPS})?::(?:{_GROUPS})?(?![^\W_])"), "<address>"),
    (re.compile(rf"(?<![^\W_])(?:{_HEX}:){{4,7}}{_HEX}(?![^\W_])"), "<address>"),
    (re.compile(r"\b(?:[0-9a-fA-F]{2}-){5}[0-9a-fA-F]{2}\b"), "<address>"),
    (re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"), "<uuid>"),
)


def text(raw: str, names: Mapping[str, str]) -> str:
    """The text without secrets, and with each of the `names` (a user's, a host's, a folder's) replaced; bounded."""
    raw = _end(raw)
    for name in sorted(names, key=len, reverse=True):
        if len(name) > 2:
            raw = _whole(name).sub(lambda _, shown=names[name]: shown, raw)  # type: ignore[misc]
    for pattern, shown in _PATTERNS:
        raw = pattern.sub(shown, raw)
    return raw


def _whole(name: str) -> re.Pattern[str]:
    """The name where no letter or digit continues it: a user `ann` is not in `channel`."""
    begin = r"(?<![^\W_])" if name[0].isalnum() else ""
    end = r"(?![^\W_])" if name[-1].isalnum() else ""
    return re.compile(f"{begin}{re.escape(name)}{end}")


def _end(raw: str) -> str:
    """The last LIMIT characters, from a word's beginning on: half a secret would not be known for one."""
    if len(raw) <= LIMIT:
        return raw
    _, space, rest = raw[-LIMIT:].partition("\n" if "\n" in raw[-LIMIT:] else " ")
    return f"... {rest if space else ''}"
