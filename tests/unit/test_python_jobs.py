"""`resnetboost.Job`: loading, changing and checking a job gives what the command line gives."""

import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from resnetboost import Job, JobError, UserError
from resnetboost_operator.cli import job_file
from resnetboost_operator.cli.main import main
from resnetboost_operator.validation import jobfile, schema

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
DIGITS = ROOT / "examples" / "digits.yaml"
BAD = sorted((ROOT / "tests" / "corpus" / "bad").glob("*.yaml"))


def rebuilt(job: Job) -> Job:
    """The job from its structs alone."""
    return job.replace(spec=msgspec.structs.replace(job.spec))


def defaulted(job: Job) -> object:
    """The spec of the job's text, with the defaults of the API server."""
    return schema.defaulted(yaml.safe_load(job.to_yaml()))["spec"]


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_a_job_from_its_structs_is_the_job_of_its_file(path: Path) -> None:
    assert defaulted(rebuilt(Job.load(path))) == schema.defaulted(jobfile.load(path))["spec"]


@pytest.mark.parametrize("path", BAD[::40], ids=[path.stem for path in BAD[::40]])
def test_a_mistake_has_the_sentence_of_validate(path: Path) -> None:
    with pytest.raises(JobError) as raised:
        Job.load(path).validate()
    printed = CliRunner().invoke(main, ["validate", str(path)]).stderr
    assert printed.splitlines() == [f"resnetboost: {line}" for line in str(raised.value).splitlines()]


def test_a_change_by_path_is_that_of_set(tmp_path: Path) -> None:
    changes = {"stages[0].epochs": np.int64(3), "device.count": 1, 'metadata.labels["example.com/team"]': "a"}
    job = Job.load(DIGITS).replace({**changes, "dataset": {"name": "npz", "path": tmp_path / "x.npz"}}, name="other")
    words = ["stages[0].epochs=3", "device.count=1", 'metadata.labels["example.com/team"]=a', "metadata.name=other"]
    expected = job_file.load(DIGITS, [*words, f"dataset={{name: npz, path: {tmp_path}/x.npz}}"])
    assert yaml.safe_load(job.to_yaml())["metadata"] == expected["metadata"]
    assert defaulted(job) == expected["spec"]
    assert Job.load(DIGITS).spec.device.count == 2, "the first job has changed"


def test_a_changed_struct_keeps_the_rest_and_is_checked() -> None:
    job = Job.load(DIGITS)
    stage = msgspec.structs.replace(job.spec.stages[0], epochs=0)
    changed = job.replace({"seed": 5}, spec=msgspec.structs.replace(job.spec, stages=(stage,)))
    with pytest.raises(JobError, match=r"digits.yaml: spec.stages\[0\].epochs: 0 is too small; use at least 1"):
        _ = changed.spec
    assert changed.replace({"stages[0].epochs": 2}).spec.seed == 5
    assert Job("digits", job.spec).spec == job.spec


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("stages[1].epochs", "stages[1].epochs: spec.stages has no [1]; its 1 entries count from [0]"),
        ("stages[0]..epochs", "stages[0]..epochs: write it as a path, for example stages[0].epochs"),
        ("", ": write it as a path, for example stages[0].epochs"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused(path: str, sentence: str) -> None:
    with pytest.raises(UserError) as raised:
        Job.load(DIGITS).replace({path: 1})
    assert str(raised.value) == sentence


def test_text_that_is_no_job_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="is empty; write a ResNetBoostJob into it"):
        Job.parse("")
    with pytest.raises(JobError, match="does not exist"):
        Job.load(tmp_path / "missing.yaml")
    assert Job.parse(DIGITS.read_text()) == Job.load(DIGITS)


def test_importing_it_is_light() -> None:
    heavy = ("mindspore", "numpy", "kopf", "kubernetes", "aiohttp", "rich", "matplotlib")
    code = f"import sys, resnetboost; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
