"""Images per second of resnet20 on digits, global batch 64: 2 ranks x 1 thread, 1 x 1 and 1 x 2, in turn."""

import statistics

from bench import trainer
from bench.entries import Entry, ratio

ROUNDS, EPOCHS = 3, 4


def measure() -> list[Entry]:
    """Ideal is 2 against one rank of one thread; against two threads it shows the cost of a process boundary."""
    rounds = [(_speed(2, 1), _speed(1, 1), _speed(1, 2)) for _ in range(ROUNDS)]
    ranks, one, threads = zip(*rounds, strict=True)
    return [
        ratio("scaling_2_ranks", ranks, one, "images/s", "1 rank x 1 thread"),
        ratio("scaling_2_ranks_vs_2_threads", ranks, threads, "images/s", "1 rank x 2 threads"),
    ]


def _speed(ranks: int, threads: int) -> float:
    steps = [row["step_seconds"] for row in trainer.gang(ranks, threads, epochs=EPOCHS)][2:]
    return trainer.BATCH / statistics.median(steps)
