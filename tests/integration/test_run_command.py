"""`resnetboost run` end to end: a real runner and real processes, with a stub trainer."""

import csv
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from resnetboost_trainer.launcher.state import UNANSWERED_SECONDS
from support import stubtrainer

ROOT = Path(__file__).parents[2]
RESNETBOOST = str(Path(sys.executable).with_name("resnetboost"))
JOB = ROOT / "examples" / "digits.yaml"
SETTINGS = ("failurePolicy.backoffSeconds=0", "stages[0].epochs=2")


class Runner:
    """The command line with a stub for the trainer, and one run folder."""

    def __init__(self, tmp_path: Path) -> None:
        stub = stubtrainer.install(tmp_path)
        self.folder = tmp_path / "run"
        self.environment = {**os.environ, "PYTHONPATH": str(stub), "PYTHONWARNINGS": "ignore"}

    def command(self, *settings: str, options: tuple[str, ...] = (), stub: str = "") -> list[str]:
        words = [RESNETBOOST, "run", str(JOB), "--out", str(self.folder), *options]
        for setting in (*SETTINGS, *settings):
            words += ["--set", setting]
        return words + (["--set", f"template.env=[{stub}]"] if stub else [])

    def run(self, *settings: str, **more: Any) -> subprocess.CompletedProcess[str]:
        command = self.command(*settings, **more)
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60, check=False)

    def start(self, *settings: str, **more: Any) -> subprocess.Popen[str]:
        """Start a run that takes a while."""
        pipe: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(self.command(*settings, **more), env=self.environment, **pipe)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = yaml.safe_load((self.folder / "status.yaml").read_text())
        return found

    def steps(self) -> list[int]:
        with (self.folder / "metrics.csv").open() as file:
            return [int(row["step"]) for row in csv.DictReader(file)]

    def until_step(self, step: int) -> None:
        deadline = time.monotonic() + 30
        while True:
            found = list(self.folder.glob("checkpoints/*/*/attempt-*/metrics.csv"))
            if any(len(path.read_text().splitlines()) > step for path in found):
                return
            assert time.monotonic() < deadline, f"step {step} never came"
            time.sleep(0.02)


def variable(name: str, value: str) -> str:
    return f"{{name: {name}, value: '{value}'}}"


SLOW = variable("STUB_STEP_SECONDS", "0.1")
# Another command can begin to follow it, also on busy cores.
SLOWER = variable("STUB_STEP_SECONDS", "0.5")


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def test_a_run_leaves_status_metrics_logs_and_report(runner: Runner) -> None:
    ended = runner.run()
    assert (ended.returncode, ended.stderr) == (0, "")
    assert runner.status()["phase"] == "Complete"
    assert runner.status()["stages"] == [
        {"name": "base", "state": "Complete", "attempts": 1, "top1": 0.978, "top5": 1.0, "testLoss": 0.7}
    ]
    assert runner.steps() == list(range(1, 21))
    assert {path.name for path in (runner.folder / "logs").iterdir()} == {"digits-base-0-0.log", "digits-base-0-1.log"}
    assert (runner.folder / "report.png").read_bytes().startswith(b"\x89PNG")
    assert "data:image/png;base64," in (runner.folder / "report.html").read_text()
    assert "top-1 97.8 %" in ended.stdout
    assert str(runner.folder / "report.html") in ended.stdout


def test_stages_run_one_after_the_other(runner: Runner) -> None:
    second = "{name: more, algorithm: Momentum, epochs: 1, localBatchSize: 32}"
    first = "{name: base, algorithm: Momentum, epochs: 1, localBatchSize: 32}"
    assert runner.run(f"stages=[{first}, {second}]", "checkpoint.claimName=any").returncode == 0
    assert [stage["state"] for stage in runner.status()["stages"]] == ["Complete", "Complete"]
    assert runner.steps() == [*range(1, 11), *range(1, 11)]


