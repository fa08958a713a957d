"""Training step and inference on CPU against MindCV: same network, batch and threads, in turn, one process each."""

from bench.entries import Entry, ratio
from bench.step import Worker

# Network, (channels, size, batch), pairs of turns, our steps per turn. MindCV makes one step in the same time.
CASES = (("resnet20", (1, 8, 64), 5, 20), ("resnet20", (3, 32, 64), 2, 5), ("resnet18", (3, 64, 32), 2, 2))


def measure() -> list[Entry]:
    """Ours / MindCV's time: below 1 is faster."""
    return [_compare(what, *case) for case in CASES for what in ("train", "infer")]


def _compare(what: str, name: str, numbers: tuple[int, int, int], pairs: int, count: int) -> Entry:
    arguments = [what, name, *map(str, numbers)]
    with (
        Worker.of("bench.contenders.our_worker", *arguments) as ours,
        Worker.of("bench.contenders.mindcv_worker", *arguments) as theirs,
    ):
        times = [(ours.step(count), theirs.step()) for _ in range(pairs)]
        title = f"MindCV {theirs.about}, batch {numbers[2]}; our convolutions: {ours.about}"
    kind = "step" if what == "train" else "inference"
    return ratio(f"{kind}_time_vs_mindcv_{name}_{numbers[1]}", [a for a, _ in times], [b for _, b in times], "s", title)
