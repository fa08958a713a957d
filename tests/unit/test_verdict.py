"""The trainer's failure classes and its termination message: one sentence, valid JSON, within the size limit."""

import errno
import json
from pathlib import Path

import pytest

from resnetboost_trainer import __main__ as process
from resnetboost_trainer import config, failures
from resnetboost_trainer.failures import Verdict
from resnetboost_trainer.metrics.progress import Progress, ProgressState


@pytest.mark.parametrize(
    ("error", "name", "says"),
    [
        (failures.DataError("x_train: missing"), "DataError", "x_train: missing"),
        (MemoryError("cannot allocate 4 GiB"), "OutOfMemory", "4 GiB"),
        (RuntimeError("Allocate memory failed: alloc 1024"), "OutOfMemory", "out of memory"),
        (
            RuntimeError("bad\n- C++ Call Stack:\nactor.cc:995 OnMemoryAllocFinish"),
            "InternalError",
            "RuntimeError: bad",
        ),
        (OSError(errno.ENOSPC, "No space left", "/checkpoints/a"), "StorageError", "lower checkpoint.keep"),
        (OSError(errno.EACCES, "Permission denied", "/checkpoints"), "StorageError", "permission denied"),
        (OSError(errno.EROFS, "Read-only", "/checkpoints"), "StorageError", "read-only"),
        (ValueError("first line\nsecond line"), "InternalError", "ValueError: first line"),
        (ZeroDivisionError(), "InternalError", "ZeroDivisionError"),
    ],
    ids=[
        "own class",
        "memory",
        "device memory",
        "kernel",
        "disk full",
        "permission",
        "read-only",
        "bug",
        "bug without text",
    ],
)
def test_every_exception_has_a_class_and_one_sentence(error: Exception, name: str, says: str) -> None:
    found = failures.classify(error)
    assert found.name == name
    assert says in str(found)
    assert "\n" not in str(found)


def test_the_termination_message_stays_within_its_limit_and_stays_json(tmp_path: Path) -> None:
    path = tmp_path / "termination-log"
    failures.write(Verdict("InternalError", "ä" * 5000, 3, 1, step=7), path)
    assert path.stat().st_size <= 2048
    written = json.loads(path.read_text())
    assert (written["class"], written["rank"], written["step"]) == ("InternalError", 3, 7)
    assert written["message"].endswith("...")


def test_a_message_that_is_too_long_keeps_its_remedy(tmp_path: Path) -> None:
    path = tmp_path / "termination-log"
    failures.write(
        Verdict("DataError", f"/{'data/' * 900}a.jpg: it cannot be decoded; repair or remove it", 0, 11), path
    )
    assert path.stat().st_size <= 2048
    message = json.loads(path.read_text())["message"]
    assert message.startswith("/data/data/")
    assert message.endswith("...; repair or remove it")


def test_a_message_full_of_quotes_stays_within_its_limit(tmp_path: Path) -> None:
    failures.write(Verdict("InternalError", '"\\\n' * 2000, 0, 1), tmp_path / "log")
    assert (tmp_path / "log").stat().st_size <= 2048
    assert json.loads((tmp_path / "log").read_text())["class"] == "InternalError"


def test_a_termination_log_that_cannot_be_written_does_not_hide_the_exit_code(tmp_path: Path) -> None:
    failures.write(Verdict("DataError", "x", 0, 11), tmp_path / "missing" / "log")


def test_the_termination_message_has_the_last_metrics_within_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RESNETBOOST_CONFIG", "config.yaml")
    path, board = tmp_path / "termination-log", ProgressState(Progress(state="Starting", stage="base", attempt=0))
    assert process._verdict(config.environment(), board, "ConfigError", "x", 10).loss is None
    board.update(step=44, total_steps=44, loss=0.02, accuracy=0.99)
    failures.write(process._verdict(config.environment(), board, "Succeeded", "é" * 4000, 0), path)
    told = json.loads(path.read_text())
    assert [told[name] for name in ("step", "totalSteps", "loss", "accuracy")] == [44, 44, 0.02, 0.99]
    assert path.stat().st_size <= failures.MESSAGE_LIMIT_BYTES