def test_queue_and_scheduler_of_a_cluster_do_not_hold_up_a_run(runner: Runner) -> None:
    label = 'metadata.labels={"kueue.x-k8s.io/queue-name": team-a}'
    policy = "scheduling={schedulerName: volcano, schedulingPolicy: {gang: {}}}"
    assert runner.run(label, policy).returncode == 0
    assert runner.status()["phase"] == "Complete"


def test_a_killed_rank_restarts_the_gang_from_its_checkpoint(runner: Runner) -> None:
    ended = runner.run(stub=variable("STUB", "1,0,15,137"))
    status = runner.status()
    assert ended.returncode == 0
    assert status["restarts"] == 1
    (attempt,) = status["attempts"]
    assert (attempt["reason"], attempt["rank"], attempt["exitCode"]) == ("Killed", 1, 137)
    assert runner.steps() == list(range(1, 21))


@pytest.mark.parametrize(
    ("code", "reason", "detection"), [(137, "Killed", (0, 2)), (16, "Interrupted", (3, 9))], ids=["culprit", "victim"]
)
def test_a_run_tells_what_a_failure_cost(runner: Runner, code: int, reason: str, detection: tuple[int, int]) -> None:
    """Rank 0 ends 8 steps of a quarter of a second after its checkpoint. A victim's culprit is awaited for 5 s."""
    stub = f"{variable('STUB', f'0,0,18,{code}')}, {variable('STUB_STEP_SECONDS', '0.25')}"
    ended = runner.run("stages[0].epochs=4", "failurePolicy.backoffSeconds=3", stub=stub)
    status = runner.status()
    assert (ended.returncode, status["restarts"]) == (0, 1)
    found = status["goodput"]
    lost = {(loss["reason"], loss["failure"]): loss["deviceSeconds"] / 2 for loss in found["lost"]}
    first, last = detection
    assert first <= lost.get(("Detection", reason), 0) <= last
    assert 1 <= lost["Replay", reason] <= 4
    assert lost["Restart", reason] >= 3
    assert 6 <= found["productiveSeconds"] <= 10
    active = datetime.fromisoformat(status["completionTime"]) - datetime.fromisoformat(status["startTime"])
    assert found["productiveDeviceSeconds"] / 2 + sum(lost.values()) == active.total_seconds()
    told = subprocess.run([RESNETBOOST, "status", f"{runner.folder}/"], capture_output=True, text=True, check=True)
    for output in (ended.stdout, told.stdout):
        assert re.search(rf"goodput +{found['percent']} % · lost \d+ %: restart \d+ %, replay \d+ %", output)
    report = (runner.folder / "report.html").read_text()
    assert "Steps that count" in report
    assert "Restart" in report


@pytest.mark.skipif(shutil.which("pkill") is None, reason="no pkill here, which the README's command needs")
def test_the_readmes_command_kills_a_rank_of_that_run_and_of_no_other(tmp_path: Path) -> None:
    (command,) = re.findall(r"`(pkill [^`]+)`", (ROOT / "README.md").read_text())
    folders = [tmp_path / "mine", tmp_path / "another's"]
    mine, other = runners = [Runner(folder) for folder in folders]
    for runner, folder in zip(runners, folders, strict=True):
        runner.folder = folder / "runs" / "digits"
    processes = [runner.start(stub=SLOW) for runner in runners]
    for runner in runners:
        runner.until_step(3)
    assert subprocess.run(["sh", "-c", command], cwd=tmp_path / "mine", check=False).returncode == 0
    for process in processes:
        process.communicate(timeout=60)
    assert [process.returncode for process in processes] == [0, 0]
    assert [(found["reason"], found["rank"]) for found in mine.status()["attempts"]] == [("Killed", 1)]
    assert other.status()["restarts"] == 0


