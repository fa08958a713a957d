"""Two real ranks with a validation split, random changes, balanced classes and a teacher: restarted after a kill."""

import json
import os
import signal
from pathlib import Path

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
    killed = Run(folders[1], settings).start()
    killed.wait(checkpointed(5))
    os.kill(killed.rank(1), signal.SIGKILL)
    code, output = killed.finish()
    assert code == 0, output
    assert killed.status()["restarts"] == 1
    assert killed.weights() == undisturbed.weights()
