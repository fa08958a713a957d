"""Entry point of a rank: reads config and environment, trains, and writes the termination message and exit code.

In a container with a launcher's token this is the launcher, which starts the rank as its child.
"""

import os
import sys

from resnetboost_trainer.engine import early_signals

if __name__ == "__main__":
    early_signals.listen()  # the other imports take long enough to be asked to stop meanwhile
    if "RESNETBOOST_TEMPLATE" in os.environ or "RESNETBOOST_LAUNCHER_TOKEN" in os.environ:
        from resnetboost_trainer.launcher import main as launcher

        launcher.main()  # returns in ranks alone

import argparse
import logging
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from resnetboost_trainer import __version__, config, failures
from resnetboost_trainer.cli import commands
from resnetboost_trainer.config import Config, Environment
from resnetboost_trainer.engine.signals import StopRequest
from resnetboost_trainer.engine.startup import StartupTimes
from resnetboost_trainer.failures import CommunicationError, Interrupted, TrainingError, Verdict
from resnetboost_trainer.metrics.progress import Progress, ProgressState

if TYPE_CHECKING:
    from resnetboost_trainer.tracking.tracking import Tracking

log = logging.getLogger("resnetboost_trainer")

EPILOG = f"""Commands: {", ".join(commands.ALL)};
`python -m resnetboost_trainer COMMAND --help` says what one takes.
To train, the config file is named by RESNETBOOST_CONFIG or the argument; RESNETBOOST_RANK, RESNETBOOST_WORLD_SIZE and
RESNETBOOST_COORDINATOR (host:port) place this process in its gang, or RESNETBOOST_INDEX and RESNETBOOST_RANK_TABLE (the
folder that a rank table will come into). Exit codes: 0 done, 1 internal error,
10 configuration, 11 data, 12 numerics, 13 out of memory, 14 communication, 15 storage, 16 interrupted, 17 diverged,
18 preflight."""


def main() -> NoReturn:
    """Run one rank, or a command of `commands`, and leave with its exit code."""
    if len(sys.argv) > 1 and sys.argv[1] in commands.ALL:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # no rank: it may be ended like any program
        _leave(commands.run(sys.argv[1], sys.argv[2:]))
    arguments = _arguments()
    os.environ.setdefault("GLOG_v", "3")  # MindSpore: errors only; a warning per graph is noise
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        environment = config.environment()
        if arguments.config:
            environment = msgspec.structs.replace(environment, config=Path(arguments.config))
    except TrainingError as error:
        log.error("%s: %s", error.name, error)
        _leave(error.exit_code)
    _leave(_rank(environment))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m resnetboost_trainer",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,  # else a line may end within to-mindrecord
    )
    parser.add_argument("config", nargs="?", help="config file (default: $RESNETBOOST_CONFIG)")
    parser.add_argument("--version", action="version", version=__version__)
    found = parser.parse_args()
    if found.config and (problem := commands.unknown(found.config)):
        parser.error(problem)
    return found


def _rank(environment: Environment) -> int:
    """Train, and turn every way to end into a termination message and an exit code."""
    progress = ProgressState(Progress(state="Starting", stage="", attempt=0))
    tracking: Tracking | None = None
    try:
        settings = config.load(environment.config)
        progress.update(stage=settings.stage, attempt=settings.attempt, total_epochs=settings.epochs)
        tracking = _tracking(settings, environment)
        last = _train(settings, environment, progress, tracking)
    except BaseException as error:
        failure = failures.classify(error)
        if type(failure) is TrainingError:
            log.exception("internal error")
        log.error("%s: %s", failure.name, failure)
        last = _verdict(environment, progress, failure.name, str(failure), failure.exit_code)
        last = msgspec.structs.replace(last, fault=failure.fault)
        if isinstance(failure, failures.PreflightFailed):
            last = msgspec.structs.replace(last, preflight=failure.result)
    failures.write(last, environment.termination_log)
    if tracking is not None:
        tracking.end(last.name, last.message)
    return last.exit_code


def _tracking(settings: Config, environment: Environment) -> "Tracking":
    """Start the trackers, on the leader alone: they connect while this rank starts."""
    from resnetboost_trainer.tracking.tracking import Tracking

    if settings.tracking is None or environment.index != 0:
        return Tracking()
    from resnetboost_trainer.tracking import registry
    from resnetboost_trainer.tracking.parameters import parameters

    return registry.started(settings, environment.checkpoints, parameters(settings, environment.world_size))


