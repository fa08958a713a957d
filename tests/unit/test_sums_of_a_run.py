"""Adasum statistics of a run: gain over a mean, agreement of the summands, cost."""

import math
from pathlib import Path
from typing import Any

import pytest

from resnetboost_api import names
from resnetboost_api.status import Status
from resnetboost_operator.cli.view import summary
from resnetboost_operator.cli.view import text as run_text
from resnetboost_operator.runs import adasum as summing
from resnetboost_operator.runs import cost, report, thor
from resnetboost_operator.runs.runfolder import RunFolder, open_for_run
from resnetboost_operator.validation import schema
from support.measuredrun import COMMANDS, attempt, height, measured

pytestmark = pytest.mark.slow

HEADER = (
    "step,step_seconds,layers_updated,thor_update_seconds,adasum_cosine,adasum_cosine_min,adasum_gain,adasum_seconds\n"
)
FIELDS = {"epochs": 1, "localBatchSize": 8}
WARM = {"name": "warm", "algorithm": "Momentum", **FIELDS}
BASE = {"name": "base", "algorithm": "Adasum", **FIELDS}


def job(*stages: dict[str, Any], **device: int) -> dict[str, Any]:
    spec = {
        "device": {"count": 4, "perNode": 2, **device},
        "model": {"name": "resnet20", "numClasses": 10},
        "dataset": {"name": "digits"},
        "checkpoint": {"claimName": "data"},
        "stages": list(stages),
    }
    obj = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "digits"}, "spec": spec}
    assert schema.check(obj) == []
    return schema.defaulted(obj)


def rows(first: int, last: int, gain: float | str = 1.5, cosine: float = 0.25, thor_every: int = 0) -> str:
    """Rows of metrics with steps of 0.1 s, 0.01 s of it in the sum, and 0.05 s more where THOR updates the curvature.

    The first step of either kind takes 5 s longer, 2 s of it in the sum: this rank or another compiles.
    """
    lines, known = [], set()
    for step in range(first, last + 1):
        updates = bool(thor_every) and (step - 1) % thor_every == 0
        compiles = updates not in known
        known.add(updates)
        seconds, update = 0.1 + 0.05 * updates + 5 * compiles, "6,0.05" if updates else ","
        lines.append(f"{step},{seconds},{update},{cosine},{cosine - step % 10 / 20},{gain},{0.01 + 2 * compiles}\n")
    return "".join(lines)


def plain(last: int) -> str:
    """Rows of an algorithm without adaptive sums."""
    return HEADER + "".join(f"{step},0.1,,,,,,\n" for step in range(1, last + 1))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    found = open_for_run(tmp_path / "run")
    found.enter(job(WARM, BASE))
    found.write_environment({})
    return found


def sums(folder: RunFolder) -> list[summing.Sums]:
    return summing.by_stage(measured(folder), folder.read_job())


def killed_and_resumed(folder: RunFolder) -> None:
    """A stage without sums, then one that is killed at step 14 and resumes after step 8."""
    attempt(folder, "warm", 0, plain(5))
    attempt(folder, "base", 1, HEADER + rows(1, 14, gain=1.2, cosine=0.1))
    attempt(folder, "base", 2, HEADER + rows(9, 20, gain=1.7, cosine=0.2))


def test_sums_that_a_restart_repeats_count_once(folder: RunFolder) -> None:
    killed_and_resumed(folder)
    (base,) = sums(folder)
    assert (base.stage, base.steps, base.summands) == ("base", 20, 2)
    assert base.gain == pytest.approx((8 * 1.2 + 12 * 1.7) / 20)
    assert base.cosine == pytest.approx((8 * 0.1 + 12 * 0.2) / 20)
    assert base.least_cosine == pytest.approx(0.1 - 0.4)


@pytest.mark.parametrize("thor_every", [0, 5], ids=["alone", "with THOR"])
def test_the_cost_is_relative_to_the_stages_steps_without_compilation(folder: RunFolder, thor_every: int) -> None:
    attempt(folder, "warm", 0, plain(5))
    attempt(folder, "base", 1, HEADER + rows(1, 20, thor_every=thor_every))
    (base,) = sums(folder)
    updates = 4 if thor_every else 0
    assert (base.seconds, base.stage_seconds) == pytest.approx((20 * 0.01, 20 * 0.1 + updates * 0.05))
    assert len(thor.by_stage(measured(folder))) == bool(thor_every)


