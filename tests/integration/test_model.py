"""ResNet variants: parameter counts, initial weights, loss, and outputs against PyTorch's with the same weights."""

import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
import numpy.typing as npt
import pytest
import safetensors.numpy
from mindspore import Tensor, nn, ops

from resnetboost_trainer.checkpoint.formats import torch_file
from resnetboost_trainer.cli import convert
from resnetboost_trainer.config import Init, SmoothedOver
from resnetboost_trainer.engine import loss
from resnetboost_trainer.failures import ConfigError
from resnetboost_trainer.models import arch, key_map, resnet

# Numbers in torchvision's documentation: 3 channels, 1000 classes.
TORCHVISION = {
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "resnext50_32x4d": 25_028_904,
    "resnext101_32x8d": 88_791_336,
    "resnext101_64x4d": 83_455_272,
    "wide_resnet50_2": 68_883_240,
    "wide_resnet101_2": 126_886_696,
}
# timm's seresnet50; Hu et al. 2018 give 28.1 million.
SQUEEZING = {"seresnet50": 28_088_024}
# timm's ResNet-D: the deeper stem has 19232 parameters more, and means have none.
DEEP = {
    f"{name}d": TORCHVISION[name] + 19_232 for name in ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
}
# He et al. 2015, table 6, in millions.
HE = {"resnet20": 0.27, "resnet32": 0.46, "resnet44": 0.66, "resnet56": 0.85}

Floats = npt.NDArray[Any]

SYSTEM_PYTHON = "/usr/bin/python3"
REFERENCE = Path(__file__).with_name("torchvision_reference.py")
SIZE = 64


@pytest.fixture(scope="module", autouse=True)
def graph_mode() -> None:
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    mindspore.set_device("CPU")


def normal(shape: tuple[int, ...]) -> Floats:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def parameters(network: nn.Cell) -> int:
    return sum(int(parameter.size) for parameter in network.trainable_params())


