"""`resnetboost sweep --on cluster` against a real API server; the test writes statuses as the operator would."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from beds.operator import Space
from beds.operator.namespace import JOB
from beds.operator.wait import eventually
from resnetboost_api import names
from resnetboost_operator.cli import job_file
from support import clusterjobs

pytestmark = pytest.mark.slow

RESNETBOOST = str(Path(sys.executable).with_name("resnetboost"))
EXAMPLES = Path(__file__).parents[2] / "examples"
PEAK = "stages[0].learningRate.peak"
SPACE = {"parameters": {PEAK: {"type": "float", "low": 0.01, "high": 1, "log": True}}}
PATIENCE_SECONDS = 90.0


class Cluster:
    """A user's sweeps in one namespace, and the operator's part."""

    def __init__(self, space: Space, folder: Path) -> None:
        self.space, self.folder = space, folder
        self.environment = {**os.environ, "KUBECONFIG": str(space.plane.kubeconfig), "MPLCONFIGDIR": str(folder)}
        self._started: list[subprocess.Popen[str]] = []
        (folder / "job.yaml").write_text(yaml.safe_dump(job_file.written(EXAMPLES / "digits.yaml")))
        (folder / "space.yaml").write_text(yaml.safe_dump(SPACE))

    def start(self, *options: str) -> "subprocess.Popen[str]":
        words = ["sweep", "job.yaml", "--space", "space.yaml", "--on", "cluster", "-n", self.space.namespace]
        process = subprocess.Popen(
            [RESNETBOOST, *words, *options],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._started.append(process)
        return process

    def asks(self, *words: str) -> str:
        command = [RESNETBOOST, *words, "-n", self.space.namespace]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False, timeout=60
        )
        return done.stdout + done.stderr

    def until_jobs(self, *wanted: str) -> None:
        self.space.until_names(JOB, *wanted)

    def finish(self, name: str, top1: float) -> None:
        """Let the job be complete."""
        told = clusterjobs.complete()
        told["stages"][0]["top1"] = top1
        self.tell(name, told)

    def reach(self, name: str, epoch: int, top1: float) -> None:
        """Let the job be in the epoch after this one, which was evaluated."""
        progress = {**clusterjobs.PROGRESS, "epoch": epoch + 0.05, "top1": top1, "attempt": 0}
        self.tell(name, clusterjobs.running(progress=progress))

    def tell(self, name: str, status: dict[str, Any]) -> None:
        path = f"/apis/{names.API_VERSION}/namespaces/{self.space.namespace}/{JOB}/{name}/status"
        self.space.plane.client.send("PUT", path, {**self.space.get(JOB, name), "status": status})

    def trials(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads((self.folder / "sweeps" / "digits" / "trials.json").read_text())[
            "trials"
        ]
        return found

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.communicate()


@pytest.fixture
def cluster(space: Space, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(space, tmp_path)
    yield made
    made.close()


def ended(process: "subprocess.Popen[str]") -> tuple[int, str]:
    output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, output


def test_trials_are_jobs_whose_labels_and_values_status_shows(cluster: Cluster) -> None:
    process = cluster.start("--trials", "3", "--parallel", "2")
    cluster.until_jobs("digits-0", "digits-1")
    job = cluster.space.get(JOB, "digits-1")
    assert job["metadata"]["labels"] == {names.LABEL_SWEEP: "digits", names.LABEL_TRIAL: "1"}
    cluster.finish("digits-0", 0.9)
    cluster.until_jobs("digits-0", "digits-1", "digits-2")
    cluster.finish("digits-1", 0.95)
    cluster.tell("digits-2", clusterjobs.failed("no data", attempts=[]))
    code, output = ended(process)
    assert code == 0, output
    assert [(trial["state"], trial["value"]) for trial in cluster.trials()] == [
        ("Complete", 0.9),
        ("Complete", 0.95),
        ("Failed", None),
    ]
    best = job_file.load(cluster.folder / "sweeps" / "digits" / "best.yaml")
    assert best["spec"]["stages"][0]["learningRate"]["peak"] == job["spec"]["stages"][0]["learningRate"]["peak"]
    table = cluster.asks("status", "--sweep", "digits").splitlines()
    assert table[0].split() == ["TRIAL", "STATE", "TOP-1", "peak"]
    assert [line.split()[:3] for line in table[1:]] == [
        ["1", "Complete", "95.0"],
        ["0", "Complete", "90.0"],
        ["2", "Failed", "-"],
    ]
    assert table[1].endswith("best") and table[2].split()[4] == "0.1"
    (cluster.folder / "sweeps" / "digits" / "trials.json").unlink()
    assert "there is no" in cluster.asks("status", "--sweep", "digit")


def test_after_a_kill_the_jobs_that_were_made_are_followed_and_none_is_made_twice(cluster: Cluster) -> None:
    process = cluster.start("--trials", "3", "--parallel", "2")
    cluster.until_jobs("digits-0", "digits-1")
    uids = {job["metadata"]["name"]: job["metadata"]["uid"] for job in cluster.space.all(JOB)}
    process.kill()
    process.communicate()
    cluster.finish("digits-1", 0.8)
    process = cluster.start("--trials", "3", "--parallel", "2")
    cluster.until_jobs("digits-0", "digits-1", "digits-2")
    cluster.finish("digits-0", 0.7)
    cluster.finish("digits-2", 0.6)
    code, output = ended(process)
    assert code == 0 and output.count("goes on") == 2, output
    assert [trial["value"] for trial in cluster.trials()] == [0.7, 0.8, 0.6]
    now = {job["metadata"]["name"]: job["metadata"]["uid"] for job in cluster.space.all(JOB)}
    assert uids.items() <= now.items()


def test_a_job_below_the_median_is_suspended(cluster: Cluster) -> None:
    process = cluster.start("--trials", "5", "--seed", "3")
    for number in range(4):
        name = f"digits-{number}"
        cluster.until_jobs(*(f"digits-{one}" for one in range(number + 1)))
        cluster.reach(name, 2, 0.5)
        eventually(lambda at=number: reported(cluster, at), bool, "the epoch is reported")  # type: ignore[misc]
        cluster.finish(name, 0.6)
    cluster.until_jobs(*(f"digits-{one}" for one in range(5)))
    assert not cluster.space.get(JOB, "digits-4")["spec"]["runPolicy"].get("suspend", False)
    cluster.reach("digits-4", 2, 0.3)
    code, output = ended(process)
    assert code == 0, output
    assert cluster.trials()[4]["state"] == "Pruned"
    job = cluster.space.get(JOB, "digits-4")
    assert job["spec"]["runPolicy"]["suspend"] is True
    assert job["metadata"]["annotations"][names.ANNOTATION_PRUNED] == "below the median at epoch 2"
    assert "Pruned" in cluster.asks("status", "--sweep", "digits")


def reported(cluster: Cluster, number: int) -> bool:
    """Whether the journal has a value of that trial's progress."""
    journal = (cluster.folder / "sweeps" / "digits" / "study.journal").read_text().splitlines()
    return any(found.get("trial_id") == number and "intermediate_value" in found for found in map(json.loads, journal))


