"""Weight files: format detection by content, bit-exact conversion both ways, one-sentence refusals."""

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import msgspec
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import strategies

from resnetboost_trainer.checkpoint import pretrained, state_dict
from resnetboost_trainer.checkpoint.formats import weights as weightfile
from resnetboost_trainer.checkpoint.formats.torch_pickle import Refused
from resnetboost_trainer.checkpoint.state_dict import Array
from resnetboost_trainer.cli import convert
from resnetboost_trainer.config import Model, Weights
from resnetboost_trainer.failures import ConfigError
from resnetboost_trainer.models import arch, key_map
from support import smallcheckpoints, torchfiles, trainerconfig
from support.examples import examples

NETWORKS = (*arch.LARGE, *arch.SMALL)
Arrays = dict[str, Array]


def drawn(name: str = "resnet20", classes: int = 10, channels: int = 1) -> Arrays:
    """Random weights under our names; all positive, as variances must be."""
    generator = np.random.default_rng(0)
    shapes = arch.parameters(name, classes, channels)
    return {key: generator.uniform(0.1, 1, shape).astype(np.float32) for key, shape in shapes.items()}


def in_pytorchs_names(arrays: Arrays) -> Arrays:
    return {key_map.torch(key): array for key, array in arrays.items()}


def saved(path: Path, arrays: Arrays) -> Path:
    path.write_bytes(safetensors.numpy.save(arrays))
    return path


@pytest.mark.parametrize("name", NETWORKS)
def test_no_two_parameters_have_one_name_in_pytorch(name: str) -> None:
    ours = arch.parameters(name, 10, 3)
    assert len({key_map.torch(key) for key in ours}) == len(ours)
    assert {arch.part(key) for key in ours} == set(arch.parts(name))


@hypothesis.given(
    strategies.sampled_from(NETWORKS), strategies.integers(1, 1000), strategies.integers(1, 4), strategies.booleans()
)
@examples(20)
def test_a_network_is_known_by_its_shapes_alone(name: str, classes: int, channels: int, ours: bool) -> None:
    shapes = arch.parameters(name, classes, channels)
    arrays: Arrays = {key: np.broadcast_to(np.float32(1), shape) for key, shape in shapes.items()}
    fit = state_dict.identify(arrays if ours else in_pytorchs_names(arrays), "resnetboost" if ours else "torch")
    assert fit.whole
    assert fit.network == state_dict.Network(name, classes, channels)


def test_conversion_there_and_back_keeps_all_bits(tmp_path: Path) -> None:
    ours = saved(tmp_path / "ours.safetensors", drawn())
    theirs, back = tmp_path / "theirs.safetensors", tmp_path / "back.safetensors"
    told = convert.convert(ours, theirs)
    assert told == (
        f"{theirs}: resnet20 with 10 classes for images of 1 channel;"
        " 97 arrays from resnetboost's names to PyTorch's names"
    )
    assert {"bn1.running_var", "bn1.num_batches_tracked", "fc.bias"} <= safetensors.numpy.load_file(theirs).keys()
    assert safetensors.numpy.load_file(theirs)["bn1.num_batches_tracked"].shape == ()
    convert.convert(theirs, back)
    found = safetensors.numpy.load_file(back)
    assert list(found) == sorted(drawn())
    assert all(found[key].tobytes() == array.tobytes() for key, array in drawn().items())


def test_a_run_folder_means_its_newest_whole_checkpoint(tmp_path: Path) -> None:
    """As for `resnetboost eval`; the message says which checkpoint it took."""
    checkpoints, out = tmp_path / "run" / "checkpoints", tmp_path / "out.safetensors"
    newest = smallcheckpoints.save(checkpoints, 20, {"model.safetensors": drawn()})
    damaged = smallcheckpoints.save(checkpoints, 40, {"model.safetensors": drawn()})
    with (damaged / "model.safetensors").open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\1\2\3\4")
    for folder in (tmp_path / "run", checkpoints, newest.parent):
        taken = pretrained.read(*settings(folder), 1)
        assert taken.arrays["fc.weight"].tobytes() == drawn()["fc.weight"].tobytes()
    read = hashlib.sha256((newest / "model.safetensors").read_bytes()).hexdigest()
    assert pretrained.fingerprint(settings(tmp_path / "run")[1]) == taken.fingerprint == f"{read}/Keep"
    assert "step 20 of stage base of digits; 97 arrays" in convert.convert(tmp_path / "run", out)
    with pytest.raises(ConfigError, match="it would be inside a checkpoint"):
        convert.convert(tmp_path / "run", newest / "model.safetensors")
    shutil.rmtree(newest)
    assert refusal(tmp_path / "run").endswith("there is no complete checkpoint in it; FILE holds checkpoints")