def test_a_failed_run_ends_with_the_exit_code_of_its_class(runner: Runner) -> None:
    steps = "stages[0].learningRate={schedule: Step, peak: 0.1, milestones: [30000]}"
    ended = runner.run(steps, stub=variable("STUB", "0,0,3,11"))
    assert ended.returncode == 11
    assert ended.stderr.startswith("resnetboost: note: spec.stages[0].learningRate.milestones: 30000 is not before ")
    assert ended.stderr.count("\n") == 1
    assert "stub ends with 11" in ended.stdout
    assert runner.status()["phase"] == "Failed"
    assert "a restart would end the same way" in ended.stdout
    assert "\n  fix, then  resnetboost run " in ended.stdout.replace(RESNETBOOST, "resnetboost")
    assert "try again" not in ended.stdout


def test_a_failed_run_ends_without_waiting_for_the_next_command(runner: Runner) -> None:
    assert runner.run(stub=variable("STUB", "0,0,3,11")).returncode == 11
    failed = datetime.fromisoformat(runner.status()["completionTime"]).timestamp()
    assert (runner.folder / "metrics.csv").stat().st_mtime - failed < UNANSWERED_SECONDS - 1


def test_a_failed_run_goes_on_when_it_is_run_again(runner: Runner) -> None:
    assert runner.run(stub=variable("STUB", "0,0,15,11")).returncode == 11
    assert runner.run(stub=variable("STUB", "0,0,15,11")).returncode == 0
    assert runner.status()["attempt"] == 1
    assert runner.steps() == list(range(1, 21))


def test_sigterm_stops_with_a_checkpoint_and_the_next_run_goes_on(runner: Runner) -> None:
    process = runner.start(stub=SLOW)
    runner.until_step(3)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 16
    assert runner.status()["phase"] == "Suspended"
    stopped = len(runner.steps())
    assert 3 <= stopped < 20
    assert "stopping all ranks" in out
    assert "resnetboost run" in out
    ended = runner.run(stub=SLOW)
    assert ended.returncode == 0
    assert runner.steps() == list(range(1, 21))
    assert runner.status()["restarts"] == 0


def test_a_second_signal_kills_ranks_that_do_not_stop(runner: Runner) -> None:
    process = runner.start(stub=f"{SLOW}, {variable('STUB_STUBBORN', '1')}")
    runner.until_step(2)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 16


def test_a_run_whose_runner_was_killed_is_resumed(runner: Runner) -> None:
    process = runner.start(stub=SLOW)
    runner.until_step(12)
    process.kill()
    process.communicate()
    ended = runner.run(stub=SLOW)
    assert ended.returncode == 0
    assert runner.steps() == list(range(1, 21))
    assert runner.status()["restartsCountTowardsMax"] == 0


def test_a_complete_run_is_not_run_again_unless_told(runner: Runner) -> None:
    assert runner.run().returncode == 0
    first = runner.status()
    begun, ended = (datetime.fromisoformat(first[name]) for name in ("startTime", "completionTime"))
    minutes, seconds = divmod(round((ended - begun).total_seconds()), 60)
    again = runner.run()
    assert (again.returncode, runner.status()) == (0, first)
    assert "--fresh" in again.stdout
    assert f"  time       {minutes}:{seconds:02}, 0 restarts\n" in again.stdout  # not the time of following it
    anew = runner.run(options=("--fresh",))
    assert anew.returncode == 0
    job = yaml.safe_load((runner.folder / "job.yaml").read_text())
    assert [path.name for path in (runner.folder / "checkpoints").iterdir()] == [job["metadata"]["uid"]]


def test_a_run_is_followed_to_its_end(runner: Runner) -> None:
    process = runner.start(stub=SLOWER)
    runner.until_step(1)
    command = [RESNETBOOST, "status", str(runner.folder), "-w"]
    told = subprocess.run(command, env=runner.environment, capture_output=True, text=True, timeout=60, check=False)
    assert (told.returncode, told.stderr) == (0, "")
    assert re.search(r"base  epoch \d/2  step \d+/20", told.stdout)
    assert f"digits in {runner.folder}: Complete\n" in told.stdout
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert runner.status()["restarts"] == 0


def test_a_folder_in_use_is_refused(runner: Runner) -> None:
    process = runner.start(stub=SLOW)
    runner.until_step(1)
    second = runner.run(stub=SLOW)
    assert second.returncode == 10
    assert second.stderr.count("\n") == 1
    assert f"in use by another resnetboost run (process {process.pid})" in second.stderr
    process.kill()
    process.communicate()


