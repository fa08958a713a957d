"""Removes credentials from texts that go to a log."""

import os
import re
from collections.abc import Mapping

_SECRET = re.compile(r"TOKEN|PASSWORD|SECRET|KEY|CREDENTIAL", re.IGNORECASE)
_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_LEAST_CHARACTERS = 4  # shorter values stand in any text
_MOST_CHARACTERS = 300


def redacted(text: str, variables: Mapping[str, str] = os.environ) -> str:
    """The text on one line, cut, with the values of variables that are named like secrets replaced by stars."""
    for name, value in variables.items():
        if _SECRET.search(name) and len(value) >= _LEAST_CHARACTERS:
            text = text.replace(value, "***")
    line = " ".join(_IN_ADDRESS.sub("***", text).split())
    line = "".join(letter if letter.isprintable() else "?" for letter in line)
    return line if len(line) <= _MOST_CHARACTERS else f"{line[:_MOST_CHARACTERS]}..."