@pytest.mark.parametrize(
    ("device", "adasum", "summands"),
    [
        ({"count": 8, "perNode": 2}, None, 4),
        ({"count": 8, "perNode": 2}, {"reduce": "Gradient"}, 4),
        ({"count": 8, "perNode": 8}, {"topology": "Flat"}, 8),
        ({"count": 3, "perNode": 1}, {"topology": "Hierarchical"}, 3),
    ],
    ids=["no settings", "other settings", "flat", "one rank a node"],
)
def test_there_are_as_many_summands_as_nodes_or_ranks(
    tmp_path: Path, device: dict[str, int], adasum: dict[str, str] | None, summands: int
) -> None:
    folder = open_for_run(tmp_path / "run")
    folder.enter(job({**BASE, **({"adasum": adasum} if adasum else {})}, **device))
    attempt(folder, "base", 0, HEADER + rows(1, 3))
    assert [found.summands for found in sums(folder)] == [summands]


def test_a_stage_of_its_own_size_has_summands_of_its_own_number(tmp_path: Path) -> None:
    folder = open_for_run(tmp_path / "run")
    folder.enter(job({**WARM, "algorithm": "Adasum", "deviceCount": 4}, BASE, count=8))
    attempt(folder, "warm", 0, HEADER + rows(1, 3))
    attempt(folder, "base", 1, HEADER + rows(1, 3))
    assert [(found.stage, found.summands) for found in sums(folder)] == [("warm", 2), ("base", 4)]


def test_each_stage_with_sums_has_its_own(tmp_path: Path) -> None:
    folder = open_for_run(tmp_path / "run")
    folder.enter(job({**WARM, "algorithm": "Adasum", "adasum": {"topology": "Flat"}}, BASE))
    attempt(folder, "warm", 0, HEADER + rows(1, 5, gain=3))
    attempt(folder, "base", 1, HEADER + rows(1, 4, gain=1.5))
    assert [(found.stage, found.steps, found.summands, found.gain) for found in sums(folder)] == [
        ("warm", 5, 4, 3),
        ("base", 4, 2, 1.5),
    ]


def test_opposite_summands_have_no_gain(folder: RunFolder) -> None:
    attempt(folder, "base", 0, HEADER + rows(1, 5, gain=1.5) + rows(6, 6, gain="inf").replace("5.1", "0.1"))
    (base,) = sums(folder)
    assert (base.steps, base.gain) == (6, 1.5)
    report.write_report(folder)
    assert folder.report_png.exists()


def test_a_run_of_a_single_step(folder: RunFolder) -> None:
    attempt(folder, "base", 0, HEADER + rows(1, 1, gain="inf"))
    (base,) = sums(folder)
    assert math.isnan(base.gain)
    assert cost.describe([base]) == "0 s, 0.0 % of the steps' time without compiling"
    report.write_report(folder)
    assert folder.report_png.exists()


@pytest.mark.parametrize("text", [plain(5), "step,loss\n1,0.5\n", ""], ids=["empty", "absent", "no step"])
def test_runs_of_other_algorithms_have_no_adasum_section(folder: RunFolder, text: str) -> None:
    attempt(folder, "warm", 0, text)
    report.write_report(folder)
    assert sums(folder) == []
    assert "Adaptive sums" not in folder.report_html.read_text()
    assert not any("Adasum" in line for line in summary.closing_lines(folder, Status(), COMMANDS, 1))


def test_the_report_has_a_summary_and_panels(folder: RunFolder) -> None:
    attempt(folder, "warm", 0, plain(5))
    report.write_report(folder)
    heights = [height(folder)]
    attempt(folder, "base", 1, HEADER + rows(1, 2000))
    report.write_report(folder)
    heights.append(height(folder))
    page = folder.report_html.read_text()
    assert 'alt="loss, accuracy, step time and adaptive sums over steps"' in page
    assert "<td>Sums</td><td>2000 of 2 summands</td>" in page
    assert "<td>20.0 s, 10.0 % of the steps&#x27; time without compiling</td>" in page
    assert "<td>1.5; 1 if all agree, 2 if they are independent</td>" in page
    assert "<td>0.25; -0.2 at least, of one tensor in one step</td>" in page
    attempt(folder, "base", 2, HEADER + rows(2001, 4000, thor_every=5))
    report.write_report(folder)
    heights.append(height(folder))
    assert 'alt="loss, accuracy, step time, curvature and adaptive sums over steps"' in folder.report_html.read_text()
    assert heights[1] - heights[0] == pytest.approx(heights[2] - heights[1], abs=2)
    assert heights[1] > 1.3 * heights[0]


def test_the_terminal_has_a_line_per_stage(folder: RunFolder) -> None:
    killed_and_resumed(folder)
    (base,) = sums(folder)
    told = run_text.SEPARATOR.join(run_text.sums(base))
    assert told == "base: gain 1.5 of 2 · cosine 0.16, least -0.3 · 0.2 s, 10.0 % of the steps' time without compiling"
    assert f"  Adasum     {told}" in list(summary.closing_lines(folder, Status(stage="base"), COMMANDS, 1))
