"""Trackers against what reads them: a real MLflow server and TensorBoard's own reader, and whole trainings."""

import math
import resource
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from beds.objectstorage import Gateway
from beds.trackers import MLflow as Server
from beds.trackers import scalars, unavailable
from resnetboost_api.tracking import MLflow as Settings
from resnetboost_api.tracking import TensorBoard as FileSettings
from resnetboost_trainer.failures import StorageError
from resnetboost_trainer.tracking import Outcome, Point, Run, tensorboard, worker
from resnetboost_trainer.tracking.mlflow import MLflow
from resnetboost_trainer.tracking.tensorboard import TensorBoard
from resnetboost_trainer.tracking.tracking import Tracking
from resnetboost_trainer.tracking.worker import Worker
from support import onerank
from support.wholerun import Run as WholeRun

JOB: dict[str, Any] = {
    "apiVersion": "resnetboost.io/v1alpha1",
    "kind": "ResNetBoostJob",
    "metadata": {"name": "tracked"},
    "spec": {
        "device": {"type": "CPU", "count": 1},
        "model": {"name": "resnet20", "numClasses": 10},
        "dataset": {"name": "digits"},
        "stages": [{"name": "base", "algorithm": "Momentum", "epochs": 1, "localBatchSize": 64}],
    },
}


@pytest.fixture(scope="module", autouse=True)
def bed() -> None:
    if reason := unavailable():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as found:
        yield found


def of(server: Server, experiment: str) -> Settings:
    return Settings(tracking_uri=server.address, experiment=experiment)


def attempt(number: int = 0, stage: str = "base", uid: str = "uid", **parameters: Any) -> Run:
    return Run(job="digits", namespace="ml", uid=uid, stage=stage, attempt=number, parameters=parameters)


def points(*steps: int, value: float = 1.5) -> list[Point]:
    return [Point(step, 1.7e9 + step, {"loss": value}) for step in steps]


def tags(run: Any) -> dict[str, str]:
    return {tag["key"]: tag["value"] for tag in run["data"]["tags"]}


def parameters(run: Any) -> dict[str, str]:
    return {item["key"]: item["value"] for item in run["data"]["params"]}


def test_a_job_is_one_run_over_its_attempts_and_stages(server: Server, tmp_path: Path) -> None:
    """Each attempt is a tracker of its own, as on another machine: only the server knows of the run."""
    card = tmp_path / "card.md"
    card.write_text("# A card")
    first = MLflow(of(server, "attempts"), {})
    first.start(attempt(0, peak=0.1, seed=0))
    first.log(points(10, 20))
    second = MLflow(of(server, "attempts"), {})
    second.start(attempt(1, peak=0.05, seed=0))
    second.log(points(20, 30))
    second.end(Outcome("Succeeded", "top-1 99 %"))
    (run,) = server.runs("attempts")
    assert run["info"]["status"] == "RUNNING", "another stage follows"
    third = MLflow(of(server, "attempts"), {})
    third.start(attempt(2, stage="fine-tuning"))
    third.log(points(10))
    third.save("fine-tuning/card of Blümchen.md", card)
    third.end(Outcome("Succeeded", "", complete=True))
    MLflow(of(server, "attempts"), {}).start(attempt(0, uid="another job"))

    (run,) = [run for run in server.runs("attempts") if tags(run)["resnetboost.job_uid"] == "uid"]
    found = run["info"]["run_id"]
    assert (run["info"]["status"], run["info"]["run_name"]) == ("FINISHED", "digits")
    assert parameters(run) == {"peak": "0.1", "seed": "0", "peak.attempt-1": "0.05"}
    assert {name: text for name, text in tags(run).items() if "attempt-" in name} == {
        "resnetboost.attempt-0": "base",
        "resnetboost.attempt-1": "base: Succeeded, top-1 99 %",
        "resnetboost.attempt-2": "fine-tuning: Succeeded",
    }
    assert server.history(found, "base/loss") == [(10, 1.5), (20, 1.5), (30, 1.5)], "the same point twice counts once"
    assert server.history(found, "fine-tuning/loss") == [(10, 1.5)]
    listed = server.get(f"artifacts/list?run_id={found}&path=fine-tuning")["files"]
    assert [(file["path"], file["file_size"]) for file in listed] == [("fine-tuning/card of Blümchen.md", 8)]
    assert len(server.runs("attempts")) == 2


def test_many_values_long_ones_and_numbers_that_are_none_arrive(server: Server) -> None:
    tracker = MLflow(of(server, "limits"), {})
    names: dict[str, Any] = {f"parameter-{number}": "x" * 1000 for number in range(250)}
    tracker.start(attempt(**names))
    values = {f"value-{number}": float(number) for number in range(20)} | {"loss": math.nan, "norm": math.inf}
    tracker.log([Point(step, 1.7e9 + step, values) for step in range(worker.BATCH)])
    tracker.end(Outcome("NumericsError", "Ünsinn " * 1000))
    (run,) = server.runs("limits")
    assert len(parameters(run)) == 250
    assert len(server.history(run["info"]["run_id"], "base/value-19")) == worker.BATCH
    assert all(math.isnan(value) for _, value in server.history(run["info"]["run_id"], "base/loss"))
    assert run["info"]["status"] == "FAILED"


