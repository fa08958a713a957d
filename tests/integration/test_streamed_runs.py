"""Whole runs on images decoded on the fly: killed within an epoch, from image folders and MindRecord files."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from beds.objectstorage import Gateway
from beds.operator.wait import eventually
from resnetboost_trainer.cli import to_mindrecord
from resnetboost_trainer.failures import StorageError
from support import onerank, photographs
from support.wholerun import Run

pytestmark = pytest.mark.slow

BASE = Path("checkpoints/uid/base")
EVERYTHING = {
    "minScale": 0.08,
    "maxScale": 1,
    "minRatio": 0.75,
    "maxRatio": 1.3333,
    "padding": 4,
    "brightness": 0.4,
    "contrast": 0.4,
    "saturation": 0.4,
    "hue": 0.1,
    "mixupAlpha": 0.2,
    "cutmixAlpha": 1,
}
STEPS = 6  # two epochs of three steps


def settings(name: str, path: Path | str, **changes: Any) -> dict[str, Any]:
    """A rank's config: small images with every augmentation, in batches of eight."""
    dataset = {"name": name, "path": str(path), "imageSize": 16, "augmentation": EVERYTHING, "maxCorruptImages": 1}
    model = {"name": "resnet20", "numClasses": 2}
    model |= {"init": {"convolution": "HeNormal", "head": "Uniform", "zeroGamma": False}}
    return {"dataset": dataset, "model": model, "localBatchSize": 8, **changes}


def train(folder: Path, attempt: int, config: dict[str, Any], example: str = "digits", **checkpoint: Any) -> Path:
    """Train to the end; returns the folder of the attempt's checkpoints."""
    onerank.train(folder, attempt, config=config, example=example, **checkpoint)
    return folder / BASE / f"attempt-{attempt}"


def weights(attempt: Path) -> dict[str, bytes]:
    found = {path.name: path.read_bytes() for path in attempt.glob(f"step-{STEPS:08d}/*.safetensors")}
    assert found
    return found


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photographs.folder(tmp_path_factory.mktemp("photographs"))


@pytest.fixture(scope="module")
def undisturbed(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("undisturbed"), 0, settings("ImageFolder", root))


def test_a_rank_killed_within_an_epoch_resumes_to_the_same_bits(undisturbed: Path, root: Path, tmp_path: Path) -> None:
    left = tmp_path / BASE / "attempt-0" / "step-00000004"
    shutil.copytree(undisturbed / left.name, left)
    assert weights(train(tmp_path, 1, settings("ImageFolder", root))) == weights(undisturbed)


def test_records_made_of_a_folder_train_to_the_bits_of_the_folder(
    undisturbed: Path, root: Path, tmp_path: Path
) -> None:
    to_mindrecord.convert(root, tmp_path / "records", "train", "val", shards=2, skip=0)
    attempt = train(tmp_path, 0, settings("MindRecord", tmp_path / "records", localBatchSize=8))
    assert weights(attempt) == weights(undisturbed)


def test_a_run_from_object_storage_ends_in_the_bits_of_local_files(
    undisturbed: Path, root: Path, storage: Gateway, tmp_path: Path
) -> None:
    """Image folders go on from the checkpoint of a run from local files, as another node's would."""
    shutil.copytree(root, storage.bucket / "images")
    to_mindrecord.convert(root, storage.bucket / "records", "train", "val", shards=2, skip=0)
    access = {"storage": {"cachePath": str(tmp_path / "cache")}}
    left = tmp_path / BASE / "attempt-0" / "step-00000004"
    shutil.copytree(undisturbed / left.name, left)
    assert weights(train(tmp_path, 1, settings("ImageFolder", "s3://bucket/images", **access))) == weights(undisturbed)
    (tmp_path / "other").mkdir()
    config = settings("MindRecord", "s3://bucket/records", **access)
    assert weights(train(tmp_path / "other", 0, config)) == weights(undisturbed)


def test_an_outage_in_the_middle_ends_the_rank_with_its_exit_code(root: Path, storage: Gateway, tmp_path: Path) -> None:
    """The images to test with are not fetched before the end."""
    shutil.copytree(root, storage.bucket / "images")
    access = {"retrySeconds": 1, "cachePath": str(tmp_path / "cache")}
    config = settings("ImageFolder", "s3://bucket/images", storage=access, epochs=40, evaluateEveryEpochs=1000)
    rank = onerank.start(tmp_path, 0, config=config)
    eventually(lambda: list((tmp_path / BASE).glob("attempt-0/step-*")), bool, "a checkpoint")
    storage.stop()
    assert rank.wait(timeout=300) == StorageError.exit_code == 15
    said = (tmp_path / "uid-0.json").read_text()
    assert "s3://bucket/images/val/" in said and "the storage does not answer" in said


def job(root: Path, **stage: Any) -> dict[str, Any]:
    stages = [{"name": "base", "algorithm": "Momentum", "epochs": 2, "localBatchSize": 6, **stage}]
    augmentation = {"mixupAlpha": 0.2, "brightness": 0.2}
    return {
        "apiVersion": "resnetboost.io/v1alpha1",
        "kind": "ResNetBoostJob",
        "metadata": {"name": "photographs"},
        "spec": {
            "device": {"type": "CPU", "count": 2},
            "model": {"name": "resnet20", "numClasses": 2},
            "dataset": {"name": "ImageFolder", "path": str(root), "imageSize": 16, "augmentation": augmentation},
            "stages": stages,
            "checkpoint": {"everySteps": 1, "keep": 9},
            "failurePolicy": {"backoffSeconds": 0},
        },
    }


def test_a_gang_goes_on_without_images_that_cannot_be_used_and_tells_of_them(tmp_path: Path) -> None:
    root = photographs.folder(tmp_path / "images", train=24, test=10)
    spoiled = [root / "train" / "temple" / "0003.jpg", root / "val" / "flower" / "0004.jpg"]
    for path in spoiled:
        path.write_bytes(path.read_bytes()[:300])
    run = Run(tmp_path, job(root, algorithm="THOR", thor={"frequency": 2})).start()
    code, output = run.finish()
    assert (code, run.status()["phase"]) == (0, "Complete"), output
    assert run.status()["stages"][0]["skippedImages"] == 2, "though two ranks may have met one of them"
    assert f"\n  data       base: 2 unusable images skipped; {run.out / 'logs'} names each\n" in output
    logs = "".join(path.read_text() for path in (run.out / "logs").glob("*.log"))
    for path in spoiled:
        assert f"skipped {path}: it cannot be decoded: " in logs
    top1 = run.status()["stages"][0]["top1"]
    assert top1 * 9 == pytest.approx(round(top1 * 9), abs=1e-3), "of ten test images one counts for nothing"


def test_too_many_of_them_end_a_job_at_once_with_a_sentence(tmp_path: Path) -> None:
    root = photographs.folder(tmp_path / "images")
    for path in (root / "train" / "temple").iterdir():
        path.write_bytes(b"")
    wanted = job(root)
    wanted["spec"]["dataset"]["maxCorruptImages"] = 2
    code, output = Run(tmp_path, wanted).start().finish()
    assert code == 11
    assert "is image 3 that cannot be used, and dataset.maxCorruptImages is 2; repair or remove them" in output
