"""Reads jobs of a cluster to compare: settings and results from the job, curves from the logs of its rank 0."""

import contextlib
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from resnetboost_api import names
from resnetboost_api.status import Status
from resnetboost_operator import sizes
from resnetboost_operator import status as statuses
from resnetboost_operator.errors import UserError
from resnetboost_operator.job import Job, parse_job
from resnetboost_operator.kubeclient import connection, errors, in_cluster
from resnetboost_operator.kubeclient.client import Client, RetryPolicy
from resnetboost_operator.kubeclient.reader import USER_AGENT, as_user_errors
from resnetboost_operator.kubeclient.resources import Resource
from resnetboost_operator.runs import comparison, log_curves
from resnetboost_operator.runs.comparison import Run
from resnetboost_operator.runs.log_curves import Point
from resnetboost_operator.validation import schema

PREFIX = "job/"
MOST_BYTES = 16 << 20  # of a log: three days of lines
_RETRIES = RetryPolicy(tries=2, timeout_seconds=60.0)
_JOBS = Resource(names.GROUP, names.VERSION, names.PLURAL, frozenset({"get"}))
_PODS = Resource("", "v1", "pods", frozenset({"list"}))
_LOGS = Resource("", "v1", "pods/log", frozenset({"get"}))
_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")
_NAN = float("nan")
_FIRST_LINE = 1  # the first step of every attempt has a line


class Log(msgspec.Struct, frozen=True):
    """The log of rank 0's pod in one attempt of a stage."""

    stage: str
    attempt: int
    text: str


class Found(msgspec.Struct, frozen=True):
    """A job to compare, and what is missing of it, in sentences."""

    run: Run
    missing: tuple[str, ...]


class Cluster:
    """Reads jobs, their pods and logs."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client, self._namespace = client, namespace

    async def read(self, target: str) -> Found:
        """Read `job/NAME`. Raises `UserError` if there is none, or it may not be read."""
        name = target.removeprefix(PREFIX)
        if not _NAME.fullmatch(name):
            raise UserError(f"{target}: {name!r} can be no job's name; use a-z, 0-9 and '-'")
        manifest = await self._job(target, name)
        logs, why = [], ""
        try:
            logs = await self._logs(manifest)
        except errors.Refused as error:
            why = f"{error.words}; ask for the verbs list on pods and get on pods/log"
        except errors.ApiError as error:
            why = str(error)
        return of(target, manifest, logs, why)

    async def _job(self, target: str, name: str) -> dict[str, Any]:
        with as_user_errors(self._client.host, "get"):
            try:
                answer = await self._client.request("get", _JOBS, self._namespace, name, retries=_RETRIES)
            except errors.NotFound:
                place = f"in namespace {self._namespace}"
                raise UserError(f"{target}: there is no job {name} {place}; -n names another") from None
            return msgspec.json.decode(answer, type=dict[str, Any])

    async def _logs(self, job: Mapping[str, Any]) -> list[Log]:
        """The logs of rank 0's pods that are left, by attempt."""
        metadata = job["metadata"]
        labels = {names.LABEL_JOB: metadata["name"], names.LABEL_JOB_UID: metadata["uid"], names.LABEL_INDEX: "0"}
        query = {"labelSelector": ",".join(f"{key}={value}" for key, value in labels.items())}
        answer = await self._client.request("list", _PODS, self._namespace, query=query, retries=_RETRIES)
        found = [log async for log in self._each(msgspec.json.decode(answer)["items"])]
        return sorted(found, key=lambda log: log.attempt)

    async def _each(self, pods: Sequence[Mapping[str, Any]]) -> AsyncIterator[Log]:
        for pod in pods:
            labels, query = pod["metadata"]["labels"], {"container": names.CONTAINER, "limitBytes": str(MOST_BYTES)}
            with contextlib.suppress(errors.NotFound, ValueError):
                attempt = int(labels.get(names.LABEL_ATTEMPT, ""))
                text = await self._client.request(
                    "get", _LOGS, self._namespace, pod["metadata"]["name"], query=query, retries=_RETRIES
                )
                yield Log(labels.get(names.LABEL_STAGE, ""), attempt, text[:MOST_BYTES].decode(errors="replace"))


@contextlib.asynccontextmanager
async def connected(namespace: str) -> AsyncIterator[Cluster]:
    """The cluster of the kubeconfig. Raises `UserError` if there is none."""
    client = Client(await connection.connect(USER_AGENT))
    try:
        yield Cluster(client, namespace or connection.namespace() or in_cluster.own_namespace())
    finally:
        await client.close()


