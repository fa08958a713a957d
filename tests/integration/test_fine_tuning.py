"""Fine-tuning from a weight file: frozen layers keep their bits, with every algorithm and after a restart."""

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import safetensors.numpy
from mindspore import Tensor

from resnetboost_trainer import config
from resnetboost_trainer.cli import convert
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.engine import device
from resnetboost_trainer.engine.train_step import Program
from resnetboost_trainer.models import freeze, key_map, resnet
from resnetboost_trainer.optim.pca.subspace import Basis
from resnetboost_trainer.optim.schedule import StepSchedule
from support import onerank, pcareference, thornetworks, trainerconfig

pytestmark = pytest.mark.slow

FROZEN = ["stem", "layer1", "layer2"]
ALONE = Communicator(0, 1)
PCA = {
    "components": 3,
    "solver": "SGD",
    "lineSearch": {"contraction": 0.5, "sufficientDecrease": 0.3, "maxTrials": 5},
    "residual": {"momentum": 0.5, "learningRate": 0.05},
}


def arrays(path: Path) -> dict[str, Any]:
    return safetensors.numpy.load_file(path)


def step(attempt: Path, number: int) -> Path:
    return attempt / f"step-{number:08d}"


def frozen(name: str) -> bool:
    return name.startswith(("conv1.", "bn1.", "layer1.", "layer2."))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of resnet20 after two epochs of the digits, under PyTorch's names."""
    folder = tmp_path_factory.mktemp("base")
    onerank.train(folder, 0, everySteps=onerank.STEPS)
    weights = folder / "base.safetensors"
    convert.convert(step(folder / "checkpoints/uid/base/attempt-0", onerank.STEPS), weights)
    return weights


def tuning(weights: Path) -> dict[str, Any]:
    """The model config: the file's weights, frozen layers and a new head for twelve classes."""
    given = {"path": str(weights), "head": "New"}
    return {"model": trainerconfig.MODEL | {"numClasses": 12, "weights": given, "freeze": FROZEN}}


@pytest.fixture(scope="module")
def tuned(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where fine-tuning has finished; its weight file has been deleted."""
    folder = tmp_path_factory.mktemp("tuned")
    weights = Path(shutil.copy(base, folder / "weights.safetensors"))
    onerank.train(folder, 0, config=tuning(weights), everySteps=11)
    weights.unlink()
    return folder


def test_frozen_layers_keep_the_files_bits_and_a_new_head_learns(base: Path, tuned: Path) -> None:
    attempt = tuned / "checkpoints/uid/base/attempt-0"
    theirs = arrays(base)
    first, last = arrays(step(attempt, 0) / "model.safetensors"), arrays(step(attempt, 44) / "model.safetensors")
    for name, value in last.items():
        if not name.startswith("fc."):
            assert first[name].tobytes() == theirs[key_map.torch(name)].tobytes(), name
        assert (value.tobytes() == first[name].tobytes()) == frozen(name), name
    assert last["fc.weight"].shape == (12, 64)
    optimizer = arrays(step(attempt, 44) / "optimizer.safetensors")
    assert not [name for name in optimizer if frozen(name.removeprefix("velocity."))]
    ended = json.loads((tuned / "uid-0.json").read_text())
    assert ended["top1"] > 0.95, ended


def test_a_resumed_run_has_the_same_bits_without_the_file(
    tuned: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = tuned / "checkpoints/uid/base/attempt-0"
    shutil.copytree(tuned / "checkpoints", tmp_path / "checkpoints")
    attempts = tmp_path / "checkpoints/uid/base"
    for number in (22, 33, 44):
        shutil.rmtree(step(attempts / "attempt-0", number))
    (tmp_path / "weights.safetensors").write_bytes(b"by now something else")
    onerank.train(tmp_path, 1, config=tuning(tmp_path / "weights.safetensors"), everySteps=11)
    assert onerank.final_weights(attempts / "attempt-1") == onerank.final_weights(before)
    noted = [json.loads((step(path, 44) / "manifest.json").read_text())["weights"] for path in attempts.glob("*-1")]
    assert noted == [json.loads((step(before, 0) / "manifest.json").read_text())["weights"]]
    assert "is another file than this run began with" in capfd.readouterr().err


def test_mismatching_weights_are_refused_before_training(base: Path, tmp_path: Path) -> None:
    changes = {"model": trainerconfig.MODEL | {"name": "resnet32", "weights": {"path": str(base), "head": "Keep"}}}
    assert onerank.start(tmp_path, 0, config=changes).wait(timeout=200) == 10
    ended = json.loads((tmp_path / "uid-0.json").read_text())
    assert "model.name to resnet20" in ended["message"]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"algorithm": "THOR", "thor": trainerconfig.THOR | {"frequency": 1}},
        {"algorithm": "Adasum", "adasum": {"reduce": "Delta", "ranksPerNode": 1}},
        {"algorithm": "PCA", "pca": PCA},
    ],
    ids=["Momentum", "THOR", "Adasum", "PCA"],
)
def test_no_algorithm_changes_frozen_layers(changes: dict[str, Any]) -> None:
    device.prepare()
    network = thornetworks.Chain()
    parts = sorted({name.partition(".")[0] for name, _ in network.parameters_and_names()})
    freeze.freeze(network, parts[:1])
    mine = [name for name, _ in network.parameters_and_names() if name.partition(".")[0] == parts[0]]
    trained = list(network.trainable_params())
    before = {name: value.asnumpy().copy() for name, value in network.parameters_and_names()}
    settings = trainerconfig.GOOD | {"model": trainerconfig.MODEL | {"numClasses": thornetworks.CLASSES}} | changes
    numbers = sum(parameter.size for parameter in trained)
    basis = Basis(pcareference.orthonormal(3, numbers).astype(np.float32), numbers, 1.0)
    loaded = msgspec.convert(settings, config.Config, strict=False)
    program = Program(loaded, network, ALONE, basis if loaded.pca is not None else None)
    for number in range(2):
        images, labels = Tensor(thornetworks.images(8, seed=number)), Tensor(thornetworks.labels(8))
        program.step(images, labels, StepSchedule(number, 0.1, 0.1), stop=False)
    for name, value in network.parameters_and_names():
        assert (value.asnumpy().tobytes() == before[name].tobytes()) == (name in mine), name
    assert mine
    assert not [name for name in program.state.optimizer if any(frozen in name for frozen in mine)]
    if program.curvature is not None:
        assert not [layer.name for layer in program.curvature.layers if layer.name.partition(".")[0] == parts[0]]


def test_batch_norm_of_a_frozen_part_uses_running_statistics() -> None:
    device.prepare()
    network = resnet.build("resnet20", 10, 1)
    freeze.freeze(network, ["layer1"])
    statistics = freeze.moving(network)
    assert "bn1.moving_mean" in statistics
    assert not [name for name in statistics if name.startswith("layer1.")]
    before = {name: value.asnumpy().copy() for name, value in network.parameters_and_names()}
    images = Tensor(np.random.default_rng(0).standard_normal((4, 16, 8, 8)).astype(np.float32))
    network.layer1.set_train(False)
    expected = network.layer1(images).asnumpy()
    network.layer1.set_train(True)
    np.testing.assert_array_equal(network.layer1(images).asnumpy(), expected)
    network.set_train(True)
    network(Tensor(np.random.default_rng(0).standard_normal((4, 1, 8, 8)).astype(np.float32)))
    moved = {name for name, value in network.parameters_and_names() if (value.asnumpy() != before[name]).any()}
    assert moved == statistics
