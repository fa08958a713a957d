"""One stage of training on one rank, top to bottom: build, resume, step, evaluate, save, stop; no Kubernetes here."""

import functools
import logging
import time
from collections.abc import Iterator

import msgspec
from mindspore import Tensor

from resnetboost_trainer.checkpoint import pretrained, resume, snapshots, store, versions
from resnetboost_trainer.checkpoint.saver import Keeping, Saver
from resnetboost_trainer.checkpoint.store import Kind, Manifest
from resnetboost_trainer.config import Config, Environment
from resnetboost_trainer.data import checks, sampler
from resnetboost_trainer.data.corrupt import Corrupt
from resnetboost_trainer.data.loader import DataLoader
from resnetboost_trainer.data.registry import Dataset
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.engine.compile_cache import Graphs
from resnetboost_trainer.engine.evaluator import Evaluation, Result
from resnetboost_trainer.engine.signals import StopRequest
from resnetboost_trainer.engine.startup import Start
from resnetboost_trainer.engine.train_step import Outcome, Program
from resnetboost_trainer.failures import Interrupted
from resnetboost_trainer.metrics.csv_log import History
from resnetboost_trainer.metrics.logger import Step, Teller
from resnetboost_trainer.metrics.progress import Board
from resnetboost_trainer.metrics.prometheus import Metrics
from resnetboost_trainer.metrics.server import Server
from resnetboost_trainer.models import amp, resnet
from resnetboost_trainer.optim import schedule
from resnetboost_trainer.optim.pca import basis as bases
from resnetboost_trainer.optim.pca.descent import Basis

log = logging.getLogger(__name__)


