"""The tutorials: every command in them works, in their order, and the results are there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.long]

ROOT = Path(__file__).parents[2]
# Set-up is done already: this test runs in what it makes.
SKIPPED = ("make setup\nsource .venv/bin/activate\n",)


def follow(page: str, folder: Path) -> str:
    """Run a page's shell blocks one after another, as a reader would paste them. Returns what they print."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.S | re.M)
    assert set(SKIPPED) <= set(blocks), "the page begins in another way than its readers' test"
    script = "set -euo pipefail\n" + "".join(block for block in blocks if block not in SKIPPED)
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_own_images_are_trained_evaluated_and_exported(tmp_path: Path) -> None:
    said = follow("tutorial-own-images.md", tmp_path)
    top1 = re.search(r"my-images is complete: top-1 ([\d.]+) %", said)
    assert top1 is not None
    assert float(top1[1]) > 90, "a reader would not be content"
    assert said.count("digit-3") > 5
    assert (tmp_path / "runs/my-images/report.html").exists()
    assert (tmp_path / "my-images.onnx").stat().st_size > 100_000
    assert "top-1" in (tmp_path / "my-images.onnx.md").read_text().lower()
