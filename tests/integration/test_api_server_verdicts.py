"""The corpus of job files and changes: a real API server accepts and rejects the same as `resnetboost validate`."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from beds.cluster import ClusterError, ControlPlane
from beds.cluster.fixtures import CRD
from resnetboost_api import names
from resnetboost_api.status import Loss, Status
from resnetboost_operator import status
from resnetboost_operator.validation import jobfile, schema

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "tests" / "corpus"
JOBS = f"/apis/{names.API_VERSION}/namespaces/default/{names.PLURAL}"
# Those where kubectl decides, or changes what the server reads. It takes ten times as long as a request does.
BY_KUBECTL = ("api-version-of-another-group", "kind-misspelled", "label-a-number", "merged-stages", "nothing")
ORIGINALS = ("everything", "minimal", "elastic", "sync-batch-norm-of-two")  # bases of the merge patches

# kubectl's wording for errors without a field name.
OTHER_NAMES = {
    "apiVersion": "in version",
    "kind": "no matches for kind",
    "metadata.labels.run": "metadata.labels",
    "metadata.labels.team": "metadata.labels",
    "spec.stages[1].name": "spec.stages[1]: Duplicate",
    "spec.template.env[1].name": "spec.template.env[1]: Duplicate",
    "spec.template.volumeMounts[1].mountPath": "spec.template.volumeMounts[1]: Duplicate",
    "spec.tracking.callbacks[1].name": "spec.tracking.callbacks[1]: Duplicate",
}


def files(*folders: Path) -> pytest.MarkDecorator:
    paths = [path for folder in folders for path in sorted(folder.glob("*.yaml"))]
    assert paths
    return pytest.mark.parametrize("path", paths, ids=[path.stem for path in paths])


def create(control_plane: ControlPlane, path: Path) -> Any:
    """Create the object (dry run), as strictly as kubectl does; returns it with defaults."""
    if path.stem in BY_KUBECTL:
        return json.loads(control_plane.kubectl("create", "--dry-run=server", "--output=json", f"--filename={path}"))
    options = "dryRun=All&fieldValidation=Strict"
    return control_plane.client.send("POST", f"{JOBS}?{options}", path.read_bytes(), "application/yaml")


def change(control_plane: ControlPlane, path: Path) -> None:
    """Apply a change to the job it is for (dry run)."""
    text = path.read_text()
    _, named, original = text.rpartition("# of: ")
    job = original.strip().removesuffix(".yaml") if named else "everything"
    if path.stem in BY_KUBECTL:
        how = ("--dry-run=server", "--type=merge", f"--patch-file={path}")
        control_plane.kubectl("patch", f"resnetboostjob/{job}", *how)
    else:
        patch = yaml.safe_load(text)
        control_plane.client.send("PATCH", f"{JOBS}/{job}?dryRun=All", patch, "application/merge-patch+json")


@pytest.fixture(scope="module")
def originals(control_plane: ControlPlane) -> Iterator[None]:
    """The jobs that the changes modify, each named like its file."""
    jobs = [jobfile.load(CORPUS / "good" / f"{name}.yaml") | {"metadata": {"name": name}} for name in ORIGINALS]
    for job in jobs:
        control_plane.kubectl("create", "--filename=-", input=json.dumps(job))
    yield
    control_plane.kubectl("delete", "resnetboostjobs", *ORIGINALS)


def test_the_definition_raises_no_warning(control_plane: ControlPlane) -> None:
    control_plane.kubectl("apply", "--dry-run=server", "--server-side", "--warnings-as-errors", f"--filename={CRD}")


@files(CORPUS / "good", ROOT / "examples")
def test_good_files_are_taken_with_the_same_defaults(path: Path, control_plane: ControlPlane) -> None:
    assert create(control_plane, path)["spec"] == schema.defaulted(jobfile.load(path))["spec"]


def test_the_queue_of_a_job_is_a_wide_column(control_plane: ControlPlane, namespace: str) -> None:
    for name in ("queue-kueue", "digits"):
        control_plane.kubectl("create", f"--namespace={namespace}", f"--filename={ROOT / 'examples' / f'{name}.yaml'}")
    head, *rows = control_plane.kubectl("get", "rbj", f"--namespace={namespace}", "--output=wide").splitlines()
    start = head.index("QUEUE")
    assert {row.split()[0]: row[start:].partition(" ")[0] for row in rows} == {"digits": "", "queue-kueue": "team-a"}


def test_the_documents_command_makes_labels_of_super_pods(control_plane: ControlPlane) -> None:
    (command,) = (
        text
        for text in re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs" / "queueing.md").read_text(), re.S | re.M)
        if "superPodID" in text
    )
    for name in ("in-super-pod", "alone"):
        control_plane.add_node(name)
    control_plane.kubectl("annotate", "node", "in-super-pod", "superPodID=7")
    for _ in range(2):  # it can be run again
        subprocess.run(["bash", "-c", command], env={**os.environ, **control_plane.environment()}, check=True)
    labelled = control_plane.kubectl("get", "nodes", "-l", "example.com/super-pod=7", "--output=name").split()
    with_label = control_plane.kubectl("get", "nodes", "-l", "example.com/super-pod", "--output=name").split()
    assert labelled == with_label == ["node/in-super-pod"]


@pytest.mark.usefixtures("originals")
def test_losses_of_an_older_operator_get_no_failure_and_stand_beside_newer_ones(control_plane: ControlPlane) -> None:
    def written(*lost: dict[str, Any]) -> Status:
        patch = json.dumps({"status": {"goodput": {"attemptSeconds": 9, "lost": lost}}})
        named = ("resnetboostjob/everything", "--subresource=status", "--type=merge", "--output=json")
        found = json.loads(control_plane.kubectl("patch", *named, f"--patch={patch}"))
        return status.from_dict(found["status"])

    before = written({"reason": "Killed", "deviceSeconds": 7}).goodput
    assert before is not None
    assert before.lost == (Loss("Killed", 7),)
    newer = [{"reason": "Replay", "failure": failure, "deviceSeconds": 1} for failure in ("", "Hang", "Killed")]
    after = written({"reason": "Killed", "failure": "", "deviceSeconds": 7}, *newer).goodput
    assert after is not None
    assert after.lost == (Loss("Killed", 7), Loss("Replay", 1), Loss("Replay", 1, "Hang"), Loss("Replay", 1, "Killed"))


@files(CORPUS / "bad")
def test_bad_files_are_refused_for_the_same_field(path: Path, control_plane: ControlPlane) -> None:
    (problem,) = schema.check(jobfile.load(path))
    with pytest.raises(ClusterError) as refusal:
        create(control_plane, path)
    assert OTHER_NAMES.get(problem.field, problem.field) in str(refusal.value)


@pytest.mark.usefixtures("originals")
@files(CORPUS / "changes" / "good")
def test_good_changes_are_taken(path: Path, control_plane: ControlPlane) -> None:
    change(control_plane, path)


@pytest.mark.usefixtures("originals")
@files(CORPUS / "changes" / "bad")
def test_bad_changes_are_refused_for_the_same_field(path: Path, control_plane: ControlPlane) -> None:
    field = path.read_text().removeprefix("# expect: ").partition(": ")[0]
    with pytest.raises(ClusterError) as refusal:
        change(control_plane, path)
    assert field in str(refusal.value)
