"""Loading a trained network: checkpoint lookup, checks against manifest and architecture, refusals."""

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import safetensors.numpy
from PIL import Image

from resnetboost_trainer import config
from resnetboost_trainer.checkpoint import store, trained
from resnetboost_trainer.checkpoint.state_dict import Network
from resnetboost_trainer.cli import image_options, predict
from resnetboost_trainer.data import preprocessing, registry, transforms
from resnetboost_trainer.data.dataset import Unreadable
from resnetboost_trainer.data.preprocessing import Preparation
from resnetboost_trainer.data.transforms import Evaluated
from resnetboost_trainer.failures import ConfigError
from resnetboost_trainer.models import arch, key_map
from support import smallcheckpoints, trainerconfig

GREY = Preparation(
    height=8, width=8, mean=(5.0,), deviation=(2.0,), white=16.0, classes=("zero", "one"), values="Levels"
)


def weights(classes: int = 10, channels: int = 1) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    shapes = arch.parameters("resnet20", classes, channels)
    return {key: generator.uniform(0.1, 1, shape).astype(np.float32) for key, shape in shapes.items()}


def save(root: Path, step: int, **changes: Any) -> Path:
    return smallcheckpoints.save(root, step, {"model.safetensors": weights()}, preparation=GREY, **changes)


def sentence(path: Path, model: str | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        trained.read(path, model)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "above",
    [".", "checkpoints", "checkpoints/uid", "checkpoints/uid/base", "checkpoints/uid/base/attempt-0"],
    ids=["run", "checkpoints", "job", "stage", "attempt"],
)
def test_the_newest_checkpoint_of_a_folder_is_used(above: str, tmp_path: Path) -> None:
    newest = save(tmp_path / "checkpoints", 40)
    save(tmp_path / "checkpoints", 20)  # written later by a clock that was set back
    found = trained.read(tmp_path / above)
    assert found.path == newest
    assert str(found.network) == "resnet20 with 10 classes for images of 1 channel"
    assert found.describe() == "resnet20 with 10 classes for images of 1 channel, step 40 of stage base of digits"


def test_a_stage_that_came_later_wins(tmp_path: Path) -> None:
    save(tmp_path / "checkpoints", 40)
    later = save(tmp_path / "checkpoints", 4, stage="anneal")
    assert trained.read(tmp_path).path == later


def test_a_damaged_checkpoint_is_passed_over_in_a_folder_and_refused_by_its_name(tmp_path: Path) -> None:
    whole = save(tmp_path, 20)
    damaged = save(tmp_path, 40)
    with (damaged / "model.safetensors").open("r+b") as file:
        file.seek(-4, 2)
        file.write(b"\1\2\3\4")
    assert trained.read(tmp_path).path == whole
    assert "is not the file that manifest.json lists" in sentence(damaged)
    shutil.rmtree(whole)
    told = sentence(tmp_path)
    assert f"there is no complete checkpoint in it; {tmp_path} holds uid; name a run's folder" in told


