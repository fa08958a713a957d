"""Marks the tests listed in tests/long.txt as long, so that `make test` stays within minutes.

The list is one file because it follows from measurements of all tests together: `make test` has a budget, and of each
area a shorter proof stays in it.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

LIST = Path(__file__).parents[1] / "long.txt"


def entries(text: str) -> tuple[str, ...]:
    """Node ids of tests or of single parametrisations, one per line; '#' begins a comment line."""
    return tuple(line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#"))


def matches(entry: str, nodeid: str) -> bool:
    """True if the entry names that test, its parametrised test, its class or its file."""
    return nodeid == entry or nodeid.startswith((f"{entry}[", f"{entry}::"))


def unmatched(listed: Iterable[str], nodeids: Sequence[str]) -> list[str]:
    """Entries of collected files that name no test: left over after a rename."""
    files = {nodeid.partition("::")[0] for nodeid in nodeids}
    known = [entry for entry in listed if entry.partition("::")[0] in files]
    return [entry for entry in known if not any(matches(entry, nodeid) for nodeid in nodeids)]


@pytest.hookimpl(tryfirst=True)  # before tests are deselected by their markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the listed tests. Raises `UsageError` for an entry without a test."""
    listed = entries(LIST.read_text())
    whole_files = not any("::" in argument for argument in config.args)
    if whole_files and (stale := unmatched(listed, [item.nodeid for item in items])):
        raise pytest.UsageError(f"{LIST.name} lists tests that do not exist: {', '.join(stale)}")
    for item in items:
        if any(matches(entry, item.nodeid) for entry in listed):
            item.add_marker(pytest.mark.long)
