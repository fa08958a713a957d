"""`resnetboost run` at a pseudo terminal: live display, Ctrl-C as a key, and a terminal that is closed."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from support import stubtrainer
from support.pseudoterminal import Terminal

ROOT = Path(__file__).parents[2]
RESNETBOOST = str(Path(sys.executable).with_name("resnetboost"))
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # so that the command is found by name
SLOW = "template.env=[{name: STUB_STEP_SECONDS, value: '0.2'}]"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def terminal(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.delenv("NO_COLOR", raising=False)
    stub = stubtrainer.install(tmp_path)
    command = [RESNETBOOST, "run", str(ROOT / "examples" / "digits.yaml"), "--out", str(folder), "--set", SLOW]
    found = Terminal(command, {**os.environ, "PATH": PATH, "PYTHONPATH": str(stub)}, rows=24, columns=80)
    yield found
    found.close()


def test_ctrl_c_stops_with_a_checkpoint_and_says_how_to_go_on(terminal: Terminal) -> None:
    terminal.until(r"step \d+/\d+")
    assert "━" in terminal.screen
    terminal.type("\x03")
    terminal.until("stopping all ranks after this step")
    terminal.until(r"resume +resnetboost run ")
    assert terminal.process.wait(timeout=10) == 16
    assert "\x1b[?25h" in terminal.screen.rpartition("\x1b[?25l")[2]  # the cursor is visible again


def test_a_terminal_that_goes_away_stops_the_run_with_a_checkpoint(terminal: Terminal, folder: Path) -> None:
    terminal.until(r"step \d+/\d+")
    terminal.hang_up()
    assert terminal.process.wait(timeout=30) == 16
    status = yaml.safe_load((folder / "status.yaml").read_text())
    assert status["phase"] == "Suspended"
    assert list(folder.glob("checkpoints/*/base/attempt-0/step-*/manifest.json"))