@pytest.mark.parametrize("named", ["run", "run/checkpoints", "step", "step/model.safetensors", "linked"])
def test_weights_of_a_checkpoint_bring_the_lineage_of_the_batches_they_have_seen(named: str, tmp_path: Path) -> None:
    checkpoints = tmp_path / "run" / "checkpoints"
    (tmp_path / "step").symlink_to(smallcheckpoints.save(checkpoints, 20, {weightfile.MODEL: drawn()}, lineage=7))
    (tmp_path / "linked").symlink_to(tmp_path / "step" / weightfile.MODEL)
    assert pretrained.read(*settings(tmp_path / named), 1).lineage == 7
    plain = tmp_path / "plain.safetensors"
    shutil.copyfile(tmp_path / "step" / weightfile.MODEL, plain)
    assert pretrained.read(*settings(plain), 1).lineage is None


def test_a_file_not_listed_in_its_manifest_has_no_lineage(tmp_path: Path) -> None:
    step = smallcheckpoints.save(tmp_path, 20, {weightfile.MODEL: drawn()}, lineage=7)
    saved(step / weightfile.MODEL, {name: array + 1 for name, array in drawn().items()})
    assert pretrained.read(*settings(step), 1).lineage is None


def test_a_checkpoint_that_cannot_be_read_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """For example, a checkpoint its job removed between listing and reading."""
    smallcheckpoints.save(tmp_path, 20, {weightfile.MODEL: drawn()})
    newest = smallcheckpoints.save(tmp_path, 40, {weightfile.MODEL: drawn()})
    (newest / weightfile.MODEL).unlink()
    (newest / weightfile.MODEL).symlink_to(tmp_path / "gone")
    taken = pretrained.read(*settings(tmp_path), 1)
    assert taken.arrays["fc.weight"].tobytes() == drawn()["fc.weight"].tobytes()
    assert f"{newest} is skipped: model.safetensors: there is no such file" in caplog.text


def as_prefixed(folder: Path) -> Path:
    prefixed = {f"module.{key}": array for key, array in in_pytorchs_names(drawn()).items()}
    return saved(folder / "model.safetensors", prefixed)


def as_zip(folder: Path) -> Path:
    return torchfiles.write(folder / "any name", torchfiles.state_dict(in_pytorchs_names(drawn())))


def as_folder(folder: Path) -> Path:
    (folder / "step-00000044").mkdir()
    saved(folder / "step-00000044" / "model.safetensors", drawn())
    return folder / "step-00000044"


def as_link(folder: Path) -> Path:
    (folder / "linked").symlink_to(saved(folder / "x", drawn()))
    return folder / "linked"


@pytest.mark.parametrize("made", [as_prefixed, as_zip, as_folder, as_link], ids=lambda made: made.__name__[3:])
def test_forms_that_weights_come_in(made: Callable[[Path], Path], tmp_path: Path) -> None:
    convert.convert(made(tmp_path), tmp_path / "out.safetensors", to="resnetboost", model="resnet20")
    found = safetensors.numpy.load_file(tmp_path / "out.safetensors")
    assert all(found[key].tobytes() == array.tobytes() for key, array in drawn().items())


def test_mismatching_parameters_are_listed(tmp_path: Path) -> None:
    theirs = in_pytorchs_names(drawn())
    del theirs["layer3.0.bn1.running_var"]
    theirs["layer2.1.conv1.weight"] = np.ones((32, 32, 1, 1), np.float32)
    theirs["aux.weight"] = np.ones(3, np.float32)
    with pytest.raises(ConfigError) as refused:
        convert.convert(saved(tmp_path / "in", theirs), tmp_path / "out.safetensors")
    assert str(refused.value) == (
        f"{tmp_path}/in: it is no network of the family; the nearest is resnet20 with 10 classes for images of 1"
        " channel, where of its 97 arrays 95 fit (1 another shape: layer2.1.conv1.weight (32, 32, 1, 1) instead of"
        " (32, 32, 3, 3); 1 missing: layer3.0.bn1.running_var; 1 unexpected: aux.weight)"
    )
    assert not (tmp_path / "out.safetensors").exists()


