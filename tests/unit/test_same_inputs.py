"""One image is one input of a network, whatever its source: in training, evaluation, prediction and for a teacher."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from resnetboost_api.storage import ObjectStorage
from resnetboost_trainer import config
from resnetboost_trainer.checkpoint import model_card, teacher, trained
from resnetboost_trainer.cli import eval as evaluating
from resnetboost_trainer.cli import export, image_options, predict
from resnetboost_trainer.data import registry, split
from resnetboost_trainer.data.registry import Dataset
from resnetboost_trainer.data.sources import digits
from resnetboost_trainer.failures import ConfigError
from resnetboost_trainer.models import arch
from support import photographs, smallcheckpoints

CLASSES = 2
# What checkpoints of earlier versions lack.
NEW_FIELDS = ("values", "whiteGuessed")


class Kind(NamedTuple):
    """A data set of one source."""

    dataset: config.Dataset
    classes: int


def kinds(root: Path) -> dict[str, Kind]:
    draw = np.random.default_rng(0)

    def arrays(name: str, images: Any) -> Kind:
        return Kind(npz(root / name, images), CLASSES)

    photographs.folder(root / "folder")
    photographs.cifar(root / "cifar10")
    photographs.cifar(root / "cifar100", hundred=True)
    photographs.mnist(root / "mnist")
    size: dict[str, Any] = {"image_size": 16, "evaluation_resize": 18}
    return {
        "digits": Kind(config.Dataset(name="digits"), 10),
        "mnist_5k": Kind(config.Dataset(name="mnist_5k"), 10),
        "Synthetic": Kind(config.Dataset(name="Synthetic", image_size=8), 10),
        "MNIST": Kind(config.Dataset(name="MNIST", path=str(root / "mnist")), 10),
        "CIFAR10": Kind(config.Dataset(name="CIFAR10", path=str(root / "cifar10")), 10),
        "CIFAR100": Kind(config.Dataset(name="CIFAR100", path=str(root / "cifar100")), 100),
        "ImageFolder": Kind(config.Dataset(name="ImageFolder", path=str(root / "folder"), **size), CLASSES),
        "bytes": arrays("bytes", draw.integers(0, 240, (60, 8, 8, 3), np.uint8)),
        "levels in bytes": arrays("levels", draw.integers(0, 17, (60, 8, 8), np.uint8)),
        "fractions": arrays("fractions", np.clip(draw.normal(0.5, 0.4, (60, 8, 8, 3)), 0, 1).astype(np.float32)),
        "normal": arrays("normal", draw.normal(size=(60, 8, 8))),
        "halves": arrays("halves", draw.normal(40, 9, size=(60, 8, 8, 2)).astype(np.float16)),
    }


NAMES = ("digits", "mnist_5k", "Synthetic", "MNIST", "CIFAR10", "CIFAR100", "ImageFolder", "bytes", "levels in bytes",
         "fractions", "normal", "halves")  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kind]:
    return kinds(tmp_path_factory.mktemp("sources"))


def npz(path: Path, images: Any, training: int = 40) -> config.Dataset:
    labels = np.arange(len(images)) % CLASSES
    file = path.with_suffix(".npz")
    np.savez(file, x_train=images[:training], y_train=labels[:training], x_test=images[training:],
             y_test=labels[training:])  # fmt: skip
    return config.Dataset(name="npz", path=str(file))


def checkpoint(root: Path, found: Dataset, earlier: bool = False) -> Path:
    """A checkpoint of a network that was trained on that data set, perhaps by an earlier version."""
    shapes = arch.parameters("resnet20", found.classes, found.channels)
    path = smallcheckpoints.save(
        root,
        1,
        {"model.safetensors": {key: np.ones(shape, np.float32) for key, shape in shapes.items()}},
        preparation=found.preparation,
        dataset=found.fingerprint,
        model=f"resnet20/{found.classes}/{found.channels}",
    )
    if earlier:
        manifest = json.loads((path / "manifest.json").read_text())
        for field in NEW_FIELDS:
            del manifest["preparation"][field]
        (path / "manifest.json").write_text(json.dumps(manifest))
    return path


def inputs(part: Any, indices: Any = None) -> Any:
    indices = np.arange(len(part.labels)) if indices is None else indices
    out = np.empty((len(indices), *part.shape), np.float32)
    part.fill(out, indices, None)
    return out


def evaluated(path: Path, dataset: config.Dataset, white: float | None = None) -> Dataset:
    network = trained.read(path)
    return evaluating.load(network, dataset, image_options.with_white(network, network.preparation, white))


def refused(path: Path, dataset: config.Dataset) -> str:
    with pytest.raises(ConfigError) as caught:
        evaluated(path, dataset)
    return str(caught.value)


def png(pixels: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("earlier", [False, True], ids=["", "earlier"])
@pytest.mark.parametrize("share", [None, 0.25], ids=["whole", "split"])
@pytest.mark.parametrize("name", NAMES)
def test_an_evaluation_has_the_bits_of_the_training(
    name: str, share: float | None, earlier: bool, made: dict[str, Kind], tmp_path: Path
) -> None:
    """Of the images that training tested with, and of the data set's own test images."""
    kind = made[name]
    dataset = msgspec.structs.replace(kind.dataset, validation_split=share)
    training = registry.load(dataset, kind.classes)
    path = checkpoint(tmp_path, training, earlier)
    np.testing.assert_array_equal(inputs(evaluated(path, dataset).test), inputs(training.test))
    tests = evaluated(path, kind.dataset)
    raw = registry.load(kind.dataset, kind.classes)
    ours, theirs = training.preparation, raw.preparation
    assert ours is not None and theirs is not None
    levels = inputs(raw.test) * theirs.channels.deviation[:, None, None] + theirs.channels.mean[:, None, None]
    expected = (levels - ours.channels.mean[:, None, None]) / ours.channels.deviation[:, None, None]
    np.testing.assert_allclose(inputs(tests.test), expected, atol=1e-4)