def _train(settings: Config, environment: Environment, progress: ProgressState, tracking: "Tracking") -> Verdict:
    """Train a stage. What can fail quickly comes first; MindSpore, which takes seconds to import, comes last."""
    from resnetboost_trainer.checkpoint import pretrained, remote, teacher
    from resnetboost_trainer.data import checks, registry
    from resnetboost_trainer.distributed import ranktable, virtual_ranks
    from resnetboost_trainer.distributed.communicator import Rendezvous
    from resnetboost_trainer.engine import batch_statistics, class_weights
    from resnetboost_trainer.metrics.server import Server

    startup, stop = StartupTimes(), StopRequest()
    stop.install(lambda: _moves(progress), lambda: _give_up(environment, progress), lambda: _leave_early(environment))
    server = Server(environment.bind_address, environment.metrics_port, progress)
    log.info("metrics and progress on http://%s:%d", environment.bind_address or "*", environment.metrics_port)
    dataset = registry.load(settings.dataset, settings.model.num_classes, storage=settings.storage)
    mixes, samples = dataset.mixing is not None, len(dataset.train.labels)
    batch, accumulated = settings.local_batch_size, settings.accumulation_steps
    virtual = virtual_ranks.of(settings, environment.world_size)
    checks.check_batch(samples, virtual.count, batch, mixes, accumulated)
    batch_statistics.check(settings, *dataset.train.shape[1:], environment.world_size)
    class_weights.of(settings.loss, dataset.train.labels, settings.model.num_classes)
    remote.prepare(settings, environment)
    pretrained.check(settings, environment, dataset.channels)
    teacher.check(settings, environment, dataset)
    startup.done("data")
    environment = ranktable.place(environment)
    rendezvous = Rendezvous(environment)
    startup.done("rank table and coordinator")

    from resnetboost_trainer.engine import device
    from resnetboost_trainer.engine.trainer import Training

    device.prepare(settings.device.type, settings.jit_level)
    startup.done("import")
    training = Training(settings, environment, dataset, progress, server, stop, startup, tracking)
    result, early = training.run(), training.stopped_early
    rendezvous.close()
    if tracking.names:
        from resnetboost_trainer.tracking import card

        card.save(tracking, settings, environment)
    how = f"{settings.epochs} epochs" if early is None else f"stopped early: {early.message}"
    done = _verdict(environment, progress, "Succeeded", f"{how}; top-1 {result.top1:.2%} on the test set", 0)
    return msgspec.structs.replace(done, top1=result.top1, top5=result.top5, test_loss=result.loss, stopped_early=early)


def _verdict(environment: Environment, progress: ProgressState, name: str, message: str, exit_code: int) -> Verdict:
    newest = progress.read()
    if not newest.total_steps:  # it has not begun to count
        saved = newest.checkpoint_step
        return Verdict(name, message, environment.rank, exit_code, checkpoint_step=saved, skipped=progress.skipped)
    return Verdict(
        name,
        message,
        environment.rank,
        exit_code,
        newest.step,
        newest.checkpoint_step,
        total_steps=newest.total_steps,
        loss=newest.loss,
        accuracy=newest.accuracy,
        resumed_step=newest.resumed_step,
        skipped=progress.skipped,
        best=newest.best,
    )


def _moves(progress: ProgressState) -> object:
    """A value that changes while the rank makes progress. Before the first step progress cannot be observed."""
    newest = progress.read()
    waiting = newest.state in ("Starting", "Preflight", "Compiling")
    return time.monotonic() if waiting else (newest.state, newest.heartbeat, newest.checkpoint_step)


def _leave_early(environment: Environment) -> None:
    """Exit at once when asked to stop before the gang has met: no rank waits for this one, and nothing is to save."""
    error = Interrupted(early_signals.MESSAGE)
    last = Verdict(error.name, str(error), environment.rank, error.exit_code)
    failures.write(last, environment.termination_log)
    log.error("%s: %s", error.name, error)
    os._exit(error.exit_code)


def _give_up(environment: Environment, progress: ProgressState) -> None:
    """Exit when a rank asked to stop does not progress: the collective it waits in will never end."""
    error = CommunicationError("asked to stop, but the other ranks never finished the step")
    failures.write(
        _verdict(environment, progress, error.name, str(error), error.exit_code), environment.termination_log
    )
    os._exit(error.exit_code)


def _leave(exit_code: int) -> NoReturn:
    """Exit without MindSpore's teardown, which waits for ranks that may be gone."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


if __name__ == "__main__":
    main()
