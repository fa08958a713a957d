"""`resnetboost status` of local runs: found without a cluster, shown as they are, in any encoding."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from resnetboost_api.status import Attempt, Condition, Goodput, Loss, Progress, StageStatus, Status
from resnetboost_operator.cli import job_file
from resnetboost_operator.cli.main import main
from resnetboost_operator.kubeclient import connection
from resnetboost_operator.runs.runfolder import RunFolder, open_for_run
from resnetboost_operator.validation import jobfile, schema

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.yaml"
RESNETBOOST = str(Path(sys.executable).with_name("resnetboost"))
PROGRESS = Progress(stage="base", step=264, total_steps=440, epoch=12.0, total_epochs=20, loss=0.5, eta_seconds=42)
RUNNING = Status(
    phase="Running",
    stage="base",
    start_time="2026-01-01T00:00:00Z",
    stages=(StageStatus("base", state="Running", attempts=1),),
    progress=PROGRESS,
)
COMPLETE = Status(
    phase="Complete",
    stage="base",
    conditions=(Condition("Complete", "True", "StagesComplete", "", ""),),
    start_time="2026-01-01T00:00:00Z",
    completion_time="2026-01-01T00:01:12Z",
    stages=(StageStatus("base", state="Complete", attempts=1, top1=0.978),),
)
SAID = "attempt 0: rank 0 ended with DataError: no such file; a restart would end the same way"
FAILED = Status(
    phase="Failed",
    stage="base",
    conditions=(Condition("Failed", "True", "DataError", SAID, ""),),
    stages=(StageStatus("base", state="Failed", attempts=1),),
    progress=PROGRESS,
    attempts=(Attempt(0, "base", "DataError", "2026-01-01T00:00:20Z", exit_code=11, rank=0, message="no such file"),),
)


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without runs, and no kubeconfig."""
    for variable in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(connection, "_DEFAULT_KUBECONFIG", tmp_path / "no" / "config")
    monkeypatch.chdir(tmp_path)


def begin(name: str, status: Status, **dataset: Any) -> RunFolder:
    folder = open_for_run(Path("runs") / name)
    job = schema.defaulted(jobfile.load(EXAMPLE))
    folder.enter({**job, "spec": {**job["spec"], "dataset": {**job["spec"]["dataset"], **dataset}}})
    folder.write_status(status)
    return folder


def status(*words: str) -> Result:
    return CliRunner().invoke(main, ["status", *words])


def test_without_a_name_the_runs_of_this_folder_are_listed() -> None:
    begin("digits", COMPLETE)
    begin("broken", FAILED)
    (Path("runs") / "not-a-run").mkdir()
    result = status()
    assert (result.exit_code, result.stderr) == (0, "")
    _, broken, digits = result.stdout.splitlines()  # sorted by name, as both have finished
    assert digits.split()[:3] == ["runs/digits", "Complete", "base"] and "97.8 %" in digits
    assert broken.split()[:3] == ["runs/broken", "Failed", "base"] and broken.endswith(SAID)


def test_a_folder_that_cannot_be_read_does_not_hide_the_others() -> None:
    begin("digits", COMPLETE)
    folder = begin("broken", FAILED)
    folder.status_file.unlink()
    folder.status_file.mkdir()
    result = status()
    assert result.exit_code == 0 and "runs/digits" in result.stdout
    sentence = "runs/broken cannot be read: Is a directory (runs/broken/status.yaml); check who may read it"
    assert result.stderr == f"resnetboost: {sentence}\n"


def test_a_run_whose_lock_cannot_be_read_is_shown_as_it_says() -> None:
    folder = begin("digits", RUNNING)
    (folder.path / ".lock").mkdir()
    assert folder.in_use() is None
    assert "Running" in status().stdout and "nothing runs it" not in status().stdout
    assert "digits in runs/digits: Running, or nothing runs it: its lock cannot be read" in status("digits").stdout


def test_a_run_without_a_process_is_not_running() -> None:
    folder = begin("digits", RUNNING)
    assert "nothing runs it: run it again to resume" in status().stdout
    assert "ETA 0:42" not in status("digits").stdout
    with folder.locked():
        assert "nothing runs it" not in status().stdout
        assert "ETA 0:42" in status("runs/digits").stdout


@pytest.mark.parametrize("name", ["digits", "runs/digits", "./runs/digits"])
def test_a_run_is_found_by_its_name_without_a_kubeconfig(name: str) -> None:
    begin("digits", COMPLETE)
    result = status(name)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("digits in runs/digits: Complete\n")
    assert "active     1:12" in result.stdout


