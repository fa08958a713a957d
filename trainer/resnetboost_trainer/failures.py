"""Failure classes, with an exception and an exit code each, and the termination message of a rank.

The codes and class names are the contract with whoever started the process: those of resnetboost_api.failures.
"""

import errno
import os
from pathlib import Path
from typing import ClassVar

import msgspec

from resnetboost_api import failures
from resnetboost_api.failures import FailureClass
from resnetboost_api.status import BestCheckpoint, EarlyStop, PreflightResult

# A container has 4096 bytes for its message, a pod 12 KiB for all of them.
MESSAGE_LIMIT_BYTES = 2048


class Fault(msgspec.Struct, frozen=True, rename="camel"):
    """Where a training diverged: the step, counted from 1, and how many batches of the data order were used by then."""

    step: int
    batch: int


class TrainingError(Exception):
    """A failure with a class of its own; subclasses are the documented ones. `fault`: where training diverged."""

    fault: Fault | None = None
    exit_code: ClassVar[int] = 1
    name: ClassVar[str] = "InternalError"

    def __init_subclass__(cls, failure: FailureClass) -> None:
        """Take name and exit code of the failure class."""
        assert failure.exit_code is not None
        cls.name, cls.exit_code = failure.name, failure.exit_code


class ConfigError(TrainingError, failure=failures.CONFIG_ERROR):
    """The job asks for something impossible: a wrong value, too many ranks, a checkpoint of another model."""


class DataError(TrainingError, failure=failures.DATA_ERROR):
    """The data set cannot be used: missing, unreadable, of the wrong shape."""


class NumericsError(TrainingError, failure=failures.NUMERICS_ERROR):
    """Loss or gradients are not finite."""


class Diverged(TrainingError, failure=failures.DIVERGED):
    """The loss was far above its running median for too long."""


class OutOfMemoryError(TrainingError, failure=failures.OUT_OF_MEMORY):
    """Host or device memory is exhausted."""


class CommunicationError(TrainingError, failure=failures.COMMUNICATION_ERROR):
    """A collective failed: most often another rank died, so this rank is a victim."""


class StorageError(TrainingError, failure=failures.STORAGE_ERROR):
    """A checkpoint could not be written or read (no space left, no permission), or a storage is out of reach."""


class Interrupted(TrainingError, failure=failures.INTERRUPTED):
    """Asked to stop, and stopped after a checkpoint."""


class PreflightFailed(TrainingError, failure=failures.PREFLIGHT_FAILED):
    """The preflight named a rank, and the job asks to go on without its node; `result` says what was found."""

    def __init__(self, message: str, result: PreflightResult) -> None:
        super().__init__(message)
        self.result = result


class Verdict(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The termination message: how this rank ended, where, and what a resumed run will start from.

    `skipped` has a mark for each image that it skipped as unusable, the same on every rank that met it.
    """

    name: str = msgspec.field(name="class")
    message: str
    rank: int
    exit_code: int
    step: int | None = None
    checkpoint_step: int | None = None
    top1: float | None = None
    top5: float | None = None
    test_loss: float | None = None
    total_steps: int | None = None
    loss: float | None = None
    accuracy: float | None = None
    resumed_step: int | None = None
    skipped: tuple[str, ...] = ()
    fault: Fault | None = None
    preflight: PreflightResult | None = None
    best: BestCheckpoint | None = None
    stopped_early: EarlyStop | None = None


def classify(error: BaseException) -> TrainingError:
    """The documented failure that an exception stands for, with its text."""
    if isinstance(error, TrainingError):
        return error
    if isinstance(error, MemoryError) or _is_about_memory(error):
        return OutOfMemoryError(f"out of memory: {_first_line(error)}")
    if isinstance(error, OSError):
        return StorageError(_storage_sentence(error))
    return TrainingError(f"{type(error).__name__}: {_first_line(error)}")


def _is_about_memory(error: BaseException) -> bool:
    """Whether MindSpore's message is about memory. Its C++ call stack is ignored: it may name OnMemoryAllocFinish."""
    words = str(error).partition("C++ Call Stack")[0].lower()
    return "memory" in words and "alloc" in words


def _storage_sentence(error: OSError) -> str:
    remedy = {
        errno.ENOSPC: "no space left on the device; free some, or lower checkpoint.keep or snapshots.keep",
        errno.EDQUOT: "the disk quota is used up; free some space, or lower checkpoint.keep or snapshots.keep",
        errno.EACCES: "permission denied; the trainer's user must be able to write there",
        errno.EROFS: "the file system is read-only",
    }.get(error.errno or 0, error.strerror or str(error))
    return f"{error.filename or 'storage'}: {remedy}"


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip() if lines else "no message"


def _shortened(message: str, excess: int) -> str:
    """Shorten the message by so many bytes; the remedy after its last semicolon is kept."""
    problem, mark, remedy = message.rpartition("; ")
    if len(problem.encode()) <= excess:
        problem, mark, remedy = message, "", ""
    return problem.encode()[:-excess].decode(errors="ignore") + "..." + mark + remedy


def write(verdict: Verdict, path: Path | None) -> None:
    """Write the termination message within its limit. Never fails: the exit code says the same."""
    if path is None:
        return
    excess = len(msgspec.json.encode(verdict)) - MESSAGE_LIMIT_BYTES
    if excess > 0:
        verdict = msgspec.structs.replace(verdict, message=_shortened(verdict.message, excess + 3))
    try:
        # Kubelet reads this very inode: it must be written in place, not renamed into place.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(verdict))
    except OSError:
        pass
