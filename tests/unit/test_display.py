"""Progress display of a run: occasional lines in a log, a frame that fits the terminal."""

import io
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console
from rich.text import Text

from resnetboost_api.status import Progress, Ranks, StageStatus, Status
from resnetboost_operator.cli.view import display, frame, text
from resnetboost_operator.job import parse_job
from resnetboost_operator.planning.actions import Event
from resnetboost_operator.validation import jobfile, schema

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.yaml"
JOB = parse_job(schema.defaulted(jobfile.load(EXAMPLE)))
PROGRESS = Progress(
    stage="base",
    step=264,
    total_steps=440,
    epoch=12.0,
    total_epochs=20,
    loss=0.5123,
    accuracy=0.978,
    top1=0.969,
    images_per_second=1234.5,
    eta_seconds=42,
)
RUNNING = Status(
    phase="Running",
    stage="base",
    ranks=Ranks(desired=2, running=2),
    stages=(StageStatus("base", state="Running", attempts=1), StageStatus("boost")),
    progress=PROGRESS,
)


class Log:
    """A plain display and its output, with a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.file = io.StringIO()
        self.display = display.PlainDisplay(
            JOB, Console(file=self.file, width=40, markup=False, highlight=False), clock=lambda: self.now
        )

    def lines(self) -> list[str]:
        """All lines so far, without the leading time of day."""
        return [line[10:] for line in self.file.getvalue().splitlines()]


def at(step: int, **changes: Any) -> Status:
    return replace(RUNNING, progress=replace(PROGRESS, step=step, epoch=step / 22), **changes)


def test_stages_of_different_sizes_share_a_line() -> None:
    (base,) = JOB.spec.stages
    stages = tuple(replace(base, name=f"of-{count}", device_count=count) for count in (4, 1, 4))
    told = text.headline(replace(JOB, spec=replace(JOB.spec, stages=stages)))
    assert told == "digits: resnet20 on digits · 1/4 CPU ranks · global batch 32/128 · seed 0"


def test_a_log_starts_with_the_job() -> None:
    assert Log().lines() == ["digits: resnet20 on digits · 2 CPU ranks · global batch 64 · seed 0"]


def test_a_line_has_everything_and_is_never_broken() -> None:
    log = Log()
    log.display.show(RUNNING)
    assert log.lines()[1] == (
        "base  epoch 13/20  step 264/440  loss 0.512  accuracy 97.8 %  test 96.9 %  1234 images/s  ETA 0:42"
    )


def test_lines_come_every_few_seconds() -> None:
    log = Log()
    for second in range(12):
        log.now = second
        log.display.show(at(44 + second))
    assert [line.split("  ")[2] for line in log.lines()[1:]] == ["step 44/440", "step 49/440", "step 54/440"]


def test_every_epoch_has_a_line() -> None:
    log = Log()
    for step in (21, 22, 23, 44):
        log.display.show(at(step))
    assert [line.split("  ")[2] for line in log.lines()[1:]] == ["step 21/440", "step 22/440", "step 44/440"]


def test_events_have_a_line_at_once() -> None:
    log = Log()
    log.display.event(Event("Normal", "GangStarting", "attempt 0 starts"))
    log.display.event(Event("Warning", "GangRestart", "attempt 0: rank 1 [red] was killed"))
    assert log.lines()[1:] == ["attempt 0 starts", "WARNING attempt 0: rank 1 [red] was killed"]


def test_a_slow_start_logs_each_reason_once() -> None:
    log = Log()
    starting = replace(RUNNING, phase="Starting", progress=None)
    for status in (starting, starting, replace(starting, progress=Progress(state="Compiling", stage="base"))):
        log.display.show(status)
    assert log.lines()[1:] == ["starting, 2/2 ranks run", "compiling the graphs"]


@pytest.mark.parametrize(
    ("variables", "terminal", "expected"),
    [
        ({}, True, "LiveDisplay"),
        ({}, False, "PlainDisplay"),
        ({"NO_COLOR": "1"}, True, "LiveDisplay"),
        ({"TERM": "dumb"}, True, "PlainDisplay"),
    ],
    ids=["terminal", "file or pipe", "one that only lacks colours", "dumb terminal"],
)
def test_only_a_capable_terminal_gets_the_live_display(
    variables: dict[str, str], terminal: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(display.LiveDisplay, "__init__", lambda *_: None)  # it would take the terminal
    console = Console(file=io.StringIO(), force_terminal=terminal)
    assert type(display.choose(JOB, console)).__name__ == expected


EVENTS = (
    frame.Line(0.0, "attempt 0 of stage base: creating 2 of 2 pods", warning=False),
    frame.Line(9.0, "attempt 0: rank 1 on here ended with Killed (exit code 137); restarting", warning=True),
)


def drawn(status: Status, width: int, now: float = 0.0) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=40)
    with console.capture() as capture:
        console.print(frame.Frame(JOB, status, EVENTS, Text("Ctrl-C stops"), now, 83.0))
    return [line.rstrip() for line in capture.get().splitlines()]


@pytest.mark.parametrize("width", [30, 40, 60, 80, 140])
def test_a_frame_fits_its_terminal(width: int) -> None:
    lines = drawn(RUNNING, width)
    assert max(map(len, lines)) <= width
    assert len([line for line in lines if line.startswith("● base")]) == 1
    assert any("epoch 13/20" in line for line in lines)
    assert any(line.endswith("1:23") for line in lines)


def test_a_frame_of_80_columns_shows_everything_in_one_line_each() -> None:
    lines = drawn(replace(RUNNING, restarts=2), 80)
    assert lines[0].endswith("2 restarts  1:23")
    assert lines[2].endswith("epoch 13/20  step 264/440")
    assert lines[3] == "  loss 0.512 · accuracy 97.8 % · test 96.9 % · 1234 images/s · ETA 0:42"
    assert lines[5] == "○ boost  waiting"


def test_a_frame_counts_down_to_a_restart() -> None:
    waiting = replace(RUNNING, phase="Restarting", restart_time="1970-01-01T00:00:20Z")
    assert any("restarting in 0:08" in line for line in drawn(waiting, 80, now=12.0))


def test_a_complete_stage_shows_its_result() -> None:
    complete = StageStatus("base", state="Complete", attempts=1, top1=0.9944, top5=1.0, test_loss=0.12)
    lines = drawn(replace(RUNNING, stages=(complete,), phase="Complete"), 80)
    assert lines[2].startswith("✓ base  ━━━")
    assert lines[3] == "  top-1 99.4 % · top-5 100.0 % · test loss 0.12 · 1 attempt"


@pytest.mark.parametrize(
    ("width", "expected"),
    [(80, "loss 0.512 · accuracy 97.8 %"), (20, "loss 0.512"), (6, "loss …")],
    ids=["all", "the first ones", "at least one, cut"],
)
def test_a_narrow_frame_drops_phrases_from_the_end(width: int, expected: str) -> None:
    assert text.fit(["loss 0.512", "accuracy 97.8 %"], width) == expected