class Training:
    """A stage being trained by this rank and, in step with it, by all the others."""

    def __init__(
        self,
        config: Config,
        environment: Environment,
        dataset: Dataset,
        board: Board,
        server: Server,
        stop: StopRequest,
        start: Start,
    ) -> None:
        self.config, self.environment, self.dataset, self.stop = config, environment, dataset, stop
        self.start = start
        self.global_batch = environment.world_size * config.local_batch_size * config.accumulation_steps
        self.share = sampler.DistributedSampler(
            config.seed,
            self.global_batch,
            environment.rank,
            environment.world_size,
            len(dataset.train.labels),
            config.accumulation_steps,
        )
        self.per_epoch = self.share.per_epoch
        self.total = config.epochs * self.per_epoch
        self.communicator = Communicator(environment.rank, environment.world_size, leader=environment.leader)
        stop.together()
        start.done("gang")
        checks.check_same(dataset.fingerprint, self.communicator.gather)
        self.graphs = Graphs.of_stage(config, self.communicator, environment.checkpoints)
        network = resnet.configured(config.model, dataset.channels, config.seed, config.precision)
        self.weights = list(network.trainable_params())
        self.layout = snapshots.layout(self.weights)  # before the optimizer's cells give parameters longer names
        self.step = 0
        self.weights_fingerprint = self._noted_weights()
        basis = self._basis()
        self.program = Program(config, network, self.communicator, basis)
        corrupt = Corrupt(dataset.max_corrupt_images)
        self.feed = DataLoader(dataset.train, corrupt, dataset.workers, dataset.mixing, dataset.autotune)
        self.evaluation = Evaluation(network, dataset, self.communicator, config.local_batch_size, corrupt)
        self.graphs.watch(self.program, self.program.combination, self.evaluation)
        convolution = resnet.convolution_forms(network)
        log.info("%s in %s, convolutions: %s", config.model.name, config.precision, convolution)
        self._advise()
        metrics = Metrics(config, environment.rank, convolution)
        corrupt.counted = functools.partial(_tell_of_skipped, corrupt, metrics, board)
        server.expose(metrics.registry)
        self.teller = self._teller(board, metrics)
        self.saver = self._saver()
        start.done("network")

    def run(self) -> Result:
        """Train to the end; returns the final evaluation. Raises a TrainingError, Interrupted after a checkpoint."""
        first, lineage, weights = resume.begin(self._source(), self.program.state, self.communicator)
        self.step, self.share, self.weights_fingerprint = first, self.share._replace(lineage=lineage), weights
        self.teller.resumed(first)
        self.start.done("checkpoint")
        if self.saver is not None:
            self.teller.saves(first, self.config.checkpoint.every_steps)
        self.teller.state("Compiling" if first < self.total else "Evaluating")
        if first == 0:
            self._snapshot()
        result: Result | None = None
        batches = self._batches(first)
        while self.step < self.total:
            outcome = self._train_step(batches)
            if self.step == first + 1:
                self._tell_of_start()
            result = self._evaluate() if self._evaluation_is_due() else None
            self._snapshot()
            if outcome.stop or self._checkpoint_is_due():
                self._save()
            if outcome.stop and self.step < self.total:
                raise self._interrupted()
        result = result if result is not None else self._evaluate()
        self._finish()
        return result

    def _batches(self, first: int) -> Iterator[tuple[Tensor, Tensor, float]]:
        """(images, labels, seconds waited) after `first` steps, one for each micro batch of a step.

        What is in them depends on seed, lineage and step alone.
        """
        batches = self.feed.batches(self.share.steps(first, self.total))
        for _ in range((self.total - first) * self.share.parts):
            started = time.perf_counter()
            batch = next(batches)
            images, labels = Tensor(batch.images), Tensor(batch.labels)
            yield images, labels, time.perf_counter() - started

    def _train_step(self, batches: Iterator[tuple[Tensor, Tensor, float]]) -> Outcome:
        started = time.perf_counter()
        moment = schedule.moment(self.config, self.step, self.per_epoch)
        images, labels, waited = next(batches)
        for _ in range(self.share.parts - 1):
            self.program.accumulate(images, labels)
            self.teller.board.beat()
            images, labels, seconds = next(batches)
            waited += seconds
        outcome = self.program.step(images, labels, moment, bool(self.stop))
        self.step += 1
        self.teller.step(
            Step(
                step=self.step,
                learning_rate=moment.learning_rate,
                loss=outcome.loss,
                accuracy=outcome.accuracy,
                gradient_norm=outcome.gradient_norm,
                step_seconds=time.perf_counter() - started,
                data_wait_seconds=waited,
                compute_seconds=outcome.gradient_seconds + outcome.update_seconds,
                collective_seconds=outcome.collective_seconds,
                slowest_rank=outcome.slowest_rank,
                slowest_compute_seconds=outcome.slowest_compute_seconds,
                compiled=outcome.compiled,
                curvature=outcome.curvature,
                combined=outcome.combined,
                left_out=outcome.left_out,
                loss_scale=outcome.loss_scale,
            )
        )
        if self.saver is not None:
            self.saver.check()
        return outcome

    def _advise(self) -> None:
        for advice in (amp.advice(self.config), checks.advice(self.dataset)):
            if advice is not None and self.communicator.leads:
                log.warning(advice)

    def _tell_of_start(self) -> None:
        graphs = self.graphs
        self.start.done("first step", graphs.seconds, "compiling")
        if self.communicator.leads:
            log.info("start: %s; graphs compiled %d, kept ones used %d", self.start, graphs.compiled, graphs.reused)

    def _evaluation_is_due(self) -> bool:
        epoch, batch = divmod(self.step, self.per_epoch)
        return batch == 0 and (epoch % self.config.evaluate_every_epochs == 0 or self.step == self.total)

    def _evaluate(self) -> Result:
        """Evaluate with the mean of all ranks' BN statistics; training goes on with each rank's own."""
        started = time.perf_counter()
        self.teller.state("Evaluating")
        own = self.program.state.evaluation_statistics()
        result = self.evaluation.run(self.teller.board.beat)
        self.program.state.training_statistics(own)
        self.teller.evaluated(result, time.perf_counter() - started)
        if self.program.average is not None:
            with self.program.average.applied():
                self.teller.evaluated_average(self.evaluation.run(self.teller.board.beat))
        return result

    def _checkpoint_is_due(self) -> bool:
        return self.step % self.config.checkpoint.every_steps == 0 or self.step == self.total

    def _snapshot(self) -> None:
        """Keep the weights if they are due. Before a checkpoint of the same step: after it nobody would catch up."""
        rule = self.config.snapshots
        if self.saver is None or rule is None or not snapshots.due(rule, self.step, self.per_epoch):
            return
        started = time.perf_counter()
        manifest = msgspec.structs.replace(self._manifest(), layout=self.layout)
        self.saver.save(manifest, snapshots.contents(snapshots.vector(self.weights)), "snapshot")
        self.teller.stalled(time.perf_counter() - started)

    def _save(self) -> None:
        """Copy the state now, write it in the background. A collective: the leader gets what only others have."""
        started = time.perf_counter()
        contents = self.program.state.snapshot()
        self.teller.settle()
        if self.saver is not None and contents is not None:
            self.saver.save(self._manifest(), contents)
        self.teller.stalled(time.perf_counter() - started)

    def _interrupted(self) -> Interrupted:
        self._finish()
        saved = "; its checkpoint is saved" if self.saver is not None else ""
        return Interrupted(f"asked to stop: every rank stopped after step {self.step}{saved}")

    def _finish(self) -> None:
        """The leader, whom the others meet at, goes last; everything it has is on disk."""
        self.communicator.leave()
        self.feed.close()
        self.graphs.close()
        if self.saver is not None:
            self.saver.wait()
        self.teller.state("Finished")
        self.teller.close()

    def _teller(self, board: Board, metrics: Metrics) -> Teller:
        history = History(None)
        root = self.environment.checkpoints
        if self.communicator.leads and root is not None:
            config = self.config
            directory = store.attempt_directory(root, config.job.uid, config.stage, config.attempt)
            history = History(directory / "metrics.csv")
        ranks, batch, per_epoch = self.communicator.size, self.global_batch, self.per_epoch
        return Teller(board, metrics, history, total=self.total, per_epoch=per_epoch, batch=batch, ranks=ranks)

    def _saver(self) -> Saver | None:
        root = self.environment.checkpoints
        if not self.communicator.leads or root is None:
            return None
        keeping: dict[Kind, Keeping] = {"step": Keeping(self.config.checkpoint.keep, self.teller.saved)}
        if self.config.snapshots is not None:
            keeping["snapshot"] = Keeping(self.config.snapshots.keep, self.teller.snapshot_saved)
        return Saver(root, keeping)

    def _basis(self) -> Basis | None:
        """What a PCA stage trains in. A collective."""
        self.basis_digest = ""
        if self.config.pca is None:
            return None
        numbers = sum(weight.size for weight in self.weights)
        shape = bases.Shape(self.config.pca.components, numbers, self.layout)
        basis, self.basis_digest = bases.prepare(self._source(), shape, self.communicator)
        return basis

    def _source(self) -> resume.Source:
        root, rule, before = self.environment.checkpoints, self.config.checkpoint.resume, self.config.start_from
        weights, read = pretrained.of_stage(self.config), None
        if weights is not None:
            read = functools.partial(pretrained.read, self.config.model, weights, self.dataset.channels)
        ours = self._manifest()
        return resume.Source(root=root, ours=ours, rule=rule, start_from=before, total=self.total, weights=read)

    def _noted_weights(self) -> str:
        """The fingerprint of the file that a run that goes on began with, at the leader."""
        self.weights_fingerprint = self.basis_digest = ""
        weights = pretrained.of_stage(self.config)
        if weights is None or not self.communicator.leads:
            return ""
        before = resume.resumed(self._source())
        if before is None:
            return ""
        pretrained.check_same(weights, before.weights, before.job_uid == self.config.job.uid)
        return before.weights

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
            world_size=self.communicator.size,
            local_batch_size=config.local_batch_size,
            model=resnet.identity(config.model, self.dataset.channels),
            dataset=self.dataset.fingerprint,
            algorithm=_algorithm(config),
            basis=self.basis_digest,
            weights=self.weights_fingerprint,
            preparation=self.dataset.preparation,
            config=msgspec.to_builtins(config),
            versions=versions.installed(),
        )


def _tell_of_skipped(corrupt: Corrupt, metrics: Metrics, board: Board) -> None:
    """Another image was skipped; from any thread."""
    metrics.corrupt_images.inc()
    board.skipped = corrupt.marks
    board.update(skipped_images=corrupt.found)


def _algorithm(config: Config) -> str:
    """What the optimizer's state in a checkpoint is of: another algorithm cannot go on with it."""
    return _update(config) + (", averaged" if config.ema is not None else "")


def _update(config: Config) -> str:
    if config.pca is not None:
        return f"PCA of {config.pca.components} components by {config.pca.solver}"
    thor = None if config.thor is None else f"THOR in blocks of {config.thor.block_size}"
    if config.adasum is None:
        return thor or config.algorithm
    summed = "gradients" if config.adasum.reduce == "Gradient" else "changes"
    return f"Adasum of {summed}" if thor is None else f"Adasum of {summed} by {thor}"