@pytest.mark.parametrize(
    "conditions", [(), (Condition("Suspended", "True", "Suspended", "", ""),)], ids=["dead", "stopped"]
)
def test_a_run_that_can_go_on_has_the_command_for_it(conditions: tuple[Condition, ...]) -> None:
    folder = begin("digits", msgspec.structs.replace(RUNNING, conditions=conditions))
    command = "resnetboost run runs/digits/job.yaml --out runs/digits"
    assert status("digits").stdout.endswith(f"  resume     {command}\n")
    kept = folder.read_job()
    assert folder.enter(job_file.load(folder.job_file)) == kept, "its own job file resumes it"
    folder.write_status(COMPLETE)
    assert "resume" not in status("digits").stdout


def test_a_run_without_a_restart_has_no_goodput() -> None:
    found = Goodput(percent=18, attempt_seconds=50, productive_seconds=9, lost=(Loss("Overhead", 41),))
    folder = begin("digits", msgspec.structs.replace(COMPLETE, goodput=found))
    assert "goodput" not in status("digits").stdout
    folder.write_status(msgspec.structs.replace(COMPLETE, goodput=found, restarts=1))
    assert "goodput    18 % · lost 82 %: overhead 82 %" in status("digits").stdout


def test_a_report_is_drawn_again_by_the_runs_name() -> None:
    folder = begin("digits", COMPLETE)
    result = CliRunner().invoke(main, ["report", "digits"])
    assert (result.exit_code, result.stdout) == (0, f"{folder.report_html}\n"), result.stderr
    refused = CliRunner().invoke(main, ["report", "digit"])
    assert (refused.exit_code, refused.stderr) == (10, "resnetboost: there is no run digit; runs holds digits\n")


def test_a_run_is_found_from_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    begin("digits", COMPLETE)
    monkeypatch.chdir("runs")
    assert status("digits").stdout.startswith("digits in digits: Complete\n")


def test_a_failed_run_has_a_reason_and_no_end_time() -> None:
    begin("digits", FAILED)
    told = status("digits").stdout
    assert f"  why        {SAID}\n" in told
    assert "ETA" not in told


def test_a_sweep_that_is_not_there_is_said_to_be_missing_from_the_folder() -> None:
    where = "change to the folder that you ran `resnetboost sweep` in"
    refused = status("--sweep", "digits")
    says = f"--sweep: there is no sweep digits in sweeps, and there is no kubeconfig; {where}, or set KUBECONFIG"
    assert (refused.exit_code, refused.stderr) == (10, f"resnetboost: {says}\n")
    assert f"there is no sweep b in a; correct the path, or {where}" in status("--sweep", "a/b").stderr


@pytest.mark.parametrize(("words", "missing"), [((), "no run in the folder runs"), (("mine",), "no run runs/mine")])
def test_a_missing_name_mentions_folder_and_cluster(words: tuple[str, ...], missing: str) -> None:
    result = status(*words)
    assert result.stderr.startswith(f"resnetboost: there is {missing} here, and there is no kubeconfig ")
    assert (result.exit_code, len(result.stderr.splitlines())) == (10, 1)


def test_a_finished_run_is_not_followed() -> None:
    begin("digits", COMPLETE)
    begin("broken", FAILED)
    begin("dead", RUNNING)
    found = [status(f"runs/{name}", "-w") for name in ("digits", "broken", "dead")]
    assert [result.exit_code for result in found] == [0, 1, 1]
    assert all("in runs/" in result.stdout for result in found)
    assert "name it: resnetboost status runs/broken -w" in status("-w").stderr


def test_a_damaged_run_does_not_hide_the_others() -> None:
    begin("digits", COMPLETE)
    begin("spoiled", COMPLETE).job_file.write_text("[")
    result = status()
    assert "runs/digits" in result.stdout
    assert result.stderr.startswith("resnetboost: runs/spoiled/job.yaml is damaged")


OFF = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}


@pytest.mark.slow
def test_without_utf_8_a_setting_is_still_in_utf_8(tmp_path: Path) -> None:
    setting = "dataset={name: npz, path: /data/Bücher}"
    command = [RESNETBOOST, "plan", str(EXAMPLE), "--set", setting, "--set", "checkpoint.claimName=kept"]
    told = subprocess.run(command, env={**os.environ, **OFF}, capture_output=True, check=False)
    assert (told.returncode, told.stderr) == (0, b"")
    assert rb"/data/B\xFCcher" in told.stdout  # the name escaped as in the YAML config of a pod


@pytest.mark.slow
def test_without_utf_8_nothing_is_called_damaged_and_all_can_be_read() -> None:
    """Python's UTF-8 mode and its coercion of the C locale are off."""
    begin("digits", COMPLETE, path="/data/Bücher")
    for words in ((), ("runs/digits",)):
        environment = {**os.environ, **OFF}
        told = subprocess.run([RESNETBOOST, "status", *words], env=environment, capture_output=True, check=False)
        assert (told.returncode, told.stderr) == (0, b"")
        assert b"97.8 %" in told.stdout
        assert told.stdout.isascii() and b"?" not in told.stdout
    assert b"Complete - top-1 97.8 %" in told.stdout
