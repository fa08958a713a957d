"""Distillation: any teacher, frozen and in evaluation mode, by each algorithm, and the same bits after a restart."""

import json
import shutil
from pathlib import Path
from typing import Any

import mindspore
import msgspec
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from numpy.typing import NDArray

from resnetboost_api.storage import ObjectStorage
from resnetboost_trainer import config
from resnetboost_trainer.checkpoint import arrays, store, teacher
from resnetboost_trainer.checkpoint.formats import weights as weightfile
from resnetboost_trainer.checkpoint.store import Manifest
from resnetboost_trainer.data import registry
from resnetboost_trainer.data.registry import Dataset
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.engine import device, distillation, objective
from resnetboost_trainer.engine.objective import Objective
from resnetboost_trainer.engine.train_step import Program
from resnetboost_trainer.failures import ConfigError
from resnetboost_trainer.models import resnet
from resnetboost_trainer.optim.pca.subspace import Basis
from resnetboost_trainer.optim.schedule import StepSchedule
from support import onerank, pcareference, trainerconfig

pytestmark = pytest.mark.slow

ALONE, HERE = Communicator(0, 1), ObjectStorage()
TEMPERATURE, ALPHA = 3.0, 0.7
Floats = NDArray[np.float32]


def drawn(name: str, classes: int = 10, channels: int = 1, seed: int = 1) -> dict[str, Floats]:
    """Weights of a network with running statistics that are not those of any batch."""
    draw, found = np.random.default_rng(seed), {}
    for key, value in resnet.build(name, classes, channels, seed).parameters_and_names():
        found[key] = value.asnumpy().copy()
        if key.endswith("moving_mean"):
            found[key] = (0.3 * draw.standard_normal(found[key].shape)).astype(np.float32)
        elif key.endswith("moving_variance"):
            found[key] = draw.uniform(0.5, 2, found[key].shape).astype(np.float32)
    return found


