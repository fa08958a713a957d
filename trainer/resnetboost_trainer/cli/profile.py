"""`python -m resnetboost_trainer profile CONFIG DIR`: where a rank's time goes, into DIR/profile.json; nothing is kept.

It trains as the config file says, on fresh weights, without checkpoints or evaluation, in the gang that the
environment places it in; rank 0 writes.
"""

import argparse
import contextlib
import logging
import os
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import msgspec

from resnetboost_api.profile import Profile, Renewals
from resnetboost_trainer import config, failures
from resnetboost_trainer.config import Config, Environment
from resnetboost_trainer.data import checks, registry
from resnetboost_trainer.data.registry import Dataset
from resnetboost_trainer.distributed import ranktable, virtual_ranks
from resnetboost_trainer.engine import batch_statistics
from resnetboost_trainer.failures import ConfigError
from resnetboost_trainer.kernels import library
from resnetboost_trainer.profiling.layer_times import LayerTimes
from resnetboost_trainer.profiling.step_times import Step, times

RESULT = "profile.json"
TRACE = "mindspore"
INTERRUPTED = 130  # the shells' exit code for SIGINT
WARM_UP = 3  # steps before measuring: every graph is compiled in the first two, THOR's too


def main(words: Sequence[str]) -> int:
    """Profile a stage and write the result; return the exit code, after one sentence for an error."""
    os.environ.setdefault("GLOG_v", "3")
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    arguments = _arguments(words)
    try:
        settings, environment = config.load(arguments.config), config.environment()
        profile = measure(settings, environment, arguments.folder, arguments.steps)
        if environment.rank == 0:
            (arguments.folder / RESULT).write_bytes(msgspec.json.format(msgspec.json.encode(profile)) + b"\n")
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        failure = failures.classify(error)
        print(f"resnetboost profile: {failure}", file=sys.stderr)
        return failure.exit_code
    return 0


def measure(settings: Config, environment: Environment, folder: Path, steps: int) -> Profile:
    """Measure `steps` steps, then as many under MindSpore's profiler, whose files stay in `folder`. A collective.

    Raises the errors of training, and ConfigError for a stage that cannot be trained without another one.
    """
    from resnetboost_trainer.distributed.communicator import Rendezvous

    settings = _alone(settings)
    dataset = registry.load(settings.dataset, settings.model.num_classes, storage=settings.storage)
    _check_batch(settings, environment, dataset)
    environment = ranktable.place(msgspec.structs.replace(environment, checkpoints=None))
    rendezvous = Rendezvous(environment)
    try:
        return _measured(settings, environment, dataset, folder, steps)
    finally:
        rendezvous.close()


def _alone(settings: Config) -> Config:
    """Return the stage without initial weights, which do not affect times. Raises ConfigError for PCA."""
    if settings.algorithm == "PCA":
        raise ConfigError(f"stage {settings.stage}: PCA trains on snapshots of another stage; profile one without PCA")
    model = msgspec.structs.replace(settings.model, weights=None)
    return msgspec.structs.replace(settings, model=model, start_from=None)


def _check_batch(settings: Config, environment: Environment, dataset: Dataset) -> None:
    samples, mixes = len(dataset.train.labels), dataset.mixing is not None
    batch, accumulated = settings.local_batch_size, settings.accumulation_steps
    ranks = virtual_ranks.of(settings, environment.world_size).count
    checks.check_batch(samples, ranks, batch, mixes, accumulated)
    batch_statistics.check(settings, *dataset.train.shape[1:], environment.world_size)


def _measured(settings: Config, environment: Environment, dataset: Dataset, folder: Path, steps: int) -> Profile:
    from resnetboost_trainer.distributed.communicator import Communicator
    from resnetboost_trainer.engine import device
    from resnetboost_trainer.models import resnet
    from resnetboost_trainer.profiling import op_trace
    from resnetboost_trainer.profiling.timed_steps import TimedSteps

    kind, rank, size = settings.device.type, environment.rank, environment.world_size
    try:
        device.prepare(kind, settings.jit_level)
    except RuntimeError as error:
        raise ConfigError(f"device.type: {kind}: this machine has none that MindSpore can use") from error
    timed = TimedSteps(settings, dataset, Communicator(rank, size, leader=environment.leader), WARM_UP + 2 * steps)
    timed.take(WARM_UP)
    layers = LayerTimes(settings.model.name, dataset.channels)
    # A teacher's layers would count as the student's, and may be more.
    with layers.recorded() if settings.distillation is None else contextlib.nullcontext():
        plain = timed.take(steps)
    with op_trace.recorded(folder / TRACE, kind) if rank == 0 else contextlib.nullcontext():
        recorded = timed.take(steps)
    found = times(plain, recorded, op_trace.executions(folder / TRACE) if rank == 0 else ())
    timed.leave()
    return Profile(
        job=settings.job.name,
        stage=settings.stage,
        model=settings.model.name,
        algorithm=settings.algorithm,
        dataset=settings.dataset.name,
        device=kind,
        ranks=size,
        threads=library.threads(),
        images_per_step=timed.global_batch,
        steps=steps,
        mindspore=metadata.version("mindspore"),
        convolutions=resnet.convolution_forms(timed.network),
        times=found,
        layers=layers.of(steps),
        renewals=_renewals(settings, plain, recorded),
    )


def _renewals(settings: Config, plain: Sequence[Step], recorded: Sequence[Step]) -> Renewals | None:
    if settings.thor is None:
        return None
    during_plain, during_recorded = (sum(step.renewed for step in steps) for steps in (plain, recorded))
    return Renewals(during_plain, during_recorded, settings.thor.frequency)


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m resnetboost_trainer profile", description=__doc__)
    parser.add_argument("config", metavar="CONFIG", type=Path, help="config file of a stage")
    parser.add_argument("folder", metavar="DIR", type=Path, help="where the profile is written")
    parser.add_argument("--steps", type=int, default=20, help="how many are measured (default: %(default)s)")
    return parser.parse_args(words)
