"""One stage of training on one rank, top to bottom: build, resume, step, evaluate, save, stop; no Kubernetes here."""

import functools
import logging
import time
from collections.abc import Callable, Iterator

import msgspec
import numpy as np
from mindspore import Tensor
from numpy.typing import NDArray

from resnetboost_api.status import EarlyStop
from resnetboost_trainer.checkpoint import arrays, pretrained, remote, resume, snapshots, state, store, versions
from resnetboost_trainer.checkpoint.arrays import Arrays
from resnetboost_trainer.checkpoint.branch import Branch
from resnetboost_trainer.checkpoint.evaluations import Evaluated, evaluated
from resnetboost_trainer.checkpoint.saver import Keeping, Saved, Saver
from resnetboost_trainer.checkpoint.store import Kind, Manifest
from resnetboost_trainer.checkpoint.uploader import Uploader
from resnetboost_trainer.config import Config, Environment
from resnetboost_trainer.data import checks, sampler
from resnetboost_trainer.data.corrupt import Corrupt
from resnetboost_trainer.data.loader import DataLoader
from resnetboost_trainer.data.registry import Dataset
from resnetboost_trainer.distributed import virtual_ranks
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.engine import objective, schedule_change
from resnetboost_trainer.engine.best_weights import BestWeights
from resnetboost_trainer.engine.compile_cache import Graphs
from resnetboost_trainer.engine.early_stop import StopRule
from resnetboost_trainer.engine.evaluator import Evaluation
from resnetboost_trainer.engine.objective import Objective
from resnetboost_trainer.engine.signals import StopRequest
from resnetboost_trainer.engine.startup import StartupTimes
from resnetboost_trainer.engine.train_step import Program
from resnetboost_trainer.failures import Diverged, Fault, Interrupted, NumericsError, TrainingError
from resnetboost_trainer.metrics.csv_log import CsvLog
from resnetboost_trainer.metrics.logger import MetricLogger
from resnetboost_trainer.metrics.progress import ProgressState
from resnetboost_trainer.metrics.prometheus import Metrics
from resnetboost_trainer.metrics.record import EvaluationRecord, StepRecord
from resnetboost_trainer.metrics.server import Server
from resnetboost_trainer.metrics.stragglers import Stragglers
from resnetboost_trainer.models import amp, resnet
from resnetboost_trainer.optim import registry, schedule
from resnetboost_trainer.optim.algorithm import PrepareContext
from resnetboost_trainer.optim.ema import AVERAGE
from resnetboost_trainer.preflight.conductor import Conductor, Outcome, judge
from resnetboost_trainer.tracking.tracking import Tracking

# Images of a batch that diverged, which a rank names in its log.
IMAGES_NAMED = 16

log = logging.getLogger(__name__)


