"""Operator and trainer of today and of 0.1.0 in one cluster: what they write to each other means the same to both.

The other half is tests/integration/test_checkpoints_of_another_version.py, and tests/chart/test_upgrade.py.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from resnetboost_api import failures
from resnetboost_api.status import BestCheckpoint, PolledProgress
from resnetboost_operator.job import parse_job
from resnetboost_operator.manifests.trainer_config import trainer_config
from resnetboost_operator.observed import pods
from resnetboost_operator.observed.classify import classify
from resnetboost_operator.validation import jobfile, schema
from resnetboost_trainer import config
from resnetboost_trainer.failures import Fault, Verdict
from resnetboost_trainer.metrics.progress import Progress
from support.earlierrelease import EarlierRelease

JOBS = sorted((Path(__file__).parents[1] / "upgrade" / "0.1.0" / "jobs").glob("*.yaml"))
UID = "0c4a3bd5-4d3b-4f43-9c35-1f0e7a3f0f10"

# What 0.1.0 makes of all that the tests below ask, in one process: its imports take a second.
SCRIPT = """
import json, pathlib, sys, tempfile
import msgspec, yaml
from resnetboost_operator import api, manifests, pods, status, verdicts
from resnetboost_trainer import config, progress, verdict

def loaded(document):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "config.yaml")
        path.write_text(yaml.safe_dump(document))
        try:
            return msgspec.to_builtins(config.load(path))
        except Exception as error:
            return str(error)

def known(report):
    report = pods._report(report)
    return {"class": report.verdict, "message": report.message, "step": report.step, "saved": report.checkpoint_step}

given = json.load(sys.stdin)
jobs = {name: api.parse(job) for name, job in given["jobs"].items()}
written = {name: [manifests.trainer_config(job, stage, 3) for stage in job.spec.stages] for name, job in jobs.items()}
reply = progress.Progress(state="Training", stage="base", attempt=3, step=7, total_steps=44, loss=0.5, heartbeat=9)
ended = verdict.Verdict(
    name="Interrupted", message="stopped", rank=0, exit_code=16, step=7, checkpoint_step=5, top1=0.5
)
print(json.dumps({
    "written": written,
    "loaded": {name: [loaded(one) for one in found] for name, found in written.items()},
    "loaded_of_today": {name: [loaded(one) for one in found] for name, found in given["written"].items()},
    "progress": msgspec.json.encode(reply).decode(),
    "progress_of_today": msgspec.to_builtins(msgspec.json.decode(given["progress"], type=status.Progress)),
    "report": msgspec.json.encode(ended).decode(),
    "report_of_today": known(given["report"]),
    "policies": {str(code): verdicts.classify(code, "Error", name).policy for name, code in given["classes"]},
}))
"""

PROGRESS = Progress(
    state="Training",
    stage="base",
    attempt=3,
    step=7,
    total_steps=44,
    epoch=0.3,
    total_epochs=2,
    percent=15,
    loss=0.5,
    accuracy=0.75,
    learning_rate=0.1,
    step_seconds=0.2,
    images_per_second=300.0,
    eta_seconds=8,
    checkpoint_step=5,
    resumed_step=2,
    top1=0.9,
    top5=0.99,
    test_loss=0.2,
    best=BestCheckpoint(step=5, metric="top1", value=0.9),
    slowest_rank=1,
    slowest_compute_seconds=0.1,
    skipped_images=3,
    heartbeat=9,
)
VERDICT = Verdict(
    name="Diverged",
    message="the loss is far above its median",
    rank=1,
    exit_code=17,
    step=7,
    checkpoint_step=5,
    skipped=("abc",),
    fault=Fault(step=7, batch=7),
)


@pytest.fixture(scope="module")
def today() -> dict[str, list[Any]]:
    """Today's configs of the jobs of 0.1.0."""
    jobs = {path.stem: parse_job(named(schema.defaulted(jobfile.load(path)))) for path in JOBS}
    return {name: [trainer_config(job, stage, 3) for stage in job.spec.stages] for name, job in jobs.items()}


@pytest.fixture(scope="module")
def earlier(today: dict[str, list[Any]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What 0.1.0 writes, and what it reads of today's."""
    release = EarlierRelease(tmp_path_factory.mktemp("earlier") / "0.1.0")
    given = {
        "jobs": {path.stem: named(schema.defaulted(jobfile.load(path))) for path in JOBS},
        "written": today,
        "progress": msgspec.json.encode(PROGRESS).decode(),
        "report": msgspec.json.encode(VERDICT).decode(),
        "classes": [(found.name, found.exit_code) for found in failures.ALL if found.exit_code is not None],
    }
    found: dict[str, Any] = release.ask(SCRIPT, given)
    return found


def named(job: dict[str, Any]) -> dict[str, Any]:
    return job | {"metadata": {"name": job["metadata"]["name"], "namespace": "default", "uid": UID}}


@pytest.mark.parametrize("name", [path.stem for path in JOBS])
def test_todays_config_says_to_an_earlier_trainer_what_its_own_operator_would(
    earlier: dict[str, Any], name: str
) -> None:
    assert earlier["loaded_of_today"][name] == earlier["loaded"][name]


@pytest.mark.parametrize("name", [path.stem for path in JOBS])
def test_an_earlier_config_says_to_todays_trainer_what_its_own_operator_would(
    earlier: dict[str, Any], today: dict[str, list[Any]], name: str
) -> None:
    assert [config.parse(one) for one in earlier["written"][name]] == [config.parse(one) for one in today[name]]


def test_progress_of_today_is_read_by_an_earlier_operator(earlier: dict[str, Any]) -> None:
    ours = json.loads(msgspec.json.encode(PROGRESS))
    assert earlier["progress_of_today"].items() <= ours.items()
    assert {"state", "step", "heartbeat", "checkpointStep", "top1", "loss"} <= earlier["progress_of_today"].keys()


def test_progress_of_an_earlier_trainer_is_read_today(earlier: dict[str, Any]) -> None:
    found = msgspec.json.decode(earlier["progress"], type=PolledProgress)
    assert (found.state, found.step, found.total_steps, found.loss, found.heartbeat) == ("Training", 7, 44, 0.5, 9)


def test_the_last_message_of_todays_trainer_is_read_by_an_earlier_operator(earlier: dict[str, Any]) -> None:
    assert earlier["report_of_today"] == {"class": "Diverged", "message": VERDICT.message, "step": 7, "saved": 5}


def test_the_last_message_of_an_earlier_trainer_is_read_today(earlier: dict[str, Any]) -> None:
    report = msgspec.json.decode(earlier["report"], type=pods.Report)
    assert (report.failure_class, report.step, report.checkpoint_step, report.top1) == ("Interrupted", 7, 5, 0.5)


def test_an_earlier_operator_treats_every_exit_code_as_today_or_restarts(earlier: dict[str, Any]) -> None:
    """A class that it does not know is an error that it restarts for; none of the known ones changed its meaning.

    A job rolls back only where it says so by a field that 0.1.0 does not have; else it fails.
    """
    for code, policy in earlier["policies"].items():
        ours = classify(int(code), "Error", "").policy
        assert policy in (ours, "restart") or (ours, policy) == ("roll_back", "fail"), code