def test_points_of_an_outage_arrive_after_it_each_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "FLUSH_SECONDS", 0.01)
    monkeypatch.setattr(worker, "LAST_RETRY_SECONDS", 0.1)
    one = Worker("mlflow", MLflow(of(server, "outage"), {}))
    lost = list[int]()
    one.drop = lost.append
    found = Tracking([one])
    found.start(attempt())
    one.add(points(1)[0])
    wait_until(lambda: server.history(server.runs("outage")[0]["info"]["run_id"], "base/loss") == [(1, 1.5)])
    server.stop()
    for point in points(2, 3):
        one.add(point)
    wait_until(lambda: one.failing)
    one.add(points(4)[0])
    server.start()
    wait_until(lambda: not one.failing)
    found.end("Succeeded", "")
    (run,) = server.runs("outage")
    assert server.history(run["info"]["run_id"], "base/loss") == [(step, 1.5) for step in (1, 2, 3, 4)]
    assert not lost


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            if condition():
                return
        except (OSError, IndexError):  # the run is not there yet
            pass
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.05)


def test_an_event_file_shows_each_step_once_after_a_restart(tmp_path: Path) -> None:
    """A killed attempt went further than its checkpoint; the next one repeats those steps."""
    killed = TensorBoard(FileSettings(), tmp_path)
    killed.start(attempt(0))
    killed.log(points(10, 20))
    killed.log(points(30, 40, value=math.nan))
    resumed = TensorBoard(FileSettings(), tmp_path)
    resumed.start(attempt(1))
    resumed.log([Point(30, 1.7e9, {"loss": 2.5, "top1": 0.5, "Größe/ä": 1e300}), *points(1 << 40)])
    found = scalars(tmp_path / "tensorboard" / "digits-uid" / "base")
    assert found["loss"] == [(10, 1.5), (20, 1.5), (30, 2.5), (1 << 40, 1.5)]
    assert found["top1"] == [(30, 0.5)]
    assert found["Größe/ä"][0][1] == pytest.approx(3.4e38, rel=0.01)


def test_event_files_in_object_storage_show_each_step_once(storage: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """In several parts, over an outage after which the same points come again, and over a restart."""
    monkeypatch.setattr(tensorboard, "_PART_BYTES", 200)
    monkeypatch.setattr(tensorboard, "_RETRY_SECONDS", 1)
    settings = FileSettings(path="s3://bucket/curves")
    killed = TensorBoard(settings, None)
    killed.start(attempt(0))
    killed.log(points(10, 20))
    storage.stop()
    with pytest.raises(StorageError, match="the storage does not answer"):
        killed.log(points(30))
    storage.start()
    for step in (30, 40, 50, 60):
        killed.log(points(step))
    resumed = TensorBoard(settings, None)
    resumed.start(attempt(1))
    resumed.log(points(50, 60, value=2.5))
    folder = storage.bucket / "curves/digits-uid/base"
    assert len(list(folder.iterdir())) > 2
    assert scalars(folder)["loss"] == [(10, 1.5), (20, 1.5), (30, 1.5), (40, 1.5), (50, 2.5), (60, 2.5)]


def test_a_full_disk_leaves_no_half_record(tmp_path: Path) -> None:
    tracker = TensorBoard(FileSettings(path=str(tmp_path)), None)
    tracker.start(attempt())
    tracker.log(points(1))
    (file,) = tmp_path.glob("*/*/events*")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 10, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            tracker.log(points(2, 3))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    tracker.log(points(2, 3))
    assert scalars(file.parent)["loss"] == [(1, 1.5), (2, 1.5), (3, 1.5)]


def test_a_dead_tracker_changes_no_bit_and_a_killed_rank_goes_on_with_its_curves(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as silent:  # accepts, and never answers
        dead = {"trackingUri": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        tracking = {"everySteps": 5, "lastStage": True, "tensorboard": {}, "mlflow": dead}
        (tmp_path / "tracked").mkdir()
        (tmp_path / "plain").mkdir()
        killed = onerank.start(tmp_path / "tracked", 0, config={"tracking": tracking})
        checkpoint = tmp_path / "tracked" / "checkpoints" / "uid" / "base" / "attempt-0" / "step-00000012"
        wait_until(checkpoint.exists)
        killed.kill()
        killed.wait()
        onerank.train(tmp_path / "tracked", 1, config={"tracking": tracking})
    onerank.train(tmp_path / "plain", 0)
    stage = tmp_path / "tracked" / "checkpoints" / "uid" / "base"
    plain = tmp_path / "plain" / "checkpoints" / "uid" / "base" / "attempt-0"
    assert onerank.final_weights(stage / "attempt-1") == onerank.final_weights(plain)
    assert "resnet20" in (stage / "model-card.md").read_text()
    found = scalars(stage.parents[1] / "tensorboard" / "digits-uid" / "base")
    steps = [step for step, _ in found["loss"]]
    assert steps == sorted(set(steps)), "no step twice"
    assert {22, 44} <= {step for step, _ in found["top1"]}
    assert steps[-1] == 44


def test_a_run_on_this_machine_sends_its_report_too(server: Server, tmp_path: Path) -> None:
    tracking = {"mlflow": {"trackingUri": server.address, "experiment": "local"}}
    run = WholeRun(tmp_path, {**JOB, "spec": {**JOB["spec"], "tracking": tracking}}).start()
    code, output = run.finish()
    assert code == 0, output
    (found,) = server.runs("local")
    assert found["info"]["status"] == "FINISHED"
    assert {"base", "report.html"} <= server.artifacts(found["info"]["run_id"]).keys()
    assert parameters(found)["base/epochs"] == "1"
    assert not [name for name in parameters(found) if ".attempt-" in name], "the report's upload changes no parameter"
    assert tags(found)["resnetboost.job_uid"] in (run.out / "job.yaml").read_text()
