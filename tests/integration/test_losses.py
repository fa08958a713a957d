"""Losses of a stage against PyTorch's (timm's, Hinton's), and weights of classes over ranks and micro batches."""

import math
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import mindspore
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mindspore import Tensor, nn, ops
from numpy.typing import NDArray
from sklearn.utils.class_weight import compute_class_weight

from resnetboost_trainer import config
from resnetboost_trainer.data import registry, sampler
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.engine import class_weights, device, distillation, loss, objective
from resnetboost_trainer.engine.distillation import Distilled
from resnetboost_trainer.engine.loss import WeightedCrossEntropy
from resnetboost_trainer.engine.objective import Objective
from resnetboost_trainer.engine.train_step import Program
from resnetboost_trainer.failures import ConfigError
from resnetboost_trainer.models import resnet
from resnetboost_trainer.optim.schedule import StepSchedule
from support import trainerconfig

SYSTEM_PYTHON = "/usr/bin/python3"
REFERENCE = Path(__file__).with_name("torch_losses.py")
SAMPLES, CLASSES = 12, 5
WEIGHTS = np.array([0.2, 3, 0, 1, 7], np.float32)
Floats = NDArray[np.float32]


def inputs() -> dict[str, NDArray[Any]]:
    draw = np.random.default_rng(0)
    logits = 3 * draw.standard_normal((SAMPLES, CLASSES)).astype(np.float32)
    logits[0, 0] = 0  # where the terms of a binary cross entropy by hand have no derivative
    labels = draw.integers(0, CLASSES, SAMPLES).astype(np.int32)
    shares = 0.7 * np.eye(CLASSES)[labels] + 0.3 * np.eye(CLASSES)[labels[::-1]]
    teacher = 2 * draw.standard_normal((SAMPLES, CLASSES))
    return {
        "logits": logits,
        "labels": labels,
        "shares": shares.astype(np.float32),
        "teacher": teacher.astype(np.float32),
        "weights": WEIGHTS,
    }


@pytest.fixture(scope="module")
def pytorchs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Floats]:
    if subprocess.run([SYSTEM_PYTHON, "-c", "import torch"], capture_output=True, check=False).returncode:
        pytest.skip(f"no reference: {SYSTEM_PYTHON} has no torch; apt-get install python3-torch")
    folder = tmp_path_factory.mktemp("losses")
    np.savez(folder / "inputs.npz", **inputs())
    subprocess.run([SYSTEM_PYTHON, str(REFERENCE), str(folder)], check=True)
    return dict(np.load(folder / "outputs.npz"))


def compare(cell: nn.Cell, labels: NDArray[Any], expected: dict[str, Floats], name: str) -> None:
    value, gradient = mindspore.value_and_grad(cell)(Tensor(inputs()["logits"]), Tensor(labels))
    np.testing.assert_allclose(value.asnumpy(), expected[f"{name}/loss"], rtol=3e-6, err_msg=name)
    np.testing.assert_allclose(gradient.asnumpy(), expected[f"{name}/gradient"], rtol=2e-5, atol=3e-7, err_msg=name)


def cases(pytorchs: dict[str, Floats], kind: str) -> Iterator[tuple[str, list[str]]]:
    names = {name.rpartition("/")[0] for name in pytorchs}
    yield from ((name, name.split("/")[1:]) for name in sorted(names) if name.startswith(f"{kind}/"))


@pytest.mark.usefixtures("any_mode")
def test_weights_of_classes_are_pytorchs(pytorchs: dict[str, Floats]) -> None:
    given = inputs()
    for name, (kind, smoothing) in cases(pytorchs, "weighted"):
        cell = WeightedCrossEntropy(float(smoothing), "AllClasses", WEIGHTS)
        if kind == "labels":  # of shares PyTorch divides by the images
            cell.divide_by(class_weights.mean(WEIGHTS, given["labels"]))
        compare(cell, given[kind], pytorchs, name)


@pytest.mark.usefixtures("any_mode")
def test_binary_cross_entropy_is_timms(pytorchs: dict[str, Floats]) -> None:
    for name, (kind, smoothing, threshold, weighted) in cases(pytorchs, "binary"):
        limit, weights = None if threshold == "None" else float(threshold), WEIGHTS if weighted == "weighted" else None
        cell = loss.BinaryCrossEntropy(float(smoothing), "AllClasses", limit, weights)
        compare(cell, inputs()[kind], pytorchs, name)


