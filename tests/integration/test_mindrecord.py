"""MindRecord files: MindSpore reads ours and we read MindSpore's, row by row in any order."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mindspore.dataset import MindDataset
from mindspore.mindrecord import FileWriter

from resnetboost_trainer import config
from resnetboost_trainer.data import registry
from resnetboost_trainer.data.sources import mindrecord
from resnetboost_trainer.data.sources.mindrecord import MindRecordContents
from resnetboost_trainer.failures import DataError, StorageError
from support import photographs

pytestmark = pytest.mark.slow
ROWS = 23


def convert(source: Path, target: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "resnetboost_trainer", "tomindrecord", *words, str(source), str(target)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photographs.folder(tmp_path_factory.mktemp("photographs"))


@pytest.fixture(scope="module")
def target(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("records") / "made"
    done = convert(source, path, "--shards", "3")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{path}: 24 images to train on, 10 to test with, 2 classes\n"
    return path


def test_mindspore_reads_what_our_command_writes(source: Path, target: Path) -> None:
    assert (target / "classes.txt").read_text() == "flower\ntemple\n"
    rows = MindDataset(str(target / "train.mindrecord0"), shuffle=False, num_parallel_workers=1)
    found = {}
    for row in rows.create_dict_iterator(num_epochs=1, output_numpy=True):
        name = str(row["name"])
        assert photographs.CLASSES[int(row["label"])] == name.partition("/")[0]
        found[name] = row["image"].tobytes()
    files = list((source / "train").rglob("*.jpg"))
    assert found == {path.relative_to(source / "train").as_posix(): path.read_bytes() for path in files}


def test_we_read_the_images_of_the_folder_in_its_order(source: Path, target: Path) -> None:
    """So that training from either has the same bits."""
    settings: dict[str, Any] = {"image_size": 24, "augmentation": config.PLAIN}
    folder = registry.load(config.Dataset(name="ImageFolder", path=str(source), **settings), 2)
    records = registry.load(config.Dataset(name="MindRecord", path=str(target), **settings), 2)
    for part in ("train", "test"):
        ours, theirs = getattr(records, part), getattr(folder, part)
        np.testing.assert_array_equal(ours.labels, theirs.labels)
        shape = (len(ours.labels), *ours.shape)
        read, expected = np.empty(shape, np.float32), np.empty(shape, np.float32)
        ours.fill(read, np.arange(len(read)), None)
        theirs.fill(expected, np.arange(len(read)), None)
        np.testing.assert_array_equal(read, expected)
    assert "train.mindrecord1, row 0" in records.train.name(8)


def written(folder: Path, schema: dict[str, Any], index: list[str], **columns: Any) -> Path:
    """A file by MindSpore's writer, with other fields, sizes and pages than our command's."""
    path = folder / "train.mindrecord"
    writer = FileWriter(str(path), shard_num=1, overwrite=True)
    writer.set_page_size(1 << 15)  # the smallest: rows fill several pages
    writer.add_schema(schema, "of a user")
    if index:
        writer.add_index(index)
    writer.write_raw_data([{name: values[row] for name, values in columns.items()} for row in range(ROWS)])
    writer.commit()
    return path


@pytest.mark.parametrize("index", [[], ["label"], ["label", "file_name"]], ids=len)
@pytest.mark.parametrize("blobs", [("image",), ("aside", "image"), ("data", "mask", "text")], ids=str)
def test_we_read_what_mindspore_writes(blobs: tuple[str, ...], index: list[str], tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    kinds = {"file_name": {"type": "string"}, "label": {"type": "int64"}, "score": {"type": "float32", "shape": [-1]}}
    columns: dict[str, Any] = {
        name: [random.bytes(int(random.integers(1, 9000))) for _ in range(ROWS)] for name in blobs
    }
    columns |= {
        "file_name": [f"name {row}" for row in range(ROWS)],
        "label": [int(n) for n in random.integers(0, 9, ROWS)],
    }
    columns["score"] = [np.ones(3, np.float32)] * ROWS
    schema = {name: {"type": "bytes"} for name in blobs} | kinds
    contents = MindRecordContents([written(tmp_path, schema, index, **columns)])
    assert contents.labels.tolist() == columns["label"]
    image = "data" if "data" in blobs else "image"
    for row in random.permutation(ROWS):
        assert contents.read(int(row)) == columns[image][row]


def test_conversion_is_all_or_nothing(tmp_path: Path) -> None:
    source = photographs.folder(tmp_path / "source")
    spoiled = source / "val" / "flower" / "0004.jpg"
    spoiled.write_bytes(spoiled.read_bytes()[:200])
    refused = convert(source, tmp_path / "made")
    assert refused.returncode == DataError.exit_code
    assert refused.stderr.startswith(f"resnetboost: {spoiled}: it cannot be decoded: ")
    assert "; repair or remove it, or allow some with --skip" in refused.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]
    done = convert(source, tmp_path / "made", "--skip", "1")
    summary = "24 images to train on, 9 to test with, 2 classes, 1 left out that cannot be used\n"
    assert done.stdout.endswith(summary)
    again = convert(source, tmp_path / "made")
    assert "made: already exists; remove it or name another folder" in again.stderr


def test_file_modes_follow_the_umask(source: Path, tmp_path: Path) -> None:
    """MindSpore creates files with mode 0600, which a pod of another user could not read."""
    before = os.umask(0o027)
    try:
        assert convert(source, tmp_path / "made").returncode == 0
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "made").iterdir()}
    files = ("classes.txt", "train.mindrecord", "train.mindrecord.db", "val.mindrecord", "val.mindrecord.db")
    assert modes == dict.fromkeys(files, 0o640)
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o750


def full(source: Path, folder: Path, *within: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a wrapper that limits its disk space."""
    command = f"exec '{sys.executable}' -m resnetboost_trainer tomindrecord '{source}' '{folder / 'made'}'"
    return subprocess.run([*within, command], capture_output=True, text=True, check=False)


