"""Principal components of 60 snapshots against scikit-learn's, each in its own process: seconds and peak memory.

Snapshots are random walks in float32, of ResNet-18's size and of ResNet-50's. All of scikit-learn's solvers run on the
first eighth of ResNet-18, where they must agree with ours. On the whole only two run: the default, `svd_solver="auto"`,
which is `randomized` for snapshots, and the fastest and smallest, which a user has to choose. IncrementalPCA of the
whole would take more than 20 GB.

Both headline figures favour scikit-learn: our seconds include all reading and hashing, theirs begin when the array is
in memory; our memory is the whole process', theirs excludes that array.
"""

import math
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np

from bench import entries
from bench.contenders.pca import COMPONENTS, Outcome, Task
from bench.entries import Entry
from resnetboost_trainer.checkpoint import snapshots, store
from resnetboost_trainer.optim.pca.gram import Floats

SNAPSHOTS = 60
RESNET18, RESNET50 = 11_689_512, 25_557_032
RANKS = 8
EIGHTH = RESNET18 // 8
ROUNDS = 2

# Memory limit for ResNet-50, MiB: an eighth of its basis is 390, the whole 3120.
BUDGET, BUDGET_WHOLE = 640, 3400

# scikit-learn's default (svd_solver="auto"), and its fastest and smallest solver.
DEFAULT, BEST = "randomized", "arpack"

# Bounds of 1 - |cosine| to ours: scikit-learn computes in float32, and randomized components are approximate.
AGREEMENT = {"full": 1e-5, "arpack": 1e-5, "incremental": 1e-5, "randomized": 0.2}

Outcomes = dict[str, list[Outcome]]


def measure() -> list[Entry]:
    """All solvers on an eighth of ResNet-18, the best ones on the whole, ours alone on ResNet-50."""
    with _snapshots(RESNET18) as root:
        eighth = _compared(Task(str(root), RESNET18, EIGHTH, EIGHTH, keep=True))
        whole = _in_turn(Task(str(root), RESNET18, RESNET18, RESNET18), {DEFAULT: 1, BEST: ROUNDS})
    found = [*_headlines(whole), *_by_way(whole, ""), *_by_way(eighth, "_eighth")]
    with _snapshots(RESNET50) as root:
        return found + _resnet50(root)


@contextmanager
def _snapshots(numbers: int) -> Iterator[Path]:
    """Random walks with steps of 1/50 of the weights, in the trainer's format, on disk: /tmp is often memory."""
    Path("build").mkdir(exist_ok=True)
    root = Path(tempfile.mkdtemp(prefix="pca-", dir="build"))
    generator = np.random.Generator(np.random.Philox(0))
    weights = np.float32(0.05) * generator.standard_normal(numbers, np.float32)
    try:
        for step in range(SNAPSHOTS):
            weights += np.float32(0.001) * generator.standard_normal(numbers, np.float32)
            directory = store.attempt_directory(root, "bench", "base", 0)
            store.write(directory, _manifest(step), snapshots.contents(weights), "snapshot")
        yield root
    finally:
        shutil.rmtree(root)


def _manifest(step: int) -> store.Manifest:
    return store.Manifest(
        job_uid="bench",
        stage="base",
        attempt=0,
        step=step,
        steps_per_epoch=1,
        seed=0,
        world_size=1,
        local_batch_size=1,
        model="bench",
        dataset="none",
        layout="bench",
    )


def _run(name: str, task: Task) -> Outcome:
    command = [sys.executable, "-m", "bench.contenders.pca", name, msgspec.json.encode(task).decode()]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    outcome = msgspec.json.decode(done.stdout, type=Outcome)
    print(
        f"{name:12} {task.used / 1e6:5.1f} M: {outcome.seconds:6.2f} s, of these {outcome.reading:5.2f} s reading; "
        f"{outcome.peak_mib:6.0f} MiB",
        flush=True,
    )
    return outcome


def _in_turn(task: Task, rounds: dict[str, int]) -> Outcomes:
    """Ours before each of scikit-learn's solvers that is still to be measured."""
    outcomes: Outcomes = {"ours": [], **{name: [] for name in rounds}}
    for round_ in range(max(rounds.values())):
        outcomes["ours"].append(_run("ours", task))
        for name in (name for name, wanted in rounds.items() if round_ < wanted):
            outcomes[name].append(_run(name, task))
    return outcomes


