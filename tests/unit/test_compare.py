"""`resnetboost compare` on made-up run folders: table, targets, differing settings, picture, bad input."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from resnetboost_operator.cli.main import main
from resnetboost_operator.runs import comparison, metricsfile
from resnetboost_operator.runs.comparison import Reached
from resnetboost_operator.runs.runfolder import RunFolder, open_for_run
from resnetboost_operator.validation import jobfile, schema

pytestmark = pytest.mark.slow  # pictures

EXAMPLES = Path(__file__).parents[2] / "examples"
PER_EPOCH = 10
HEADER = "step,epoch,loss,step_seconds,top1\n"


def row(step: int, seconds: float, top1: float | str) -> str:
    """The first step compiles."""
    return f"{step},{step / PER_EPOCH},{1 / step},{60.0 if step == 1 else seconds},{top1}\n"


def run(folder: Path, example: str, accuracies: list[float], seconds: float, **stage: Any) -> RunFolder:
    """A run folder; one evaluation at the end of each epoch."""
    found = open_for_run(folder)
    job = schema.defaulted(jobfile.load(EXAMPLES / f"{example}.yaml"))
    job["spec"]["stages"][0] |= stage
    job = found.enter(job)
    own = found.checkpoints / job["metadata"]["uid"] / job["spec"]["stages"][0]["name"] / "attempt-0"
    own.mkdir(parents=True)
    steps = range(1, PER_EPOCH * len(accuracies) + 1)
    rows = [row(step, seconds, accuracies[step // PER_EPOCH - 1] if step % PER_EPOCH == 0 else "") for step in steps]
    (own / "metrics.csv").write_text(HEADER + "".join(rows))
    return found


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    run(tmp_path / "runs" / "plain", "digits", [0.4, 0.7, 0.91, 0.96], 0.1)
    run(tmp_path / "runs" / "thor", "digits-thor", [0.7, 0.955, 0.95], 0.15)
    return tmp_path


def compare(*words: str) -> Result:
    return CliRunner().invoke(main, ["compare", *words])


def test_nothing_is_written_into_a_run_folder(two: Path) -> None:
    assert compare("plain", "thor").exit_code == 0
    for name in ("plain", "thor"):
        assert {path.name for path in (two / "runs" / name).iterdir()} == {"job.yaml", "checkpoints"}


def test_a_run_without_its_checkpoints_is_read_from_its_merged_metrics(two: Path) -> None:
    folder = RunFolder(two / "runs" / "plain")
    before = comparison.read(folder, "plain")
    metricsfile.merge(folder)
    shutil.rmtree(folder.checkpoints)
    assert comparison.read(folder, "plain").tests == before.tests


def test_epochs_and_seconds_to_an_accuracy(two: Path) -> None:
    plain = comparison.read(RunFolder(two / "runs" / "plain"), "plain")
    assert (plain.best, plain.last, plain.step_seconds) == (0.96, 0.96, 0.1)
    assert parts(plain.reached(0.9)) == pytest.approx((3.0, 30 * 0.1)), "the step that compiles counts like the others"
    assert plain.reached(0.97) is None
    thor = comparison.read(RunFolder(two / "runs" / "thor"), "thor")
    assert (thor.best, thor.last) == (0.955, 0.95)
    assert parts(thor.reached(0.95)) == pytest.approx((2.0, 20 * 0.15))


def parts(found: Reached | None) -> tuple[float, float]:
    assert found is not None
    return found.epochs, found.seconds


def test_the_table_the_picture_and_json(two: Path) -> None:
    done = compare("plain", "runs/thor", "--target", "0.95", "--target", "0.5")
    assert done.exit_code == 0, done.output
    lines = {line.split("  ")[0]: line.split()[-2:] for line in done.output.splitlines() if line.strip()}
    assert lines["algorithm"] == ["Momentum", "THOR"]
    assert lines["epochs to 95.0 %"] == ["4", "2"] and lines["seconds to 50.0 %"] == ["2", "1.5"]
    assert lines["stages[0].algorithm"] == ["Momentum", "THOR"]
    assert (two / "compare.png").read_bytes().startswith(b"\x89PNG")
    told = json.loads(compare("plain", "thor", "-o", "json", "--out", "c.svg").output)
    assert [one["reached"]["0.95"]["epochs"] for one in told["runs"]] == [4.0, 2.0]
    assert told["settings"]["stages[0].algorithm"] == ["Momentum", "THOR"]
    assert b"THOR" in (two / "c.svg").read_bytes() or b"<svg" in (two / "c.svg").read_bytes()


def test_targets_are_the_highest_that_were_reached(two: Path) -> None:
    runs = [comparison.read(RunFolder(two / "runs" / name), name) for name in ("plain", "thor")]
    assert comparison.targets(runs) == [0.85, 0.9, 0.95]
    assert comparison.targets(runs, [0.9, 0.1, 0.9]) == [0.1, 0.9]


def test_equal_runs_differ_in_nothing(two: Path) -> None:
    one = comparison.read(RunFolder(two / "runs" / "plain"), "one")
    assert comparison.differing([one, one]) == []


def test_epochs_count_over_stages(tmp_path: Path) -> None:
    found = open_for_run(tmp_path / "staged")
    job = found.enter(schema.defaulted(jobfile.load(EXAMPLES / "digits-two-stage.yaml")))
    for stage in job["spec"]["stages"]:
        own = found.checkpoints / job["metadata"]["uid"] / stage["name"] / "attempt-0"
        own.mkdir(parents=True)
        (own / "metrics.csv").write_text(HEADER + "".join(row(step, 0.1, 0.5) for step in range(1, 21)))
    whole = comparison.read(found, "staged")
    assert (whole.epochs[19], whole.epochs[20], whole.epochs[-1]) == (2.0, 2.1, 4.0)
    assert len(whole.algorithms) == 2 and whole.seconds[-1] == pytest.approx(40 * 0.1)


def test_runs_of_the_same_name_are_told_apart(two: Path) -> None:
    run(two / "elsewhere" / "plain", "digits", [0.3], 0.1)
    told = json.loads(compare("plain", "elsewhere/plain", "-o", "json").output)
    assert [one["name"] for one in told["runs"]] == ["runs/plain", "elsewhere/plain"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing"], "there is no run nothing; runs holds empty, plain, thor"),
        (["plain", "--out", "table.docx"], "has none of the extensions .png"),
        (["empty", "plain"], "empty has no finished step yet"),
        (["plain"] * 15, "15 runs are more than a picture can show"),
    ],
)
def test_bad_input_is_one_sentence(two: Path, words: list[str], said: str) -> None:
    found = open_for_run(two / "runs" / "empty")
    found.enter(schema.defaulted(jobfile.load(EXAMPLES / "digits.yaml")))
    done = compare(*words)
    assert done.exit_code == 10 and said in done.output, done.output
    assert done.output.count("\n") == 1
    assert not (two / "compare.png").exists()


def test_hostile_names_stay_text(two: Path) -> None:
    run(two / "runs" / "_$x$[red]", "digits", [0.3], 0.1)
    done = compare("runs/_$x$[red]", "plain")
    assert done.exit_code == 0 and "[red]" in done.output
