"""`resnetboost data to-mindrecord`: folders of images into MindRecord files, by MindSpore's own writer."""

import argparse
import contextlib
import logging
import os
import re
import shutil
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from resnetboost_trainer.checkpoint import store
from resnetboost_trainer.data import read_errors, transforms
from resnetboost_trainer.data.dataset import Unreadable
from resnetboost_trainer.data.sources import imagefolder, mindrecord
from resnetboost_trainer.data.sources.imagefolder import FolderContents
from resnetboost_trainer.failures import DataError, StorageError, classify

SCHEMA = {"image": {"type": "bytes"}, "label": {"type": "int32"}, "name": {"type": "string"}}
_ROWS_AT_ONCE = 256
_REASON = re.compile(
    r"^\[ERROR\] (?:\[Internal ERROR\] )?(.*)$", re.MULTILINE
)  # MindSpore's messages also contain advice for its developers


def main(words: Sequence[str]) -> int:
    """Convert the folder, print a summary and return the exit code."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="resnetboost: %(message)s")
    arguments = _parser().parse_args(words)
    try:
        convert(arguments.source, arguments.target, arguments.train, arguments.test, arguments.shards, arguments.skip)
    except Exception as error:
        failure = classify(error)
        print(f"resnetboost: {failure}", file=sys.stderr)
        return failure.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m resnetboost_trainer tomindrecord", description=__doc__)
    parser.add_argument("source", type=Path, help="folder with train and val, each with a folder for each class")
    parser.add_argument("target", type=Path, help="folder to make")
    parser.add_argument("--train", default="train", help="the folder to train on")
    parser.add_argument("--test", default="val", help="the folder to test with")
    parser.add_argument("--shards", type=int, default=1, help="how many files for each of the two")
    parser.add_argument("--skip", type=int, default=0, help="number of unusable images to skip before failing")
    return parser


def convert(source: Path, target: Path, train: str, test: str, shards: int, skip: int) -> None:
    """Write the target folder atomically. Raises DataError or StorageError."""
    if target.exists():
        raise StorageError(f"{target}: already exists; remove it or name another folder")
    names = imagefolder.classes(source, train, "train on")
    parts = imagefolder.contents(source, train, test, len(names))
    making = target.with_name(f".{target.name}.making-{os.getpid()}")
    making.mkdir(parents=True)
    try:
        counts = [_write(part, making, name, shards, skip) for part, name in zip(parts, ("train", "val"), strict=True)]
        listed = "".join(f"{name}\n" for name in names)
        (making / mindrecord.CLASSES).write_text(listed, encoding="utf-8", errors="surrogateescape")
        _share(making)
        making.rename(target)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    left = sum(len(part.labels) for part in parts) - sum(counts)
    left_out = f", {left} left out that cannot be used" if left else ""
    print(f"{target}: {counts[0]} images to train on, {counts[1]} to test with, {len(names)} classes{left_out}")


def _write(contents: FolderContents, target: Path, name: str, shards: int, skip: int) -> int:
    """Write the files of one part and return the number of rows. Decodes every image to check it."""
    from mindspore.mindrecord import FileWriter

    if not 1 <= shards <= len(contents.labels):
        raise DataError(f"--shards: {shards} files cannot hold {len(contents.labels)} images; use fewer")
    writer = FileWriter(str(target / f"{name}.mindrecord"), shard_num=shards, overwrite=True)
    writer.add_schema(SCHEMA, "images by resnetboost")
    writer.add_index(["label"])
    count, rows = 0, []
    for row in _rows(contents, skip):
        rows.append(row)
        count += 1
        if len(rows) == _ROWS_AT_ONCE:
            with _writing(target):
                writer.write_raw_data(rows)
            rows = []
    with _writing(target):
        if rows:
            writer.write_raw_data(rows)
        writer.commit()
    return count


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Raise StorageError for MindSpore's write errors, which are RuntimeErrors or its own classes, without errno."""
    from mindspore.mindrecord.common.exceptions import MindRecordException

    try:
        yield
    except (RuntimeError, MindRecordException) as error:
        reason = next((found[1] for found in _REASON.finditer(str(error))), str(error).splitlines()[0])
        free = shutil.disk_usage(folder).free >> 20
        problem = f"cannot be written: {reason.strip(' .')}; {free} MB are free there"
        raise StorageError(f"{folder.parent}: {problem}; make room or name another folder") from error


def _share(making: Path) -> None:
    """Sync all files to disk and replace the mode 0600 of MindSpore's by the one that the umask allows."""
    mode = stat.S_IMODE((making / mindrecord.CLASSES).stat().st_mode)
    for file in making.iterdir():
        file.chmod(mode)
        store.sync(file)


def _rows(contents: FolderContents, skip: int) -> Iterator[dict[str, Any]]:
    skipped = 0
    for index, label in enumerate(contents.labels):
        name = contents.name(index)
        try:
            data = contents.read(index)
            transforms.check(data)
        except (Unreadable, OSError) as error:
            if read_errors.is_outage(error):  # the image itself may be intact, so it must not be skipped
                raise read_errors.failure(f"{name}: cannot be read", error) from None
            skipped += 1
            if skipped > skip:
                raise DataError(f"{name}: {error}; repair or remove it, or allow some with --skip") from None
            logging.warning("left out %s: %s", name, error)
            continue
        yield {"image": data, "label": int(label), "name": os.path.relpath(name, contents.root)}