def test_a_folder_of_another_job_is_refused_with_the_field_that_differs(runner: Runner) -> None:
    assert runner.run().returncode == 0
    other = runner.run("stages[0].localBatchSize=16")
    assert other.returncode == 10
    assert "spec.stages[0].localBatchSize is 32 there and 16 here" in other.stderr
    assert other.stderr.count("\n") == 1


def test_more_epochs_continue_a_stage_with_an_unchanged_rate(runner: Runner) -> None:
    assert runner.run("stages[0].learningRate.schedule=Constant").returncode == 0
    longer = ("stages[0].learningRate.schedule=Constant", "stages[0].epochs=3")
    ended = runner.run(*longer)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "stage base goes on, for 3 epochs in all" in ended.stdout
    assert runner.steps() == list(range(1, 31))
    (base,) = runner.status()["stages"]
    assert (runner.status()["phase"], base["state"], base["attempts"]) == ("Complete", "Complete", 2)
    again = runner.run(*longer)
    assert "holds the complete run already" in again.stdout
    assert runner.run(longer[0]).returncode == 10, "fewer epochs than there are"


def test_more_epochs_after_annealing_add_a_stage(runner: Runner) -> None:
    process = runner.start(stub=SLOW)
    runner.until_step(12)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 16
    ended = runner.run("stages[0].epochs=5", stub=SLOW)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "stage base-2 follows, from its weights and with its settings, for 3 more" in ended.stdout
    assert runner.steps() == [*range(1, 21), *range(1, 31)]
    assert [(stage["name"], stage["state"]) for stage in runner.status()["stages"]] == [
        ("base", "Complete"),
        ("base-2", "Complete"),
    ]
    again = runner.run("stages[0].epochs=5", stub=SLOW)
    assert "holds the complete run already" in again.stdout


def test_a_closed_stdout_does_not_end_the_run(runner: Runner) -> None:
    process = runner.start(stub=SLOW)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=60) == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()


def test_a_folder_with_other_files_is_refused(runner: Runner) -> None:
    runner.folder.mkdir()
    (runner.folder / "thesis.tex").write_text("years of work")
    ended = runner.run(options=("--fresh",))
    assert ended.returncode == 10
    assert "thesis.tex" in ended.stderr
    assert (runner.folder / "thesis.tex").exists()


def test_a_folder_that_cannot_be_made_is_one_sentence(runner: Runner) -> None:
    runner.folder.write_text("a file")
    ended = runner.run()
    assert ended.returncode == 15
    assert ended.stderr == (
        f"resnetboost: cannot use {runner.folder}: File exists; choose another folder with --out, or make room there\n"
    )


def test_a_full_disk_is_one_sentence_and_leaves_nothing_running(runner: Runner) -> None:
    process = runner.start(stub=SLOWER)
    runner.until_step(1)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, 0))  # of the runner alone, for files that it begins
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 15
    assert "File too large" in stderr
    assert stderr.count("\n") == 1


def test_metrics_that_cannot_be_merged_end_no_run(runner: Runner) -> None:
    process = runner.start(stub=SLOW)
    runner.until_step(1)
    (runner.folder / "metrics.csv").mkdir()
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (0, "")
    assert "metrics.csv was not written" in stdout
    assert (runner.folder / "report.html").exists()


def test_a_lost_status_does_not_cost_the_checkpoints(runner: Runner) -> None:
    assert runner.run().returncode == 0
    (runner.folder / "status.yaml").unlink()
    assert runner.run().returncode == 0
    assert runner.status()["attempt"] == 1, "the attempt that left the checkpoints is not written over"


def test_a_folder_in_which_nothing_was_trained_takes_another_job(runner: Runner) -> None:
    assert runner.run(stub=variable("STUB", "0,0,0,11")).returncode == 11
    assert runner.run("stages[0].epochs=3").returncode == 0
    assert runner.status()["attempt"] == 0
