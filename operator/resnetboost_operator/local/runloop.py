"""Runs one job on the local cluster: observe, plan, write, delete, create, wait."""

import asyncio
import secrets
import time
from collections.abc import Sequence
from typing import Any, Protocol

from msgspec.structs import replace

from resnetboost_api.launcher import StartAttempt
from resnetboost_api.scheduling import Scheduling
from resnetboost_api.status import Progress, Status
from resnetboost_operator import launcher_client, progress_client
from resnetboost_operator import status as statuses
from resnetboost_operator.job import Job
from resnetboost_operator.launcher_client import Link
from resnetboost_operator.local.local_cluster import LocalCluster
from resnetboost_operator.manifests.launcher_secret import with_token
from resnetboost_operator.observed import pods
from resnetboost_operator.observed.pods import PodView
from resnetboost_operator.observed.state import Observation
from resnetboost_operator.planning.actions import Event, Plan
from resnetboost_operator.planning.plan import plan
from resnetboost_operator.runs import metricsfile, resumption
from resnetboost_operator.runs.runfolder import RunFolder

POLL_SECONDS = 1.0
ASLEEP_SECONDS = 5.0


class Audience(Protocol):
    """Receives status and events of the run."""

    def show(self, status: Status) -> None:
        """Show the newest status."""

    def event(self, event: Event) -> None:
        """Show an event."""


class RunLoop:
    """One run of one job. Each pass observes everything, so additional passes do no harm."""

    def __init__(self, job: Job, folder: RunFolder, audience: Audience, cores: Sequence[int] | None = None) -> None:
        """`cores` are this run's, where others run beside it; all of the machine's otherwise."""
        self._job = _on_this_machine(job)
        self._folder = folder
        self._audience = audience
        self._changed = asyncio.Event()
        self._cluster = LocalCluster(folder.path, self._changed.set, cores)
        stages = [stage.name for stage in job.spec.stages]
        self._status = resumption.reopened(folder.read_status(), stages, folder.attempts_on_disk())
        self._progress: Progress | None = None
        self._polling: asyncio.Task[None] | None = None
        self._since = self._awake = 0.0
        self._token = launcher_client.token(secrets.token_bytes(32), job.uid)
        self._link: tuple[PodView, Link] | None = None

    def suspend(self) -> None:
        """Stop all ranks after their step, with a checkpoint."""
        policy = replace(self._job.spec.run_policy, suspend=True)
        self._job = replace(self._job, spec=replace(self._job.spec, run_policy=policy))
        self._changed.set()

    def kill(self) -> None:
        """Stop without grace; steps since the last checkpoint are lost."""
        self.suspend()
        self._cluster.kill()

    async def run(self) -> Status:
        """Run the job until it ends or is suspended; return the last status."""
        try:
            while not self._over(decided := self._pass()):
                self._poll(decided.poll)
                await self._wait(decided.wake_seconds)
        finally:
            if self._polling is not None:
                self._polling.cancel()
            self._follow(None, None)
            await self._cluster.close()
            self._merge_metrics()
        return self._status

    def _pass(self) -> Plan:
        """Execute the plan. The status is written first: it records the decision before anything follows from it."""
        self._changed.clear()
        now = time.time()
        views = tuple(pods.view(pod) for pod in self._cluster.observe())
        observed = Observation(
            views,
            self._progress,
            self._watching_since(now),
            keeps_checkpoints=True,
            gang_report=self._link[1].report if self._link is not None else None,
        )
        decided = plan(self._job, self._status, observed, now)
        self._write(decided.status)
        self._follow(decided.launcher, decided.command)
        for event in decided.events:
            self._audience.event(event)
        for deletion in decided.delete:
            self._cluster.delete(deletion.name, deletion.uid, deletion.grace_seconds)
        if decided.creates:
            self._cluster.create([self._with_token(manifest) for manifest in decided.create])
        return decided

    def _with_token(self, manifest: dict[str, Any]) -> dict[str, Any]:
        return with_token(manifest, self._token) if manifest["kind"] == "Secret" else manifest

    def _follow(self, pod: PodView | None, command: StartAttempt | None) -> None:
        """Keep a link to the launcher of that pod alone, and send it the command."""
        if self._link is not None and (pod is None or pod.uid != self._link[0].uid):
            self._link[1].close()
            self._link = None
        if pod is not None and self._link is None:
            self._link = pod, Link(pod.address, self._token, self._changed.set)
        if command is not None and self._link is not None:
            self._link[1].send(command)

    def _watching_since(self, now: float) -> float:
        """When observation began: at the start, or when this machine woke up from sleep."""
        awake = now - time.monotonic()  # the monotonic clock stops during sleep
        if self._since == 0.0 or awake - self._awake > ASLEEP_SECONDS:
            self._since = now
        self._awake = awake
        return self._since

    def _write(self, status: Status) -> None:
        before, self._status = self._status, status
        if status != before:
            self._folder.write_status(status)
        if len(status.attempts) != len(before.attempts) or status.stage != before.stage:
            self._merge_metrics()  # before an ended attempt's files are pruned
        self._audience.show(status)

    def _merge_metrics(self) -> None:
        """Write metrics.csv. A failure ends no run: the next merge reads the attempts' rows again."""
        try:
            metricsfile.merge(self._folder)
        except OSError as error:
            self._audience.event(Event("Warning", "MetricsNotMerged", f"metrics.csv was not written: {error}"))

    def _over(self, decided: Plan) -> bool:
        """True if the plan has nothing left to do and no process runs."""
        status = decided.status
        at_rest = statuses.is_terminal(status) or statuses.is_true(status, "Suspended")
        return at_rest and not self._cluster.running

    def _poll(self, pod: PodView | None) -> None:
        if pod is not None and (self._polling is None or self._polling.done()):
            self._polling = asyncio.create_task(self._ask(pod))

    async def _ask(self, pod: PodView) -> None:
        await asyncio.sleep(POLL_SECONDS)
        try:
            self._progress = await progress_client.progress(pod.address) or self._progress
        except progress_client.Unreachable:
            pass  # on one machine rank 0 is always reachable, so this is no more than a missing answer
        finally:
            self._changed.set()  # in any case, the next pass polls again

    async def _wait(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass


def _on_this_machine(job: Job) -> Job:
    """The job without queue and scheduler: this machine has neither, and has room for all ranks at once.

    Pods of an ended job go at once: their logs are files, and a launcher would wait for a command for ten seconds.
    """
    device = replace(job.spec.device, min_count=None)
    policy = replace(job.spec.run_policy, clean_pod_policy="All")
    return replace(job, queue="", spec=replace(job.spec, scheduling=Scheduling(), device=device, run_policy=policy))