@pytest.mark.parametrize("share", [None, 0.25], ids=["whole", "split"])
@pytest.mark.parametrize("name", NAMES)
def test_a_teacher_has_the_inputs_of_its_training(
    name: str, share: float | None, made: dict[str, Kind], tmp_path: Path
) -> None:
    """One that was trained on the whole set or on a part of it, of a student that has the other one."""
    kind = made[name]
    parts = [
        registry.load(msgspec.structs.replace(kind.dataset, validation_split=each), kind.classes)
        for each in (share, 0.25 if share is None else None)
    ]
    whole, part = (parts[0], parts[1]) if share is None else (parts[1], parts[0])
    block = config.Distillation(teacher=str(checkpoint(tmp_path, parts[0])))
    found = teacher.read(block, parts[1], ObjectStorage())
    scale, shift = (np.array(values, np.float32)[:, None, None] for values in (found.scale, found.shift))
    kept = split.stratified(whole.train.labels, 0.25).train
    images = {id(whole): inputs(whole.train, kept) if name != "ImageFolder" else inputs(whole.test),
              id(part): inputs(part.train) if name != "ImageFolder" else inputs(whole.test)}  # fmt: skip
    np.testing.assert_allclose(images[id(parts[1])] * scale + shift, images[id(parts[0])], atol=1e-4)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=15)
@given(
    kind=st.sampled_from(["bytes", "fractions", "normal"]),
    seed=st.integers(0, 1000),
    outlier=st.floats(1, 9),
    darker=st.floats(0.4, 1),
)
def test_no_pixel_of_another_image_changes_an_input(
    kind: str, seed: int, outlier: float, darker: float, tmp_path: Path
) -> None:
    """A file with the same test images whose training images are darker, but for one pixel."""
    draw = np.random.default_rng(seed)
    images: Any
    if kind == "bytes":
        images = draw.integers(0, 256, (30, 4, 4, 3)).astype(np.uint8)
    else:
        images = draw.random((30, 4, 4)) if kind == "fractions" else draw.normal(size=(30, 4, 4))
    training = registry.load(npz(tmp_path / "training", images, 20), CLASSES)
    other = images.copy()
    other[:20] = (images[:20] * darker).astype(images.dtype)
    other[0, 0, 0] = 255 if kind == "bytes" else outlier
    found = evaluated(checkpoint(tmp_path / "run", training), npz(tmp_path / "other", other, 20))
    np.testing.assert_array_equal(inputs(found.test), inputs(training.test))


