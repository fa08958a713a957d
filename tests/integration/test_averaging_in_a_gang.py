"""Weight averaging on two real ranks: restarted after a kill, and with nearly all layers frozen."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy

from support.wholerun import Run, checkpointed, completed, job

pytestmark = pytest.mark.slow

RANKS = (0, 1)


def averaged(model: dict[str, Any], **stage: Any) -> dict[str, Any]:
    settings = {"name": "base", "algorithm": "Momentum", "localBatchSize": 32, "ema": {"decay": 0.9}}
    model = {"name": "resnet20", "numClasses": 10} | model
    return job(settings | stage, model=model, count=len(RANKS), checkpoint={"everySteps": 10})


def test_a_killed_rank_resumes_lars_and_the_average_to_the_same_bits(tmp_path: Path) -> None:
    lars = averaged({}, epochs=2, learningRate={"peak": 10}, lars={"trustCoefficient": 0.001})
    folders = tmp_path / "undisturbed", tmp_path / "killed"
    for folder in folders:
        folder.mkdir()
    undisturbed = completed(folders[0], lars)
    assert {f"ema-rank-{rank:04d}.safetensors" for rank in RANKS} | {"ema.safetensors"} < set(undisturbed.weights())
    killed = Run(folders[1], lars).start()
    killed.wait(checkpointed(10))
    os.kill(killed.rank(1), signal.SIGKILL)
    code, output = killed.finish()
    assert code == 0, output
    assert killed.status()["restarts"] == 1
    assert killed.weights() == undisturbed.weights()


def test_training_only_the_head_changes_only_the_head(tmp_path: Path) -> None:
    body = ["stem", "layer1", "layer2", "layer3"]
    run = completed(tmp_path, averaged({"freeze": body}, epochs=1, learningRate={"schedule": "Constant", "peak": 0.1}))
    models = sorted(run.out.glob("checkpoints/*/base/attempt-0/step-*/model.safetensors"))
    first, last = (safetensors.numpy.load_file(models[place]) for place in (0, -1))
    moved = {name for name, value in last.items() if value.tobytes() != first[name].tobytes()}
    assert moved == {"fc.weight", "fc.bias"}
