"""Reader of torch.save files: tensors bit for bit, and any other pickle opcode refused by name."""

import io
import pickle
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies
from hypothesis.extra import numpy as arrays

from resnetboost_trainer.checkpoint.formats import torch_file
from resnetboost_trainer.checkpoint.formats.torch_pickle import Refused
from support import torchfiles
from support.examples import examples
from support.torchfiles import archive, dictionary, named, number, pickled, storage, tensor, text, tuple_

ONE = np.array([1, 2, 3, 4, 5, 6], np.float32).tobytes()


def holding(value: bytes, **storages: bytes) -> bytes:
    """A file with one tensor, `w`, built by the given opcodes."""
    return archive(pickled(dictionary({"w": value})), {"0": ONE} | storages)


@hypothesis.given(
    strategies.dictionaries(
        strategies.text(max_size=30),
        arrays.arrays(
            strategies.sampled_from([np.float32, np.float64, np.int64]),
            arrays.array_shapes(min_dims=0, max_dims=4, max_side=4),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_tensors_are_read_bit_for_bit(given: dict[str, Any]) -> None:
    found = torch_file.read(torchfiles.state_dict(given))
    assert list(found) == list(given)
    for name, array in given.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()


def test_a_view_with_strides_and_an_offset() -> None:
    found = torch_file.read(holding(tensor(storage("0", 6), (2, 2), (1, 2), offset=1)))
    assert found["w"].tolist() == [[2, 4], [3, 5]]


def test_half_precision_becomes_float32() -> None:
    half = np.array([1.5, -2], np.float16)
    assert torch_file.read(torchfiles.state_dict({"w": half}))["w"].tolist() == [1.5, -2]
    brain = (np.array([1.5, -2], np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
    data = holding(tensor(storage("1", 2, "BFloat16Storage"), (2,), (1,)), **{"1": brain})
    assert torch_file.read(data)["w"].tolist() == [1.5, -2]


@pytest.mark.parametrize("key", ["state_dict", "model", "model_state_dict"])
def test_state_dicts_nested_under_common_keys_are_found(key: str) -> None:
    whole = dictionary({"epoch": number(3), key: dictionary({"w": tensor(storage("0", 6), (6,), (1,))})})
    assert torch_file.read(archive(pickled(whole), {"0": ONE}))["w"].tolist() == [1, 2, 3, 4, 5, 6]


class Command:
    """A command that Python's own unpickler would run."""

    def __reduce__(self) -> Any:
        return print, ("run!",)


GOOD = tensor(storage("0", 6), (6,), (1,))
HUGE = 2**62


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (archive(pickle.dumps(Command(), 2), {}), r"names (__builtin__|builtins)\.print, which no state dict needs"),
        (holding(named("os", "system") + tuple_([text("true")]) + b"R"), r"names os\.system"),
        (holding(named("torch", "load")), r"names torch\.load"),
        (holding(named("torch._utils", "_rebuild_tensor_v2.__globals__")), "names torch._utils._rebuild_tensor_v2.__g"),
        (holding(named("collections", "OrderedDict") + tuple_([tuple_([])]) + b"R"), "OrderedDict with contents"),
        (holding(b"i" + b"os\nsystem\n"), "uses INST"),
        (holding(b"\x82\x01"), "uses EXT1"),
        (holding(named("torch", "FloatStorage") + b")\x81"), "uses NEWOBJ"),
        (holding(GOOD + b"2"), "uses DUP"),
        (holding(b"(" * 3), "damaged"),
        (holding(b"R"), "damaged"),
        (holding(b"h\x07"), "damaged"),
        (archive(pickled(GOOD)[:-20], {"0": ONE}), "damaged"),
        (archive(b"", {"0": ONE}), "damaged"),
        (archive(pickled(b"}" + tuple_([number(1)]) + number(2) + b"s"), {}), "a dict has a tuple as key"),
        # Hashing a key of so many nested tuples would overflow the process's stack.
        (archive(pickled(b"})" + b"\x85" * 200_000 + number(2) + b"s"), {}), "a dict has a tuple as key"),
        (archive(pickled(number(3)), {}), "holds no state dict"),
        (archive(pickled(b"}"), {}), "holds no state dict"),
        (archive(pickled(dictionary({"w": GOOD, "epoch": number(3)})), {"0": ONE}), "holds no state dict"),
        (holding(tensor(storage("0", 6), (7,), (1,))), "does not lie within its storage of 6"),
        (holding(tensor(storage("0", 6), (3,), (1,), offset=4)), "does not lie within"),
        (holding(tensor(storage("0", 6), (2, 2), (5, 1))), "does not lie within"),
        (holding(tensor(storage("0", 6), (HUGE, HUGE), (0, 0))), "does not lie within"),
        (holding(tensor(storage("0", 6), (2,), (-1,))), "stride is negative"),
        (holding(tensor(storage("0", 6), (-2,), (1,))), "stride is negative"),
        (holding(tensor(storage("0", 6), (1,) * 9, (1,) * 9)), "9 dimensions"),
        (holding(tensor(storage("0", 6), (2, 3), (1,))), "2 dimensions and 1 strides"),
        (holding(tensor(storage("0", HUGE), (HUGE,), (1,))), "more than the file"),
        (holding(tensor(storage("0", 6), (0, HUGE, HUGE), (1, 1, 1))), "no whole zip archive"),
        (holding(tensor(storage("0", 6), (0, HUGE * 4), (1, 1))), "no whole zip archive"),
        (holding(tensor(storage("0", 6), (0,), (HUGE * 4,))), "no whole zip archive"),
        (holding(named("os", "\x1b[2Jsystem")), r"names 'os\.\\x1b\[2Jsystem', which"),
        (holding(tensor(storage("0", 7), (6,), (1,))), "24 bytes instead of 28"),
        (holding(tensor(storage("../data.pkl", 6), (6,), (1,))), "key '../data.pkl' instead of a number"),
        (holding(tensor(storage("/etc/passwd", 6), (6,), (1,))), "key '/etc/passwd' instead of a number"),
        (holding(tensor(storage("5", 6), (6,), (1,))), "has no entry data/5"),
        (holding(tensor(storage("0", 6, "QInt8Storage"), (6,), (1,))), r"names torch\.QInt8Storage"),
        (archive(pickled(GOOD), {}, byteorder=b"big"), "big-endian"),
        (archive(pickled(GOOD), {}, root="a/b"), "0 pickles"),
        (holding(GOOD)[:-30], "no whole zip archive"),
        (holding(GOOD)[:200], "no whole zip archive"),
        (b"PK\x03\x04" + bytes(100), "no whole zip archive"),
        (holding(GOOD).replace(ONE, ONE[::-1]), "no whole zip archive of torch.save: Bad CRC"),
    ],
)  # fmt: skip
def test_a_file_without_a_state_dict_is_refused(data: bytes, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Refused, match=says):
        torch_file.read(data)
    assert capsys.readouterr().out == ""


def test_shared_storage_larger_than_the_file_is_refused() -> None:
    many = dictionary({str(name): GOOD for name in range(200)})
    big = archive(pickled(many.replace(number(6), number(60_000))), {"0": ONE * 10_000})
    tracemalloc.start()
    with pytest.raises(Refused, match="more than the file"):
        torch_file.read(big)
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()


def test_one_storage_under_many_descriptions_is_read_once() -> None:
    items = {str(count): tensor(storage("0", count), (1,), (1,)) for count in range(1, 200)}
    data = archive(pickled(dictionary(items)), {"0": ONE * 40_000})
    tracemalloc.start()
    assert len(torch_file.read(data)) == 199
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()


def test_a_zip_directory_of_a_million_entries_is_refused() -> None:
    data = holding(GOOD)
    tracemalloc.start()
    with pytest.raises(Refused, match="more than 100000 entries"):
        torch_file.read(data + b"PK\x01\x02".ljust(46, b"\0") * 100_000)
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()


def test_a_high_memo_index_allocates_no_memory() -> None:
    data = archive(pickled(b"}r\xff\xff\xff\x7f" + number(1) + b"0"), {})
    tracemalloc.start()
    with pytest.raises(Refused):
        torch_file.read(data)
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()


def test_nested_tuples_are_never_written_out() -> None:
    """Each level is twice as long as the one below: written out as text it would exhaust memory."""
    doubled = b")q\x00" + b"".join(
        b"h" + bytes([k]) * 1 + b"h" + bytes([k]) + b"\x86q" + bytes([k + 1]) for k in range(60)
    )
    for value in (doubled + b"Q", tensor(storage("0", 6), (6,), (1,), 0).replace(number(0), doubled, 1)):
        with pytest.raises(Refused):
            torch_file.read(holding(value))


def test_a_compressed_entry_and_two_of_one_name() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as written:
        written.writestr("archive/data.pkl", pickled(dictionary({"w": GOOD})) + bytes(10_000_000))
    with pytest.raises(Refused, match="larger than the file"):
        torch_file.read(file.getvalue())
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as written, pytest.warns(UserWarning, match="Duplicate"):
        written.writestr("archive/data.pkl", pickled(dictionary({"w": GOOD})))
        written.writestr("archive/data.pkl", pickled(dictionary({"v": GOOD})))
    with pytest.raises(Refused, match="same name"):
        torch_file.read(file.getvalue())


@hypothesis.given(strategies.data())
@examples(300)
def test_a_damaged_file_is_refused_or_read_and_nothing_else_happens(data: strategies.DataObject) -> None:
    whole = bytearray(holding(GOOD))
    for _ in range(data.draw(strategies.integers(1, 4))):
        whole[data.draw(strategies.integers(0, len(whole) - 1))] = data.draw(strategies.integers(0, 255))
    try:
        torch_file.read(bytes(whole))
    except Refused as refused:
        assert str(refused)


@hypothesis.given(strategies.binary(max_size=200))
@examples(300)
def test_any_pickle_is_refused_or_read(data: bytes) -> None:
    try:
        torch_file.read(archive(data, {"0": ONE}))
    except Refused as refused:
        assert str(refused)


def test_nothing_is_ever_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch_file.read(archive(pickled(dictionary({"w": GOOD})), {"0": ONE, "../../escaped": b"x"}))
    assert list(tmp_path.rglob("*")) == []