def test_names_in_a_file_are_escaped(tmp_path: Path) -> None:
    theirs = in_pytorchs_names(drawn()) | {"\x1b]0;title\x07": np.ones(3, np.float32)}
    with pytest.raises(ConfigError, match=r"1 unexpected: '\\x1b\]0;title\\x07'"):
        convert.convert(saved(tmp_path / "in", theirs), tmp_path / "out.safetensors")
    theirs["\x1b]0;title\x07"] = np.ones(3, np.int32)
    with pytest.raises(ConfigError, match=r"'\\x1b\]0;title\\x07' holds int32"):
        convert.convert(saved(tmp_path / "in", theirs), tmp_path / "out.safetensors")


def test_an_impossible_shape_is_refused(tmp_path: Path) -> None:
    entry = {"dtype": "F32", "shape": [0, 2**62], "data_offsets": [0, 0]}
    header = msgspec.json.encode({"conv1.weight": entry})
    (tmp_path / "in").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(Refused, match=r"conv1\.weight has a shape that is too large"):
        weightfile.read(tmp_path / "in")


def converted(source: Path, target: Path, *words: str) -> Arrays:
    """The weights that the command wrote, under our names."""
    assert convert.main([*words, str(source), str(target), "--to", "resnetboost"]) == 0
    return safetensors.numpy.load_file(target)


