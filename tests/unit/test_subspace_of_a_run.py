"""PCA statistics of a run: accepted and rejected steps, share of the gradient in the subspace, cost."""

from pathlib import Path
from typing import Any

import pytest

from resnetboost_api import names
from resnetboost_api.status import Status
from resnetboost_operator.cli.view import summary
from resnetboost_operator.cli.view import text as run_text
from resnetboost_operator.runs import pca, report
from resnetboost_operator.runs.runfolder import RunFolder, open_for_run
from resnetboost_operator.validation import schema
from support.measuredrun import COMMANDS, attempt, height, measured

pytestmark = pytest.mark.slow

HEADER = (
    "step,step_seconds,pca_explained_variance,pca_step_length,pca_evaluations,pca_gradient_share,pca_seconds,top1\n"
)
FIELDS = {"epochs": 10, "localBatchSize": 8}
BASE = {"name": "base", "algorithm": "Momentum", "snapshots": {"everyEpochs": 0.25}, **FIELDS}
FINE = {"name": "fine", "algorithm": "PCA", "deviceCount": 1, **FIELDS}


def job() -> dict[str, Any]:
    spec = {
        "device": {"count": 2},
        "model": {"name": "resnet20", "numClasses": 10},
        "dataset": {"name": "digits"},
        "checkpoint": {"claimName": "data"},
        "stages": [BASE, FINE],
    }
    obj = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "digits"}, "spec": spec}
    assert schema.check(obj) == []
    return schema.defaulted(obj)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    found = open_for_run(tmp_path / "run")
    found.enter(job())
    found.write_environment({})
    attempt(found, "base", 0, HEADER + "".join(f"{step},0.1,,,,,,\n" for step in range(1, 6)))
    return found


def rows(first: int, last: int) -> str:
    """Rows of metrics with steps of 0.1 s, 0.04 s of it in the subspace; the first takes 5 s longer in both to compile.

    Every tenth step is rejected after 20 trials, and every other fifth is accepted at the third.
    """
    lines = []
    for step in range(first, last + 1):
        length, trials = (0, 20) if step % 10 == 0 else (0.3025, 3) if step % 5 == 0 else (1, 1)
        more = 5 * (step == first)
        lines.append(f"{step},{0.1 + more},0.75,{length},{trials},{0.6 - 0.005 * step},{0.04 + more},\n")
    return "".join(lines)


def by_sgd(last: int) -> str:
    """Rows of P-SGD: full steps without a line search."""
    return HEADER + "".join(f"{step},0.1,0.75,1.0,0,0.5,0.01,\n" for step in range(1, last + 1))


def fine(folder: RunFolder) -> pca.Descent:
    (found,) = pca.by_stage(measured(folder))
    return found


def killed_and_resumed(folder: RunFolder) -> None:
    """A stage that is killed at step 34 and resumes after step 20."""
    attempt(folder, "fine", 1, HEADER + rows(1, 34))
    attempt(folder, "fine", 2, HEADER + rows(21, 100))


def test_steps_count_once_by_how_their_line_search_ended(folder: RunFolder) -> None:
    killed_and_resumed(folder)
    found = fine(folder)
    assert (found.stage, found.steps, found.searched) == ("fine", 100, 100)
    assert (found.full, found.shortened, found.rejected) == (80, 10, 10)
    assert found.evaluations == pytest.approx((80 * 1 + 10 * 3 + 10 * 20) / 100)
    assert found.explained_variance == 0.75


def test_the_gradients_share_is_reported_over_time(folder: RunFolder) -> None:
    killed_and_resumed(folder)
    found = fine(folder)
    told = (found.gradient_share, found.first_gradient_share, found.last_gradient_share)
    assert told == pytest.approx((0.6 - 0.005 * 50.5, 0.6 - 0.005 * 5.5, 0.6 - 0.005 * 95.5))


def test_the_cost_is_relative_to_the_stages_steps_without_compilation(folder: RunFolder) -> None:
    killed_and_resumed(folder)
    assert (fine(folder).seconds, fine(folder).stage_seconds) == pytest.approx((100 * 0.04, 100 * 0.1))


def test_steps_of_sgd_have_no_line_search(folder: RunFolder) -> None:
    attempt(folder, "fine", 1, by_sgd(30))
    assert (fine(folder).steps, fine(folder).searched) == (30, 0)
    report.write_report(folder)
    assert "<td>Whole steps</td><td>–</td>" in folder.report_html.read_text()
    assert not any("steps 0 whole" in phrase for phrase in run_text.subspace(fine(folder)))


def test_a_run_of_a_single_step(folder: RunFolder) -> None:
    attempt(folder, "fine", 1, HEADER + rows(10, 10))
    assert fine(folder).rejected == 1
    assert fine(folder).gradient_share == pytest.approx(0.55)
    report.write_report(folder)
    assert folder.report_png.exists()


@pytest.mark.parametrize("text", ["step,loss\n1,0.5\n", HEADER, ""], ids=["absent", "no step", "empty"])
def test_runs_of_other_algorithms_have_no_subspace_section(folder: RunFolder, text: str) -> None:
    attempt(folder, "fine", 1, text)
    report.write_report(folder)
    assert pca.by_stage(measured(folder)) == []
    assert "subspace" not in folder.report_html.read_text()
    assert not any(line.startswith("  PCA") for line in summary.closing_lines(folder, Status(), COMMANDS, 1))


def test_the_report_has_a_summary_and_a_panel(folder: RunFolder) -> None:
    report.write_report(folder)
    before = height(folder)
    killed_and_resumed(folder)
    report.write_report(folder)
    page = folder.report_html.read_text()
    assert height(folder) > 1.3 * before
    assert 'alt="loss, accuracy, step time and subspace over steps"' in page
    assert "digits: resnet20 on digits, 1/2 CPU ranks" in page
    for row in (
        "<td>Steps</td><td>100</td>",
        "<td>4 s, 40.0 % of the steps&#x27; time without compiling</td>",
        "<td>Variance explained</td><td>75.0 %</td>",
        "<td>Whole steps</td><td>80, 80.0 %</td>",
        "<td>Shortened steps</td><td>10, 10.0 %</td>",
        "<td>Rejected steps</td><td>10, 10.0 %</td>",
        "<td>Evaluations of the loss in a step, mean</td><td>3.1</td>",
        "<td>34.7 % in the mean; 57.2 % at first, 12.2 % at last</td>",
    ):
        assert row in page


def test_the_terminal_has_a_line_per_stage(folder: RunFolder) -> None:
    killed_and_resumed(folder)
    told = run_text.SEPARATOR.join(run_text.subspace(fine(folder)))
    assert told == (
        "fine: 75.0 % of the variance explained · steps 80 whole, 10 shortened, 10 rejected · gradient share 34.7 % · "
        "4 s, 40.0 % of the steps' time without compiling"
    )
    assert f"  PCA        {told}" in list(summary.closing_lines(folder, Status(stage="fine"), COMMANDS, 1))