def test_a_full_disk_is_a_storage_error(source: Path, tmp_path: Path) -> None:
    """On a file system of one megabyte; MindSpore raises a RuntimeError without an errno."""
    own = ("unshare", "--user", "--map-root-user", "--mount")
    small = (*own, "sh", "-c", f"mount -t tmpfs -o size=1m none '{tmp_path}' && eval \"$0\"")
    if subprocess.run([*small, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespace can be made here, so there is no small file system to fill")
    refused = full(source, tmp_path, *small)
    assert refused.returncode == StorageError.exit_code
    assert refused.stderr.startswith(f"resnetboost: {tmp_path}: cannot be written: No free disk")
    assert refused.stderr.endswith("; make room or name another folder\n")


def test_a_file_that_cannot_grow_is_a_storage_error(source: Path, tmp_path: Path) -> None:
    """A disk that fills up during a write: MindSpore's stream reports it only when the file is closed."""
    refused = full(source, tmp_path, "sh", "-c", 'ulimit -f 32; eval "$0"')
    assert refused.returncode == StorageError.exit_code
    assert refused.stderr.startswith(f"resnetboost: {tmp_path}: cannot be written: ")
    assert list(tmp_path.iterdir()) == []


def changed(target: Path, folder: Path) -> Path:
    return Path(shutil.copytree(target, folder / "changed"))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda root: (root / "train.mindrecord1.db").unlink(), "train.mindrecord1.db: missing; a MindRecord file is"),
        (lambda root: (root / "train.mindrecord1.db").write_bytes(b"text" * 99), "mindrecord1.db: not the index of a"),
        (lambda root: (root / "train.mindrecord1").write_bytes(b"text" * 99), "train.mindrecord1: not a MindRecord"),
        (lambda root: (root / "train.mindrecord1").write_bytes(b""), "train.mindrecord1: not a MindRecord file; write"),
        (
            lambda root: (root / "train.mindrecord1").write_bytes((root / "train.mindrecord1").read_bytes()[: 1 << 24]),
            "train.mindrecord1: row 0 is damaged; write the file again",
        ),
        (lambda root: [path.unlink() for path in root.glob("val*")], r"no file val\*.mindrecord\*; MindRecord needs"),
    ],
    ids=["no index", "another index", "text", "empty", "cut off", "no tests"],
)
def test_a_problem_is_one_sentence(spoil: Any, says: str, target: Path, tmp_path: Path) -> None:
    root = changed(target, tmp_path)
    spoil(root)
    with pytest.raises(DataError, match=says) as caught:
        mindrecord.contents(root, 2)
    assert "\n" not in str(caught.value)


def test_a_label_beyond_the_classes_of_the_network(target: Path) -> None:
    with pytest.raises(DataError, match=r"row \d+: label 1 is not one of 0 to 0 \(model.numClasses: 1\)"):
        mindrecord.contents(target, 1)
