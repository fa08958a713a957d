"""Time that training stalls for a checkpoint (fsync included), every 20 steps of resnet20 on this machine's disk.

Beside it the same with a copy of each checkpoint in object storage, whose gateway runs on the same cores.
"""

import tempfile
import time
from pathlib import Path

from bench import gateways, trainer
from bench.entries import Entry, share
from resnetboost_trainer.checkpoint import store
from resnetboost_trainer.checkpoint.remote import Remote
from resnetboost_trainer.checkpoint.saver import Keeping, Saver
from resnetboost_trainer.checkpoint.store import Kind
from resnetboost_trainer.checkpoint.uploader import Uploader
from resnetboost_trainer.engine.train_step import Program
from resnetboost_trainer.storage import address
from resnetboost_trainer.storage.bucket import Bucket

ROUNDS, STEPS = 12, 20


def measure() -> list[Entry]:
    """Stall as the share of training time at one checkpoint a minute; goal below 0.005, with copies too."""
    program = trainer.program(channels=1)
    with tempfile.TemporaryDirectory(dir=".") as folder, gateways.running():  # the tree's disk: /tmp is often memory
        keeping: dict[Kind, Keeping] = {"step": Keeping(keep=3, saved=lambda *_: None)}
        root = Path(folder)
        bucket = Bucket(address.parse("s3://bucket/checkpoints", "bench"))
        savers = {
            "": Saver(root / "local", keeping),
            "_with_upload": Saver(root / "both", keeping, Uploader(Remote(bucket, root / "both"), keeping)),
        }
        _steps(program)
        stalls: dict[str, list[float]] = {name: [] for name in savers}
        slowed: dict[str, list[float]] = {name: [] for name in savers}
        for round_ in range(ROUNDS):
            for name, saver in savers.items():
                stalls[name].append(_save(program, saver, round_) / 60)
                saver.wait()
        for round_ in range(ROUNDS):
            for name, saver in savers.items():
                slowed[name].append(_slowed(program, saver, round_) / 60)
    return [
        entry
        for name in savers
        for entry in (
            share(f"checkpoint_stall_share{name}", stalls[name], "60 s of training"),
            share(f"checkpoint_slowdown_share{name}", slowed[name], "60 s, with steps beside the writer"),
        )
    ]


def _save(program: Program, saver: Saver, number: int) -> float:
    """Time that the loop waits: to copy the state, and for the writer if it is busy with the previous checkpoint."""
    _steps(program)
    started = time.perf_counter()
    saver.save(_manifest(number), program.state.snapshot() or {})
    return time.perf_counter() - started


def _slowed(program: Program, saver: Saver, number: int) -> float:
    """20 steps after a checkpoint minus 20 steps without one: the stall, and the time the writer takes from steps."""
    started = time.perf_counter()
    saver.save(_manifest(ROUNDS + number), program.state.snapshot() or {})
    _steps(program)
    saved = time.perf_counter()
    saver.wait()
    plain = time.perf_counter()
    _steps(program)
    return max(0.0, (saved - started) - (time.perf_counter() - plain))


def _steps(program: Program) -> None:
    images, labels = trainer.batch(channels=1, size=8)
    for _ in range(STEPS):
        program.step(images, labels, trainer.MOMENT, stop=False)


def _manifest(number: int) -> store.Manifest:
    return store.Manifest(
        job_uid="bench",
        stage="base",
        attempt=0,
        step=number * STEPS,
        steps_per_epoch=22,
        seed=0,
        world_size=1,
        local_batch_size=trainer.BATCH,
        model="resnet20/10/1",
        dataset="digits",
    )
