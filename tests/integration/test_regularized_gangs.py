"""Two real ranks with all that regularises: restarted after a kill, they end with the same bits."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from resnetboost_trainer.checkpoint.formats import weights as weightfile
from resnetboost_trainer.models import resnet
from support.wholerun import Run, checkpointed, completed, job

pytestmark = pytest.mark.slow


def test_a_killed_rank_resumes_to_the_same_bits(tmp_path: Path) -> None:
    teacher = tmp_path / "teacher.safetensors"
    network = resnet.build("resnet32", 10, 1, 3)
    weightfile.write(teacher, {name: value.asnumpy() for name, value in network.parameters_and_names()})
    stage = {"name": "base", "algorithm": "THOR", "epochs": 1, "localBatchSize": 32, "learningRate": {"peak": 0.02}}
    stage |= {"loss": {"classWeighting": "Balanced"}, "distillation": {"teacher": str(teacher)}}
    augmentation = {"randAugment": {}, "randomErasing": {"fill": "Noise"}, "mixupAlpha": 0.2}
    settings = job(stage, model={"name": "resnet20", "numClasses": 10}, count=2, checkpoint={"everySteps": 5})
    settings["spec"]["dataset"] = {"name": "mnist_5k", "validationSplit": 0.75, "augmentation": augmentation}
    folders = tmp_path / "undisturbed", tmp_path / "killed"
    for folder in folders:
        folder.mkdir()
    undisturbed = completed(folders[0], settings)
    manifests = [
        json.loads(path.read_text()) for path in undisturbed.out.glob("checkpoints/*/*/*/step-*/manifest.json")
    ]
    (sha256,) = {manifest["teacher"] for manifest in manifests}
    assert len(sha256) == 64
    resumes_to(undisturbed, folders[1], settings)


def test_branches_left_out_and_shared_statistics_are_the_same_after_a_kill(tmp_path: Path) -> None:
    stage = {"name": "base", "algorithm": "Momentum", "epochs": 1, "localBatchSize": 32}
    stage |= {"dropPath": 0.3, "syncBatchNorm": True, "gradientNoise": True, "loss": {"function": "BinaryCrossEntropy"}}
    settings = job(stage, model={"name": "resnet20", "numClasses": 10}, count=2, checkpoint={"everySteps": 5})
    folders = tmp_path / "undisturbed", tmp_path / "killed"
    for folder in folders:
        folder.mkdir()
    resumes_to(completed(folders[0], settings), folders[1], settings)


def resumes_to(undisturbed: Run, folder: Path, settings: dict[str, Any]) -> None:
    """Run the job again, kill a rank after a checkpoint, and compare the weights at the end."""
    killed = Run(folder, settings).start()
    killed.wait(checkpointed(5))
    os.kill(killed.rank(1), signal.SIGKILL)
    code, output = killed.finish()
    assert code == 0, output
    assert killed.status()["restarts"] == 1
    assert killed.weights() == undisturbed.weights()
