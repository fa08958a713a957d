"""`resnetboost sweep` on this machine: real processes with a stub trainer, killed and interrupted; one real run."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from resnetboost_operator.cli import job_file
from resnetboost_operator.runs.runfolder import RunFolder
from support import forkserver, stubtrainer

pytestmark = pytest.mark.slow

RESNETBOOST = str(Path(sys.executable).with_name("resnetboost"))
EXAMPLES = Path(__file__).parents[2] / "examples"
PEAK = "stages[0].learningRate.peak"
SPACE = {"parameters": {PEAK: {"type": "float", "low": 0.01, "high": 1, "log": True}}}
# The stub makes ten steps an epoch, of 20 ms.
JOB = {"device.count": 1, "stages[0].epochs": 2, "failurePolicy.backoffSeconds": 0}
PATIENCE_SECONDS = 120.0


class Sweeping:
    """`resnetboost sweep` in a folder of its own, with the stub trainer."""

    def __init__(self, folder: Path, **stub: str) -> None:
        self.folder = folder
        self.out = folder / "sweeps" / "digits"
        self.stub = {"STUB_LEARNS": "1", **stub}
        self._package = stubtrainer.install(folder)
        self.job()
        (folder / "space.yaml").write_text(yaml.safe_dump(SPACE))

    def job(self, **changes: Any) -> None:
        assignments = [f"{path}={json.dumps(value)}" for path, value in {**JOB, **changes}.items()]
        (self.folder / "job.yaml").write_text(yaml.safe_dump(job_file.written(EXAMPLES / "digits.yaml", assignments)))

    def start(self, *options: str) -> "subprocess.Popen[str]":
        environment = {**os.environ, "PYTHONPATH": str(self._package), "PYTHONWARNINGS": "ignore", **self.stub}
        return subprocess.Popen(
            [RESNETBOOST, "sweep", "job.yaml", "--space", "space.yaml", *options],
            cwd=self.folder,
            env={**environment, "MPLCONFIGDIR": str(self.folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *options: str) -> tuple[int, str]:
        process = self.start(*options)
        output, _ = process.communicate(timeout=PATIENCE_SECONDS)
        return process.returncode, output

    def trials(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads((self.out / "trials.json").read_text())["trials"]
        return found

    def until(self, process: "subprocess.Popen[str]", holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not holds():
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def attempts(self) -> Counter[int]:
        """Attempts of each trial; more than one only where a trial was interrupted."""
        found = self.out.glob("trials/*/checkpoints/*/base/attempt-*")
        return Counter(int(path.relative_to(self.out / "trials").parts[0]) for path in found)

    def steps(self, trial: int) -> int:
        paths = self.out.glob(f"trials/{trial:03}/checkpoints/*/base/attempt-*/metrics.csv")
        return sum(len(list(csv.reader(path.open()))) - 1 for path in paths)


@pytest.fixture
def sweeping(tmp_path: Path) -> Sweeping:
    return Sweeping(tmp_path)


def test_a_sweep_finds_the_best_job_and_writes_it(sweeping: Sweeping) -> None:
    code, output = sweeping.run("--trials", "7", "--parallel", "2")
    assert code == 0, output
    trials = sweeping.trials()
    assert trials[0]["parameters"] == {PEAK: 0.1}, "the job's own values come first"
    assert len(trials) == 7 and {trial["state"] for trial in trials} <= {"Complete", "Pruned"}
    best = job_file.load(sweeping.out / "best.yaml")
    assert best["spec"]["stages"][0]["learningRate"]["peak"] == 0.1
    assert best["metadata"]["name"] == "digits" and "labels" not in best["metadata"]
    assert (sweeping.out / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert "trial 0: top-1 80.2 %" in output
    lines = [line.split() for line in output.splitlines()]
    assert ["0", "Complete", "80.2", "%", "0.1", "best"] in lines
    for trial in trials:
        run = RunFolder(sweeping.out / "trials" / f"{trial['number']:03}").read_job()
        assert run["spec"]["stages"][0]["learningRate"]["peak"] == trial["parameters"][PEAK]
        assert run["metadata"]["labels"]["resnetboost.io/sweep"] == "digits"
    code, output = sweeping.run("--trials", "7")
    assert code == 0 and "has all 7 trials already; --trials adds more" in output
    shown = subprocess.run(
        [RESNETBOOST, "status", "--sweep", "digits"],
        cwd=sweeping.folder,
        env={**os.environ, "KUBECONFIG": "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "0  Complete  80.2 %" in shown.stdout, shown.stderr


def test_after_kills_it_goes_on_and_no_trial_runs_twice(sweeping: Sweeping) -> None:
    """Killed while a trial trains, three times; every step of each trial is made once, but for those after a kill."""
    kills = 3
    for number in range(kills):
        process = sweeping.start("--trials", "5")
        sweeping.until(process, lambda at=number: sweeping.steps(at) >= 13)  # type: ignore[misc]
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=PATIENCE_SECONDS)
        assert (sweeping.out / "study.journal").exists()
    code, output = sweeping.run("--trials", "5")
    assert code == 0, output
    assert "trial 2 goes on" in output and "trial 0" not in output.partition("\n\n")[0]
    assert [trial["number"] for trial in sweeping.trials()] == list(range(5))
    assert sweeping.attempts() == Counter({0: 2, 1: 2, 2: 2, 3: 1, 4: 1})
    for trial in sweeping.trials():
        again = 20 if trial["number"] >= kills else 20 + 15  # from the checkpoint of step 10
        assert sweeping.steps(trial["number"]) <= again


def test_ctrl_c_keeps_a_checkpoint_and_the_same_command_goes_on(tmp_path: Path) -> None:
    sweeping = Sweeping(tmp_path, STUB_STEP_SECONDS="0.4")  # the first trial still runs when the second has begun
    process = sweeping.start("--trials", "2", "--parallel", "2")
    sweeping.until(process, lambda: min(sweeping.steps(0), sweeping.steps(1)) >= 3)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 16, output
    assert "stopping the runs" in output and "go on      resnetboost sweep job.yaml" in output
    assert [trial["state"] for trial in sweeping.trials()] == ["Running", "Running"]
    code, output = sweeping.run("--trials", "2", "--parallel", "2")
    assert code == 0 and output.count("goes on") == 2
    assert [sweeping.steps(number) for number in (0, 1)] == [20, 20], "no step was made twice"


def test_a_trial_below_the_median_is_stopped_and_stays_so(tmp_path: Path) -> None:
    sweeping = Sweeping(tmp_path, STUB_STEP_SECONDS="0.03")
    sweeping.job(**{"stages[0].epochs": 12})
    code, output = sweeping.run("--trials", "8", "--parallel", "2")
    assert code == 0, output
    pruned = [trial for trial in sweeping.trials() if trial["state"] == "Pruned"]
    assert pruned and all(trial["note"].startswith("below the median at epoch") for trial in pruned)
    assert all(sweeping.steps(trial["number"]) < 120 for trial in pruned)
    values = [trial["value"] for trial in sweeping.trials() if trial["state"] == "Complete"]
    assert max(values) > max(trial["value"] for trial in pruned)
    before = sweeping.trials()
    code, output = sweeping.run("--trials", "8")
    assert code == 0 and sweeping.trials() == before


def test_trials_that_all_fail_end_the_sweep_with_their_reason(tmp_path: Path) -> None:
    sweeping = Sweeping(tmp_path, STUB="0,0,3,11")
    code, output = sweeping.run("--trials", "9")
    assert code == 10 and "the first trials all failed, the last one" in output
    assert len(sweeping.trials()) == 3


def test_failures_do_not_end_a_sweep_that_has_results_from_before(tmp_path: Path) -> None:
    sweeping = Sweeping(tmp_path)
    assert sweeping.run("--trials", "1")[0] == 0
    sweeping.stub["STUB"] = "0,0,3,11"
    code, output = sweeping.run("--trials", "5")
    assert code == 0 and "--fresh" not in output, output
    assert [trial["state"] for trial in sweeping.trials()] == ["Complete", *["Failed"] * 4]


def test_trials_that_diverge_are_bad_and_do_not_end_the_sweep(tmp_path: Path) -> None:
    sweeping = Sweeping(tmp_path, STUB="0,0,3,17")
    code, output = sweeping.run("--trials", "4")
    assert code == 1 and "--fresh" not in output, output
    assert {(trial["state"], trial["note"].partition(":")[0]) for trial in sweeping.trials()} == {
        ("Pruned", "diverged")
    }


def test_values_that_exclude_each_other_fail_their_trial_alone(sweeping: Sweeping) -> None:
    both = {
        "stages[0].epochs": {"type": "categorical", "choices": [2, 4]},
        "stages[0].learningRate.warmupEpochs": {"type": "categorical", "choices": [1, 3]},
    }
    sweeping.job(**{"stages[0].epochs": 4})
    (sweeping.folder / "space.yaml").write_text(yaml.safe_dump({"parameters": both}))
    code, output = sweeping.run("--trials", "7", "--no-prune")
    assert code == 0, output
    failed = [trial for trial in sweeping.trials() if trial["state"] == "Failed"]
    assert failed and all("use fewer warmupEpochs than epochs" in trial["note"] for trial in failed)
    assert not any((sweeping.out / "trials" / f"{trial['number']:03}").exists() for trial in failed)


def test_another_sweep_in_the_folder_is_refused(sweeping: Sweeping) -> None:
    assert sweeping.run("--trials", "1")[0] == 0
    sweeping.job(**{"stages[0].epochs": 3})
    code, output = sweeping.run("--trials", "2")
    assert code == 10 and "has a sweep with another job" in output
    code, output = sweeping.run("--trials", "1", "--fresh")
    assert code == 0 and sweeping.attempts() == Counter({0: 1})


def test_real_trainings_give_real_accuracies(tmp_path: Path) -> None:
    sweeping = Sweeping(tmp_path)
    sweeping.job(**{"stages[0].epochs": 1, "stages[0].learningRate.warmupEpochs": 0, "checkpoint.everySteps": 100})
    process = subprocess.run(
        [RESNETBOOST, "sweep", "job.yaml", "--space", "space.yaml", "--trials", "2"],
        cwd=tmp_path,
        env=forkserver.environment(os.environ),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    trials = sweeping.trials()
    assert all(trial["state"] == "Complete" and 0.1 < trial["value"] <= 1 for trial in trials)
    for trial in trials:
        status = RunFolder(sweeping.out / "trials" / f"{trial['number']:03}").read_status()
        assert status.stages[0].top1 == trial["value"]