def written(folder: Path, **network: Any) -> Path:
    """A file of weights of a network that nothing has trained."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "teacher.safetensors"
    weightfile.write(path, drawn(**{"name": "resnet32"} | network))
    return path


def settings(path: Path, **changes: Any) -> config.Config:
    block = {"teacher": str(path), "temperature": TEMPERATURE, "alpha": ALPHA}
    return config.parse(trainerconfig.GOOD | {"distillation": block} | changes)


def batch(samples: int = 16) -> tuple[Tensor, Tensor]:
    digits = registry.load(config.Dataset(name="digits"), 10)
    return Tensor(digits.x_train[:samples]), Tensor(digits.y_train[:samples])


ALGORITHMS: dict[str, dict[str, Any]] = {
    "Momentum": {},
    "THOR": {"algorithm": "THOR", "thor": trainerconfig.THOR | {"frequency": 1}},
    "Adasum": {"algorithm": "Adasum", "adasum": {"reduce": "Gradient", "ranksPerNode": 1}},
    "PCA": {"algorithm": "PCA", "pca": {"components": 3, "solver": "BFGS"}},
    "AdamW": {"algorithm": "AdamW", "learningRate": {"peak": 0.01}},
}


def programmed(stage: config.Config) -> Program:
    dataset, network = registry.load(stage.dataset, 10), resnet.build("resnet20", 10, 1)
    numbers = sum(parameter.size for parameter in network.trainable_params())
    basis = Basis(pcareference.orthonormal(3, numbers).astype(np.float32), numbers, 1.0)
    goal = objective.of(stage, dataset, ALONE)
    return Program(stage, network, ALONE, basis if stage.pca is not None else None, goal)


class ByHand(nn.Cell):  # type: ignore[misc]
    """The loss but for the teacher's entropy, which has no gradient."""

    def __init__(self, student: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.student = student

    def construct(self, images: Tensor, hard: Tensor, soft: Tensor) -> Tensor:
        logits = self.student(images)
        of_labels = -(hard * ops.log_softmax(logits, 1)).sum(1).mean()
        of_teacher = -(soft * ops.log_softmax(logits / TEMPERATURE, 1)).sum(1).mean()
        return (1 - ALPHA) * of_labels + ALPHA * TEMPERATURE**2 * of_teacher


def by_hand(student: nn.Cell, of_teacher: Floats, images: Tensor, labels: Tensor) -> tuple[float, Floats]:
    """Loss and gradient of one formula of logits, in training mode."""
    soft = np.exp(of_teacher.astype(np.float64) / TEMPERATURE)
    soft /= soft.sum(1, keepdims=True)
    entropy = float((soft * np.log(soft)).sum(1).mean())
    hard = 0.9 * np.eye(10)[labels.asnumpy()] + 0.01
    formula = ByHand(student)
    formula.set_train(True)
    differentiated = mindspore.value_and_grad(formula, None, mindspore.ParameterTuple(student.trainable_params()))
    value, gradients = differentiated(images, Tensor(hard.astype(np.float32)), Tensor(soft.astype(np.float32)))
    found = np.concatenate([gradient.asnumpy().reshape(-1) for gradient in gradients])
    return float(value) + ALPHA * TEMPERATURE**2 * entropy, found


@pytest.mark.usefixtures("any_mode")
def test_the_gradient_is_that_of_a_plain_formula_with_the_teacher_in_evaluation_mode(tmp_path: Path) -> None:
    program = programmed(settings(written(tmp_path)))
    images, labels = batch()
    reference = resnet.build("resnet32", 10, 1)
    arrays.assign(drawn("resnet32"), dict(reference.parameters_and_names()))
    reference.set_train(False)
    expected_loss, expected = by_hand(program.network, reference(images).asnumpy(), images, labels)
    targets = program.objective.labels(images, labels)
    flat = program.gradient(images, targets, Tensor(np.zeros(2, np.float32)))[0].asnumpy()
    assert flat[len(expected)] == pytest.approx(expected_loss, rel=1e-5)
    np.testing.assert_allclose(flat[: len(expected)], expected, rtol=2e-3, atol=1e-5)
    program.network.set_train(True)
    predicted = program.network(images).asnumpy().argmax(1).astype(np.int32)
    targets = program.objective.labels(images, Tensor(predicted))
    flat = program.gradient(images, targets, Tensor(np.zeros(2, np.float32)))[0].asnumpy()
    assert flat[len(expected) + 1] == 1, "the accuracy is that of the labels, not of the teacher's logits"


@pytest.mark.usefixtures("any_mode")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_student_learns_and_the_teacher_keeps_its_bits(algorithm: str, tmp_path: Path) -> None:
    device.prepare()
    stage = settings(written(tmp_path), **ALGORITHMS[algorithm])
    program = programmed(stage)
    assert program.teacher is not None
    before = {name: value.asnumpy().copy() for name, value in program.teacher.parameters_and_names()}
    student = {name: value.asnumpy().copy() for name, value in program.network.parameters_and_names()}
    images, labels = batch()
    of_teacher = program.objective.labels(images, labels).asnumpy()
    for number in range(2):
        program.step(images, labels, StepSchedule(number, 0.05, 0.1), stop=False)
    for name, value in program.teacher.parameters_and_names():
        np.testing.assert_array_equal(value.asnumpy(), before[name], name)
    np.testing.assert_array_equal(program.objective.labels(images, labels).asnumpy(), of_teacher)
    learnt = [
        name for name, value in program.network.parameters_and_names() if (value.asnumpy() != student[name]).any()
    ]
    assert "conv1.weight" in learnt and "fc.weight" in learnt
    saved = program.state.snapshot()
    assert saved is not None and not [name for file in saved.values() for name in file if "teacher" in name]


def confident(folder: Path) -> Path:
    """A file of weights of a teacher that gives nearly all to one class, as trained ones do."""
    path, weights = folder / "teacher.safetensors", drawn("resnet32")
    weightfile.write(path, weights | {"fc.weight": 100 * weights["fc.weight"]})
    return path


def test_a_student_that_begins_far_above_a_plain_loss_has_not_diverged(tmp_path: Path) -> None:
    device.prepare()
    rule = {"teacher": str(confident(tmp_path)), "temperature": 6, "alpha": 0.9}
    program = programmed(settings(tmp_path, distillation=rule, divergence={"lossAbove": 3, "forSteps": 1}))
    images, labels = batch()
    losses = [program.step(images, labels, StepSchedule(number, 1e-4, 0.1), stop=False).loss for number in range(3)]
    assert min(losses) > 3 * np.log(10)


def test_micro_batches_and_a_reloaded_state_give_the_same_bits(tmp_path: Path) -> None:
    device.prepare()
    stage = settings(written(tmp_path), accumulationSteps=2)
    images, labels = batch(32)
    halves = [(images[:16], labels[:16]), (images[16:], labels[16:])]

    def train(program: Program, steps: range) -> None:
        for number in steps:
            now = StepSchedule(number, 0.05, 0.1)
            program.accumulate(*halves[0], now)
            program.step(*halves[1], now, stop=False)

    whole, resumed = programmed(stage), programmed(stage)
    train(whole, range(4))
    train(resumed, range(2))
    saved = resumed.state.snapshot()
    again = programmed(stage)
    again.state.restore(saved)
    train(again, range(2, 4))
    expected, found = whole.state.snapshot(), again.state.snapshot()
    assert expected is not None and found is not None
    for file, contents in expected.items():
        for name, values in contents.items():
            np.testing.assert_array_equal(found[file][name], values, f"{file} {name}")


def dataset_of() -> Dataset:
    return registry.load(config.Dataset(name="digits"), 10)


def test_a_teacher_of_other_classes_or_channels_is_one_sentence(tmp_path: Path) -> None:
    digits = dataset_of()
    block = config.Distillation(teacher=str(written(tmp_path / "classes", classes=12)))
    told = r"it is a resnet32 with 12 classes .*, and model.numClasses is 10; use a teacher of as many classes$"
    with pytest.raises(ConfigError, match=rf"^distillation.teacher: \S+teacher.safetensors: {told}"):
        teacher.read(block, digits, HERE)
    block = config.Distillation(teacher=str(written(tmp_path / "channels", channels=3)))
    with pytest.raises(ConfigError, match=r"and the images have 1; use a teacher of as many channels$"):
        teacher.read(block, digits, HERE)
    with pytest.raises(ConfigError, match=r"^distillation.teacher: \S+: there is no such file or folder"):
        teacher.read(config.Distillation(teacher=str(tmp_path / "nowhere")), digits, HERE)
    assert digits.preparation is not None
    named = msgspec.structs.replace(digits.preparation, classes=("a", "b"))
    saved(tmp_path / "named", 1, preparation=named)
    with pytest.raises(ConfigError, match="its class 0 is a, and the data set's is 0; use a teacher of the same"):
        teacher.read(config.Distillation(teacher=str(tmp_path / "named")), digits, HERE)


def saved(root: Path, step: int, seed: int = 1, **fields: Any) -> Path:
    """A checkpoint of a teacher's run."""
    manifest = Manifest(
        job_uid="teacher", stage="base", attempt=0, step=step, steps_per_epoch=1, seed=0, world_size=1,
        local_batch_size=1, model="resnet20/10/1", dataset="digits:0", **fields,
    )  # fmt: skip
    place = store.attempt_directory(root / "checkpoints", "teacher", "base", 0)
    return store.write(place, manifest, {weightfile.MODEL: drawn("resnet20", seed=seed)})[0]


def test_a_restart_finds_the_teacher_it_began_with_or_fails(tmp_path: Path) -> None:
    digits, block = dataset_of(), config.Distillation(teacher=str(tmp_path))
    old = saved(tmp_path, 10, seed=1)
    begun_with = teacher.read(block, digits, HERE).network.sha256
    saved(tmp_path, 20, seed=2)
    assert teacher.read(block, digits, HERE).network.sha256 != begun_with
    again = teacher.read(block, digits, HERE, begun_with)
    assert again.network.path == old and again.network.sha256 == begun_with
    shutil.rmtree(old)
    with pytest.raises(
        ConfigError, match=r"began with another teacher than \S+ has now .*; restore its file, or begin"
    ):
        teacher.read(block, digits, HERE, begun_with)


def test_a_teacher_of_images_normalised_otherwise_sees_the_same_pictures(tmp_path: Path) -> None:
    """One that was trained on bytes, with a mean and a deviation of its own."""
    digits = dataset_of()
    own = digits.preparation
    assert own is not None
    theirs = msgspec.structs.replace(own, mean=(30.0,), deviation=(55.0,), white=255.0)
    saved(tmp_path, 10, preparation=theirs)
    found = teacher.read(config.Distillation(teacher=str(tmp_path)), digits, HERE)
    images = digits.x_train[:4]
    levels = images * own.deviation[0] + own.mean[0]  # 0 to 16
    expected = (levels * 255 / own.white - 30) / 55
    np.testing.assert_allclose(images * found.scale[0] + found.shift[0], expected, rtol=1e-4, atol=1e-4)
    device.prepare()
    made, sha256 = distillation.of(settings(tmp_path), digits, ALONE)
    assert sha256 == found.network.sha256 and not made.as_they_are
    network = resnet.build("resnet20", 10, 1)
    arrays.assign(found.network.arrays, dict(network.parameters_and_names()))
    network.set_train(False)
    logits = made(Tensor(images), Tensor(digits.y_train[:4])).asnumpy()[:, 10:]
    np.testing.assert_allclose(logits, network(Tensor(expected.astype(np.float32))).asnumpy(), rtol=1e-3, atol=1e-3)
    saved(tmp_path / "same", 10, preparation=own)
    same, _ = distillation.of(settings(tmp_path / "same"), digits, ALONE)
    assert same.as_they_are


def test_an_objective_without_what_it_needs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="a stage that distils has a teacher"):
        Objective(settings(written(tmp_path)))