def _compared(task: Task) -> Outcomes:
    """Run every solver; all must find the same components up to their sign."""
    outcomes = _in_turn(task, {BEST: 2, "randomized": 1, "full": 1, "incremental": 1})
    assert BEST == _least(outcomes, _computing) == _least(outcomes, _peaks)
    for name, within in AGREEMENT.items():
        furthest = _furthest(task, name)
        print(f"{name}: components differ from ours by at most {furthest:.1e} (1 - |cosine|)")
        assert furthest < within
    return outcomes


def _furthest(task: Task, name: str) -> float:
    ours, theirs = (_components(task, which) for which in ("ours", name))
    cosines = np.einsum("ij,ij->i", ours, theirs, dtype=np.float64)
    return float((1 - np.abs(cosines)).max())


def _components(task: Task, name: str) -> Floats:
    found: Floats = np.load(Path(task.root, f"{name}.npy"), mmap_mode="r")
    return found


def _least(outcomes: Outcomes, of: Callable[[Sequence[Outcome]], list[float]]) -> str:
    """The solver of scikit-learn with the smallest median of that figure."""
    return min((name for name in outcomes if name != "ours"), key=lambda name: statistics.median(of(outcomes[name])))


def _headlines(outcomes: Outcomes) -> list[Entry]:
    """Ratios to the default and to the best solver, with its name; the memory of their array is not counted."""
    return [*_headline(outcomes, DEFAULT, ""), *_headline(outcomes, BEST, f"_{BEST}_fit")]


def _headline(outcomes: Outcomes, name: str, end: str) -> list[Entry]:
    ours, theirs = outcomes["ours"], outcomes[name]
    without = [peak - SNAPSHOTS * RESNET18 * 4 / 2**20 for peak in _peaks(theirs)]
    of = f"PCA(svd_solver={name!r})"
    return [
        _speedup(f"pca_speedup_vs_sklearn{end}", _seconds(ours), _computing(theirs), f"{of}; only ours with reading"),
        _memory(f"pca_memory_vs_sklearn{end}", _peaks(ours), without, f"{of}, its array not counted"),
    ]


def _by_way(outcomes: Outcomes, size: str) -> list[Entry]:
    """Seconds with reading on both sides and on neither; memory of the whole process on both sides."""
    return [entry for name in outcomes if name != "ours" for entry in _beside(outcomes, name, size)]


def _beside(outcomes: Outcomes, name: str, size: str) -> list[Entry]:
    ours, theirs = outcomes["ours"], outcomes[name]
    end = f"vs_sklearn_{name}{size}"
    return [
        _speedup(f"pca_speedup_{end}", _seconds(ours), _seconds(theirs), "from files to components"),
        _speedup(f"pca_speedup_computing_{end}", _computing(ours), _computing(theirs), "no reading"),
        _memory(f"pca_memory_{end}", _peaks(ours), _peaks(theirs), "peak, with the array in memory"),
    ]


def _speedup(name: str, ours: Sequence[float], theirs: Sequence[float], baseline: str) -> Entry:
    return entries.speedup(name, ours[: len(theirs)], theirs, baseline)


def _memory(name: str, ours: Sequence[float], theirs: Sequence[float], baseline: str) -> Entry:
    return entries.ratio(name, ours[: len(theirs)], theirs, "MiB", baseline)


def _seconds(outcomes: Sequence[Outcome]) -> list[float]:
    return [outcome.seconds for outcome in outcomes]


def _computing(outcomes: Sequence[Outcome]) -> list[float]:
    return [outcome.seconds - outcome.reading for outcome in outcomes]


def _peaks(outcomes: Sequence[Outcome]) -> list[float]:
    return [outcome.peak_mib for outcome in outcomes]


def _resnet50(root: Path) -> list[Entry]:
    """One of 8 ranks with its eighth of the basis, although it multiplies all columns; and one rank alone."""
    rank = [_run("ours", Task(str(root), RESNET50, RESNET50, math.ceil(RESNET50 / RANKS)))]
    alone = [_run("ours", Task(str(root), RESNET50, RESNET50, RESNET50))]
    assert max(_peaks(rank)) < BUDGET
    assert max(_peaks(alone)) < BUDGET_WHOLE
    of = f"{SNAPSHOTS} x {RESNET50 / 1e6:.1f} M, {COMPONENTS} components"
    return [
        entries.figure("pca_resnet50_basis_mib", _peaks(rank), "MiB", f"{of}, 1/{RANKS} of columns; budget {BUDGET}"),
        entries.figure("pca_resnet50_basis_seconds", _seconds(rank), "s", f"{of}, 1/{RANKS} of columns"),
        entries.figure("pca_resnet50_whole_mib", _peaks(alone), "MiB", f"{of}; budget {BUDGET_WHOLE}"),
        entries.figure("pca_resnet50_whole_seconds", _seconds(alone), "s", of),
    ]
