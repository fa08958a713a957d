"""Tells MindSpore its device before any test, since after the first operator it takes none any more."""

import sys

import pytest


@pytest.fixture(autouse=True)
def cpu() -> None:
    """Set the CPU as MindSpore's device; tests that need no MindSpore do not wait for its import."""
    if (mindspore := sys.modules.get("mindspore")) is not None:
        mindspore.set_device("CPU")
