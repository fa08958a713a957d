"""Data sets in memory (digits and npz files), their errors, and the sampler's order of an epoch."""

import io
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnetboost_trainer import config
from resnetboost_trainer.data import arrays as memory
from resnetboost_trainer.data import checks, registry, rng, sampler
from resnetboost_trainer.data.sources import digits as digits_source
from resnetboost_trainer.data.sources import npz
from resnetboost_trainer.failures import ConfigError, DataError
from support.examples import examples

Arrays = dict[str, Any]
DIGITS = config.Dataset(name="digits")


def images(n: int, *shape: int) -> Arrays:
    random = np.random.default_rng(n)
    return {"x": random.integers(0, 256, (n, *shape), np.uint8), "y": random.integers(0, 3, n)}


def arrays(*shape: int) -> Arrays:
    """Arrays of a valid file: 12 training samples, 5 test samples, 3 classes."""
    train, test = images(12, *shape), images(5, *shape)
    return {"x_train": train["x"], "y_train": train["y"], "x_test": test["x"], "y_test": test["y"]}


def load(path: Path, classes: int = 3) -> registry.Dataset:
    return registry.load(config.Dataset(name="npz", path=str(path)), classes)


def saved(tmp_path: Path, content: Mapping[str, Any]) -> Path:
    path = tmp_path / "images.npz"
    np.savez(path, **content)
    return path


def test_classes_without_images_are_reported() -> None:
    told = checks.advice(registry.load(DIGITS, 12))
    assert told is not None
    assert told.startswith("model.numClasses: 12 classes, and the highest label of the data set is 9: the others are")
    assert "; use 10, or more only" in told
    assert checks.advice(registry.load(DIGITS, 10)) is None


def test_digits_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    source = load_digits()
    ours = digits_source.read(DIGITS, 10)
    mine = np.concatenate([ours.x_train, ours.x_test]).reshape(-1, 64)
    labels = np.concatenate([ours.y_train, ours.y_test])
    theirs = np.column_stack([source.data, source.target])
    assert sorted(map(tuple, np.column_stack([mine, labels]))) == sorted(map(tuple, theirs))


def test_digits_are_split_randomly_within_each_class() -> None:
    loaded = registry.load(DIGITS, 10)
    train, test = np.bincount(loaded.y_train), np.bincount(loaded.y_test)
    assert (train.sum(), test.sum(), loaded.channels, loaded.classes) == (1437, 360, 1, 10)
    assert np.abs(test - (train + test) / 5).max() < 1
    mask = digits_source.stratified(np.zeros(1000, np.uint8), 5, digits_source.SPLIT_SEED)
    assert not mask.reshape(-1, 5).all(axis=0).any()  # not simply every fifth sample of the file


def test_digits_are_the_same_every_time() -> None:
    first, second = registry.load(DIGITS, 10), registry.load(DIGITS, 12)
    assert first.fingerprint == second.fingerprint
    assert (first.x_test.tobytes(), first.y_test.tobytes()) == (second.x_test.tobytes(), second.y_test.tobytes())


def test_too_few_classes_for_digits() -> None:
    with pytest.raises(ConfigError, match=r"model\.numClasses: 9 is too few for digits; use at least 10"):
        registry.load(DIGITS, 9)


def test_an_npz_without_a_path() -> None:
    with pytest.raises(ConfigError, match=r"dataset\.path: missing"):
        registry.load(config.Dataset(name="npz"), 3)


@pytest.mark.parametrize("shape", [(6, 7), (6, 7, 1), (6, 7, 3), (1, 1, 4)], ids=str)
@pytest.mark.parametrize("dtype", ["u1", "f2", ">f4", "f8"])
def test_npz_images_become_normalised_nchw(tmp_path: Path, shape: tuple[int, ...], dtype: str) -> None:
    content = arrays(*shape)
    content |= {name: content[name].astype(dtype) for name in npz.IMAGES}
    loaded = load(saved(tmp_path, content))
    channels = shape[2] if len(shape) == 3 else 1
    assert (loaded.x_train.shape, loaded.channels) == ((12, channels, *shape[:2]), channels)
    assert (loaded.x_train.dtype.str, loaded.y_train.dtype.str) == ("<f4", "<i4")
    assert loaded.x_train.flags.c_contiguous
    source = content["x_train"].astype(np.float64).reshape(12, *shape[:2], channels)
    mean, deviation = source.mean((0, 1, 2)), source.std((0, 1, 2))
    test = (content["x_test"].astype(np.float64).reshape(5, *shape[:2], channels) - mean) / deviation
    np.testing.assert_allclose(loaded.x_test, test.transpose(0, 3, 1, 2), atol=1e-5)
    np.testing.assert_allclose(loaded.x_train.std((0, 2, 3)), 1, atol=1e-5)


