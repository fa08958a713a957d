"""`python -m resnetboost_trainer lr-find CONFIG OUT.csv`: the loss at learning rates that grow from step to step.

One rank trains as the config file says, with the global batch of all virtual ranks, until the loss has diverged. It
saves no weights.
"""

import argparse
import logging
import math
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from resnetboost_trainer import config, failures
from resnetboost_trainer.config import Config, Environment
from resnetboost_trainer.data import checks, registry
from resnetboost_trainer.data.registry import Dataset
from resnetboost_trainer.engine import batch_statistics
from resnetboost_trainer.failures import ConfigError, NumericsError

INTERRUPTED = 130  # the shells' exit code for SIGINT
COLUMNS = "step,learning_rate,loss"
DIVERGED = 2.0  # the sweep ends where the loss is above so many times the first one
REPORT_EVERY = 10  # steps


def main(words: Sequence[str]) -> int:
    """Sweep and write the file; return the exit code, after one sentence for an error."""
    os.environ.setdefault("GLOG_v", "3")
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    arguments = parser().parse_args(words)
    try:
        settings, environment = _alone(config.load(arguments.config)), config.environment()
        rates = exponential(arguments.lowest, arguments.highest, arguments.steps)
        rows = [
            f"{step},{rate!r},{loss!r}" for step, (rate, loss) in enumerate(_sweep(settings, environment, rates), 1)
        ]
        arguments.out.write_text("\n".join([COLUMNS, *rows, ""]), encoding="utf-8")
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        failure = failures.classify(error)
        print(f"resnetboost lr-find: {failure}", file=sys.stderr)
        return failure.exit_code
    return 0


def exponential(lowest: float, highest: float, count: int) -> list[float]:
    """So many rates from the lowest to the highest, each the same multiple of the one before."""
    return [lowest * (highest / lowest) ** (k / (count - 1)) for k in range(count)]


def _alone(settings: Config) -> Config:
    """Return the stage without what a sweep has no use for. Raises ConfigError for a stage that it cannot train."""
    if settings.algorithm in ("PCA", "Adasum"):
        remedy = "use lr-find for a stage of another algorithm"
        raise ConfigError(f"stage {settings.stage}: {settings.algorithm} cannot be swept on one rank; {remedy}")
    if settings.start_from is not None:
        reason = f"it starts from the weights of stage {settings.start_from.stage}"
        raise ConfigError(
            f"stage {settings.stage}: {reason}; give them as model.weights of a job with this stage alone"
        )
    return msgspec.structs.replace(settings, divergence=None, ema=None, snapshots=None, preflight=None)


def _sweep(settings: Config, environment: Environment, rates: Sequence[float]) -> Iterator[tuple[float, float]]:
    """Yield each rate and the loss of its step, until the loss has diverged; it is infinite after numbers that are not
    finite.
    """
    from resnetboost_trainer.distributed.communicator import Rendezvous

    dataset = registry.load(settings.dataset, settings.model.num_classes, storage=settings.storage)
    ranks = settings.virtual_ranks or 1
    mixes, accumulated = dataset.mixing is not None, settings.accumulation_steps
    checks.check_batch(len(dataset.train.labels), ranks, settings.local_batch_size, mixes, accumulated)
    batch_statistics.check(settings, *dataset.train.shape[1:], 1)
    environment = msgspec.structs.replace(environment, checkpoints=None, world_size=1, rank=0, index=0)
    rendezvous, first = Rendezvous(environment), math.nan
    try:
        for step, (rate, loss) in enumerate(_losses(settings, dataset, rates), 1):
            first = loss if step == 1 else first
            if step == 1 or step % REPORT_EVERY == 0:
                print(f"step {step}/{len(rates)}  learning rate {rate:.3g}  loss {loss:.3g}", file=sys.stderr)
            yield rate, loss
            if loss > DIVERGED * first:
                return
    finally:
        rendezvous.close()


def _losses(settings: Config, dataset: Dataset, rates: Sequence[float]) -> Iterator[tuple[float, float]]:
    from mindspore import Tensor

    from resnetboost_trainer.checkpoint import pretrained
    from resnetboost_trainer.data import sampler
    from resnetboost_trainer.data.corrupt import Corrupt
    from resnetboost_trainer.data.loader import DataLoader
    from resnetboost_trainer.distributed.communicator import Communicator
    from resnetboost_trainer.engine import device, objective
    from resnetboost_trainer.engine.train_step import Program
    from resnetboost_trainer.models import resnet
    from resnetboost_trainer.optim import schedule

    device.prepare(settings.device.type, settings.jit_level)
    network = resnet.configured(settings.model, dataset.channels, settings.seed, settings.precision)
    alone = Communicator(0, 1)
    goal = objective.of(settings, dataset, alone)
    program = Program(settings, network, alone, objective=goal)
    if settings.model.weights is not None:
        read = pretrained.read(settings.model, settings.model.weights, dataset.channels)
        program.state.warm_start(program.state.completed(read.arrays))
    parts = program.virtual.each * settings.accumulation_steps
    batch = program.virtual.count * settings.local_batch_size * settings.accumulation_steps
    share = sampler.DistributedSampler(settings.seed, batch, 0, 1, len(dataset.train.labels), parts)
    corrupt = Corrupt(dataset.max_corrupt_images, program.virtual.each)
    feed = DataLoader(dataset.train, corrupt, dataset.workers, dataset.mixing, dataset.autotune)
    rate = rates[0]
    try:
        batches = feed.batches(share.steps(0, len(rates)))
        for step, rate in enumerate(rates):
            now = msgspec.structs.replace(schedule.at(settings, step, share.per_epoch), learning_rate=rate)
            goal.begin(next(share.steps(step, step + 1)).whole)
            for _ in range(parts - 1):
                part = next(batches)
                program.accumulate(Tensor(part.images), Tensor(part.labels), now)
            part = next(batches)
            yield rate, program.step(Tensor(part.images), Tensor(part.labels), now, stop=False).loss
    except NumericsError:
        yield rate, math.inf
    finally:
        feed.close()


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    parsed = argparse.ArgumentParser("python -m resnetboost_trainer lr-find", description=__doc__)
    parsed.add_argument("config", metavar="CONFIG", type=Path, help="config file of a stage")
    parsed.add_argument("out", metavar="OUT.csv", type=Path, help="where the losses are written")
    parsed.add_argument("--steps", type=int, default=100, help="how many rates are tried (default: %(default)s)")
    parsed.add_argument("--from", dest="lowest", type=float, default=1e-5, help="the first rate (default: %(default)s)")
    parsed.add_argument("--to", dest="highest", type=float, default=10.0, help="the last rate (default: %(default)s)")
    return parsed
