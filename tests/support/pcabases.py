"""A volume with a stage's snapshots, and the PCA stage that makes a basis of them."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from resnetboost_trainer.checkpoint import resume, snapshots, state, store
from resnetboost_trainer.checkpoint.store import Manifest
from resnetboost_trainer.config import StartFrom
from resnetboost_trainer.optim.pca import basis as bases
from support import smallcheckpoints

Floats = NDArray[np.float32]

# More than one chunk of columns, and not a multiple of any number of ranks.
NUMBERS = 70001
SNAPSHOTS, STEPS = 9, 4
LAYOUT = "layout"

BEFORE = smallcheckpoints.manifest(0, steps_per_epoch=10)


def trajectory(count: int = SNAPSHOTS) -> Floats:
    """A random walk of weights; the first ones do not depend on `count`."""
    generator = np.random.default_rng(0)
    start = generator.standard_normal(NUMBERS, np.float32)
    steps = [0.01 * generator.standard_normal(NUMBERS, np.float32) for _ in range(count)]
    return start + np.cumsum(steps, axis=0, dtype=np.float32)


def leave(root: Path, rows: Floats, **changes: Any) -> list[Path]:
    """Write the previous stage's snapshots, one every four steps, and its last checkpoint. Returns the snapshots."""
    paths = []
    for number, row in enumerate(rows):
        manifest = told(step=STEPS * number, **({"layout": LAYOUT} | changes))
        path, _ = store.write(_attempt(root, manifest), manifest, snapshots.contents(row), "snapshot")
        paths.append(path / snapshots.FILE)
    end = told(step=STEPS * len(rows), **{name: value for name, value in changes.items() if name != "layout"})
    store.write(_attempt(root, end), end, {state.MODEL: {"weight": np.zeros(3, np.float32)}})
    return paths


def told(**changes: Any) -> Manifest:
    return msgspec.structs.replace(BEFORE, **changes)


def _attempt(root: Path, manifest: Manifest) -> Path:
    return store.attempt_directory(root, manifest.job_uid, manifest.stage, manifest.attempt)


def source(root: Path | None, attempt: int = 1, job_name: str | None = None, **changes: Any) -> resume.Source:
    """Source of the PCA stage's basis."""
    ours = told(**({"stage": "pca", "algorithm": "PCA", "attempt": attempt} | changes))
    start = StartFrom(stage="base", job_name=job_name)
    return resume.Source(root=root, ours=ours, rule="Never", start_from=start, total=20)


def shape(components: int = 5, numbers: int = NUMBERS, layout: str = LAYOUT) -> bases.Shape:
    return bases.Shape(components, numbers, layout)


def begun(root: Path, attempt: int, basis: str, **changes: Any) -> None:
    """Write a checkpoint of the PCA stage by that attempt."""
    manifest = told(**({"stage": "pca", "algorithm": "PCA", "attempt": attempt, "basis": basis, "step": 2} | changes))
    some = {"weight": np.zeros(3, np.float32)}
    store.write(_attempt(root, manifest), manifest, {state.MODEL: some, state.OPTIMIZER: some})
