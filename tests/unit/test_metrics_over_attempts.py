"""metrics.csv over several attempts: each step once, from the last attempt that made it, despite killed ranks."""

from pathlib import Path
from typing import Any

from resnetboost_operator.runs import metricsfile
from resnetboost_operator.runs.runfolder import RunFolder, open_for_run

JOB: dict[str, Any] = {
    "metadata": {"name": "digits"},
    "spec": {
        "device": {"type": "CPU", "count": 2},
        "model": {"name": "resnet20"},
        "dataset": {"name": "digits"},
        "stages": [{"name": "base"}, {"name": "boost"}],
    },
}
HEADER = "step,loss,top1\n"


def begun(path: Path) -> tuple[RunFolder, Path]:
    folder = open_for_run(path)
    job = folder.enter(JOB)
    return folder, folder.checkpoints / job["metadata"]["uid"]


def attempt(root: Path, stage: str, number: int, text: str) -> None:
    place = root / stage / f"attempt-{number}"
    place.mkdir(parents=True)
    (place / "metrics.csv").write_text(text)


def test_a_later_attempt_replaces_the_same_and_all_later_steps(tmp_path: Path) -> None:
    folder, root = begun(tmp_path)
    attempt(root, "base", 0, HEADER + "1,1.0,\n2,0.9,\n3,0.8,\n4,0.7,\n")
    attempt(root, "base", 1, HEADER + "3,0.81,\n")
    metricsfile.merge(folder)
    assert folder.metrics_file.read_text() == (
        "stage,attempt,step,loss,top1\nbase,0,1,1.0,\nbase,0,2,0.9,\nbase,1,3,0.81,\n"
    )


def test_an_attempt_that_only_evaluates_the_last_step_again_keeps_what_was_measured_in_it(tmp_path: Path) -> None:
    folder, root = begun(tmp_path)
    attempt(root, "base", 0, HEADER + "1,1.0,\n2,0.9,\n")
    attempt(root, "base", 1, HEADER + "2,,0.8\n")
    attempt(root, "boost", 2, HEADER + "2,,0.7\n")
    metricsfile.merge(folder)
    lines = folder.metrics_file.read_text().splitlines()[1:]
    assert lines == ["base,0,1,1.0,", "base,0,2,0.9,0.8", "boost,2,2,,0.7"], "the second stage took over a checkpoint"


def test_attempts_are_ordered_by_number_and_stages_as_in_the_job(tmp_path: Path) -> None:
    folder, root = begun(tmp_path)
    attempt(root, "boost", 11, HEADER + "1,0.5,0.9\n")
    attempt(root, "base", 10, HEADER + "2,0.7,\n")
    attempt(root, "base", 9, HEADER + "1,1.0,\n2,0.8,\n")
    metricsfile.merge(folder)
    lines = folder.metrics_file.read_text().splitlines()[1:]
    assert lines == ["base,9,1,1.0,", "base,10,2,0.7,", "boost,11,1,0.5,0.9"]


def test_a_column_that_only_a_later_attempt_has_is_kept(tmp_path: Path) -> None:
    folder, root = begun(tmp_path)
    attempt(root, "base", 0, "step,loss\n1,1.0\n")
    attempt(root, "base", 1, "step,loss,damping\n2,0.9,0.03\n")
    metricsfile.merge(folder)
    assert folder.metrics_file.read_text() == "stage,attempt,step,loss,damping\nbase,0,1,1.0,\nbase,1,2,0.9,0.03\n"


def test_a_half_written_line_is_skipped(tmp_path: Path) -> None:
    folder, root = begun(tmp_path)
    attempt(root, "base", 0, HEADER + "1,1.0,\n2,0.")
    metricsfile.merge(folder)
    assert folder.metrics_file.read_text().splitlines()[1:] == ["base,0,1,1.0,"]


def test_an_attempt_that_made_no_step_changes_nothing(tmp_path: Path) -> None:
    folder, root = begun(tmp_path)
    attempt(root, "base", 0, HEADER + "1,1.0,\n")
    attempt(root, "base", 1, HEADER)
    attempt(root, "base", 2, "")
    metricsfile.merge(folder)
    assert folder.metrics_file.read_text().splitlines()[1:] == ["base,0,1,1.0,"]


def test_a_run_without_any_step_has_no_metrics_file(tmp_path: Path) -> None:
    folder, _ = begun(tmp_path)
    metricsfile.merge(folder)
    assert not folder.metrics_file.exists()


def test_curves_count_steps_over_all_stages_and_keep_gaps(tmp_path: Path) -> None:
    folder, root = begun(tmp_path)
    attempt(root, "base", 0, HEADER + "1,1.0,\n2,nan,0.5\n")
    attempt(root, "boost", 1, HEADER + "1,0.5,x\n")
    metricsfile.merge(folder)
    found = metricsfile.read(folder.metrics_file)
    assert list(found.steps) == [1, 2, 3]
    assert (found.stages, found.attempts) == (["base", "base", "boost"], [0, 0, 1])
    assert [value == value for value in found.column("top1")] == [False, True, False]
    assert [value == value for value in found.column("unheard of")] == [False, False, False]
