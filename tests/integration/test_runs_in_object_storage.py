"""A real training whose only copy is in object storage: the same bits after the loss of its volume, and its report."""

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from beds.objectstorage import Gateway
from resnetboost_operator.cli.report import report
from resnetboost_operator.errors import UserError
from resnetboost_trainer.checkpoint import fetched, pretrained, trained
from resnetboost_trainer.cli import convert
from resnetboost_trainer.config import Model, Weights
from resnetboost_trainer.failures import ConfigError
from support import onerank
from support.smallcheckpoints import MODEL

pytestmark = pytest.mark.slow
EVERY = 11


def test_a_job_without_a_volume_survives_the_loss_of_its_node(storage: Gateway, tmp_path: Path) -> None:
    def train(attempt: int) -> bytes:
        folder = tmp_path / f"node-{attempt}"
        folder.mkdir()
        onerank.train(folder, attempt, everySteps=EVERY, url="s3://bucket/runs")
        path = folder / f"checkpoints/uid/base/attempt-{attempt}/step-{onerank.STEPS:08d}"
        return b"".join(file.read_bytes() for file in sorted(path.glob("*.safetensors")))

    undisturbed = train(0)
    copies = storage.bucket / "runs/uid/base/attempt-0"
    assert {path.name for path in copies.glob("step-*")} >= {f"step-{onerank.STEPS:08d}"}
    for path in copies.glob("step-*"):  # the node is lost after step 22, in the middle of an upload
        if int(path.name.rpartition("-")[2]) > 2 * EVERY:
            (path / "manifest.json").unlink()
    if not (copies / f"step-{2 * EVERY:08d}").exists():  # it gave way to a newer one
        shutil.rmtree(copies)
    assert train(1) == undisturbed

    fetched._fetched.cache_clear()
    found = trained.read("s3://bucket/runs")
    assert found.manifest is not None and (found.manifest.attempt, found.manifest.step) == (1, onerank.STEPS)
    given = Weights(path="s3://bucket/runs/uid")
    read = pretrained.read(Model(name="resnet20", num_classes=10), given, 1)
    assert all((read.arrays[name] == array).all() for name, array in found.arrays.items())
    assert convert.main(["s3://bucket/runs", str(tmp_path / "torch.safetensors")]) == 0
    assert (tmp_path / "torch.safetensors").exists() and not (tmp_path / MODEL).exists()

    out = tmp_path / "report"
    for _ in range(2):  # the second replaces the first
        done = CliRunner().invoke(report, ["s3://bucket/runs", "--out", str(out)])
        assert (done.exit_code, done.output) == (0, f"{out}/report.html\n")
    assert sorted(path.name for path in out.iterdir()) == ["report.html", "report.png"]
    page = (out / "report.html").read_text()
    assert "digits: resnet20 on digits" in page and "Complete, top-1 " in page
    refused = CliRunner().invoke(report, ["s3://bucket/runs", "--out", str(tmp_path)])
    assert isinstance(refused.exception, UserError) and "name another folder" in str(refused.exception)
    assert CliRunner().invoke(report, ["s3://bucket/nothing", "--out", str(out)]).exit_code == ConfigError.exit_code
