"""Runs the trials of a sweep as jobs of a cluster, which one watch follows."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec

from resnetboost_api import names
from resnetboost_api.evaluations import Metric
from resnetboost_api.status import Status
from resnetboost_operator import status as statuses
from resnetboost_operator.cli.sweep.place import Ended, Manifest, Report, epochs, how_it_failed
from resnetboost_operator.cli.view import trial_table
from resnetboost_operator.errors import UserError
from resnetboost_operator.kubeclient import reader, writer
from resnetboost_operator.kubeclient.cache import Cache
from resnetboost_operator.kubeclient.reader import Reader
from resnetboost_operator.kubeclient.writer import Writer


class TrialJob(msgspec.Struct, frozen=True):
    """One version of a trial's job: the uid of its sweep, and what its operator says."""

    name: str
    sweep: str
    status: Status
    epochs_before: int
    """Epochs of the stages before the one that runs."""


class ClusterTrials:
    """Jobs of one namespace. They go on when the sweep is interrupted."""

    def __init__(self, cluster: Reader, write: Writer, namespace: str, sweep: str, uid: str, metric: Metric) -> None:
        self._reader, self._writer = cluster, write
        self.namespace, self._sweep, self._uid, self._metric = namespace, sweep, uid, metric
        self._jobs: Cache[TrialJob] = Cache(_read, self._note)
        self._news: dict[str, asyncio.Event] = {}
        self._deleted: set[str] = set()
        self._stopping = False
        self.watch = cluster.jobs(self._jobs, namespace, labels=f"{names.LABEL_SWEEP}={sweep}")

    def _note(self, before: TrialJob | None, after: TrialJob | None) -> None:
        found = after or before
        assert found is not None
        if after is None:
            self._deleted.add(found.name)
        if found.name in self._news:
            self._news[found.name].set()

    def _find(self, name: str) -> TrialJob | None:
        return next((job for job in self._jobs if job.name == name), None)

    async def run(self, number: int, job: Manifest, pruning: str, report: Report) -> Ended:
        """As `Place` says."""
        name = str(job["metadata"]["name"])
        news = self._news[name] = asyncio.Event()
        try:
            await self._make(name, job)
            return await self._follow(name, pruning, _Reports(report, epochs(job)), news)
        finally:
            del self._news[name]

    async def _make(self, name: str, job: Manifest) -> None:
        """Create the trial's job, or find it: this process may have been killed right after its creation."""
        found = self._find(name)
        if found is None:
            made = await self._writer.create(job, self.namespace)
            if made is not None:
                self._jobs.apply_response(made)
                return
            await self._reader.fill(self.watch)  # an answer was lost, or somebody else's job has the name
            found = self._find(name)
        if found is None or found.sweep != self._uid:
            raise UserError(
                f"there is a job {name} in namespace {self.namespace} already, of another sweep or of none; delete it, "
                "or choose another name with --name"
            )

    async def _follow(self, name: str, pruning: str, reports: "_Reports", news: asyncio.Event) -> Ended:
        pruned = bool(pruning)
        if pruned:
            await self._prune(name, pruning)
        while True:
            news.clear()
            found = self._find(name)
            if found is None and name in self._deleted:
                return Ended("pruned", why=pruning) if pruned else Ended("failed", why="its job was deleted")
            if found is not None:
                if statuses.is_terminal(found.status):
                    return self._end(found.status)
                if pruned:
                    return Ended("pruned", why=pruning)
                if why := reports.take(found, self._metric):
                    await self._prune(name, why)
                    return Ended("pruned")
            if self._stopping:
                return Ended("stopped")
            await news.wait()

    def _end(self, status: Status) -> Ended:
        if not statuses.is_true(status, "Complete"):
            return how_it_failed(status)
        value = trial_table.figure(status, self._metric)
        if value is None:
            return Ended("failed", why=f"it has no {self._metric}: nothing was evaluated in its last stage")
        return Ended("complete", value)

    async def _prune(self, name: str, why: str) -> None:
        """Suspend the job, which frees its devices and keeps its checkpoints. May be repeated."""
        metadata = {"annotations": {names.ANNOTATION_PRUNED: why}}
        await self._writer.patch(self.namespace, name, {"metadata": metadata, "spec": {"runPolicy": {"suspend": True}}})

    def stop(self) -> None:
        """Stop following; the jobs go on."""
        self._stopping = True
        for news in self._news.values():
            news.set()

    def kill(self) -> None:
        """As `stop`."""
        self.stop()


class _Reports:
    """Reports a job's evaluations as its progress shows them, which is polled: some epochs are never seen.

    Those have the value before them, so that trials are compared at the same epochs, and a trial is not ended for
    what others may have reached earlier.
    """

    def __init__(self, report: Report, epochs: int) -> None:
        """`epochs` are those of the whole job: after the last there is nothing to end early."""
        self._report, self._epochs = report, epochs
        self._seen, self._value = 0, float("nan")

    def take(self, job: TrialJob, metric: Metric) -> str:
        """Report what is new; return why the trial is to end early, '' if it is not."""
        progress = statuses.current_progress(job.status)
        if progress is None or progress.state == "Evaluating":
            return ""
        value = trial_table.figure(job.status, metric)
        # A step of the next epoch proves that this one was evaluated. The rank rounds: 1.996 epochs are 2.0.
        epoch = job.epochs_before + max(0, math.ceil(progress.epoch) - 1)
        if value is None or not self._seen < epoch < self._epochs:
            return ""
        for before in range(self._seen + 1, epoch):
            if self._value == self._value:
                self._report(before, self._value)
        self._seen, self._value = epoch, value
        return f"below the median at epoch {epoch}" if self._report(epoch, value) else ""


def _read(obj: Mapping[str, Any]) -> TrialJob | None:
    tried = trial_table.tried(obj)
    if tried is None:
        return None
    try:
        status = statuses.from_dict(obj.get("status"))
    except msgspec.ValidationError:
        status = Status()  # of another version; its end is not seen
    stages = obj["spec"]["stages"]
    before = next((place for place, stage in enumerate(stages) if stage["name"] == status.stage), 0)
    return TrialJob(
        obj["metadata"]["name"], tried.sweep, status, sum(int(stage["epochs"]) for stage in stages[:before])
    )


def resolved(namespace: str) -> str:
    """The namespace that jobs are made in; '' means the kubeconfig's. Raises `UserError` if there is no kubeconfig."""
    return namespace or reader.default_namespace()


async def check(namespace: str) -> None:
    """Raise `UserError` if the cluster does not list jobs of the namespace."""
    async with reader.connected() as cluster:
        await cluster.names(namespace or cluster.namespace)


@contextlib.asynccontextmanager
async def connected(namespace: str, sweep: str, uid: str, metric: Metric) -> AsyncIterator[ClusterTrials]:
    """The cluster of the kubeconfig as a place for trials, followed. Raises `UserError` if there is none."""
    async with reader.connected() as cluster, writer.connected() as write:
        place = ClusterTrials(cluster, write, namespace or cluster.namespace, sweep, uid, metric)
        await cluster.fill(place.watch)
        watching = asyncio.create_task(place.watch.run())
        try:
            yield place
        finally:
            watching.cancel()