def test_a_constant_channel_becomes_zero(tmp_path: Path) -> None:
    content = arrays(4, 4, 2)
    for name in npz.IMAGES:
        content[name] = content[name].astype(np.float32)
        content[name][..., 1] = 0.1
    assert np.abs(load(saved(tmp_path, content)).x_train[:, 1]).max() < 1e-6


def test_more_samples_than_one_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = arrays(4, 4, 3)
    whole = load(saved(tmp_path, content))
    monkeypatch.setattr(memory, "_CHUNK", 5)
    np.testing.assert_allclose(load(saved(tmp_path, content)).x_train, whole.x_train, atol=1e-6)
    content["x_train"] = content["x_train"].astype(np.float32)
    content["x_test"] = content["x_test"].astype(np.float32)
    content["x_train"][8, 1, 2, 0] = np.inf
    with pytest.raises(DataError, match="x_train: sample 8 holds a value that is not finite"):
        load(saved(tmp_path, content))


def test_the_fingerprint_tells_data_sets_apart(tmp_path: Path) -> None:
    content = arrays(4, 4)
    first = load(saved(tmp_path, content)).fingerprint
    assert load(saved(tmp_path, content)).fingerprint == first
    content["y_train"][3] = (content["y_train"][3] + 1) % 3
    assert load(saved(tmp_path, content)).fingerprint != first


def changed(name: str, change: Callable[[Any], Any]) -> Callable[[Arrays], Arrays]:
    return lambda content: content | {name: change(content[name])}


def put(index: Any, value: Any, dtype: type | None = None) -> Callable[[Any], Any]:
    def change(array: Any) -> Any:
        array = array.astype(dtype or array.dtype)
        array[index] = value
        return array

    return change


def both_images(change: Callable[[Any], Any]) -> Callable[[Arrays], Arrays]:
    return lambda content: content | {name: change(content[name]) for name in npz.IMAGES}