def test_the_mean_of_weights_is_converted_by_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As in evaluation, prediction and export."""
    trained = drawn()
    average = {name: array * np.float32(0.5) for name, array in trained.items()}
    contents: dict[str, Any] = {"model.safetensors": trained, "ema.safetensors": average}
    step, target = smallcheckpoints.save(tmp_path / "checkpoints", 20, contents), tmp_path / "out.safetensors"
    for source in (step, step / "model.safetensors", tmp_path):
        assert converted(source, target)["fc.weight"].tobytes() == average["fc.weight"].tobytes()
    assert "averaged weights" in capsys.readouterr().out
    assert converted(step, target, "--weights", "averaged")["fc.weight"].tobytes() == average["fc.weight"].tobytes()
    assert converted(step, target, "--weights", "trained")["fc.weight"].tobytes() == trained["fc.weight"].tobytes()
    assert "averaged" not in capsys.readouterr().out.splitlines()[-1]


def test_missing_averages_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step = smallcheckpoints.save(tmp_path / "checkpoints", 20, {"model.safetensors": drawn()})
    target = tmp_path / "out.safetensors"
    assert converted(step, target)["fc.weight"].tobytes() == drawn()["fc.weight"].tobytes()
    target.unlink()
    for source, says in (
        (step, "its job kept no average of the weights"),
        (saved(tmp_path / "w", drawn()), "it is no checkpoint with an average of the weights"),
    ):
        assert convert.main([str(source), str(target), "--weights", "averaged"]) == 10
        assert says in capsys.readouterr().err
    assert not target.exists()
    assert convert.main([str(step), str(step / "theirs.safetensors")]) == 10
    assert "it would be inside a checkpoint" in capsys.readouterr().err


def test_nothing_is_converted_onto_itself_or_into_a_pickle(tmp_path: Path) -> None:
    source = saved(tmp_path / "in.safetensors", drawn())
    for target, says in ((source, "it is the file that is read"), (tmp_path / "out.pth", "only safetensors")):
        with pytest.raises(ConfigError, match=says):
            convert.convert(source, target)


def settings(path: Path, head: str = "Keep", **changes: object) -> tuple[Model, Weights]:
    model = trainerconfig.MODEL | {"weights": {"path": str(path), "head": head}} | changes
    loaded = msgspec.convert(model, Model)
    assert loaded.weights is not None
    return loaded, loaded.weights


def refusal(path: Path, head: str = "Keep", channels: int = 1, **changes: object) -> str:
    """Error message for a job with this file."""
    with pytest.raises(ConfigError) as refused:
        pretrained.read(*settings(path, head, **changes), channels)
    return str(refused.value).replace(str(path), "FILE")


def test_a_new_head_needs_no_head_in_the_file(tmp_path: Path) -> None:
    other = drawn(classes=1000)
    found = pretrained.read(*settings(saved(tmp_path / "w", other), "New"), 1)
    assert {"fc.weight", "fc.bias"} == other.keys() - found.arrays.keys()
    del other["fc.weight"], other["fc.bias"]
    assert pretrained.read(*settings(saved(tmp_path / "w", other), "New"), 1).arrays.keys() == found.arrays.keys()


def test_a_file_of_something_else_is_named_with_the_remedy(tmp_path: Path) -> None:
    path = saved(tmp_path / "w", drawn(classes=100))
    assert refusal(path) == (
        "model.weights.path: FILE is a resnet20 with 100 classes for images of 1 channel, and the job's is a resnet20"
        " with 10 classes for images of 1 channel; set model.weights.head to New, or use another file"
    )
    assert refusal(path, "New", 3).endswith("for images of 3 channels; use images or weights of as many channels")
    assert refusal(path, numClasses=100, name="resnet32").endswith("set model.name to resnet20, or use another file")
    # resnet34 has each name of resnet18, with the same shape.
    larger = saved(tmp_path / "w", drawn("resnet34"))
    assert "FILE is a resnet34" in refusal(larger, name="resnet18")


def with_value(name: str, value: float) -> Arrays:
    arrays = drawn()
    arrays[name].reshape(-1)[-1] = value
    return in_pytorchs_names(arrays)


def test_non_finite_and_negative_variances_are_refused(tmp_path: Path) -> None:
    for name, value, says in (
        ("layer1.0.conv1.weight", np.nan, "layer1.0.conv1.weight holds a value that is not finite"),
        ("bn1.gamma", np.inf, "bn1.weight holds a value that is not finite"),
        ("bn1.moving_variance", -1, "bn1.running_var holds a negative variance"),
    ):
        path = saved(tmp_path / "w", with_value(name, value))
        assert refusal(path) == f"model.weights.path: FILE: {says}"


def test_files_without_weights_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "w"
    assert refusal(path) == f"model.weights.path: FILE: there is no such file or folder; {tmp_path} holds nothing"
    (tmp_path / "w.pth").touch()
    assert refusal(path / "deeper" / "still").endswith(f"there is no such file or folder; {tmp_path} holds w.pth")
    os.mkfifo(path)
    assert refusal(path).endswith("FILE: it is not a regular file")
    path.unlink()
    for content, says in (
        (b"", "neither safetensors nor a zip archive"),
        (b"\x80\x02}.", "a bare pickle"),
        (
            b"\n\x1f\n\x07fc.bias\x12\x14\x08\x02\x12\x07Float32\x1a\x08" + bytes(8),
            "MindSpore checkpoints are not read",
        ),
        (b"\xff" * 100, "neither safetensors nor a zip archive"),
        (safetensors.numpy.save({"a": np.zeros(3, np.int32), "b.running_mean": np.ones(1)}), "a holds int32"),
        (safetensors.numpy.save({"a": np.zeros(3, np.float32)}), "neither moving_mean nor running_mean"),
    ):
        path.write_bytes(content)
        assert says in refusal(path)
    with path.open("wb") as file:
        file.truncate(weightfile.MAX_BYTES + 1)  # a sparse file
    assert "no ResNet's weights alone" in refusal(path)


def test_a_resumed_run_keeps_its_initial_weights(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = saved(tmp_path / "w", drawn())
    _, weights = settings(path)
    first = pretrained.read(*settings(path), 1).fingerprint
    assert first.endswith("/Keep")
    assert first != pretrained.read(*settings(path, "New"), 1).fingerprint
    pretrained.check_same(weights, first, of_this_job=True)
    pretrained.check_same(weights, first, of_this_job=False)
    assert not caplog.records
    saved(path, drawn(classes=5))
    pretrained.check_same(weights, first, of_this_job=True)
    assert "another file than this run began with" in caplog.text
    with pytest.raises(ConfigError, match=r"began with other weights than .*; restore that file, or set"):
        pretrained.check_same(weights, first, of_this_job=False)
    path.unlink()
    caplog.clear()
    pretrained.check_same(weights, first, of_this_job=False)
    assert not caplog.records, "nobody needs it any more"


def test_a_run_resumes_after_its_weights_job_has_continued(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The folder's newest checkpoint is another one by now, and the old one cannot be restored."""
    smallcheckpoints.save(tmp_path, 20, {weightfile.MODEL: drawn()})
    _, weights = settings(tmp_path)
    first = pretrained.read(*settings(tmp_path), 1).fingerprint
    smallcheckpoints.save(tmp_path, 40, {weightfile.MODEL: drawn(classes=5)})
    pretrained.check_same(weights, first, of_this_job=False)
    assert "another file than this run began with; it is not read" in caplog.text
