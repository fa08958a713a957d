"""`eval`, `predict` and `export` on a finished run give the same figures as training did."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from mindspore import Tensor, load, nn
from PIL import Image
from sklearn import metrics

from resnetboost_trainer import config
from resnetboost_trainer.checkpoint import inference, trained
from resnetboost_trainer.checkpoint.formats import onnx_file, weights
from resnetboost_trainer.checkpoint.state_dict import Network
from resnetboost_trainer.checkpoint.trained import Trained
from resnetboost_trainer.cli import eval as evaluating
from resnetboost_trainer.cli import export
from resnetboost_trainer.data import registry
from resnetboost_trainer.data.sources import digits as digits_source
from resnetboost_trainer.engine import device
from resnetboost_trainer.models import arch
from resnetboost_trainer.optim import ema
from support import onerank, photographs, smallcheckpoints

pytestmark = pytest.mark.slow

RESNETBOOST = str(Path(sys.executable).with_name("resnetboost"))


def resnetboost(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [RESNETBOOST, *(str(word) for word in words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    device.prepare("CPU")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run: two epochs of the digits."""
    folder = tmp_path_factory.mktemp("run")
    onerank.train(folder, 0, everySteps=onerank.STEPS)
    return folder


def test_an_evaluation_has_the_figures_of_the_training(run: Path) -> None:
    done = resnetboost("eval", run, "-o", "json")
    assert done.returncode == 0, done.stderr
    found, ended = json.loads(done.stdout), json.loads((run / "uid-0.json").read_text())
    assert (found["top1"], found["top5"], found["images"]) == (ended["top1"], ended["top5"], 360)
    assert found["loss"] == pytest.approx(ended["testLoss"], rel=1e-5)
    assert found["dataset"] == found["trainedOn"]


