"""Half-precision training: close to float32, float32 parameters, overflows and restarts."""

import csv
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mindspore
import msgspec
import numpy as np
import pytest
from mindspore import Tensor, nn
from numpy.typing import NDArray

from resnetboost_trainer.config import Config, Precision
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.engine import device
from resnetboost_trainer.engine.gradient import Gradient
from resnetboost_trainer.engine.loss import CrossEntropy
from resnetboost_trainer.engine.train_step import Program
from resnetboost_trainer.failures import NumericsError
from resnetboost_trainer.kernels import library
from resnetboost_trainer.metrics.record import StepRecord
from resnetboost_trainer.models import resnet
from resnetboost_trainer.models.arch import Large
from resnetboost_trainer.models.init import TORCHVISION, initialise
from resnetboost_trainer.models.layers.conv import Conv2d
from resnetboost_trainer.optim.schedule import StepSchedule
from support import familygradients, onerank, trainerconfig

pytestmark = pytest.mark.slow

Floats = NDArray[Any]

# One block per group: with more, batch normalization over few pixels amplifies any rounding.
FORMS = {
    "basic": Large((1, 1, 1, 1), bottleneck=False),
    "bottleneck": Large((1, 1, 1, 1), bottleneck=True),
    "squeezing": Large((1, 1, 1, 1), bottleneck=True, squeezes=True),
}


@pytest.fixture(autouse=True, scope="module")
def graphs() -> None:
    device.prepare()


# Bounds for `familygradients.error`, for as many roundings as in ResNet-152.
COARSE = 0.3

OURS, MINDSPORES = "with our operators", "with MindSpore's"


@pytest.fixture(params=[OURS, MINDSPORES])
def operators(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    if request.param == MINDSPORES:
        monkeypatch.setattr(library, "FILE", tmp_path / "operators.so")
    library.usable.cache_clear()
    yield
    library.usable.cache_clear()


def network(form: str, precision: Precision) -> nn.Cell:
    if form == "small":
        built: nn.Cell = resnet.SmallResNet(1, 10, 3, precision)
    else:
        built = resnet.ResNet(FORMS[form], 10, 3, precision)
    initialise(built, 0, TORCHVISION)
    return built


def batch(size: int, channels: int = 3, pixels: int = 64) -> tuple[Tensor, Tensor]:
    images = np.random.default_rng(0).standard_normal((size, channels, pixels, pixels), np.float32)
    return Tensor(images), Tensor((np.arange(size) % 10).astype(np.int32))


def gradients(trained: nn.Cell) -> dict[str, Floats]:
    """Gradients of every parameter, with loss scale and label smoothing as in training."""
    parameters = list(trained.trainable_params())
    cell = Gradient(trained, CrossEntropy(0.1), parameters, 256.0)
    cell.set_train(True)
    flat, _ = cell(*batch(8), Tensor(np.zeros(1, np.float32)))
    assert flat.dtype == mindspore.float32
    ends = np.cumsum([parameter.size for parameter in parameters])
    return dict(zip((parameter.name for parameter in parameters), np.split(flat.asnumpy(), ends)[:-1], strict=True))


def cosine(one: Floats, other: Floats) -> float:
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))


@pytest.mark.parametrize(
    ("form", "operators"),
    [*((form, OURS) for form in (*FORMS, "small")), ("squeezing", MINDSPORES), ("small", MINDSPORES)],
    indirect=["operators"],
)
@pytest.mark.usefixtures("operators")
def test_gradients_are_those_of_float32_but_for_rounding(form: str) -> None:
    single, half = (gradients(network(form, precision)) for precision in ("Float32", "Float16"))
    for name, expected in single.items():
        assert cosine(half[name], expected) > 0.98, name
        assert not np.array_equal(half[name], expected), f"{name} was computed in float32"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in familygradients.SHALLOW else pytest.mark.long)
        for name in familygradients.NAMES
    ],
)
def test_a_step_of_any_network_of_the_family_is_that_of_float32_but_for_rounding(name: str) -> None:
    """In PyNative mode; graphs of every kind of block are tested above."""
    half = familygradients.once(familygradients.network(name, precision="Float16"), "PyNative")
    single = familygradients.slow(name)
    assert not familygradients.wrong(half, single, COARSE)
    for key, value in half.gradients.items():
        assert not np.array_equal(value, single.gradients[key]), f"{key} was computed in float32"