class Training:
    """Trains a stage on this rank, in step with all the others."""

    def __init__(
        self,
        config: Config,
        environment: Environment,
        dataset: Dataset,
        progress: ProgressState,
        server: Server,
        stop: StopRequest,
        startup: StartupTimes,
        tracking: Tracking,
    ) -> None:
        self.config, self.environment, self.dataset, self.stop = config, environment, dataset, stop
        self.startup, self.tracking = startup, tracking
        self.virtual = virtual_ranks.of(config, environment.world_size)
        self.global_batch = self.virtual.count * config.local_batch_size * config.accumulation_steps
        self.share = self._share()
        self.per_epoch = self.share.per_epoch
        self.total = config.epochs * self.per_epoch
        self.communicator = Communicator(environment.rank, environment.world_size, leader=environment.leader)
        stop.together()
        startup.done("gang")
        checks.check_same(dataset.fingerprint, self.communicator.gather)
        self.graphs = Graphs.of_stage(config, self.communicator, environment.checkpoints)
        network = resnet.configured(config.model, dataset.channels, config.seed, config.precision)
        preflight = self._preflight(progress)
        self.weights = list(network.trainable_params())
        self.layout = snapshots.layout(self.weights)  # before the optimizer's cells give parameters longer names
        self.step = self.skipped = 0
        self.stop_rule = StopRule(config.stop_when, self.communicator)
        self.teacher_sha256 = ""
        self.weights_fingerprint = self._first_weights()
        self.objective = self._objective()
        self.program = Program(config, network, self.communicator, self._prepare(), self.objective)
        corrupt = Corrupt(dataset.max_corrupt_images, self.virtual.each)
        self.feed = DataLoader(dataset.train, corrupt, dataset.workers, dataset.mixing, dataset.autotune)
        self.evaluation = Evaluation(network, dataset, self.communicator, config.local_batch_size, corrupt)
        self.graphs.watch(self.program, self.program.update_rule, self.evaluation)
        convolution = resnet.convolution_forms(network)
        log.info("%s in %s, convolutions: %s", config.model.name, config.precision, convolution)
        if self.virtual.each > 1:
            log.info("ranks: %d, which do the work of %d", environment.world_size, self.virtual.count)
        self._advise()
        metrics = self._metrics(convolution, preflight)
        corrupt.counted = functools.partial(_report_skipped, corrupt, metrics, progress)
        server.expose(metrics.registry)
        self.logger = self._logger(progress, metrics)
        self.best = self._best_weights()
        self.saver = self._saver()
        startup.done("network")

    def _share(self) -> sampler.DistributedSampler:
        """The images of each step that are this rank's."""
        return sampler.DistributedSampler(
            self.config.seed,
            self.global_batch,
            self.environment.rank,
            self.environment.world_size,
            len(self.dataset.train.labels),
            self.virtual.each * self.config.accumulation_steps,
        )

    def _metrics(self, convolution: str, preflight: Outcome | None) -> Metrics:
        """The rank's series, with what the preflight measured and a counter for each tracker."""
        metrics = Metrics(self.config, self.environment.rank, convolution, registry.metrics(self.config))
        if preflight is not None:
            metrics.observe_preflight(preflight.result, preflight.own.compute, preflight.own.link)
        if self.tracking.names:
            self.tracking.count(metrics.tracking(self.tracking.names))
        return metrics

    def _preflight(self, progress: ProgressState) -> Outcome | None:
        """Measure the gang before anything is compiled. A collective.

        The network must be there: its first convolution chooses oneDNN's instructions, which the first product fixes.
        """
        rule = self.config.preflight
        if rule is None:
            return None
        self.startup.done("network")
        progress.update(state="Preflight")
        outcome = Conductor(rule, self.communicator, self.environment.index, lambda: bool(self.stop)).run()
        progress.update(state="Starting", preflight=outcome.result, preflight_seconds=outcome.result.seconds)
        self.startup.done("preflight")
        judge(outcome.result, rule, self.communicator)
        return outcome

    def run(self) -> EvaluationRecord:
        """Train to the end and return the final evaluation. Raises a TrainingError, Interrupted after a checkpoint."""
        begun = resume.begin(self._source(), self.program.state, self.communicator)
        first, lineage, weights = begun.step, begun.lineage, begun.weights
        self.step, self.share, self.weights_fingerprint = first, self.share._replace(lineage=lineage), weights
        self.skipped = begun.skipped
        self.logger.resumed(first)
        self._report_roll_backs(begun.rolled_back)
        self.startup.done("checkpoint")
        self.stop_rule.restore(begun.history)
        if self.saver is not None:
            self.saver.catch_up(self._manifest())
            self.logger.saves(first, self.config.checkpoint.every_steps)
        if self.best is not None:
            self.best.report()
        self.logger.state("Evaluating" if self._is_over() else "Compiling")
        if first == 0:
            self._snapshot()
        result: EvaluationRecord | None = None
        batches = self._batches(first)
        while not self._is_over():
            record = self._train_step(batches)
            if self.step == first + 1:
                self._log_start()
            result = self._evaluate() if self._evaluation_is_due() else None
            self._snapshot()
            if record.stop or self._checkpoint_is_due():
                self._save()
            if record.stop and not self._is_over():
                raise self._interrupted()
        result = result if result is not None else self._evaluate()
        if self.stopped_early is not None:
            log.info("the stage ends early: %s", self.stopped_early.message)
        self._finish()
        return result

    @property
    def stopped_early(self) -> EarlyStop | None:
        """Why the stage ended before its last epoch, on the leader; None if it did not."""
        found = self.stop_rule.found
        if found is None or self.step == self.total:
            return None
        epochs = f"after {self.step / self.per_epoch:g} of {self.config.epochs} epochs"
        return msgspec.structs.replace(found, message=f"{found.message}, {epochs}")

    def _is_over(self) -> bool:
        return self.step == self.total or self.stop_rule.ends

    def _batches(self, first: int) -> Iterator[tuple[Tensor, Tensor, float]]:
        """Yield (images, labels, seconds waited) for each micro batch after `first` steps.

        Their content depends on seed, lineage and their place in the data order alone, which is that of the step and
        of the batches that roll-backs have skipped; after the last epoch's come those of further ones.
        """
        batches = self.feed.batches(self.share.steps(first + self.skipped, self.total + self.skipped))
        for _ in range((self.total - first) * self.share.parts):
            started = time.perf_counter()
            batch = next(batches)
            images, labels = Tensor(batch.images), Tensor(batch.labels)
            yield images, labels, time.perf_counter() - started

    def _train_step(self, batches: Iterator[tuple[Tensor, Tensor, float]]) -> StepRecord:
        started = time.perf_counter()
        now = schedule.at(self.config, self.step, self.per_epoch)
        self.objective.begin(self._global_batch(self.step + self.skipped))
        images, labels, waited = next(batches)
        for _ in range(self.share.parts - 1):
            self.program.accumulate(images, labels, now)
            self.logger.progress.beat()
            images, labels, seconds = next(batches)
            waited += seconds
        try:
            record = self.program.step(images, labels, now, bool(self.stop), started, waited)
        except (NumericsError, Diverged) as error:
            raise self._fault(error, self.step + 1, now.learning_rate) from error
        self.step = record.step
        self.logger.step(record)
        if self.saver is not None:
            self.saver.check()
        return record

    def _global_batch(self, batch: int) -> NDArray[np.int64]:
        """The training images of a batch of the data order, over all ranks."""
        return next(self.share.steps(batch, batch + 1)).whole

    def _fault(self, error: NumericsError | Diverged, step: int, learning_rate: float | None) -> TrainingError:
        """The same failure with its place: the step, and the batch that it had."""
        batch = step + self.skipped
        epoch, place = divmod(batch - 1, self.per_epoch)
        own = [index for part in self.share.steps(batch - 1, batch) for index in part.whole[part.first :][: part.size]]
        names = ", ".join(self.dataset.train.name(int(index)) for index in own[:IMAGES_NAMED])
        log.error("this rank's part of that batch: %d images: %s ...", len(own), names)
        self.logger.diverged(step, learning_rate)
        located = type(error)(f"step {step}, batch {place + 1} of epoch {epoch + 1} of the data: {error}")
        located.fault = Fault(step, batch)
        return located

    def _report_roll_backs(self, new: bool) -> None:
        branch = Branch(self.config.roll_backs).of(self.config.stage)
        self.logger.skips(self.skipped)
        if new:
            self.logger.rolled_back(branch.roll_backs[-1].from_step, self.step)

    def _advise(self) -> None:
        for advice in (amp.advice(self.config), checks.advice(self.dataset)):
            if advice is not None and self.communicator.leads:
                log.warning(advice)

    def _log_start(self) -> None:
        graphs = self.graphs
        self.startup.done("first step", graphs.seconds, "compiling")
        if self.communicator.leads:
            log.info("start: %s; graphs compiled %d, kept ones used %d", self.startup, graphs.compiled, graphs.reused)

    def _evaluation_is_due(self) -> bool:
        epoch, batch = divmod(self.step, self.per_epoch)
        return batch == 0 and (epoch % self.config.evaluate_every_epochs == 0 or self.step == self.total)

    def _evaluate(self) -> EvaluationRecord:
        """Evaluate with the mean of all virtual ranks' BN statistics; training continues with each one's own."""
        started = time.perf_counter()
        self.logger.state("Evaluating")
        own = self.program.state.evaluation_statistics()
        result = judged = self.evaluation.run(self.logger.progress.beat)
        contents = {state.MODEL: self._evaluated()}
        self.program.state.training_statistics(own)
        self.logger.evaluated(result, time.perf_counter() - started)
        if self.program.average is not None:
            with self.program.average.applied():
                judged = self.evaluation.run(self.logger.progress.beat)
                contents[AVERAGE] = self._evaluated()
            self.logger.evaluated_average(judged)
        averaged = self.program.average is not None
        found = evaluated(self.step, judged.top1, judged.top5, judged.loss, averaged)
        self._save_best(found, contents)
        self.stop_rule.count(found)
        return result

    def _evaluated(self) -> Arrays:
        """Return copies of the weights being evaluated, on the rank that keeps the best ones."""
        return self.program.state.evaluated() if self.best is not None else {}

    def _save_best(self, found: Evaluated, contents: dict[str, Arrays]) -> None:
        """Save the evaluated weights if they are among the best, before a checkpoint of the same step.

        A run that resumes from that checkpoint does not evaluate again.
        """
        if self.saver is None or self.best is None:
            return
        started = time.perf_counter()
        mark = self.best.mark(found)
        if mark is not None and arrays.all_finite(contents):
            manifest = msgspec.structs.replace(self._manifest(), best=mark, history=None)
            self.saver.save(manifest, contents, "best")
        self.logger.stalled(time.perf_counter() - started)

    def _checkpoint_is_due(self) -> bool:
        return self.step % self.config.checkpoint.every_steps == 0 or self._is_over()

    def _snapshot(self) -> None:
        """Save a snapshot if one is due, before a checkpoint of the same step: a run resumed from that skips it."""
        rule = self.config.snapshots
        if self.saver is None or rule is None or not snapshots.due(rule, self.step, self.per_epoch):
            return
        started = time.perf_counter()
        contents = snapshots.contents(snapshots.vector(self.weights))
        if not arrays.all_finite(contents):
            return  # the checkpoint of this step, or the next step, ends the training
        manifest = msgspec.structs.replace(self._manifest(), layout=self.layout)
        self.saver.save(manifest, contents, "snapshot")
        self.logger.stalled(time.perf_counter() - started)

    def _save(self) -> None:
        """Copy the state now and write it in the background. A collective: the leader gathers all shards.

        Raises NumericsError on every rank for a state that is not finite: a run resumed from it could only fail.
        """
        started = time.perf_counter()
        contents = self.program.state.snapshot()
        (finite,) = self.communicator.broadcast_integers([int(contents is None or arrays.all_finite(contents))])
        if not finite:
            error = NumericsError("a weight or a number of the optimizer is not finite; lower learningRate.peak")
            raise self._fault(error, self.step, None)
        self.logger.settle()
        if self.saver is not None and contents is not None:
            self.saver.save(self._manifest(), contents)
        self.logger.stalled(time.perf_counter() - started)

    def _interrupted(self) -> Interrupted:
        self._finish()
        saved = "; its checkpoint is saved" if self.saver is not None else ""
        return Interrupted(f"asked to stop: every rank stopped after step {self.step}{saved}")

    def _finish(self) -> None:
        """Leave the gang and close everything; the leader, to which the others are connected, leaves last."""
        self.communicator.leave()
        self.feed.close()
        self.graphs.close()
        if self.saver is not None:
            self.saver.wait()
        self.logger.state("Finished")
        self.logger.close()

    def _logger(self, progress: ProgressState, metrics: Metrics) -> MetricLogger:
        csv_log = CsvLog(None)
        root = self.environment.checkpoints
        if self.communicator.leads and root is not None:
            config = self.config
            directory = store.attempt_directory(root, config.job.uid, config.stage, config.attempt)
            csv_log = CsvLog(directory / "metrics.csv", registry.COLUMNS)
        ranks, batch, per_epoch = self.communicator.size, self.global_batch, self.per_epoch
        return MetricLogger(
            progress,
            metrics,
            csv_log,
            total=self.total,
            per_epoch=per_epoch,
            batch=batch,
            ranks=ranks,
            stragglers=self._stragglers(),
            publish=self.tracking.row,
        )

    def _stragglers(self) -> Stragglers | None:
        size = self.communicator.size
        return Stragglers(self.config.straggler_factor, self.environment.indexes or range(size)) if size > 1 else None

    def _best_weights(self) -> BestWeights | None:
        root, rule = self.environment.checkpoints, self.config.checkpoint.best
        if not self.communicator.leads or root is None or rule is None:
            return None
        return BestWeights(rule, self.config, root, self.logger)

    def _saver(self) -> Saver | None:
        root = self.environment.checkpoints
        if not self.communicator.leads or root is None:
            return None
        config = self.config
        limit, usable = config.divergence, Branch(config.roll_backs).of(config.stage).usable
        back_steps = limit.for_steps if limit is not None else None
        step = Keeping(config.checkpoint.keep, _by_step(self.logger.saved), back_steps, usable)
        keeping: dict[Kind, Keeping] = {"step": step}
        if self.best is not None:
            keeping["best"] = self.best.keeping
        if config.snapshots is not None:
            keeping["snapshot"] = Keeping(config.snapshots.keep, _by_step(self.logger.snapshot_saved))
        copies = remote.of(config, root)
        return Saver(root, keeping, Uploader(copies, keeping) if copies is not None else None)

    def _prepare(self) -> object:
        """Run the algorithm's preparation, before the network is compiled. A collective."""
        self.basis_digest = ""
        numbers = sum(weight.size for weight in self.weights)
        context = PrepareContext(self.config, self._source(), numbers, self.layout, self.communicator)
        prepared = registry.prepare(context)
        self.basis_digest = prepared.digest
        return prepared.value

    def _source(self) -> resume.Source:
        root, rule, before = self.environment.checkpoints, self.config.checkpoint.resume, self.config.start_from
        weights, read = pretrained.of_stage(self.config), None
        if weights is not None:
            given = self.config.model, weights, self.dataset.channels, self.config.storage
            read = functools.partial(pretrained.read, *given)
        ours = self._manifest()
        return resume.Source(
            root=root,
            ours=ours,
            rule=rule,
            start_from=before,
            total=self.total,
            weights=read,
            branch=Branch(self.config.roll_backs),
            taking_over=schedule_change.warn,
        )

    def _first_weights(self) -> str:
        """Return, on the leader, the fingerprint of the weights file that a resumed run started from."""
        self.weights_fingerprint = self.basis_digest = ""
        weights = pretrained.of_stage(self.config)
        if weights is None or not self.communicator.leads:
            return ""
        before = resume.resumed(self._source())
        if before is None:
            return ""
        of_this_job = before.job_uid == self.config.job.uid
        pretrained.check_same(weights, before.weights, of_this_job, self.config.storage)
        return before.weights

    def _objective(self) -> Objective:
        """Build the loss, with the teacher that a resumed run began with, if there is one. A collective."""
        before = None
        if self.config.distillation is not None and self.communicator.leads:
            before = resume.resumed(self._source())
        sha256 = "" if before is None else before.teacher
        found = objective.of(self.config, self.dataset, self.communicator, sha256)
        self.teacher_sha256 = found.teacher_sha256
        return found

    def _manifest(self) -> Manifest:
        config = self.config
        return Manifest(
            job_uid=config.job.uid,
            job_namespace=config.job.namespace,
            job_name=config.job.name,
            stage=config.stage,
            attempt=config.attempt,
            step=self.step,
            steps_per_epoch=self.per_epoch,
            seed=config.seed,
            lineage=self.share.lineage,
            world_size=self.virtual.count,
            ranks=self.communicator.size,
            local_batch_size=config.local_batch_size,
            model=resnet.identity(config.model, self.dataset.channels),
            dataset=self.dataset.fingerprint,
            algorithm=registry.state_of(config),
            basis=self.basis_digest,
            weights=self.weights_fingerprint,
            teacher=self.teacher_sha256,
            skipped_batches=self.skipped,
            preparation=self.dataset.preparation,
            history=self.stop_rule.history,
            stopped_early=self.stopped_early,
            config=msgspec.to_builtins(config),
            versions=versions.installed(),
        )


def _by_step(saved: Callable[[int, int, float], None]) -> Saved:
    """Adapt a callback of (step, bytes, seconds) to the saver, which passes the manifest."""
    return lambda manifest, size_bytes, seconds: saved(manifest.step, size_bytes, seconds)


def _report_skipped(corrupt: Corrupt, metrics: Metrics, progress: ProgressState) -> None:
    """Report another skipped image; from any thread."""
    metrics.corrupt_images.inc()
    progress.skipped = corrupt.marks
    progress.update(skipped_images=corrupt.found)