def test_a_resumed_run_has_the_same_bits_although_its_teacher_went_on(tmp_path: Path) -> None:
    run = tmp_path / "teacher"
    saved(run, 10, seed=1)
    changes = {"distillation": {"teacher": str(run), "temperature": TEMPERATURE, "alpha": ALPHA}}
    onerank.train(tmp_path, 0, config=changes, everySteps=22)
    attempts = tmp_path / "checkpoints/uid/base"
    manifest = json.loads((attempts / "attempt-0/step-00000022/manifest.json").read_text())
    assert manifest["teacher"] == manifest_of(run, 10)
    expected = onerank.final_weights(attempts / "attempt-0")
    shutil.rmtree(attempts / "attempt-0/step-00000044")
    saved(run, 20, seed=2)
    onerank.train(tmp_path, 1, config=changes, everySteps=22)
    assert onerank.final_weights(attempts / "attempt-1") == expected
    shutil.rmtree(attempts / "attempt-1/step-00000044")
    shutil.rmtree(run / "checkpoints/teacher/base/attempt-0/step-00000010")
    assert onerank.start(tmp_path, 2, config=changes, everySteps=22).wait(timeout=200) == 10
    assert "began with another teacher" in json.loads((tmp_path / "uid-2.json").read_text())["message"]


def manifest_of(run: Path, step: int) -> str:
    found = store.load_manifest(run / f"checkpoints/teacher/base/attempt-0/step-{step:08d}")
    return found.files[weightfile.MODEL].sha256
