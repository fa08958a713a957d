"""Golden manifests: every example's Kubernetes objects. After an intended change: `make golden`, and read the diff."""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from resnetboost_api import names
from resnetboost_api.status import Status
from resnetboost_operator import yamltext
from resnetboost_operator.cli import job_file, plan
from resnetboost_operator.job import parse_job
from resnetboost_operator.manifests import gang
from resnetboost_operator.manifests.rank_table import rank_table as rank_table_manifest
from resnetboost_operator.observed.state import Observation
from resnetboost_operator.planning import plan as planning
from resnetboost_operator.ranktable import assembly
from resnetboost_operator.ranktable.annotations import KEYS, BoundPod
from support.membership import SCHEDULERS, Scheduler

FOLDER = Path(__file__).parents[2] / "examples"
# Fields of a pod that are for its scheduler.
OF_SCHEDULERS = ("nodeSelector", "tolerations", "schedulerName", "priorityClassName", "schedulingGroup", "affinity")
EXAMPLES = sorted(FOLDER.glob("*.yaml"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_becomes_these_objects(example: Path) -> None:
    compare(example.stem, yamltext.dump_all(objects(job_file.load(example))))


def compare(name: str, text: str) -> None:
    golden = Path(__file__).with_name(f"{name}.yaml")
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text(), "run `make golden` if this is meant, and read the diff"


@pytest.mark.parametrize("device", ["ascend", "gpu"])
def test_a_job_differs_from_device_to_device_in_its_type_alone(device: str) -> None:
    ours, theirs = job_file.load(FOLDER / "npz.yaml"), job_file.load(FOLDER / f"npz-{device}.yaml")
    assert theirs["spec"]["device"].pop("type") != ours["spec"]["device"].pop("type")
    assert theirs == ours


def test_adasum_on_two_nodes_of_ascend_devices_becomes_these_objects() -> None:
    """Including the rank table and ranks made from a device plugin's annotations."""
    job = job_file.load(FOLDER / "digits-adasum.yaml", ["device.type=Ascend"])
    compare("digits-adasum-ascend", yamltext.dump_all([*objects(job), rank_table(job)]))


@pytest.mark.parametrize("known", SCHEDULERS, ids=lambda known: known.name)
def test_a_gang_has_this_group_and_this_first_pod_with_each_scheduler(known: Scheduler) -> None:
    """Two nodes of two GPUs in one rack, with a priority and a queue. Of the pod without what all pods have."""
    queues = {"scheduling.volcano.sh/queue-name": "team-a", "queue": "root.team-a"}
    wanted = {
        "schedulingPolicy": {"gang": {}},
        "priorityClassName": "high",
        "schedulingConstraints": {"topology": [{"key": "example.com/rack"}]},
    }
    job = job_file.load(FOLDER / "npz-gpu.yaml", ["device.count=4", "device.perNode=2"])
    metadata = {**job["metadata"], "uid": plan.PLACEHOLDER_UID, "labels": queues}
    parsed = parse_job({**job, "metadata": metadata, "spec": {**job["spec"], "scheduling": wanted | known.scheduling}})
    made = planning.plan(parsed, Status(), Observation(capabilities=known.capabilities), now=0.0).create
    groups = [found for found in made if found["kind"] == "PodGroup"]
    first = next(found for found in made if found["kind"] == "Pod")
    first["spec"] = {name: value for name, value in first["spec"].items() if name in OF_SCHEDULERS}
    compare(f"group-{known.name}", yamltext.dump_all([*groups, first]))


def rank_table(job: dict[str, Any]) -> dict[str, Any]:
    """Rank table of the first attempt: indexes 0 and 1 on node-b, devices in descending order; the others on node-a."""
    parsed = parse_job({**job, "metadata": {**job["metadata"], "uid": plan.PLACEHOLDER_UID}})
    stage = parsed.spec.stages[0]
    places = [
        ("node-b", 5, "10.0.0.5"),
        ("node-b", 4, "10.0.0.4"),
        ("node-a", 0, "10.0.1.1"),
        ("node-a", 1, "10.0.1.2"),
    ]
    texts = [json.dumps({"devices": [{"device_id": str(id), "device_ip": address}]}) for _, id, address in places]
    pods = [
        BoundPod(names.pod(parsed.name, stage.name, 0, index), index, place[0], {KEYS[0]: text})
        for index, (place, text) in enumerate(zip(places, texts, strict=True))
    ]
    built = assembly.build(pods, "910B")
    return rank_table_manifest(parsed, stage, 0, built.data, hashlib.sha256(built.data).hexdigest(), built.ranks)


def objects(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Objects of the first stage, and of later stages if no attempt fails."""
    yield from plan.objects(job)
    parsed = parse_job({**job, "metadata": {**job["metadata"], "uid": plan.PLACEHOLDER_UID}})
    for attempt, stage in enumerate(parsed.spec.stages[1:], start=1):
        yield from gang.gang(parsed, stage, attempt)