def test_an_incomplete_checkpoint_is_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither of these can be read as weights."""
    whole = save(tmp_path, 20)
    truncated, gone = save(tmp_path, 40), save(tmp_path, 60)
    with (truncated / "model.safetensors").open("r+b") as file:
        file.truncate(1000)
    (gone / "model.safetensors").unlink()
    assert trained.read(tmp_path).path == whole
    assert f"{truncated} is skipped: model.safetensors: it is not the file that manifest.json" in caplog.text
    assert f"{gone} is skipped: model.safetensors: there is no such file" in caplog.text
    assert "the checkpoint is damaged: model.safetensors: it is not the file that" in sentence(truncated)


def test_a_checkpoint_may_be_moved_and_named_by_its_file(tmp_path: Path) -> None:
    moved = Path(shutil.copytree(save(tmp_path / "checkpoints", 20), tmp_path / "elsewhere"))
    assert trained.read(moved).preparation == GREY
    assert trained.read(moved / "model.safetensors").preparation == GREY


def test_averaged_weights_are_taken_where_a_checkpoint_has_them(tmp_path: Path) -> None:
    average = {key: array * np.float32(0.5) for key, array in weights().items()}
    path = smallcheckpoints.save(tmp_path, 20, {"model.safetensors": weights(), "ema.safetensors": average})
    found = trained.read(path)
    assert found.describe().endswith("step 20 of stage base of digits, averaged weights")
    assert found.arrays["fc.weight"].tobytes() == average["fc.weight"].tobytes()
    assert trained.read(path, weights="trained").arrays["fc.weight"].tobytes() == weights()["fc.weight"].tobytes()
    with pytest.raises(ConfigError, match="its job kept no average"):
        trained.read(save(tmp_path, 40), weights="averaged")


def test_a_checkpoint_of_before_preparations_were_kept_still_loads(tmp_path: Path) -> None:
    path = save(tmp_path, 20)
    manifest = json.loads((path / "manifest.json").read_text())
    for field in ("preparation", "config", "versions"):
        del manifest[field]
    (path / "manifest.json").write_text(json.dumps(manifest))
    assert trained.read(path).preparation is None
    assert store.verify(path).config == {}


def test_pytorchs_names_are_read_too(tmp_path: Path) -> None:
    file = tmp_path / "theirs.safetensors"
    file.write_bytes(safetensors.numpy.save({key_map.torch(key): array for key, array in weights().items()}))
    found = trained.read(file)
    assert found.manifest is None
    assert found.arrays.keys() == weights().keys()


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ({"height": 0}, "images of 8 x 0 pixels"),
        ({"width": 10**9}, "pixels"),
        ({"mean": [1, 2, 3]}, "3 means and 1 deviations for 1 channels"),
        ({"deviation": [0]}, "not finite and above 0"),
        ({"resize": 9}, "cut out of 9"),
        ({"classes": ["a"] * 11}, "11 names for 10 classes"),
    ],
)
def test_invalid_image_settings_of_a_manifest_are_refused(damage: dict[str, Any], told: str, tmp_path: Path) -> None:
    path = save(tmp_path, 20)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["preparation"] |= damage
    (path / "manifest.json").write_text(json.dumps(manifest))
    assert told in sentence(path)


def test_another_network_than_the_one_that_is_asked_for(tmp_path: Path) -> None:
    assert "it is no resnet32 with 10 classes" in sentence(save(tmp_path, 20), "resnet32")


def test_a_missing_path_or_foreign_file_is_an_error(tmp_path: Path) -> None:
    assert sentence(tmp_path / "gone").endswith("name a run's folder, a checkpoint's, or a file of weights")
    (tmp_path / "notes.txt").write_text("hello")
    assert "neither safetensors nor a zip archive" in sentence(tmp_path / "notes.txt")


def picture(folder: Path, pixels: Any) -> bytes:
    path = folder / "picture.png"
    Image.fromarray(pixels).save(path)
    return path.read_bytes()


def test_a_picture_of_a_digit_becomes_what_the_data_set_has_of_it(tmp_path: Path) -> None:
    digits = registry.load(config.Dataset(name="digits"), 10)
    assert digits.preparation is not None
    assert digits.preparation.classes == tuple("0123456789")
    (mean,), (deviation,) = digits.preparation.mean, digits.preparation.deviation
    for image in digits.x_test[:20]:
        pixels = np.round((image[0] * deviation + mean) * 255 / 16).astype(np.uint8)
        found = digits.preparation.picture(picture(tmp_path, pixels))
        np.testing.assert_allclose(found, image, atol=0.04 / deviation)


def test_a_coloured_and_larger_picture_is_made_grey_and_small(tmp_path: Path) -> None:
    pixels = np.zeros((80, 40, 3), np.uint8)
    pixels[..., 1] = 255  # pure green becomes 150 in grey, by ITU-R 601
    found = GREY.picture(picture(tmp_path, pixels))
    np.testing.assert_allclose(found, np.full((1, 8, 8), (150 * 16 / 255 - 5) / 2), atol=1e-5)


def test_a_photograph_is_prepared_as_for_evaluation_to_the_bit(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (50, 70, 3), np.uint8)
    content = picture(tmp_path, pixels)
    expected = np.empty((3, 32, 32), np.float32)
    transforms.fill(expected, content, Evaluated(32, 36), None)
    kept = msgspec.json.encode(preprocessing.of_photographs(Evaluated(32, 36), ["a"]))
    found = msgspec.json.decode(kept, type=Preparation).picture(content)
    assert found.tobytes() == expected.tobytes()
    with pytest.raises(Unreadable):
        GREY.picture(b"no picture")


def test_a_label_is_one_plain_line_whatever_a_checkpoint_calls_it() -> None:
    hostile = msgspec.structs.replace(GREY, classes=("a\x1b[31m\nb", "\udcff"))
    assert [hostile.label(number) for number in range(3)] == ["a?[31m?b", "?", "class 2"]


def test_names_too_long_for_a_manifest_are_left_out() -> None:
    assert preprocessing.named(["a" * 250] * 2000) == ()
    assert len(preprocessing.named(["a" * 10] * 10000)) == 10000


def test_a_file_without_an_image_is_named_before_loading(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(tmp_path, 20)
    (tmp_path / "notes.txt").write_text("hello")
    names = [str(tmp_path / "gone.png"), str(tmp_path / "notes.txt"), str(tmp_path)]
    assert predict.main([str(path), *names]) == 11
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[2].removeprefix(name) for line, name in zip(told, names, strict=True)] == [
        ": it cannot be read: No such file or directory",
        ": it cannot be decoded: cannot identify image file",
        ": it is a folder; name the images in it",
    ]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "does not say how its images were prepared"),
        (["--dataset", "CIFAR10"], "dataset.path: missing"),
        (["--dataset", "Synthetic", "--image-size", "8"], "those of Synthetic have 3 channels"),
        (["--dataset", "digits", "--classes", "names.txt"], "the network has 10 classes"),
        (["--dataset", "digits", "--resize", "9"], "--resize: 9 is for photographs"),
    ],
)
def test_options_that_do_not_fit_a_file_of_weights(
    options: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("names.txt").write_text("one\ntwo\n")
    Path("weights.safetensors").write_bytes(safetensors.numpy.save(weights()))
    assert predict.main(["weights.safetensors", "picture.png", *options]) == 10
    assert told in capsys.readouterr().err


def test_pytorch_weights_use_torchvisions_preprocessing() -> None:
    network = trained.Trained(path=Path("x.pth"), network=Network("resnet50", 1000, 3), arrays={}, sha256="")
    given = predict.parser().parse_args(["x.pth", "a.jpg"])
    found = image_options.choose(network, given)
    assert (found.width, found.height, found.resize, found.classes) == (224, 224, 256, ())
    np.testing.assert_allclose(np.array(found.mean) / 255, [0.485, 0.456, 0.406], rtol=1e-6)
    larger = image_options.choose(network, predict.parser().parse_args(["x.pth", "a.jpg", "--image-size", "288"]))
    assert (larger.width, larger.resize) == (288, 329)


def test_the_manifest_keeps_a_config_that_can_be_read_again() -> None:
    settings = msgspec.convert(trainerconfig.GOOD, config.Config, strict=False)
    kept = msgspec.json.decode(msgspec.json.encode(msgspec.to_builtins(settings)))
    assert msgspec.convert(kept, config.Config) == settings