def he_parameters(blocks: int, classes: int) -> int:
    """Counted by layer: convolutions without bias, BN's scale and shift, dense layer with bias."""
    stem = 3 * 16 * 9 + 2 * 16
    group = [2 * blocks * (9 * c * c + 2 * c) for c in (16, 32, 64)]
    halved = sum(9 * c * c // 2 for c in (32, 64))  # the first convolution of a group has half as many inputs
    return stem + sum(group) - halved + 64 * classes + classes


@pytest.mark.parametrize(("name", "count"), (TORCHVISION | SQUEEZING | DEEP).items())
def test_exactly_torchvisions_or_timms_number_of_parameters(name: str, count: int) -> None:
    shapes = arch.parameters(name, 1000, 3)
    assert sum(math.prod(shape) for key, shape in shapes.items() if not key.endswith(arch.STATISTICS)) == count


@pytest.mark.parametrize("name", [*TORCHVISION, *SQUEEZING, *DEEP])
def test_a_network_has_the_parameters_of_its_table(name: str) -> None:
    network = resnet.build(name, 1000, 3)
    assert arch.parameters(name, 1000, 3) == {key: tuple(value.shape) for key, value in network.parameters_and_names()}


@pytest.mark.parametrize("name", HE)
def test_exactly_he_et_als_number_of_parameters(name: str) -> None:
    network = resnet.build(name, 10, 3)
    count = parameters(network)
    shapes = {key: tuple(value.shape) for key, value in network.parameters_and_names()}
    assert arch.parameters(name, 10, 3) == shapes
    assert count == he_parameters(arch.SMALL[name], 10)
    assert round(count / 1e6, 2) == HE[name]
    assert name != "resnet20" or count == 269_722


def test_an_unknown_name() -> None:
    with pytest.raises(ConfigError, match=r"model\.name: resnet19 is not one of resnet18, .*, resnet56"):
        resnet.build("resnet19", 10, 3)


@pytest.mark.parametrize("name", ["resnet20", "resnet18", "resnet18d", "seresnet50"])
@pytest.mark.parametrize("size", [(8, 8), (5, 9)], ids=str)
def test_small_and_odd_images_are_taken(name: str, size: tuple[int, int]) -> None:
    network = resnet.build(name, 7, 1)
    network.set_train(False)
    output = network(Tensor(normal((2, 1, *size)))).asnumpy()
    assert output.shape == (2, 7)
    assert np.isfinite(output).all()


def test_the_free_shortcut_takes_every_second_pixel_and_adds_empty_channels() -> None:
    images = normal((2, 3, 5, 8))
    output = resnet.SubsampleAndPad(2)(Tensor(images)).asnumpy()
    np.testing.assert_array_equal(output[:, :3], images[:, :, ::2, ::2])
    assert output.shape == (2, 5, 3, 4)
    assert not output[:, 3:].any()


def test_the_global_mean() -> None:
    images = normal((3, 4, 5, 7))
    output = mindspore.jit(resnet.global_mean)(Tensor(images)).asnumpy()
    np.testing.assert_allclose(output, images.mean((2, 3)), atol=1e-6)


def test_names_are_torchvisions() -> None:
    names = {name for name, _ in resnet.build("resnet50", 10, 3).parameters_and_names()}
    expected = {"conv1.weight", "bn1.gamma", "layer1.0.conv3.weight", "layer4.2.bn2.moving_mean", "fc.bias"}
    assert expected | {"layer1.0.downsample.0.weight", "layer1.0.downsample.1.beta"} <= names


def test_initial_weights_have_the_documented_spread() -> None:
    network = resnet.build("resnet18", 1000, 3, seed=5)
    values = {name: value.asnumpy() for name, value in network.parameters_and_names()}
    for name in ("conv1.weight", "layer3.0.conv1.weight", "layer4.0.downsample.0.weight"):
        outputs, _, height, width = values[name].shape
        assert values[name].std() == pytest.approx(math.sqrt(2 / (outputs * height * width)), rel=0.03)
        assert abs(values[name].mean()) < 0.03 * values[name].std()
    for name in ("fc.weight", "fc.bias"):
        assert np.abs(values[name]).max() == pytest.approx(512**-0.5, rel=0.01)
    assert (values["layer2.1.bn2.gamma"] == 1).all()
    assert not values["layer2.1.bn2.beta"].any()


@pytest.mark.parametrize(
    ("convolution", "variance"),
    [
        ("HeNormalFanIn", lambda o, i, k: 2 / (i * k * k)),
        ("XavierUniform", lambda o, i, k: 2 / ((o + i) * k * k)),
        ("TruncatedNormal", lambda o, i, k: 1 / (i * k * k)),
    ],
)
def test_other_initialisations_have_their_published_variance(
    convolution: Any, variance: Callable[[int, int, int], float]
) -> None:
    init = Init(convolution=convolution, head="TruncatedNormal", zero_gamma=False)
    network = resnet.build("resnet18", 100, 3, seed=5, init=init)
    values = {name: value.asnumpy() for name, value in network.parameters_and_names()}
    for name in ("conv1.weight", "layer3.0.conv1.weight", "layer4.0.downsample.0.weight"):
        outputs, inputs, kernel, _ = values[name].shape
        expected = math.sqrt(variance(outputs, inputs, kernel))
        assert values[name].std() == pytest.approx(expected, rel=0.03)
        largest = {"XavierUniform": math.sqrt(3), "TruncatedNormal": 2 / 0.8796}.get(convolution, 6)
        assert np.abs(values[name]).max() < 1.001 * largest * expected
    assert np.abs(values["fc.weight"]).max() == pytest.approx(0.02, rel=0.01)
    assert not values["fc.bias"].any()


@pytest.mark.parametrize(("name", "last"), [("resnet20", "bn2"), ("resnet50", "bn3"), ("seresnet50", "bn3")])
def test_with_zero_gamma_each_block_begins_as_its_shortcut(name: str, last: str) -> None:
    init = Init(convolution="HeNormal", head="Normal", zero_gamma=True)
    network = resnet.build(name, 10, 3, init=init)
    zero = {key for key, value in network.parameters_and_names() if key.endswith("gamma") and not value.asnumpy().any()}
    blocks = {key.rpartition(".conv1")[0] for key, _ in network.parameters_and_names() if ".conv1." in key}
    assert zero == {f"{block}.{last}.gamma" for block in blocks}
    x = Tensor(np.abs(normal((2, 64 if last == "bn3" else 16, 8, 8))))
    block = network.layer1[0] if last == "bn2" else network.layer1[0].downsample
    network.set_train(False)
    shortcut = x if last == "bn2" else ops.relu(block(x))
    np.testing.assert_array_equal(network.layer1[0](x).asnumpy(), shortcut.asnumpy())


def test_channels_are_weighed_by_their_means() -> None:
    cell = resnet.SqueezeExcitation(32)
    images = normal((2, 32, 3, 3))
    w1, w2, b1, b2 = normal((8, 32, 1, 1)), normal((32, 8, 1, 1)), normal((8,)), normal((32,))
    for layer, weight, bias in ((cell.fc1, w1, b1), (cell.fc2, w2, b2)):
        layer.weight.set_data(Tensor(weight))
        layer.bias.set_data(Tensor(bias))
    hidden = np.maximum(images.mean((2, 3)) @ w1[:, :, 0, 0].T + b1, 0)
    weights = 1 / (1 + np.exp(-(hidden @ w2[:, :, 0, 0].T + b2)))
    np.testing.assert_allclose(cell(Tensor(images)).asnumpy(), images * weights[:, :, None, None], atol=1e-5)


SHOW_DIGEST = """
import hashlib, mindspore
from resnetboost_trainer.models import resnet
mindspore.set_device("CPU")
mindspore.set_seed({other})
network = resnet.build("resnet20", 10, 1, 3)
print(hashlib.sha256(b"".join(value.asnumpy().tobytes() for value in network.get_parameters())).hexdigest())
"""


def test_initial_weights_are_the_same_bits_in_every_process() -> None:
    commands = [[sys.executable, "-c", SHOW_DIGEST.format(other=other)] for other in (1, 2)]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    first, second = (run.communicate(timeout=120)[0].split()[-1] for run in runs)
    assert first == second


def test_initial_weights_differ_with_the_seed_and_from_layer_to_layer() -> None:
    def draw(seed: int) -> list[Floats]:
        network = resnet.build("resnet20", 10, 1, seed)
        return [value.asnumpy() for value in network.trainable_params() if value.ndim > 1]

    weights = [*draw(3), *draw(4)]
    assert len({weight.ravel()[:9].tobytes() for weight in weights}) == len(weights)


def smoothed(logits: Floats, target: Floats) -> Floats:
    """Cross entropy of each sample with smoothed labels (n, K), by definition, in double precision."""
    logits = logits.astype(np.float64)
    shifted = logits - logits.max(1, keepdims=True)
    log_softmax = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return np.asarray(-(target * log_softmax).sum(1))


def target_of(labels: Floats, smoothing: float, over: SmoothedOver, classes: int = 10) -> Floats:
    """Smoothed labels (n, K) of classes (n,), or of class shares (n, K): the mixture of the classes' labels."""
    own = np.eye(classes)
    if over == "AllClasses":
        of_class = (1 - smoothing) * own + smoothing / classes
    else:
        of_class = np.where(own == 1, 1 - smoothing, smoothing / (classes - 1))
    return np.asarray(labels @ of_class if labels.ndim == 2 else of_class[labels])


def mixed() -> Floats:
    """Labels of a batch of six after mixup."""
    return np.asarray(0.7 * np.eye(10)[np.arange(6)] + 0.3 * np.eye(10)[np.arange(6)[::-1]], np.float32)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("over", ["AllClasses", "OtherClasses"])
@pytest.mark.parametrize("labels", [np.arange(6, dtype=np.int32), mixed()], ids=["classes", "mixed"])
@pytest.mark.parametrize("scale", [1, 1000], ids=["small logits", "large logits"])
def test_cross_entropy_and_its_gradient(smoothing: float, over: SmoothedOver, labels: Floats, scale: float) -> None:
    logits, target = scale * normal((6, 10)), target_of(labels, smoothing, over)
    np.testing.assert_allclose(target.sum(1), 1, rtol=1e-7)
    expected = smoothed(logits, target)
    each = loss.SampleCrossEntropy(smoothing, over)(Tensor(logits), Tensor(labels)).asnumpy()
    np.testing.assert_allclose(each, expected, rtol=1e-5)
    mean, gradient = mindspore.value_and_grad(loss.CrossEntropy(smoothing, over))(Tensor(logits), Tensor(labels))
    assert float(mean) == pytest.approx(expected.mean(), rel=1e-5)
    softmax = np.exp(logits - logits.max(1, keepdims=True).astype(np.float64))
    softmax /= softmax.sum(1, keepdims=True)
    np.testing.assert_allclose(gradient.asnumpy(), (softmax - target) / 6, atol=1e-6)


def test_description_of_the_training_labels() -> None:
    assert loss.described(0.1, "AllClasses", 10) == "labels are smoothed by 0.1 over all classes: 0.91 and 0.01"
    assert loss.described(0.1, "OtherClasses", 11) == "labels are smoothed by 0.1 over the other classes: 0.9 and 0.01"
    assert loss.described(0, "OtherClasses", 11) == "labels are not smoothed"


def test_an_undefined_logit_makes_the_loss_undefined() -> None:
    logits = normal((2, 3))
    logits[1, 0] = np.nan
    assert math.isnan(float(loss.CrossEntropy(0.1)(Tensor(logits), Tensor(np.zeros(2, np.int32)))))


@pytest.fixture(scope="module")
def torchvision_python() -> str:
    found = subprocess.run([SYSTEM_PYTHON, "-c", "import torchvision"], check=False, capture_output=True, text=True)
    if found.returncode == 0:
        return SYSTEM_PYTHON
    message = f"no reference: {SYSTEM_PYTHON} has no torchvision; apt-get install python3-torchvision"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture(params=[*TORCHVISION, "seresnet50", *DEEP])
def reference(request: pytest.FixtureRequest, torchvision_python: str, tmp_path: Path) -> Iterator[Any]:
    """PyTorch's outputs of one network, (name, arrays), and its weights.pth; large files are deleted at the end."""
    command = [torchvision_python, str(REFERENCE), "make", str(tmp_path), str(SIZE), request.param]
    subprocess.run(command, check=True, timeout=300)
    with np.load(tmp_path / "reference.npz") as arrays:
        yield request.param, arrays
    for file in [*tmp_path.glob("*.pth"), *tmp_path.glob("*.safetensors")]:
        file.unlink()


@pytest.mark.slow
def test_pytorchs_outputs_with_pytorchs_weights_converted_there_and_back(reference: Any, tmp_path: Path) -> None:
    name, arrays = reference
    converted, back = tmp_path / "ours.safetensors", tmp_path / "back.safetensors"
    convert.convert(tmp_path / "weights.pth", converted)
    network = resnet.build(name, 1000, 3)
    ours = dict(network.parameters_and_names())
    theirs = safetensors.numpy.load_file(converted)
    assert {key: value.shape for key, value in theirs.items()} == {key: value.shape for key, value in ours.items()}
    for key, value in theirs.items():
        ours[key].set_data(Tensor(value))
    network.set_train(False)
    output = network(Tensor(arrays["images"])).asnumpy()
    assert np.abs(output - arrays["output"]).max() <= 1e-4 * np.abs(arrays["output"]).max()
    network.set_train(True)
    network(Tensor(arrays["images"]))
    for key, value in ours.items():
        if key.endswith(("moving_mean", "moving_variance")):
            updated = arrays[f"updated/{key_map.torch(key)}"]
            np.testing.assert_allclose(value.asnumpy(), updated, rtol=1e-3, atol=1e-3 * np.abs(updated).max())
    convert.convert(converted, back)
    before, after = torch_file.read((tmp_path / "weights.pth").read_bytes()), safetensors.numpy.load_file(back)
    assert before.keys() == after.keys()
    weights = {key for key in before if not key.endswith("num_batches_tracked")}
    assert all(before[key].tobytes() == after[key].tobytes() for key in weights)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "resnet18d", "resnet50", "resnext50_32x4d", "seresnet50"])
def test_pytorch_takes_our_weights_and_computes_our_outputs(name: str, torchvision_python: str, tmp_path: Path) -> None:
    network = resnet.build(name, 1000, 3, seed=4)
    network.set_train(False)
    images = normal((2, 3, SIZE, SIZE))
    output = network(Tensor(images)).asnumpy()
    np.savez(tmp_path / "images.npz", images=images)
    ours, theirs = tmp_path / "model.safetensors", tmp_path / "theirs.safetensors"
    arrays = {key: value.asnumpy() for key, value in network.parameters_and_names()}
    safetensors.numpy.save_file(arrays, ours)
    convert.convert(ours, theirs)
    subprocess.run([torchvision_python, str(REFERENCE), "run", str(tmp_path), str(theirs), name], check=True)
    with np.load(tmp_path / "run.npz") as run:
        assert np.abs(output - run["output"]).max() <= 1e-4 * np.abs(run["output"]).max()
    ours.unlink()
    theirs.unlink()
