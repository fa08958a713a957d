"""A job on a real node that is tracked by a real MLflow server: its curves and its model card."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from beds.kubelet import Bed
from beds.operator import Space
from beds.trackers import MLflow, unavailable

pytestmark = [pytest.mark.slow, pytest.mark.long]

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.yaml"


@pytest.fixture
def server(bed: Bed) -> Iterator[MLflow]:
    if reason := unavailable():
        pytest.skip(reason)
    with MLflow(bed.sandbox) as found:
        yield found


def test_the_model_card_of_a_job_is_an_artifact_of_its_run(space: Space, server: MLflow) -> None:
    manifest = yaml.safe_load(EXAMPLE.read_text())
    manifest["spec"]["device"]["count"] = 1
    manifest["spec"]["tracking"] = {"mlflow": {"trackingUri": server.address_for_pods, "experiment": "digits"}}
    space.create(manifest)
    status = space.until_phase("Complete")
    (run,) = server.runs("digits")
    assert run["info"]["status"] == "FINISHED"
    assert server.history(run["info"]["run_id"], "base/top1")[-1][1] == pytest.approx(status["stages"][0]["top1"])
    listed = server.get(f"artifacts/list?run_id={run['info']['run_id']}&path=base")["files"]
    assert [file["path"] for file in listed] == ["base/model-card.md"]
