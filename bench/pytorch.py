"""Training step and inference on CPU against PyTorch: same network, batch and threads, in turn, one process each.

PyTorch runs in its default setting and with `channels_last`, `torch.jit.script` and both: each case has an entry
against the default, and one against the fastest of all, whose baseline names it.
"""

import contextlib
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.entries import Entry, ratio
from bench.step import Worker

SYSTEM_PYTHON = "/usr/bin/python3"  # has Debian's torch and torchvision (scripts/install-system-packages)

DEFAULT = "default"
SETTINGS = (DEFAULT, "channels_last", "script", "channels_last+script")

# Network, (channels, size, batch), pairs of turns, steps per turn.
CASES = (
    ("resnet20", (1, 8, 64), 11, 20),
    ("resnet20", (3, 32, 64), 9, 5),
    ("resnet18", (3, 64, 32), 7, 2),
    ("resnet50", (3, 64, 16), 5, 1),
    ("seresnet50", (3, 64, 16), 5, 1),
)


def measure() -> list[Entry]:
    """Ours / PyTorch's time: below 1 is faster."""
    return [entry for case in CASES for what in ("train", "infer") for entry in _compare(what, *case)]


def _compare(what: str, name: str, numbers: tuple[int, int, int], pairs: int, count: int) -> list[Entry]:
    arguments = (name, *map(str, numbers))
    workers = [Worker.of("bench.contenders.our_worker", what, *arguments)]  # all start at once
    workers += [_contender(what, setting, *arguments) for setting in SETTINGS]
    with contextlib.ExitStack() as stack:
        for worker in workers:
            stack.enter_context(worker)
        times = [[worker.step(count) for worker in workers] for _ in range(pairs)]
    form, version = workers[0].about, workers[1].about
    own, *others = zip(*times, strict=True)
    by_setting = dict(zip(SETTINGS, others, strict=True))
    fastest = min(by_setting, key=lambda setting: statistics.median(by_setting[setting]))
    _show(f"{what} {name} {numbers[1]}", own, by_setting)
    kind, end = ("step" if what == "train" else "inference"), f"{name}_{numbers[1]}"
    return [
        ratio(
            f"{kind}_time_vs_{who}_{end}",
            own,
            by_setting[setting],
            "s",
            f"PyTorch {version}, {setting}, batch {numbers[2]}; our convolutions: {form}",
        )
        for who, setting in (("pytorch", DEFAULT), ("best_pytorch", fastest))
    ]


def _contender(what: str, setting: str, *arguments: str) -> Worker:
    script = Path(__file__).with_name("contenders") / "torch_worker.py"
    return Worker([SYSTEM_PYTHON, str(script), what, setting, *arguments], folder="/")


def _show(title: str, ours: Sequence[float], theirs: Mapping[str, Sequence[float]]) -> None:
    """Print medians in ms of all settings."""
    medians = {"ours": ours, **theirs}
    print(f"{title}:", ", ".join(f"{name} {1000 * statistics.median(times):.1f}" for name, times in medians.items()))