@pytest.mark.parametrize("earlier", [False, True], ids=["", "earlier"])
@pytest.mark.parametrize("form", ["bytes", "fractions"])
def test_picture_files_are_what_the_same_arrays_were(form: str, earlier: bool, tmp_path: Path) -> None:
    """In `eval --dataset ImageFolder` and in `predict`, for a network that was trained on an npz file."""
    shown = np.random.default_rng(0).integers(0, 256, (44, 16, 20, 3)).astype(np.uint8)
    shown[0, 0, 0], shown[1, 0, 0] = 255, 0
    training = registry.load(npz(tmp_path / "t", shown if form == "bytes" else (shown / 255).astype(np.float32)), 2)
    training = msgspec.structs.replace(training, test=training.train)
    path = checkpoint(tmp_path / "run", training, earlier)
    for number in range(4):
        folder = tmp_path / "folder/val" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.png").write_bytes(png(shown[number]))
    dataset = config.Dataset(name="ImageFolder", path=str(tmp_path / "folder"), train_folder="val")
    expected = inputs(training.train, [0, 2, 1, 3])
    found = inputs(evaluated(path, dataset).test)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    prepared = trained.read(path).preparation
    assert prepared is not None
    for image, number in zip(found, (0, 2, 1, 3), strict=True):
        assert prepared.picture(png(shown[number])).tobytes() == image.tobytes()
    assert evaluated(path, msgspec.structs.replace(dataset, image_size=12)).test.shape == (3, 12, 12)
    cut = evaluated(path, msgspec.structs.replace(dataset, image_size=16, evaluation_resize=16))
    np.testing.assert_allclose(inputs(cut.test)[0], expected[0][:, :, 2:18], atol=1e-5)


def test_arrays_are_what_the_same_photographs_were(made: dict[str, Kind], tmp_path: Path) -> None:
    kind = made["ImageFolder"]
    photos = registry.load(kind.dataset, kind.classes)
    assert photos.preparation is not None
    mean, deviation = photos.preparation.channels
    levels = inputs(photos.test).transpose(0, 2, 3, 1) * deviation + mean
    path = checkpoint(tmp_path / "run", photos)
    found = evaluated(path, npz(tmp_path / "same", np.round(levels).astype(np.uint8), 5))
    np.testing.assert_allclose(inputs(found.test), inputs(photos.test)[5:], atol=0.01)
    told = refused(path, npz(tmp_path / "floats", levels / 255, 5))
    bright = f"{(levels / 255)[:5].max():.6g}"
    assert told == (
        f"dataset.path: {tmp_path / 'floats.npz'}: the network was trained on bytes, these images are floats up to"
        f" {bright}, and nothing says which number is white in both; write these images on the scale of the training"
        " images (bytes)"
    )


def test_levels_become_bytes_by_what_their_source_declares(tmp_path: Path) -> None:
    """Digits have levels from 0 to 16."""
    plain = registry.load(config.Dataset(name="digits"), 10)
    raw = digits.read(config.Dataset(name="digits"), 10)
    path = checkpoint(tmp_path / "run", plain)

    def saved(name: str, scaled: Callable[[Any], Any]) -> config.Dataset:
        images = {part: scaled(getattr(raw, part)) for part in ("x_train", "x_test")}
        np.savez(tmp_path / name, **images, y_train=raw.y_train, y_test=raw.y_test)
        return config.Dataset(name="npz", path=str(tmp_path / name))

    found = evaluated(path, saved("bytes.npz", lambda x: np.round(x * (255 / 16)).astype(np.uint8)))
    np.testing.assert_allclose(inputs(found.test), plain.x_test, atol=0.01)
    assert "these images are bytes up to 16, and nothing says" in refused(path, saved("levels.npz", lambda x: x))
    assert "these images are floats up to 1, and nothing says" in refused(path, saved("floats.npz", lambda x: x / 16))


@pytest.mark.parametrize("earlier", [False, True], ids=["", "earlier"])
def test_floats_on_another_scale_are_refused(earlier: bool, made: dict[str, Kind], tmp_path: Path) -> None:
    kind = made["fractions"]
    training = registry.load(kind.dataset, kind.classes)
    path = checkpoint(tmp_path / "run", training, earlier)
    with np.load(str(kind.dataset.path)) as file:
        larger = {name: file[name] * 255 if name[0] == "x" else file[name] for name in file}
    np.savez(tmp_path / "larger.npz", **larger)
    told = refused(path, config.Dataset(name="npz", path=str(tmp_path / "larger.npz")))
    assert "up to 1 with deviation 0." in told and "these images are floats up to 255 with deviation" in told
    assert told.startswith(f"dataset.path: {tmp_path / 'larger.npz'}: ") and "another scale; write these images" in told


