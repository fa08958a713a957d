"""THOR statistics of a run, in report and terminal: each curvature update counts once across restarts, per stage."""

from pathlib import Path
from typing import Any

import pytest

from resnetboost_api.status import Status
from resnetboost_operator.cli.view import summary
from resnetboost_operator.cli.view import text as run_text
from resnetboost_operator.runs import cost, report, thor
from resnetboost_operator.runs.runfolder import RunFolder, open_for_run
from support.measuredrun import COMMANDS, attempt, height, measured

pytestmark = pytest.mark.slow

HEADER = (
    "step,step_seconds,damping,thor_update_seconds,layers_updated,layers_kept,layers_stopped,layers_failed,test_loss\n"
)
STAGE = {"algorithm": "THOR", "epochs": 1, "localBatchSize": 8}
JOB: dict[str, Any] = {
    "metadata": {"name": "digits"},
    "spec": {
        "device": {"type": "CPU", "count": 1},
        "model": {"name": "resnet20"},
        "dataset": {"name": "digits"},
        "stages": [{"name": "warm", **STAGE}, {"name": "base", **STAGE}],
    },
}


def rows(first: int, last: int, every: int = 0, stopped: int = 0) -> str:
    """Rows of metrics with steps of 0.1 s; each `every` steps, ten layers' curvature is updated in another 0.05 s.

    The first step of either kind takes 5 s longer, because it compiles.
    """
    lines, known = [], set()
    for step in range(first, last + 1):
        updates = bool(every) and (step - 1) % every == 0
        seconds = 0.1 + 0.05 * updates + 5 * (updates not in known)
        known.add(updates)
        update = f"{0.03 - step / 1000},0.05,6,{3 - stopped},{stopped},1" if updates else ",,,,,"
        lines.append(f"{step},{seconds},{update},\n")
    return "".join(lines)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    found = open_for_run(tmp_path / "run")
    found.enter(JOB)
    found.write_environment({})
    return found


def killed_and_resumed(folder: RunFolder) -> None:
    """A stage without updates, then one that is killed at step 14 and resumes after step 8."""
    attempt(folder, "warm", 0, HEADER + rows(1, 5))
    attempt(folder, "base", 1, HEADER + rows(1, 14, every=5))
    attempt(folder, "base", 2, HEADER + rows(9, 20, every=5, stopped=2))


def test_updates_that_a_restart_repeats_count_once(folder: RunFolder) -> None:
    killed_and_resumed(folder)
    (base,) = thor.by_stage(measured(folder))
    assert base.stage == "base"
    assert (base.steps, base.last_step) == ([6, 11, 16, 21], 25)  # of the run; 5 belong to an earlier stage
    assert base.layers == {
        "updated": [6, 6, 6, 6],
        "kept": [3, 3, 1, 1],
        "stopped": [0, 0, 2, 2],
        "failed": [1, 1, 1, 1],
    }
    assert base.damping == pytest.approx([0.029, 0.024, 0.019, 0.014])


def test_the_cost_is_relative_to_the_stages_steps_without_compilation(folder: RunFolder) -> None:
    killed_and_resumed(folder)
    (base,) = thor.by_stage(measured(folder))
    assert (base.seconds, base.stage_seconds) == pytest.approx((4 * 0.05, 20 * 0.1 + 4 * 0.05))
    assert cost.describe([base]) == "0.2 s, 9.1 % of the steps' time without compiling"
    assert (base.with_seconds, base.without_seconds) == pytest.approx((0.15, 0.1))


def test_a_stage_with_a_single_update_has_a_cost_too(folder: RunFolder) -> None:
    attempt(folder, "base", 0, HEADER + rows(1, 4, every=100))
    (base,) = thor.by_stage(measured(folder))
    assert (base.seconds, base.stage_seconds) == pytest.approx((0.05, 0.45))


def test_each_stage_with_updates_has_its_own(folder: RunFolder) -> None:
    attempt(folder, "warm", 0, HEADER + rows(1, 5, every=2))
    attempt(folder, "base", 1, HEADER + rows(1, 5, every=4))
    assert [(found.stage, found.steps) for found in thor.by_stage(measured(folder))] == [
        ("warm", [1, 3, 5]),
        ("base", [6, 10]),
    ]


@pytest.mark.parametrize("text", [HEADER + rows(1, 5), "step,loss\n1,0.5\n", ""], ids=["empty", "absent", "no step"])
def test_runs_of_other_algorithms_have_no_curvature_section(folder: RunFolder, text: str) -> None:
    attempt(folder, "base", 0, text)
    report.write_report(folder)
    assert thor.by_stage(measured(folder)) == []
    assert "curvature" not in folder.report_html.read_text()
    assert not any("curvature" in line for line in summary.closing_lines(folder, Status(), COMMANDS, 1))


def test_an_update_in_every_step_has_no_relative_cost(folder: RunFolder) -> None:
    attempt(folder, "base", 0, HEADER + rows(1, 3, every=1))
    report.write_report(folder)
    assert "<td>150 ms with an update, – without</td>" in folder.report_html.read_text()


def test_the_report_has_a_summary_and_a_panel(folder: RunFolder) -> None:
    attempt(folder, "warm", 0, HEADER + rows(1, 5))
    report.write_report(folder)
    before = height(folder)
    attempt(folder, "base", 1, HEADER + rows(1, 2000, every=5, stopped=2))
    report.write_report(folder)
    page = folder.report_html.read_text()
    assert height(folder) > 1.3 * before
    assert "<td>Updates</td><td>400</td>" in page
    assert "<td>20.0 s, 9.1 % of the steps&#x27; time without compiling</td>" in page
    assert "<td>2400 of 4000, 60.0 %</td>" in page
    assert "<td>Layers stopped for good</td><td>2 of 10</td>" in page
    assert "<td>Layers that could not be inverted</td><td>400</td>" in page


def test_the_terminal_has_a_line_per_stage(folder: RunFolder) -> None:
    killed_and_resumed(folder)
    (base,) = thor.by_stage(measured(folder))
    told = run_text.SEPARATOR.join(run_text.curvature(base))
    assert (
        told
        == "base: 4 updates · 0.2 s, 9.1 % of the steps' time without compiling · 24 of 40 layers updated · 4 failed"
    )
    assert f"  curvature  {told}" in list(summary.closing_lines(folder, Status(stage="base"), COMMANDS, 1))
