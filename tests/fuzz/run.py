"""Runs targets on mutated inputs, measures the worst case, and keeps the inputs that break a promise."""

import contextlib
import hashlib
import os
import resource
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from fuzz.mutation import Mutator
from fuzz.targets import TARGETS, Target

KEPT = Path(__file__).parent / "corpus"
# Bounds of one input.
MOST_SECONDS = 10.0
MOST_BYTES = 512 << 20
MOST_TEXT = 3000
_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class Slow(BaseException):
    """An input took too long. No target can catch it."""


@dataclass
class Result:
    """What became of a target's inputs. `broken`: by place and kind of each failure, the first input and its story."""

    name: str
    cases: int = 0
    accepted: int = 0
    refused: int = 0
    slowest_seconds: float = 0.0
    seconds: float = 0.0
    grown_bytes: int = 0
    broken: dict[str, tuple[bytes, str]] = field(default_factory=dict)


def fuzz(name: str, cases: int, seed: int) -> Result:
    """Try the kept inputs, the corpus and so many mutations of it."""
    target, result = TARGETS[name], Result(name)
    corpus = list(target.corpus())
    begin, before = time.monotonic(), _peak()
    with tempfile.TemporaryDirectory(prefix=f"fuzz-{name}-", dir=_MEMORY) as folder, _bounded():
        for data in _inputs(name, corpus, cases, seed):
            _try(target, data, Path(folder), result)
    result.seconds, result.grown_bytes = time.monotonic() - begin, _peak() - before
    return result


def kept(name: str) -> list[bytes]:
    """Inputs that once broke the target."""
    return [path.read_bytes() for path in sorted((KEPT / name).glob("*"))]


def _inputs(name: str, corpus: list[bytes], cases: int, seed: int) -> Iterator[bytes]:
    yield from kept(name)
    yield from corpus
    mutator = Mutator(seed, corpus)
    for _ in range(cases):
        yield mutator.next()


def _try(target: Target, data: bytes, folder: Path, result: Result) -> None:
    place = folder / "case"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    begin = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS)
    try:
        said = target.read(data, place)
        _check_texts(said)
        result.accepted += not said
        result.refused += bool(said)
    except target.errors as error:
        result.refused += 1
        with _noted(result, data):
            _check_texts([str(error)])
    except (Exception, Slow) as error:
        _note(result, data, error)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    result.cases += 1
    result.slowest_seconds = max(result.slowest_seconds, time.monotonic() - begin)


def _check_texts(said: object) -> None:
    """Whatever is said is one sentence that a terminal can show."""
    for text in said if isinstance(said, list | tuple) else ():
        assert text, "an error without a message"
        assert text.isprintable(), f"not printable: {text[:200]!r}"
        assert len(text) <= MOST_TEXT, f"{len(text)} characters"


@contextlib.contextmanager
def _noted(result: Result, data: bytes) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        _note(result, data, error)


def _note(result: Result, data: bytes, error: BaseException) -> None:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "site-packages" not in frame.filename]
    last = (ours or frames)[-1]
    key = f"{type(error).__name__} in {Path(last.filename).name}:{last.lineno}"
    if key not in result.broken:
        result.broken[key] = (data, "".join(traceback.format_exception(error, limit=-6))[-3000:])


@contextlib.contextmanager
def _bounded() -> Iterator[None]:
    """Inputs that take too much time or memory raise Slow or MemoryError."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, _slow)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + MOST_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.signal(signal.SIGALRM, before)


def _slow(number: int, frame: FrameType | None) -> None:
    raise Slow(f"more than {MOST_SECONDS:g} s")


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def digest(data: bytes) -> str:
    """A name for an input."""
    return hashlib.sha256(data).hexdigest()[:12]
