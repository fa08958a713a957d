"""A job without any claim, whose checkpoints are in object storage, on a real node that loses its pods and its disk."""

import datetime
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from beds.cluster import build
from beds.cluster.fixtures import build_or_skip
from beds.kubelet import Bed
from beds.objectstorage import Gateway
from beds.operator import Space
from beds.operator.wait import eventually

pytestmark = [pytest.mark.slow, pytest.mark.long]

EXAMPLE = Path(__file__).parents[2] / "examples" / "object-storage.yaml"
GOOD_TOP1 = 0.97
# Progress is reported every 15 s: the example's six epochs would be over before a pod can be lost.
EPOCHS = {"epochs": 120, "evaluateEveryEpochs": 20}


@pytest.fixture
def gateway(bed: Bed, pytestconfig: pytest.Config) -> Iterator[Gateway]:
    """A gateway on the node, where pods reach it."""
    build_or_skip(pytestconfig, build.OBJECT_STORAGE)
    with Gateway(bed.sandbox) as running:
        yield running


def test_a_job_without_a_claim_survives_the_loss_of_its_pods_and_their_disks(
    bed: Bed, space: Space, gateway: Gateway, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = yaml.safe_load(EXAMPLE.read_text())
    manifest["spec"]["stages"][0] |= EPOCHS
    manifest["spec"]["tracking"] = {"tensorboard": {"path": "s3://bucket/tensorboard"}}
    assert "claimName" not in manifest["spec"]["checkpoint"]
    secret = {"metadata": {"name": manifest["spec"]["storage"]["secretName"]}, "stringData": gateway.variables}
    bed.plane.client.send("POST", f"/api/v1/namespaces/{space.namespace}/secrets", secret)
    space.create(manifest)
    name = manifest["metadata"]["name"]
    space.until(lambda status: saved(status) >= 20, "a checkpoint is saved", name)
    lost = {pod["metadata"]["uid"] for pod in space.all("pods")}
    assert len(lost) == 2 and lost <= disks(bed)

    kill = ["delete", "pods", "--all", f"--namespace={space.namespace}", "--force", "--grace-period=0"]
    space.plane.kubectl(*kill)
    at = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)  # in the log's format
    status = space.until(
        lambda status: status["attempt"] == 1 and saved(status) > status["attempts"][0]["checkpointStep"],
        "the next attempt saves a checkpoint",
        name,
    )
    eventually(lambda: lost & disks(bed), lambda left: not left, "the disks of the lost pods are gone")
    said = space.plane.kubectl("logs", f"{name}-base-1-0", f"--namespace={space.namespace}")
    step = status["attempts"][0]["checkpointStep"]
    (fetched,) = re.findall(r"fetched s3://bucket/checkpoints/\S+/step-0*(\d+)", said)
    assert int(fetched) >= step >= 20
    assert f"resumed from the checkpoint of step {fetched}" in said
    line = re.search(rf"^(\S+ \S+) \w+ .*resumed from the checkpoint of step {fetched}", said, re.MULTILINE)
    assert line is not None
    resumed = datetime.datetime.strptime(line[1], "%Y-%m-%d %H:%M:%S,%f")
    with capsys.disabled():
        print(f"\n{resumed - at} from the loss of the pods to the resumption")

    status = space.until_phase("Complete", name)
    assert status["restarts"] <= 1
    curves = [path.name for path in (gateway.bucket / "tensorboard").glob("*/base/events.out.tfevents.*")]
    assert {name.split(".")[-2] for name in curves} == {"0", "1"}, "each attempt has written its own"
    assert status["stages"][0]["top1"] >= GOOD_TOP1


def disks(bed: Bed) -> set[str]:
    """The pods whose local files are on the node, by uid."""
    return set(bed.run("ls", "/var/lib/kubelet/pods").split())


def saved(status: dict[str, Any]) -> int:
    return int(status.get("progress", {}).get("checkpointStep") or 0)
