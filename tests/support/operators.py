"""A fixture for tests of the C++ operators: pytest.mark.usefixtures("operators")."""

import os

import pytest

from resnetboost_trainer.engine import device
from resnetboost_trainer.kernels import library


@pytest.fixture(scope="module")
def operators() -> None:
    """Prepare the CPU; skip the tests where the operators are not built, in CI fail."""
    device.prepare()
    if library.usable() is None:
        message = "no C++ operators here; make setup builds them where g++ is"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
