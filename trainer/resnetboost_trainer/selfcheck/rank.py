"""A rank of the self-checks: python -m resnetboost_trainer.selfcheck.rank FOLDER DEVICE PARENT [--plain].

Rank 0 writes results.json into the folder after each part, so that a crash in one leaves what the others found.
`--plain` computes without our C++ operators: the reference for a device, and for these operators.
"""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from resnetboost_trainer import config, failures
from resnetboost_trainer.distributed import coordinator
from resnetboost_trainer.distributed.communicator import Communicator, Rendezvous
from resnetboost_trainer.kernels import library
from resnetboost_trainer.selfcheck import cases
from resnetboost_trainer.selfcheck.cases import Numbers, Results

RESULTS = "results.json"
PLAIN = "--plain"
REDUCED_BYTES, REDUCTIONS = 16 << 20, 3
_STEPS_PER_EPOCH = 1000


def main(words: Sequence[str]) -> int:
    """Compute all parts; return 0, whatever was found. An error that ends the gang is raised."""
    folder, device, parent = Path(words[0]), words[1], int(words[2])
    coordinator.die_with(parent)
    if PLAIN in words:
        library.FILE = library.FILE.with_name("left-out.so")  # as on a machine where they are not built
    environment = config.environment()
    rendezvous = Rendezvous(environment)
    try:
        _Rank(folder, device, environment.rank, environment.world_size).run()
    finally:
        rendezvous.close()
    return 0


class _Rank:
    """This process's part in the gang."""

    def __init__(self, folder: Path, device: str, rank: int, size: int) -> None:
        from resnetboost_trainer.engine import device as devices

        devices.prepare(device)
        self._folder, self._gang = folder, Communicator(rank, size)
        self._results = Results(device, size)

    def run(self) -> None:
        """The all-reduce, then every algorithm. A collective."""
        self._write()
        reduced, rate = _all_reduce(self._gang)
        self._write(reduced=reduced, megabytes_per_second=rate)
        for algorithm in cases.ALGORITHMS:
            try:
                numbers = _steps(algorithm, self._results.device, self._gang)
            except Exception as error:
                failure = failures.classify(error)
                self._write(failed={**self._results.failed, algorithm: f"{failure.name}: {failure}"[:1000]})
                if self._gang.size > 1:  # the other ranks wait in a collective of these steps
                    raise
            else:
                self._write(algorithms={**self._results.algorithms, algorithm: numbers})
        self._gang.leave()

    def _write(self, **changes: object) -> None:
        self._results = msgspec.structs.replace(self._results, **changes)
        if self._gang.leads:
            partial = self._folder / f".{RESULTS}"
            partial.write_bytes(msgspec.json.encode(self._results))
            partial.replace(self._folder / RESULTS)


def _all_reduce(gang: Communicator) -> tuple[float, float | None]:
    """The sum of the ranks' numbers, and the rate in MB/s; NaN for elements that differ, None for a gang of one."""
    values = np.full(REDUCED_BYTES // 4, gang.rank + 1, np.float32)
    total = gang.sum(values)
    began = time.perf_counter()
    for _ in range(REDUCTIONS):
        total = gang.sum(values)
    seconds = (time.perf_counter() - began) / REDUCTIONS
    found = float(total[0]) if bool((total == total[0]).all()) else float("nan")
    return found, REDUCED_BYTES / seconds / 1e6 if gang.size > 1 else None


def _steps(algorithm: str, device: str, gang: Communicator) -> Numbers:
    """Take the steps of one algorithm. A collective."""
    from mindspore import Tensor

    from resnetboost_trainer.engine.train_step import Program
    from resnetboost_trainer.models import resnet
    from resnetboost_trainer.models.init import initialise
    from resnetboost_trainer.optim import schedule

    began = time.perf_counter()
    settings = cases.settings(algorithm, device)
    network = resnet.SmallResNet(cases.BLOCKS, cases.CLASSES, cases.CHANNELS, settings.precision)
    initialise(network, settings.seed, settings.model.init)
    weights = list(network.trainable_params())
    before = [weight.asnumpy().astype(np.float64) for weight in weights]
    basis = _basis(sum(weight.size for weight in weights), gang) if algorithm == "PCA" else None
    program = Program(settings, network, gang, basis)
    records = []
    for step in range(cases.STEPS):
        images, labels = cases.batch(step, gang.rank)
        now = schedule.at(settings, step, _STEPS_PER_EPOCH)
        records.append(program.step(Tensor(images), Tensor(labels), now, stop=False))
    moves = (weight.asnumpy().astype(np.float64) - old for weight, old in zip(weights, before, strict=True))
    return Numbers(
        losses=tuple(record.loss for record in records),
        gradient_norms=tuple(record.gradient_norm for record in records),
        moved=sum(float(np.square(move).sum()) for move in moves) ** 0.5,
        seconds=time.perf_counter() - began,
    )


def _basis(numbers: int, gang: Communicator) -> object:
    """This rank's columns of the components."""
    from resnetboost_trainer.optim.pca import subspace

    rows, width = cases.components(numbers), subspace.width(numbers, gang.size)
    columns = np.zeros((cases.COMPONENTS, width), np.float32)
    own = rows[:, gang.rank * width : (gang.rank + 1) * width]
    columns[:, : own.shape[1]] = own
    return subspace.Basis(columns, numbers, 1.0)


if __name__ == "__main__":
    os.environ.setdefault("GLOG_v", "3")
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # without MindSpore's teardown, which waits for ranks that may be gone
