"""`Job.run` and `Run`: real processes with a stub trainer, for a caller in Python, also within an event loop."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from resnetboost import Job, Run, RunFailed, Status, UserError
from support import stubtrainer

DIGITS = Path(__file__).parents[2] / "examples" / "digits.yaml"
FAST = {"failurePolicy.backoffSeconds": 0, "stages[0].epochs": 2}


def stub(**variables: str) -> dict[str, Any]:
    return {"template.env": [{"name": name, "value": value} for name, value in variables.items()]}


SLOW = {**stub(STUB_STEP_SECONDS="0.1"), "stages[0].epochs": 4}
STEPS = 40


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setenv("PYTHONPATH", str(stubtrainer.install(tmp_path)))
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    monkeypatch.chdir(tmp_path)
    return Job.load(DIGITS).replace(FAST)


def interrupted(job: Job, times: int) -> str:
    """Run the job in a process that interrupts itself so many times; return what it prints."""
    Path("job.yaml").write_text(job.to_yaml())
    script = Path(__file__).parent / "stubs" / "interruptedrun.py"
    done = subprocess.run(
        [sys.executable, str(script), str(times)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_run_has_its_results_as_objects(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    phases: list[str] = []
    run = job.run(on_status=lambda status: phases.append(status.phase)).check()
    assert (run.folder, run.complete, run.exit_code) == (Path("runs/digits"), True, 0)
    assert "digits is complete: top-1 97.8 %" in run.message
    assert (phases[0], phases[-1]) == ("Starting", "Complete")
    assert run.stages[0].top1 == 0.978
    assert run.steps["step"] == list(range(1, 21))
    assert run.steps.to_numpy()["step"].sum() == 210
    assert [(checkpoint.stage, checkpoint.step) for checkpoint in run.checkpoints] == [("base", 10), ("base", 20)]
    assert run.report is not None
    assert len(run.logs) == 2
    assert "stage base is complete" in capsys.readouterr().out
    assert job.run(progress=False).complete, "a complete run is found, not repeated"
    assert capsys.readouterr().out == ""


def test_a_failed_run_returns_and_says_why(job: Job) -> None:
    failing = job.replace(stub(STUB="0,0,3,11"))
    run = failing.run("out", progress=False)
    assert (run.complete, run.exit_code, run.status.phase) == (False, 11, "Failed")
    with pytest.raises(RunFailed, match="stub ends with 11") as raised:
        run.check()
    assert raised.value.run is run
    assert failing.run("out", progress=False).check().status.attempt == 1, "the same call goes on"
    with pytest.raises(UserError, match=r"choose another folder with out=\.\.\., or start over with fresh=True"):
        job.replace({"seed": 9}).run("out", progress=False)


def test_an_interrupt_keeps_a_checkpoint_and_the_same_call_goes_on(job: Job) -> None:
    slow = job.replace(SLOW)
    assert interrupted(slow, 1) == "interrupted, threads: 1\n"
    stopped = Run("out")
    assert (stopped.status.phase, stopped.exit_code) == ("Suspended", 16)
    assert 3 <= len(stopped.steps["step"]) < STEPS
    assert slow.run("out", progress=False).check().steps["step"] == list(range(1, STEPS + 1))


def test_a_second_interrupt_kills_ranks_that_do_not_stop(job: Job) -> None:
    stubborn = job.replace(SLOW).replace(
        {"template.env": [*SLOW["template.env"], {"name": "STUB_STUBBORN", "value": "1"}]}
    )
    assert interrupted(stubborn, 2).startswith("interrupted")
    assert not Run("out").complete


def test_an_error_in_a_callback_stops_with_a_checkpoint(job: Job) -> None:
    def breaks(status: Status) -> None:
        if status.progress is not None and status.progress.step >= 3:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        job.replace(SLOW).run("out", progress=False, on_status=breaks)
    assert Run("out").status.phase == "Suspended"


def test_it_runs_within_an_event_loop_as_in_a_notebook(job: Job) -> None:
    async def cell() -> Run:
        return job.run("out", progress=False)

    assert asyncio.run(cell()).complete


def test_metrics_of_a_run_in_progress_are_there(job: Job) -> None:
    steps: list[int] = []

    def look(status: Status) -> None:
        if status.progress is not None:
            steps.append(len(Run("out").steps["step"]))

    job.replace(SLOW).run("out", progress=False, on_status=look)
    assert any(0 < count < STEPS for count in steps)


def test_what_cannot_run_here_is_refused_before_anything_is_written(job: Job, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Ascend needs a cluster"):
        job.replace({"device.type": "Ascend"}).run("out")
    with pytest.raises(UserError, match="is not a run folder"):
        Run(tmp_path)
    assert not Path("out").exists()


def test_two_runs_of_one_folder_exclude_each_other(job: Job) -> None:
    refused: list[str] = []

    def again(status: Status) -> None:
        if not refused:
            with pytest.raises(UserError) as raised:
                job.run("out", progress=False)
            refused.append(str(raised.value))

    assert job.run("out", progress=False, on_status=again).complete
    assert "is in use by another resnetboost run" in refused[0]


def test_ranks_end_with_their_caller(job: Job, tmp_path: Path) -> None:
    """A killed kernel leaves no process behind."""
    code = (
        "import os, sys; from resnetboost import Job\n"
        "def leave(status):\n"
        "    if status.progress: os._exit(3)\n"
        f"Job.load({str(DIGITS)!r}).replace({{**{FAST}, **{SLOW}}}).run('out', progress=False, on_status=leave)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 3
    assert job.replace(SLOW).run("out", progress=False).complete