def test_ctrl_c_leaves_the_jobs_and_the_command_goes_on(cluster: Cluster) -> None:
    process = cluster.start("--trials", "1")
    cluster.until_jobs("digits-0")
    process.send_signal(signal.SIGINT)
    code, output = ended(process)
    assert code == 16 and "the jobs go on in the cluster" in output
    assert not cluster.space.get(JOB, "digits-0")["spec"]["runPolicy"].get("suspend", False)
    process = cluster.start("--trials", "1")
    cluster.finish("digits-0", 0.75)
    code, output = ended(process)
    assert code == 0 and cluster.trials()[0]["value"] == 0.75


def test_a_job_of_somebody_else_is_left_alone(cluster: Cluster) -> None:
    other = job_file.written(EXAMPLES / "digits.yaml", ["metadata.name=digits-0"])
    cluster.space.create(other)
    code, output = ended(cluster.start("--trials", "1"))
    assert code == 10 and "there is a job digits-0" in output and "--name" in output
    assert "labels" not in cluster.space.get(JOB, "digits-0")["metadata"]
    process = cluster.start("--trials", "1", "--name", "mine")
    cluster.until_jobs("digits-0", "mine-0")
    cluster.space.delete(JOB, "mine-0")
    code, output = ended(process)
    assert code == 1 and "its job was deleted" in output


def test_trials_are_compared_by_what_their_status_has(cluster: Cluster) -> None:
    process = cluster.start("--trials", "2", "--parallel", "2")
    cluster.until_jobs("digits-0", "digits-1")
    cluster.finish("digits-0", 0.9)
    cluster.finish("digits-1", 0.8)
    assert ended(process)[0] == 0
    output = cluster.asks("compare", "job/digits-0", "job/digits-1")
    assert "job/digits-1: stage base has no curve: no pod of its rank 0 is left" in output
    lines = [line.split() for line in output.splitlines()]
    assert ["last", "top-1", "90.0", "%", "80.0", "%"] in lines
    assert any(line[:2] == ["stages[0].learningRate.peak", "0.1"] for line in lines)
