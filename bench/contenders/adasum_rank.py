"""One rank of a gang that times sums or training steps by plan.json, and writes its measurements."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from resnetboost_trainer import config
from resnetboost_trainer.distributed.communicator import Communicator, Rendezvous

CHECKED_STEPS = 5


class Plan(msgspec.Struct):
    """What to time. `sums`: sizes of tensors. `programs`: names of config files beside the plan.

    For each program the weights after CHECKED_STEPS steps are also written.
    """

    rounds: int
    sums: dict[str, list[int]] = {}
    programs: list[str] = []


class Times(msgspec.Struct):
    """Seconds on this rank by name, one per round, and the level times of the last adaptive sum."""

    seconds: dict[str, list[float]]
    levels: dict[str, dict[str, float]]


def main(folder: Path) -> None:
    """Execute plan.json; each measurement has one extra round of warm-up."""
    environment = config.environment()
    rendezvous = Rendezvous(environment)
    from resnetboost_trainer.engine import device

    device.prepare()
    plan = msgspec.json.decode((folder / "plan.json").read_bytes(), type=Plan)
    communicator = Communicator(environment.rank, environment.world_size)
    levels: dict[str, dict[str, float]] = {}
    works: dict[str, Callable[[], object]] = {}
    for name, sizes in plan.sums.items():
        works |= _sums(name, sizes, communicator, levels)
    for name in plan.programs:
        works[name] = _training(folder, name, communicator)
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(1 + plan.rounds):
        for name, work in works.items():
            seconds[name].append(_seconds(communicator, work))
    times = Times({name: values[1:] for name, values in seconds.items()}, levels)
    (folder / f"times-{environment.rank}.json").write_bytes(msgspec.json.encode(times))
    communicator.leave()
    rendezvous.close()
    os._exit(0)


def _sums(
    name: str, sizes: list[int], communicator: Communicator, levels: dict[str, dict[str, float]]
) -> dict[str, Callable[[], object]]:
    """An AllReduce and an adaptive sum of vectors that, like gradients, have a common component."""
    from resnetboost_trainer.distributed.adasum.adaptive_sum import AdaptiveSum

    adaptive = AdaptiveSum(sizes, 1, communicator)
    shared, own = (
        np.random.default_rng(seed).standard_normal(sum(sizes), np.float32) for seed in (99, communicator.rank)
    )
    values = shared + own

    def across() -> None:
        _, summed = adaptive.across(values)
        levels[name] = summed.seconds

    return {f"reduce-{name}": lambda: communicator.sum(values), f"adasum-{name}": across}


def _training(folder: Path, name: str, communicator: Communicator) -> Callable[[], object]:
    """A step of ThreeConvolutions; the weights after the first steps are for checking the simulation."""
    from mindspore import Tensor

    from bench.networks import ThreeConvolutions
    from resnetboost_trainer.data import registry, sampler
    from resnetboost_trainer.engine.train_step import Program
    from resnetboost_trainer.optim import schedule

    configured = config.load(folder / f"{name}.yaml")
    program = Program(configured, ThreeConvolutions(configured.seed), communicator)
    dataset = registry.load(configured.dataset, configured.model.num_classes)
    ranks, size = communicator.size, len(dataset.x_train)
    batch = ranks * configured.local_batch_size
    done = 0

    def step() -> None:
        nonlocal done
        epoch, place = divmod(done, size // batch)
        chosen = sampler.batch_indices(configured.seed, epoch, place, batch, communicator.rank, ranks, size)
        moment = schedule.at(configured, done, size // batch)
        images, labels = Tensor(dataset.x_train[chosen]), Tensor(dataset.y_train[chosen])
        program.step(images, labels, moment, stop=False)
        done += 1

    for _ in range(CHECKED_STEPS):
        step()
    if communicator.rank == 0:
        weights = [parameter.asnumpy().reshape(-1) for parameter in program.network.trainable_params()]
        np.save(folder / f"{name}.npy", np.concatenate(weights))
    return step


def _seconds(communicator: Communicator, work: Callable[[], object]) -> float:
    """Seconds of a collective operation that all ranks begin together."""
    communicator.sum(np.zeros(1, np.float32))
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main(Path(sys.argv[1]))
