"""Keeps MindSpore's state in the process of the tests from deciding over later ones."""

import os
import sys
from collections.abc import Iterator

import pytest

# The trainer limits oneDNN by it where it has no operators of its own; runs started later would inherit the limit.
_LIMIT = "ONEDNN_MAX_CPU_ISA"
_GIVEN = os.environ.get(_LIMIT)


@pytest.fixture(autouse=True)
def cpu() -> Iterator[None]:
    """Set the CPU as MindSpore's device, since it takes none after its first operator, and take back a test's limit.

    Tests that need no MindSpore do not wait for its import.
    """
    if (mindspore := sys.modules.get("mindspore")) is not None:
        mindspore.set_device("CPU")
    yield
    if _GIVEN is None:
        os.environ.pop(_LIMIT, None)