def of(name: str, manifest: Mapping[str, Any], logs: Sequence[Log], why: str = "") -> Found:
    """The job with what its logs have; `why` says why there are none."""
    spec = schema.defaulted(dict(manifest))["spec"]
    status, job = _status(manifest), _parsed(manifest)
    stages = _stages(spec, status, job, logs)
    begun = [stage for stage in stages if stage.points]
    missing = list(_missing(name, stages, logs, why))
    points = [point for stage in begun for point in stage.shifted()]
    seconds = list(_seconds(begun))
    progress = status.progress
    tests = [(place, point.top1) for place, point in enumerate(points) if point.top1 is not None]
    run = Run(
        name=name,
        algorithms=tuple(dict.fromkeys(stage.algorithm for stage in begun or stages[:1])),
        steps=[float(point.step) for point in points],
        loss=[point.loss for point in points],
        epochs=[point.epoch for point in points],
        seconds=seconds,
        tests=tests,
        step_seconds=progress.step_seconds if progress is not None and progress.step_seconds is not None else _NAN,
        settings=comparison.settings(spec),
    )
    return Found(run, tuple(missing))


class _Stage(msgspec.Struct, frozen=True):
    """A stage of a job: its points, and what was before it."""

    name: str
    algorithm: str
    batch: float
    """Images of a step of all ranks; nan if not known."""
    points: Sequence[Point]
    steps_before: int
    epochs_before: float
    of_status: bool
    """Whether the points are those of the status alone."""

    def shifted(self) -> Iterator[Point]:
        """The points, counted over all stages."""
        for point in self.points:
            step, epoch = self.steps_before + point.step, self.epochs_before + point.epoch
            yield msgspec.structs.replace(point, step=step, epoch=epoch)


def _stages(spec: Mapping[str, Any], status: Status, job: Job | None, logs: Sequence[Log]) -> list[_Stage]:
    batches = (
        {
            stage.name: sizes.defined(job, stage) * stage.local_batch_size * stage.accumulation_steps
            for stage in job.spec.stages
        }
        if job is not None
        else {}
    )
    found, steps, epochs = list[_Stage](), 0, 0.0
    for stage in spec["stages"]:
        name = stage["name"]
        points = log_curves.read(log.text for log in logs if log.stage == name)
        told = _told(status, stage)
        of_status = not points and told is not None
        if told is not None:
            points = _completed(points, told)
        found.append(_Stage(name, stage["algorithm"], batches.get(name, _NAN), points, steps, epochs, of_status))
        if points:
            steps, epochs = steps + points[-1].step, epochs + points[-1].epoch
    return found


def _told(status: Status, stage: Mapping[str, Any]) -> Point | None:
    """The last point that the status knows of a stage; None of one that has not begun."""
    found = next((one for one in status.stages if one.name == stage["name"]), None)
    progress = status.progress if status.progress is not None and status.progress.stage == stage["name"] else None
    if found is not None and found.state == "Complete" and found.top1 is not None:
        step = progress.total_steps if progress is not None else 0
        early = progress is not None and found.stopped_early is not None
        epoch = progress.epoch if early and progress is not None else float(stage["epochs"])
        return Point(step, epoch, _NAN, _NAN, found.top1)
    if progress is None or not progress.step:
        return None
    loss = progress.loss if progress.loss is not None else _NAN
    return Point(progress.step, progress.epoch, loss, _NAN, progress.top1)


def _completed(points: list[Point], told: Point) -> list[Point]:
    """The points with what only the status has: without a log one point, else the exact last accuracy."""
    if not points:
        return [told]
    last = points[-1]
    if last.top1 is not None and told.top1 is not None and abs(last.top1 - told.top1) < 1e-4:
        return [*points[:-1], msgspec.structs.replace(last, top1=told.top1)]
    return points


def _seconds(stages: Sequence[_Stage]) -> Iterator[float]:
    """Seconds in steps until each point, from the images per second of the points; nan from where they are unknown."""
    total = 0.0
    for stage in stages:
        speeds = [point.speed for point in stage.points]
        first = next((speed for speed in speeds if speed > 0), _NAN)
        before = 0 if stage.points and not stage.of_status else _NAN
        for point, (_, speed) in zip(stage.points, pairwise([first, *speeds]), strict=True):
            rate = speed if speed > 0 else first
            total += (point.step - before) * stage.batch / rate
            before = point.step
            yield total


def _missing(name: str, stages: Sequence[_Stage], logs: Sequence[Log], why: str) -> Iterator[str]:
    """What a reader should know about the curves, in sentences."""
    if not any(stage.points for stage in stages):
        return
    gone = [stage.name for stage in stages if stage.of_status]
    if gone:
        reason = why or "no pod of its rank 0 is left"
        yield f"{name}: stage {', '.join(gone)} has no curve: {reason}; its last accuracy is that of the status"
    for stage in stages:
        first = stage.points[0].step if stage.points and not stage.of_status else 0
        if first > _FIRST_LINE:
            yield f"{name}: the curve of stage {stage.name} begins at step {first}: the logs before are gone"
    if any(len(log.text) >= MOST_BYTES for log in logs):
        yield f"{name}: a log has more than {MOST_BYTES >> 20} MiB, what comes after them is left out"


def _status(manifest: Mapping[str, Any]) -> Status:
    try:
        return statuses.from_dict(manifest.get("status"))
    except msgspec.ValidationError:
        return Status()


def _parsed(manifest: Mapping[str, Any]) -> Job | None:
    try:
        return parse_job(dict(manifest))
    except (msgspec.ValidationError, KeyError):
        return None