def test_the_same_images_in_another_data_set_give_the_same_accuracy(run: Path, tmp_path: Path) -> None:
    """Digits as bytes, whose brightest training pixel is darker than the brightest test pixel."""
    raw = digits_source.read(config.Dataset(name="digits"), 10)._asdict()
    images = {part: np.round(raw[part] * (255 / 16)).astype(np.uint8) for part in ("x_train", "x_test")}
    np.savez(tmp_path / "bytes.npz", **raw | images | {"x_train": images["x_train"] // 2 + 5})
    own, other = (
        json.loads(resnetboost("eval", run, "-o", "json", *words).stdout)
        for words in ((), ("--dataset", "npz", "--path", tmp_path / "bytes.npz"))
    )
    assert other["top1"] == pytest.approx(own["top1"], abs=0.01) and other["loss"] == pytest.approx(
        own["loss"], abs=0.01
    )
    np.savez(tmp_path / "floats.npz", **raw | {part: raw[part] / 10 for part in images})
    done = resnetboost("eval", run, "--dataset", "npz", "--path", tmp_path / "floats.npz")
    told = (
        "the network was trained on levels up to 16, these images are floats up to 1.6, and nothing says which number"
    )
    assert done.returncode == 10 and f"dataset.path: {tmp_path / 'floats.npz'}: {told}" in done.stderr


def test_the_details_by_class_are_scikit_learns_and_reach_files_report_and_card(run: Path, tmp_path: Path) -> None:
    done = resnetboost("eval", run, "-o", "json", "--save", tmp_path / "details", "--record", "--batch", "50")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    digits = registry.load(config.Dataset(name="digits"), 10)
    predicted = inference.network(trained.read(run))(Tensor(digits.x_test)).asnumpy().argmax(1)
    matrix = metrics.confusion_matrix(digits.y_test, predicted)
    with (tmp_path / "details" / "confusion.csv").open(newline="") as file:
        head, *rows = csv.reader(file)
    assert head == ["", *"0123456789"]
    np.testing.assert_array_equal([[int(cell) for cell in row[1:]] for row in rows], matrix)
    assert found["top1"] == pytest.approx(matrix.trace() / matrix.sum(), abs=1e-6)
    recall = metrics.recall_score(digits.y_test, predicted, average=None)
    assert [entry["recall"] for entry in found["details"]["classes"]] == pytest.approx(recall)
    assert (tmp_path / "details" / "confusion.png").read_bytes().startswith(b"\x89PNG")
    card = resnetboost("card", run).stdout
    assert f"Expected calibration error (15 bins): {found['details']['calibrationError']:.4f}" in card
    assert "| 3 | " in card
    assert "type: ece" in card
    plain = resnetboost("eval", run, "--details").stdout
    assert "class, taken for" in plain
    assert f"calibration error  {found['details']['calibrationError']:.4f}" in plain


def test_predict_classifies_images_of_digits(run: Path, tmp_path: Path) -> None:
    digits = registry.load(config.Dataset(name="digits"), 10)
    assert digits.preparation is not None
    ((mean,), (deviation,)), chosen = digits.preparation.channels, range(20)
    paths = [tmp_path / f"{number}.png" for number in chosen]
    for number, path in zip(chosen, paths, strict=True):
        pixels = (digits.x_test[number, 0] * deviation + mean) * 255 / 16
        Image.fromarray(np.round(pixels).astype(np.uint8)).save(path)
    done = resnetboost("predict", run, *paths, "-o", "json", "--top", "3")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [entry["image"] for entry in told] == [str(path) for path in paths]
    logits = inference.network(trained.read(run))(Tensor(digits.x_test[list(chosen)])).asnumpy()
    shares = np.exp(logits - logits.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    for entry, row in zip(told, shares, strict=True):
        best = np.argsort(-row)[:3]
        assert [guess["label"] for guess in entry["top"]] == [str(number) for number in best]
        # Pixels are multiples of 1/255 and the data's of 1/16, which do not coincide.
        assert [guess["probability"] for guess in entry["top"]] == pytest.approx(row[best], abs=0.01)
    right = sum(entry["top"][0]["label"] == str(digits.y_test[number]) for number, entry in enumerate(told))
    assert right >= 17


def small(name: str, classes: int, channels: int) -> Trained:
    """A network with random weights and statistics, whose outputs depend on every part of it."""
    generator = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for key, shape in arch.parameters(name, classes, channels).items():
        if len(shape) > 1:
            arrays[key] = generator.normal(0, np.sqrt(2 / np.prod(shape[1:])), shape).astype(np.float32)
        else:
            arrays[key] = generator.uniform(0.5, 1, shape).astype(np.float32)
    return Trained(path=Path(name), network=Network(name, classes, channels), arrays=arrays, sha256="")


@pytest.mark.parametrize("name", ["resnet20", "resnet18", "resnet18d", "resnext50_32x4d", "seresnet50"])
def test_onnx_gives_the_networks_outputs_for_any_batch(name: str, tmp_path: Path) -> None:
    network, file = small(name, 7, 3), tmp_path / "network.onnx"
    onnx_file.write(file, network.network, network.arrays, (37, 51), {"job": "one", "classes": "\udcff"})
    onnx.checker.check_model(file, full_check=True)
    session = onnxruntime.InferenceSession(file)
    ours = inference.network(network)
    images = np.random.default_rng(1).normal(size=(3, 3, 37, 51)).astype(np.float32)
    expected = ours(Tensor(images)).asnumpy()
    assert np.ptp(expected, axis=0).max() > 0.01  # otherwise any output would pass
    for batch in (1, 3):
        (found,) = session.run(None, {"images": images[:batch]})
        np.testing.assert_allclose(found, expected[:batch], rtol=0, atol=1e-5 * np.abs(expected).max())
    assert session.get_modelmeta().custom_metadata_map == {"job": "one", "classes": "?"}


def test_what_is_exported_of_a_run_gives_the_networks_outputs(run: Path, tmp_path: Path) -> None:
    images = registry.load(config.Dataset(name="digits"), 10).x_test[:4]
    expected = inference.network(trained.read(run))(Tensor(images)).asnumpy()
    done = resnetboost("export", run, tmp_path / "digits.onnx")
    assert done.returncode == 0, done.stderr
    session = onnxruntime.InferenceSession(tmp_path / "digits.onnx")
    (found,) = session.run(None, {"images": images})
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert json.loads(session.get_modelmeta().custom_metadata_map["classes"]) == list("0123456789")
    assert "top-1 accuracy" in (tmp_path / "digits.onnx.md").read_text()
    assert export.main([str(run), str(tmp_path / "digits.mindir"), "--batch", "4"]) == 0
    network = nn.GraphCell(load(str(tmp_path / "digits.mindir")))
    np.testing.assert_allclose(network(Tensor(images)).asnumpy(), expected, atol=1e-4)
    assert b"operators.so" not in (tmp_path / "digits.mindir").read_bytes()


def test_trainer_and_eval_name_averaged_weights_alike() -> None:
    assert ema.AVERAGE == weights.AVERAGE


@pytest.fixture(scope="module")
def photographed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint of a network for the photographs, and their folder."""
    root = photographs.folder(tmp_path_factory.mktemp("photographs"))
    dataset = config.Dataset(name="ImageFolder", path=str(root), image_size=32, evaluation_resize=36)
    found = registry.load(dataset, 2)
    path = smallcheckpoints.save(
        tmp_path_factory.mktemp("checkpoints"),
        4,
        {"model.safetensors": small("resnet20", 2, 3).arrays},
        preparation=found.preparation,
        dataset=found.fingerprint,
        config={"dataset": msgspec.to_builtins(dataset)},
        model="resnet20/2/3",
    )
    return path, root


def test_photographs_are_evaluated_as_they_were_in_training(
    photographed: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path, root = photographed
    assert evaluating.main([str(path), "-o", "json", "--batch", "4"]) == 0
    found = json.loads(capsys.readouterr().out)
    test = registry.load(
        config.Dataset(name="ImageFolder", path=str(root), image_size=32, evaluation_resize=36), 2
    ).test
    images = np.empty((len(test.labels), *test.shape), np.float32)
    test.fill(images, np.arange(len(test.labels)), None)
    logits = inference.network(trained.read(path))(Tensor(images)).asnumpy()
    assert found["top1"] == np.mean(logits.argmax(1) == test.labels)
    assert (found["top5"], found["dataset"]) == (1.0, found["trainedOn"])


def test_different_classes_and_unusable_images_are_reported(
    photographed: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, own = photographed
    assert evaluating.main([str(path), "--path", str(own)]) == 0
    assert ", those of its training\n" in capsys.readouterr().out
    root = photographs.folder(tmp_path / "other")
    for part in ("train", "val"):
        (root / part / "flower").rename(root / part / "zebra")
    assert evaluating.main([str(path), "--path", str(root)]) == 11
    assert "class 0 is temple there and flower in the checkpoint" in capsys.readouterr().err
    for part in ("train", "val"):
        (root / part / "zebra").rename(root / part / "flower")
    (root / "val" / "flower" / "0000.jpg").write_bytes(b"no picture")
    assert evaluating.main([str(path), "--path", str(root)]) == 11
    assert "0000.jpg" in capsys.readouterr().err
    assert evaluating.main([str(path), "--path", str(root), "--skip", "1", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["images"], found["skipped"]) == (9, 1)
    assert found["dataset"] != found["trainedOn"]
    (root / "train").rename(root / "away")  # the training data may be gone
    assert evaluating.main([str(path), "--path", str(root), "--skip", "1"]) == 0
    assert "not known to be those of its training, 1 unusable skipped\n" in capsys.readouterr().out


def test_a_missing_data_set_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = smallcheckpoints.save(tmp_path, 4, {"model.safetensors": small("resnet20", 10, 1).arrays})
    assert evaluating.main([str(path)]) == 10
    assert "does not say what it was trained on; name one of digits, npz" in capsys.readouterr().err
    assert evaluating.main([str(path), "--dataset", "Synthetic", "--image-size", "8"]) == 10
    assert "those of Synthetic have 3 channels" in capsys.readouterr().err