def test_a_white_pixel_is_never_guessed(
    made: dict[str, Kind], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`predict` and folders need to know it, from the data or from --white; `export` and the card say it is unknown."""
    kind = made["normal"]
    training = registry.load(kind.dataset, kind.classes)
    path = checkpoint(tmp_path / "run", training)
    assert predict.main([str(path), "gone.png"]) == 10
    told = capsys.readouterr().err
    assert "the network was trained on floats up to" in told
    assert "and nothing says which number is white; say it with --white" in told
    assert predict.main([str(path), "gone.png", "--white", "2"]) == 11
    assert "gone.png: it cannot be read" in capsys.readouterr().err
    assert predict.main([str(path), "gone.png", "--white", "-2"]) == 10
    assert "--white: -2 is not the number of a white pixel; give one above 0" in capsys.readouterr().err
    network = trained.read(path)
    prepared = network.preparation
    assert prepared is not None
    assert export.notes(network, prepared)["white"] == "null"
    assert "nothing says which of them is white" in model_card.text(model_card.facts(network, prepared))
    known = image_options.with_white(network, prepared, 2.0)
    assert known is not None
    (mean,), (deviation,) = known.mean, known.deviation
    white = known.picture(png(np.full((8, 8), 255, np.uint8)))
    np.testing.assert_allclose(white, np.full((1, 8, 8), (2 - mean) / deviation), rtol=1e-5)
    assert export.notes(network, known)["white"] == "2.0"
    assert "(pixel × 0.00784314 − mean) / deviation" in model_card.text(model_card.facts(network, known))


def test_white_helps_an_evaluation_where_the_checkpoint_does_not_know_it(tmp_path: Path) -> None:
    shown = np.random.default_rng(0).integers(0, 256, (44, 8, 8)).astype(np.uint8)
    shown[0] = 254  # the brightest training value is not white
    shown[shown == 255] = 254
    training = registry.load(npz(tmp_path / "floats", shown / 255), 2)
    path, photos = checkpoint(tmp_path / "run", training), npz(tmp_path / "bytes", shown)
    told = refused(path, photos)
    assert told.endswith("(floats up to 0.996078), or name the number of their white pixels with --white")
    np.testing.assert_allclose(inputs(evaluated(path, photos, 1.0).test), inputs(training.test), atol=1e-5)


def test_white_is_for_networks_of_arrays(made: dict[str, Kind], tmp_path: Path) -> None:
    kind = made["ImageFolder"]
    path = checkpoint(tmp_path, registry.load(kind.dataset, kind.classes))
    with pytest.raises(ConfigError, match=r"^--white: \S+ was trained on photographs; leave it out$"):
        evaluated(path, kind.dataset, 255)


def test_a_teacher_on_another_scale_is_refused(made: dict[str, Kind], tmp_path: Path) -> None:
    grey = registry.load(made["normal"].dataset, CLASSES)
    student = registry.load(made["levels in bytes"].dataset, CLASSES)
    block = config.Distillation(teacher=str(checkpoint(tmp_path, grey)))
    told = r"the network was trained on floats up to \S+, these images are bytes up to 16, and nothing says .* in both"
    with pytest.raises(ConfigError, match=rf"^distillation.teacher: \S+: {told}; use a teacher that was trained on b"):
        teacher.read(block, student, ObjectStorage())


def test_earlier_checkpoints_mean_what_they_meant(made: dict[str, Kind], tmp_path: Path) -> None:
    """They recorded the brightest training value as white, which is right for what runs from black to white."""
    expected = {"digits": "Levels", "mnist_5k": "Bytes", "ImageFolder": "Bytes", "fractions": None, "normal": None}
    for name, values in expected.items():
        kind = made[name]
        training = registry.load(kind.dataset, kind.classes)
        earlier = trained.read(checkpoint(tmp_path / name, training, earlier=True)).preparation
        assert earlier is not None and training.preparation is not None
        assert (earlier.values, earlier.white_guessed) == (values, name == "normal")
        assert earlier.transform == training.preparation.transform
