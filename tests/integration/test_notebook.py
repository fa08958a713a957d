"""The notebook of the examples runs from top to bottom, in an event loop as in Jupyter; it has no stored outputs."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support import notebook

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "python.ipynb"

pytestmark = pytest.mark.slow


def test_it_is_stored_without_outputs() -> None:
    found = json.loads(NOTEBOOK.read_text())
    assert (found["nbformat"], found["nbformat_minor"]) == (4, 5)
    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in found["cells"])
    assert len({cell["id"] for cell in found["cells"]}) == len(found["cells"])
    assert all(compile(source, NOTEBOOK.name, "exec") for source in notebook.code(NOTEBOOK))


def test_every_cell_runs(tmp_path: Path) -> None:
    for path in (NOTEBOOK, ROOT / "examples" / "digits.yaml"):
        shutil.copy(path, tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "MPLBACKEND": "agg"}
    command = [sys.executable, "-m", "support.notebook", NOTEBOOK.name]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=400
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert "digits.yaml: spec.stages[0].epochs: 0 is too small; use at least 1" in lines
    assert [line.split(":")[0] for line in lines if line.startswith("epoch")] == ["epoch 1", "epoch 2"]
    assert (tmp_path / "runs" / "notebook" / "report.html").exists()
    first, last = (float(word) for word in lines[-1].replace(",", "").split() if word.startswith("0."))
    assert last < first / 2
