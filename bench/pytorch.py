"""Training step and inference on CPU against PyTorch: same network, batch and threads, in turn, one process each."""

from pathlib import Path

from bench.entries import Entry, ratio
from bench.step import Worker

SYSTEM_PYTHON = "/usr/bin/python3"  # has Debian's torch and torchvision (scripts/install-system-packages)

# Network, (channels, size, batch), pairs of turns, steps per turn.
CASES = (("resnet20", (1, 8, 64), 15, 20), ("resnet20", (3, 32, 64), 9, 5), ("resnet18", (3, 64, 32), 7, 2))


def measure() -> list[Entry]:
    """Ours / PyTorch's time: below 1 is faster."""
    return [_compare(what, *case) for case in CASES for what in ("train", "infer")]


def _compare(what: str, name: str, numbers: tuple[int, int, int], pairs: int, count: int) -> Entry:
    arguments = [what, name, *map(str, numbers)]
    contender = [SYSTEM_PYTHON, str(Path(__file__).with_name("contenders") / "torch_worker.py"), *arguments]
    with Worker.of("bench.contenders.our_worker", *arguments) as ours, Worker(contender, folder="/") as theirs:
        times = [(ours.step(count), theirs.step(count)) for _ in range(pairs)]
        title = f"PyTorch {theirs.about}, batch {numbers[2]}; our convolutions: {ours.about}"
    kind = "step" if what == "train" else "inference"
    return ratio(
        f"{kind}_time_vs_pytorch_{name}_{numbers[1]}", [a for a, _ in times], [b for _, b in times], "s", title
    )
