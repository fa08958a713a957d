"""Summary at the end of a test run: skips with reasons, slowest files, duration, deselected tests."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
QUICK = """
import pytest
def test_passes(): pass
@pytest.mark.skip(reason="no node to test with:\\n install one")
def test_needs_a_node(): pass
@pytest.mark.long
def test_long(): pass
"""
SLOW = """
import time
def test_takes_its_time(): time.sleep(0.3)
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_run_ends_with_skips_slowest_files_and_its_duration(workers: str, tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -m 'not long'\nmarkers = long\n")
    (tmp_path / "test_quick.py").write_text(QUICK)
    (tmp_path / "test_slow.py").write_text(SLOW)
    told = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "support.summary", "-n", workers, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "test_quick.py::test_needs_a_node: no node to test with: install one\n" in told
    assert re.search(r" slowest files =+\n +0\.[3-9] s  test_slow\.py\n +0\.\d s  test_quick\.py\n", told)
    assert re.search(r"\ntook 0 min \d+ s; 1 test left out, `make test-all` runs all\n", told)
