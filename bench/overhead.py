"""Share of training time outside the compiled graphs: data, Python, metrics, the progress server."""

from bench import trainer
from bench.entries import Entry, share

ROUNDS = 3


def measure() -> list[Entry]:
    """Wall time between steps against that of gradient and reduction; one rank, no evaluation or checkpoint."""
    return [share("overhead_share", [_share() for _ in range(ROUNDS)], "resnet20 on digits, whole steps")]


def _share() -> float:
    rows = trainer.gang(1, 1)[2:-1]
    wall = rows[-1]["time"] - rows[0]["time"]
    inside = sum(row["compute_seconds"] + row["collective_seconds"] for row in rows[1:])
    return max(0.0, 1 - inside / wall)