@pytest.mark.usefixtures("any_mode")
def test_a_distilled_loss_is_hintons(pytorchs: dict[str, Floats]) -> None:
    given = inputs()
    for name, (kind, temperature, alpha) in cases(pytorchs, "distilled"):
        cell = Distilled(loss.CrossEntropy(0.1), float(temperature), float(alpha))
        shares = given[kind] if kind == "shares" else np.eye(CLASSES, dtype=np.float32)[given[kind]]
        compare(cell, np.concatenate([shares, given["teacher"]], 1), pytorchs, name)


def test_balanced_weights_are_scikit_learns() -> None:
    labels = np.repeat(np.arange(4), [50, 3, 7, 1]).astype(np.int32)
    expected = compute_class_weight("balanced", classes=np.arange(4), y=labels)
    found = class_weights.of(config.Loss(class_weighting="Balanced"), labels, 4)
    assert found is not None
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert class_weights.mean(found, labels) == pytest.approx(1), "a balanced loss is as large as a plain one"
    assert class_weights.of(config.Loss(), labels, 4) is None


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (config.Loss(class_weighting="Balanced"), "class 2 has none; lower model.numClasses, or give classWeights"),
        (config.Loss(class_weights=(1, 2)), "2 weights, and model.numClasses is 3; give one for each class"),
        (config.Loss(class_weights=(0, 0, 0)), "all are 0, so that nothing is learnt; give at least one above 0"),
    ],
)
def test_weights_that_do_not_fit_are_one_sentence(given: config.Loss, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        class_weights.of(given, np.array([0, 1], np.int32), 3)


def settings(**changes: Any) -> config.Config:
    return config.parse(trainerconfig.GOOD | {"learningRate": {"peak": 0.05}} | changes)


@pytest.mark.usefixtures("any_mode")
def test_it_makes_no_difference_which_rank_or_micro_batch_has_the_rare_classes() -> None:
    """The mean of the parts' losses is that of the whole, although their labels' weights add up to different sums."""
    device.prepare()
    stage = settings(loss={"classWeights": [20, 1, 1, 1, 1, 5, 1, 1, 1, 1]})
    dataset = registry.load(stage.dataset, 10)
    goal = Objective(stage, dataset.y_train)
    whole = np.argsort(dataset.y_train, kind="stable")[100:300:5]  # sorted: no two parts have the same classes
    sums = []
    for parts in (1, 4):
        goal.begin(whole)
        logits = np.random.default_rng(1).standard_normal((len(whole), 10)).astype(np.float32)
        each = zip(np.split(logits, parts), np.split(dataset.y_train[whole], parts), strict=True)
        sums.append(np.mean([float(goal.loss(Tensor(part), Tensor(labels))) for part, labels in each]))
    assert sums[0] == pytest.approx(sums[1], rel=1e-6)
    plain = Objective(settings(), dataset.y_train)
    assert abs(float(plain.loss(Tensor(logits), Tensor(dataset.y_train[whole]))) - sums[0]) > 0.01


class ByHand(nn.Cell):  # type: ignore[misc]
    """The sum of targets times log probabilities."""

    def __init__(self, network: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, images: Tensor, target: Tensor) -> Tensor:
        return -(target * ops.log_softmax(self.network(images), 1)).sum()


def test_the_weighted_gradient_of_a_network_is_that_of_a_plain_formula() -> None:
    device.prepare()
    stage = settings(loss={"classWeighting": "Balanced"}, labelSmoothing=0.2)
    dataset = registry.load(stage.dataset, 10)
    goal = objective.of(stage, dataset, Communicator(0, 1))
    network = resnet.build("resnet20", 10, 1)
    program = Program(stage, network, Communicator(0, 1), objective=goal)
    whole = sampler.order(0, 0, len(dataset.y_train))[:32]
    labels = dataset.y_train[whole]
    weights = len(dataset.y_train) / (10 * np.bincount(dataset.y_train))
    target = weights * (np.eye(10)[labels] * 0.8 + 0.02) / weights[labels].sum()
    by_hand = ByHand(network)
    by_hand.set_train(True)
    differentiated = mindspore.value_and_grad(by_hand, None, mindspore.ParameterTuple(network.trainable_params()))
    value, gradients = differentiated(Tensor(dataset.x_train[whole]), Tensor(target.astype(np.float32)))
    expected = np.concatenate([gradient.asnumpy().reshape(-1) for gradient in gradients])
    program.objective.begin(whole)
    images, labels = Tensor(dataset.x_train[whole]), Tensor(labels)
    found = program.gradient(images, labels, Tensor(np.zeros(2, np.float32)))[0].asnumpy()
    np.testing.assert_allclose(found[: len(expected)], expected, rtol=1e-3, atol=2e-6)
    assert found[len(expected)] == pytest.approx(float(value), rel=1e-5)


def test_binary_cross_entropy_learns() -> None:
    device.prepare()
    stage = settings(loss={"function": "BinaryCrossEntropy", "classWeighting": "Balanced"})
    stage = msgspec.structs.replace(stage, learning_rate=config.LearningRate(peak=0.1))
    dataset = registry.load(stage.dataset, 10)
    program = Program(
        stage, resnet.build("resnet20", 10, 1), Communicator(0, 1), objective=Objective(stage, dataset.y_train)
    )
    whole = sampler.order(0, 0, len(dataset.y_train))[:64]
    images, labels = Tensor(dataset.x_train[whole]), Tensor(dataset.y_train[whole])
    losses = []
    for number in range(12):
        program.objective.begin(whole)
        losses.append(program.step(images, labels, StepSchedule(number, 0.1, 0.1), stop=False).loss)
    assert losses[-1] < 0.7 * losses[0]


UNEVEN = [20, 1, 1, 1, 1, 5, 1, 1, 0, 0.1]
STAGES: dict[str, dict[str, Any]] = {
    "plain": {"labelSmoothing": 0},
    "smoothed": {"labelSmoothing": 0.2, "labelSmoothingOver": "OtherClasses"},
    "weighted": {"loss": {"classWeights": UNEVEN}, "labelSmoothing": 0},
    "weighted and smoothed": {"loss": {"classWeights": UNEVEN}, "labelSmoothing": 0.2},
    "balanced": {"loss": {"classWeighting": "Balanced"}, "labelSmoothing": 0.1},
    "binary": {"loss": {"function": "BinaryCrossEntropy", "targetThreshold": 0.2}},
    "binary, weighted": {"loss": {"function": "BinaryCrossEntropy", "classWeights": [100 * it for it in UNEVEN]}},
}


@pytest.mark.parametrize("mixes", [False, True], ids=["plain labels", "mixed labels"])
@pytest.mark.parametrize("name", STAGES)
def test_the_untrained_loss_is_that_of_equal_logits(name: str, mixes: bool) -> None:
    stage = settings(**STAGES[name])
    labels = np.concatenate([np.arange(10), np.repeat(np.arange(4), [50, 3, 7, 30])]).astype(np.int32)
    goal = Objective(stage, labels, mixes)
    goal.begin(np.arange(len(labels)))
    shares = np.eye(10, dtype=np.float32)[labels]
    mixed = Tensor(0.7 * shares + 0.3 * shares[::-1]) if mixes else Tensor(labels)
    value = float(goal.loss(Tensor(np.zeros((len(labels), 10), np.float32)), mixed))
    assert goal.untrained == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("changes", [{"labelSmoothing": 0}, {"labelSmoothing": 0.1}])
def test_the_untrained_loss_of_plain_cross_entropy_is_the_logarithm_of_the_classes(changes: dict[str, Any]) -> None:
    assert Objective(settings(**changes)).untrained == math.log(10)


@hypothesis.settings(deadline=None, max_examples=15)  # each compiles a graph
@given(st.floats(0.05, 100), st.floats(0.01, 1), st.floats(0, 50), st.integers(0, 99))
def test_the_untrained_loss_of_a_student_is_no_less_than_that_of_equal_logits(
    temperature: float, alpha: float, confidence: float, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    rule = config.Distillation(teacher="/", temperature=temperature, alpha=alpha)
    of_teacher = confidence * draw.standard_normal((SAMPLES, CLASSES))
    shares = np.eye(CLASSES)[draw.integers(0, CLASSES, SAMPLES)]
    labels = Tensor(np.concatenate([shares, of_teacher], 1).astype(np.float32))
    cell = Distilled(loss.CrossEntropy(), temperature, alpha)
    value = float(cell(Tensor(np.zeros((SAMPLES, CLASSES), np.float32)), labels))
    assert value <= distillation.untrained(rule, math.log(CLASSES), CLASSES) * (1 + 1e-5)
