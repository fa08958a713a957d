"""One rank of a gang that trains the $CASES from step $FIRST to step $END; the leader writes what came of it.

Its folder holds a checkpoint of each case by step, from which it goes on. With $THROUGH it trains on to that step after
the checkpoint of step $END: these are the values whose names begin with `undisturbed`.
"""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from resnetboost_trainer import config
from resnetboost_trainer.distributed.communicator import Communicator, Rendezvous

environment = config.environment()
rendezvous = Rendezvous(environment)

from resnetboost_trainer.engine import device  # noqa: E402  after the coordinator has begun to import MindSpore
from support import elastic  # noqa: E402

FIRST, END, THROUGH = (int(os.environ.get(name, "0")) for name in ("FIRST", "END", "THROUGH"))
folder = Path(sys.argv[1])
device.prepare()
communicator = Communicator(environment.rank, environment.world_size)
left: dict[str, Any] = {}


def save(checkpoint: Path) -> None:
    contents = trainee.program.state.snapshot()
    if contents is not None:
        checkpoint.mkdir()
        for name, values in contents.items():
            safetensors.numpy.save_file(values, checkpoint / name)


def restore(checkpoint: Path) -> list[str]:
    """Restore a checkpoint, and return the arrays that are another one's when it is taken again."""
    saved = {path.name: safetensors.numpy.load_file(path) for path in checkpoint.iterdir()}
    trainee.program.state.restore(saved if communicator.leads else None)
    again = trainee.program.state.snapshot()
    if again is None:
        return []
    both = {(file, name) for contents in (saved, again) for file in contents for name in contents[file]}
    return [f"{file}: {name}" for file, name in sorted(both) if _bits(saved, file, name) != _bits(again, file, name)]


def _bits(contents: Any, file: str, name: str) -> bytes | None:
    values = contents.get(file, {}).get(name)
    return None if values is None else bytes(values.tobytes())


def train(case: str, first: int, end: int, prefix: str = "") -> None:
    for step, (record, samples) in enumerate(trainee.steps(first, end), first):
        key = f"{prefix}{case}.{step}"
        left[f"{key}.told"] = np.array([record.loss, record.gradient_norm, record.left_out, record.loss_scale])
        left[f"{key}.samples"] = samples
        if record.curvature is not None:
            curvature = record.curvature
            left[f"{key}.curvature"] = np.array([curvature.updated, curvature.kept, curvature.stopped])
    for name, values in trainee.evaluated().items():
        left[f"{prefix}{case}.evaluated.{name}"] = values


for case in os.environ["CASES"].split("|"):
    trainee = elastic.Trainee(case, communicator)
    if FIRST:
        left[f"{case}.changed"] = np.array(restore(folder / f"{case}-{FIRST}"))
    train(case, FIRST, END)
    save(folder / f"{case}-{END}")
    if THROUGH:
        train(case, END, THROUGH, "undisturbed.")
        save(folder / f"undisturbed.{case}-{THROUGH}")

np.savez(folder / f"rank-{environment.rank}.npz", **left)
communicator.leave()
rendezvous.close()
os._exit(0)