@pytest.mark.usefixtures("operators")
@pytest.mark.parametrize("form", ["bottleneck", "small"])
def test_a_forward_pass_in_bfloat16_gives_float32_logits_of_its_coarseness(form: str) -> None:
    images, _ = batch(8)
    expected, logits = (network(form, precision).set_train()(images) for precision in ("Float32", "BFloat16"))
    assert logits.dtype == mindspore.float32
    error = np.abs((logits - expected).asnumpy()).max() / np.abs(expected.asnumpy()).max()
    assert 1e-4 < error < 0.1


@pytest.mark.usefixtures("operators")
@pytest.mark.parametrize("kernel", [1, 3])
def test_weights_are_rounded_for_a_product_and_stay_what_they_were(kernel: int) -> None:
    layer = Conv2d(2, 1, kernel, padding=kernel // 2)
    weight = np.ones((1, 2, kernel, kernel), np.float32) * np.array([1 + 2**-12, -1], np.float32).reshape(1, 2, 1, 1)
    layer.weight.set_data(Tensor(weight))
    images = np.zeros((1, 2, 3, 3), np.float32)
    images[..., 1, 1] = 1024
    single, half = layer(Tensor(images)), layer(Tensor(images, mindspore.float16))
    assert (half.dtype, float(half[0, 0, 1, 1]), float(single[0, 0, 1, 1])) == (mindspore.float16, 0, 0.25)
    assert (layer.weight.asnumpy() == weight).all()


def program(channels: int = 1, **changes: Any) -> Program:
    configured = msgspec.convert(trainerconfig.GOOD | {"precision": "Float16"} | changes, Config)
    trained = resnet.configured(configured.model, channels, 0, configured.precision)
    return Program(configured, trained, Communicator(0, 1))


def step(trained: Program, images: Tensor, labels: Tensor, number: int = 1) -> StepRecord:
    return trained.step(images, labels, StepSchedule(step=number, learning_rate=0.02, damping=0.1), stop=False)


def test_overflowing_steps_are_skipped_until_the_scale_fits() -> None:
    trained = program(dynamicLossScale={"initial": 2.0**24, "growthSteps": 1000})
    given = batch(16, 1, 8)
    told = [step(trained, *given) for _ in range(30)]
    left_out = [outcome.left_out for outcome in told]
    overflows = left_out.count(True)
    assert overflows > 2, "nothing overflowed"
    assert left_out == [True] * overflows + [False] * (30 - overflows)
    assert told[-1].loss_scale == 2.0 ** (24 - overflows)
    assert told[overflows].loss == told[0].loss, "a step that was left out moved the weights"
    assert told[-1].loss < 0.8 * told[0].loss


def test_an_overflow_error_mentions_the_precision() -> None:
    images, labels = batch(16, 1, 8)
    with pytest.raises(NumericsError, match="another precision than Float16"):
        step(program(), images * 1e6, labels)


def test_thor_has_sound_factors_where_squares_of_its_inputs_overflow() -> None:
    """300 squared is above the largest Float16; the stem's inputs are the images."""
    thor = trainerconfig.THOR | {"traceRule": {"updateAbove": 0, "stopBelow": 0, "smoothing": 0}}
    trained = program(algorithm="THOR", thor=thor, lossScale=128)
    images, labels = batch(16, 1, 8)
    assert np.abs((images * 500).asnumpy()).max() > 1000
    outcome = step(trained, images * 500, labels, number=0)
    assert outcome.curvature is not None
    assert trained.curvature is not None
    assert (outcome.curvature.failed, outcome.curvature.updated) == (0, len(trained.curvature.layers))
    assert all(np.isfinite(part.asnumpy()).all() for part in trained.curvature.state())
    second = step(trained, images * 500, labels)
    assert second.loss < outcome.loss


def test_a_restart_ends_in_the_same_bits_and_the_next_may_go_on_in_float32(tmp_path: Path) -> None:
    halved = {"precision": "Float16", "lossScale": 128}
    onerank.train(tmp_path, 0, config=halved, everySteps=11)
    root = tmp_path / "checkpoints/uid/base"
    expected = onerank.final_weights(root / "attempt-0")
    for number in (33, 44):
        shutil.rmtree(root / f"attempt-0/step-{number:08d}")
    onerank.train(tmp_path, 1, config=halved, everySteps=11)
    assert onerank.final_weights(root / "attempt-1") == expected
    shutil.rmtree(root / "attempt-1")
    onerank.train(tmp_path, 2, config={"precision": "Float32"}, everySteps=11)
    assert onerank.final_weights(root / "attempt-2") != expected
    with (root / "attempt-2/metrics.csv").open() as file:
        assert float(list(csv.DictReader(file))[-1]["top1"]) > 0.5
