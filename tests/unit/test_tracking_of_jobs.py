"""What pods and ranks get of a job's trackers, which trackers a rank builds, and the parameters it sends."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from resnetboost_operator.cli import job_file
from resnetboost_operator.job import Job, parse_job
from resnetboost_operator.manifests.pod import pod
from resnetboost_operator.manifests.trainer_config import trainer_config
from resnetboost_trainer import config
from resnetboost_trainer.failures import ConfigError
from resnetboost_trainer.tracking import registry
from resnetboost_trainer.tracking.parameters import parameters
from support.trainerconfig import GOOD

EXAMPLES = Path(__file__).parents[2] / "examples"
CALLBACK = {"name": "own", "tracker": "own_trackers:Own"}


def job(example: str = "digits-tracking", *changes: str) -> Job:
    return parse_job(job_file.load(EXAMPLES / f"{example}.yaml", list(changes)))


def settings(**tracking: Any) -> config.Config:
    return config.parse(GOOD | {"tracking": tracking})


def test_rank_0_alone_gets_the_secret() -> None:
    tracked = job()
    containers = [pod(tracked, tracked.spec.stages[0], 0, index)["spec"]["containers"][0] for index in (0, 1)]
    assert [container.get("envFrom") for container in containers] == [[{"secretRef": {"name": "mlflow"}}], None]


def test_rank_0_has_the_secret_of_the_storage_too() -> None:
    tracked = job("digits-tracking", "storage={secretName: s3-access}")
    containers = [pod(tracked, tracked.spec.stages[0], 0, index)["spec"]["containers"][0] for index in (0, 1)]
    found = [[source["secretRef"]["name"] for source in container["envFrom"]] for container in containers]
    assert found == [["s3-access", "mlflow"], ["s3-access"]]


def test_the_last_stage_alone_completes_the_job() -> None:
    tracked = job("digits-two-stage", 'tracking={"tensorboard": {}}')
    files = [trainer_config(tracked, stage, 0)["tracking"] for stage in tracked.spec.stages]
    assert files == [{"tensorboard": {}}, {"tensorboard": {}, "lastStage": True}]


def test_a_rank_knows_nothing_of_the_secret() -> None:
    tracked = job()
    assert "secret" not in yaml.safe_dump(trainer_config(tracked, tracked.spec.stages[0], 0))


def test_a_job_without_trackers_has_the_files_of_before() -> None:
    assert "tracking" not in trainer_config(job("digits"), job("digits").spec.stages[0], 0)


def test_parameters_are_those_of_the_job_file_with_the_stage_before_its_own() -> None:
    found = parameters(settings(tensorboard={}), ranks=2)
    expected = {"model.name": "resnet20", "seed": 0, "base/ranks": 2, "base/learningRate.peak": 0.1}
    assert {name: found.get(name) for name in expected} == expected
    assert not [name for name in found if "tracking" in name or "job" in name or "attempt" in name]
    assert all(isinstance(value, str | int | float) for value in found.values())


@pytest.fixture
def own_trackers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_trackers", raising=False)
    return tmp_path / "own_trackers.py"


OWN = {
    "no such module": (None, r"own_trackers:Own cannot be imported \(No module named 'own_trackers'\); install its"),
    "no such class": ("", "own_trackers:Own cannot be imported .*has no attribute 'Own'"),
    "a module that fails": ("1 / 0", r"own_trackers:Own cannot be imported \(division by zero\)"),
    "a function": ("def Own(options): raise SystemExit", "own_trackers:Own is no tracker; name a subclass of"),
    "another class": ("class Own: pass", "own_trackers:Own is no tracker; name a subclass of"),
    "half a tracker": (
        "from resnetboost_trainer.tracking import Tracker\nclass Own(Tracker): pass",
        "own_trackers:Own cannot be made .*abstract",
    ),
}


@pytest.mark.parametrize(("code", "text"), OWN.values(), ids=OWN.keys())
def test_a_wrong_tracker_of_ones_own_ends_the_job_at_once(code: str | None, text: str, own_trackers: Path) -> None:
    if code is not None:
        own_trackers.write_text(code)
    with pytest.raises(ConfigError, match=text):
        registry.started(settings(callbacks=[CALLBACK]), None, {})


def test_a_tracker_of_ones_own_gets_its_options_and_the_run(own_trackers: Path, tmp_path: Path) -> None:
    own_trackers.write_text(
        "from resnetboost_trainer.tracking import Tracker\n"
        "class Own(Tracker):\n"
        "    def start(self, run): self.path, self.uid = self.options['path'], run.uid\n"
        "    def log(self, points): open(self.path, 'a').write(f'{self.uid} {points[0].step}\\n')\n"
    )
    out = tmp_path / "out"
    found = registry.started(settings(callbacks=[CALLBACK | {"options": {"path": str(out)}}]), None, {})
    found.row({"step": 10, "time": 0.0, "loss": 1.0})
    found.end("Succeeded", "")
    assert out.read_text() == "uid 10\n"


def test_event_files_need_a_folder() -> None:
    with pytest.raises(ConfigError, match=r"tracking\.tensorboard\.path: is missing"):
        registry.started(settings(tensorboard={}), None, {})