PROBLEMS: dict[str, tuple[Callable[[Arrays], Arrays], str]] = {
    "an array is missing": (
        lambda content: {name: content[name] for name in ("x_train", "y_train", "x_test")},
        "y_test: missing; needed are x_train, y_train, x_test, y_test, there are x_train, y_train, x_test",
    ),
    "channels first": (
        both_images(lambda x: x.transpose(0, 3, 1, 2)),
        "x_train: shape (12, 3, 8, 8) has 8 channels; 1 to 4 are needed, in the last place,"
        " e.g. x.transpose(0, 2, 3, 1)",
    ),
    "too many channels": (
        both_images(lambda x: np.repeat(x, 2, 3)),
        "x_train: shape (12, 8, 8, 6) has 6 channels; 1 to 4 are needed, in the last place",
    ),
    "flat images": (
        both_images(lambda x: x.reshape(len(x), -1)),
        "x_train: shape (12, 192) is not (samples, height, width) or (samples, height, width, channels)",
    ),
    "images without pixels": (
        both_images(lambda x: x[:, :0]),
        "x_train: shape (12, 0, 8, 3) is not (samples, height, width)",
    ),
    "a number for images": (changed("x_train", lambda x: x[0, 0, 0, 0]), "x_train: shape () is not (samples,"),
    "test images of another size": (
        changed("x_test", lambda x: x[:, :7]),
        "x_test: images of shape (7, 8, 3) differ from x_train's (8, 8, 3)",
    ),
    "test images of another type": (
        changed("x_test", lambda x: x / 255),
        "x_test: type float64 differs from x_train's uint8, so the scale may too",
    ),
    "integer images": (
        both_images(lambda x: x.astype(np.int64)),
        "x_train: type int64 is not one for images; uint8 or a floating type is needed",
    ),
    "complex images": (both_images(lambda x: x * 1j), "x_train: type complex128 is not one for images"),
    "text images": (both_images(lambda x: x.astype("U3")), "x_train: type <U3 is not one for images"),
    "floating labels": (
        changed("y_train", lambda y: y.astype(np.float32)),
        "y_train: type float32 is not one for labels; an integer type is needed",
    ),
    "one-hot labels": (
        changed("y_test", lambda y: np.eye(3, dtype=np.int8)[y]),
        "y_test: shape (5, 3) is not (samples,); one class number for each image is needed",
    ),
    "a negative label": (
        changed("y_train", put(7, -1)),
        "y_train: label -1 of sample 7 is not one of 0 to 2 (model.numClasses: 3)",
    ),
    "a label too large": (
        changed("y_test", put(4, 3, np.uint8)),
        "y_test: label 3 of sample 4 is not one of 0 to 2 (model.numClasses: 3)",
    ),
    "no test samples": (
        lambda content: content | {"x_test": content["x_test"][:0], "y_test": content["y_test"][:0]},
        "x_test: has no samples; at least one is needed",
    ),
    "fewer labels than images": (
        changed("y_train", lambda y: y[:-1]),
        "x_train has 12 samples but y_train has 11; one label each is needed",
    ),
    "not a number": (
        both_images(put((4, 0, 0, 1), np.nan, np.float64)),
        "x_train: sample 4 holds a value that is not finite as float32",
    ),
    "beyond single precision": (
        both_images(put((3, 0, 0, 1), 1e39, np.float64)),
        "x_train: sample 3 holds a value that is not finite as float32",
    ),
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_problem_in_an_npz_is_one_sentence(tmp_path: Path, problem: str) -> None:
    change, says = PROBLEMS[problem]
    path = saved(tmp_path, change(arrays(8, 8, 3)))
    with pytest.raises(DataError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: {says}")
    assert "\n" not in str(caught.value)


def test_a_pickle_is_never_loaded(tmp_path: Path) -> None:
    marker = tmp_path / "executed"

    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return marker.touch, ()

    content = arrays(8, 8) | {"y_train": np.array([Trap()] * 12, dtype=object)}
    with pytest.raises(DataError, match="y_train: type object is not one for labels"):
        load(saved(tmp_path, content))
    assert not marker.exists()


def header(shape: tuple[int, ...], dtype: str = "|u1") -> bytes:
    file = io.BytesIO()
    # numpy 1.26 has no types for it
    write: Any = np.lib.format.write_array_header_1_0
    write(file, {"shape": shape, "fortran_order": False, "descr": dtype})
    return file.getvalue()


def replaced(tmp_path: Path, name: str, content: bytes) -> Path:
    """A valid file in which one array's bytes are replaced."""
    path = tmp_path / "images.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for key, value in arrays(8, 8).items():
            with archive.open(f"{key}.npy", "w") as file:
                if key == name:
                    file.write(content)
                else:
                    np.save(file, value)
    return path


def test_a_shape_larger_than_the_file_allocates_no_memory(tmp_path: Path) -> None:
    path = replaced(tmp_path, "x_train", header((1 << 40, 8, 8)) + bytes(100))
    with pytest.raises(DataError, match=r"x_train: damaged: shape \(1099511627776, 8, 8\) of uint8 does not fit"):
        load(path)


def test_too_many_images_for_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npz, "LIMIT_BYTES", 1 << 30)
    samples = 1 << 22
    path = tmp_path / "images.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in arrays(8, 8).items():
            with archive.open(f"{name}.npy", "w") as file:
                if name == "x_train":
                    file.write(header((samples, 8, 8)) + bytes(samples * 64))
                elif name == "y_train":
                    file.write(header((samples,)) + bytes(samples))
                else:
                    np.save(file, content)
    with pytest.raises(DataError, match=r"need 1\.0 GiB as float32; at most 1 GiB are held in memory"):
        load(path)


@pytest.mark.parametrize(
    "content",
    [b"", b"PK\x03\x04", b"not a zip file at all", b"\x93NUMPY" + header((3,))],
    ids=["empty", "cut off", "text", "an npy"],
)
def test_a_file_that_is_no_npz(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "images.npz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"not a readable \.npz file"):
        load(path)


@pytest.mark.parametrize(
    "content",
    [b"", b"text", header((12, 8, 8))[:-20], header((12, 8, 8)).replace(b"descr", b"\xff\xffscr")],
    ids=["empty", "text", "a cut header", "a broken header"],
)
def test_an_entry_that_is_not_an_array(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(DataError, match=r"not a readable \.npz file"):
        load(replaced(tmp_path, "x_test", content))


def test_an_array_of_a_newer_npy_version(tmp_path: Path) -> None:
    later = header((12, 8, 8)).replace(b"NUMPY\x01", b"NUMPY\x02")
    with pytest.raises(DataError, match=r"x_test: type of array unknown \(\.npy version \(2, 0\)\)"):
        load(replaced(tmp_path, "x_test", later))


def test_every_flipped_byte_is_noticed_or_harmless(tmp_path: Path) -> None:
    path = saved(tmp_path, arrays(2, 2))
    good = path.read_bytes()
    for position in range(0, len(good), 7):
        path.write_bytes(good[:position] + bytes([good[position] ^ 0x55]) + good[position + 1 :])
        try:
            load(path)
        except DataError as error:
            assert "\n" not in str(error)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^dataset\.path: .*nowhere\.npz does not exist; set it to the path of"):
        load(tmp_path / "nowhere.npz")
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("world_size", "local", "says"),
    [
        (2000, 1, "device.count: 2000 is more ranks than there are training samples; use at most 1437"),
        (
            32,
            64,
            "localBatchSize: 64 on each of 32 ranks is a global batch of 2048, more than the 1437 training samples;"
            " use at most 44",
        ),
    ],
    ids=["ranks", "global batch"],
)
def test_a_batch_larger_than_the_data_set(world_size: int, local: int, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checks.check_batch(1437, world_size, local)
    assert str(caught.value) == says


@pytest.mark.parametrize(
    ("local", "parts", "says"),
    [
        (
            64,
            16,
            "localBatchSize: 64 on each of 2 ranks and accumulationSteps: 16 is a global batch of 2048, .*; use at"
            " most 44",
        ),
        (1, 1000, "accumulationSteps: 1000 on each of 2 ranks are more micro batches than .*; use at most 718"),
    ],
    ids=["micro batches", "their number"],
)
def test_micro_batches_larger_than_the_data_set(local: int, parts: int, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        checks.check_batch(1437, 2, local, accumulation_steps=parts)


def test_a_batch_as_large_as_the_data_set() -> None:
    checks.check_batch(1437, 1437, 1)
    checks.check_batch(1437, 3, 59, accumulation_steps=8)
    checks.check_batch(1437, 1, 1437)


seeds = st.integers(0, 2**31 - 1)
epochs = st.integers(0, 100_000)


@given(seed=seeds, epoch=epochs, local=st.integers(1, 9), world_size=st.integers(1, 6), n=st.integers(60, 400))
def test_an_epoch_is_its_permutation_without_the_remainder(
    seed: int, epoch: int, local: int, world_size: int, n: int
) -> None:
    whole, batches = local * world_size, n // (local * world_size)
    seen = [
        sampler.batch_indices(seed, epoch, batch, whole, rank, world_size, n)
        for batch in range(batches)
        for rank in range(world_size)
    ]
    assert {len(part) for part in seen} == {local}
    order = sampler.order(seed, epoch, n)
    np.testing.assert_array_equal(np.concatenate(seen), order[: batches * whole])
    assert sorted(order) == list(range(n))


@given(seed=seeds, epoch=epochs, batch=st.integers(0, 4), world_size=st.sampled_from([1, 2, 3, 4, 6, 12]))
def test_a_global_batch_is_the_same_on_any_number_of_ranks(seed: int, epoch: int, batch: int, world_size: int) -> None:
    parts = [sampler.batch_indices(seed, epoch, batch, 12, rank, world_size, 65) for rank in range(world_size)]
    np.testing.assert_array_equal(np.concatenate(parts), sampler.batch_indices(seed, epoch, batch, 12, 0, 1, 65))


def test_the_order_changes_with_epoch_and_seed_and_never_again() -> None:
    assert sampler.order(0, 0, 8).tolist() == [3, 6, 4, 0, 7, 5, 2, 1]
    orders = {tuple(sampler.order(seed, epoch, 50)) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16
    with pytest.raises(ValueError, match="read-only"):
        sampler.order(0, 0, 8)[0] = 1


def test_a_later_stage_has_its_own_fixed_order() -> None:
    fine = rng.descended(rng.BY_SEED_ALONE, "fine")
    assert sampler.order(0, 0, 8, fine).tolist() == [2, 1, 4, 6, 7, 0, 3, 5]
    lineages = [rng.BY_SEED_ALONE, fine, rng.descended(fine, "fine"), rng.descended(fine, "other")]
    orders = {tuple(sampler.order(0, epoch, 50, lineage)) for lineage in lineages for epoch in range(4)}
    assert len(orders) == 16


@examples(200)
@given(n=st.integers(1, 500), world_size=st.integers(1, 7), batch=st.integers(1, 64))
def test_evaluation_counts_every_sample_once(n: int, world_size: int, batch: int) -> None:
    ranks = [sampler.evaluation_slices(n, world_size, rank, batch) for rank in range(world_size)]
    assert len({len(slices) for slices in ranks}) == 1
    counted = np.zeros(n)
    for slices in ranks:
        for indices, mask in slices:
            assert indices.shape == mask.shape == (batch,)
            np.add.at(counted, indices, mask)
    assert (counted == 1).all()
