"""Adasum's cost: adaptive sums against AllReduce, in gangs that alternate them on the same bytes.

A sum's time is the slowest rank's.
"""

import functools
import tempfile
from pathlib import Path

import msgspec

from bench import trainer
from bench.contenders.adasum_rank import Plan, Times
from bench.entries import Entry, ratio
from resnetboost_trainer.models import resnet

GANGS, ROUNDS = (2, 4, 8), 7


def measure() -> list[Entry]:
    """Costs at 2, 4 and 8 ranks."""
    return [entry for ranks in GANGS for entry in _costs(ranks)]


def _costs(ranks: int) -> list[Entry]:
    """Sums of 45 MB (ResNet-18's 62 tensors) and of 1 MB (resnet20's)."""
    sums = {"": _sizes("resnet18", 1000), "_1mb": _sizes("resnet20", 10)}
    with tempfile.TemporaryDirectory() as folder:
        times = gang(Path(folder), ranks, Plan(ROUNDS, sums=sums))
    print(f"{ranks} ranks, seconds by level: {times.levels}")
    seconds = times.seconds
    return [
        ratio(
            f"adasum_time_vs_allreduce_{ranks}{name}",
            seconds[f"adasum-{name}"],
            seconds[f"reduce-{name}"],
            "s",
            "an AllReduce of the same bytes, in turn",
        )
        for name in sums
    ]


@functools.cache
def _sizes(name: str, classes: int) -> list[int]:
    return [parameter.size for parameter in resnet.build(name, classes, 1, 0).trainable_params()]


def gang(folder: Path, ranks: int, plan: Plan) -> Times:
    """The slowest rank's seconds of each round; level times are rank 0's."""
    (folder / "plan.json").write_bytes(msgspec.json.encode(plan))
    trainer.together(folder, ranks, 1, "bench.contenders.adasum_rank", str(folder))
    every = [msgspec.json.decode(path.read_bytes(), type=Times) for path in sorted(folder.glob("times-*.json"))]
    slowest = {
        name: [max(values) for values in zip(*(times.seconds[name] for times in every), strict=True)]
        for name in every[0].seconds
    }
    return Times(slowest, every[0].levels)
