"""The operator's parts put together, started and stopped in order; what they do is theirs."""

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterable
from typing import Any, NoReturn

import aiohttp

from resnetboost_operator import names, readable
from resnetboost_operator.controller import restart
from resnetboost_operator.controller.cluster import Cluster
from resnetboost_operator.controller.health import Health
from resnetboost_operator.controller.job_metrics import JobMetrics
from resnetboost_operator.controller.jobs import JobRecord
from resnetboost_operator.controller.leaderelection import Leader, LeaseLost
from resnetboost_operator.controller.metrics import Metrics
from resnetboost_operator.controller.options import Options
from resnetboost_operator.controller.progress import Polling
from resnetboost_operator.controller.reconciler import Reconciler
from resnetboost_operator.controller.resync import Census
from resnetboost_operator.controller.server import Server
from resnetboost_operator.controller.store import Store
from resnetboost_operator.controller.workqueue import Queue
from resnetboost_operator.kubeclient import connection
from resnetboost_operator.kubeclient.client import ONCE, Client
from resnetboost_operator.kubeclient.errors import ApiError, NotFound, Refused
from resnetboost_operator.kubeclient.reflector import Watch
from resnetboost_operator.kubeclient.resources import JOBS, NODES, PODS

logger = logging.getLogger(__name__)

# A pod gets 30 s from SIGTERM to SIGKILL.
PASS_GRACE_SECONDS = 15.0
EVENT_GRACE_SECONDS = 3.0
WAIT_SECONDS = 2.0
_OURS = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"


class Operator:
    """One operator in one process, on the running event loop."""

    @classmethod
    async def connected(cls, options: Options) -> "Operator":
        """One that knows its API server and serves its probes. Raises `UserError` where either cannot be."""
        operator = cls(options, await connection.connect())
        address = await operator._server.start(options.host, options.port)
        logger.info("serving probes and metrics on %s", address)
        return operator

    def __init__(self, options: Options, api: Any) -> None:
        self._options = options
        self._metrics = Metrics()
        self._client = Client(api, self._metrics)
        self._store = Store(options.namespaces, self._changed, options.images)
        self._metrics.watch_phases(lambda: [job.status.phase for job in self._store.jobs])
        self._metrics.append(JobMetrics(self._jobs_led).text)
        self._polling = Polling(self._changed)
        self._cluster = Cluster(self._client, self._store, options.identity, self._changed)
        self._reconciler = Reconciler(self._store, self._cluster, self._polling, self._metrics)
        self._queue = Queue(self._reconciler.reconcile, self._label, self._metrics)
        self._leader = Leader(self._client, options.lease_namespace, options.lease_name, options.identity, options.pod)
        self._client.may_write = self._leader.is_leading
        pods = self._store.pods.items()
        self._pod_watches = [Watch(self._client, PODS, mirror, name, _OURS) for name, mirror in pods]
        self._node_watch = Watch(self._client, NODES, self._store.nodes)
        self._census = Census(self._client, self._store, options.namespaces, self._metrics)
        watches = [self._node_watch, *self._pod_watches]
        self._health = Health(self._store, self._queue, self._leader, watches, self._census, options.identity)
        self._server = Server(self._metrics, self._health.stuck, self._health.unready, self._health.role)
        self._tasks: list[asyncio.Task[NoReturn]] = []
        self._pod_tasks: list[asyncio.Task[NoReturn]] = []

    async def start(self) -> None:
        """Wait until jobs can be watched, and begin."""
        await self._wait_for_jobs()
        self._begin(self._node_watch.run())
        self._watch_pods()
        self._begin(self._census.run())
        self._begin(self._lead())
        await asyncio.sleep(0)  # each has begun
        self._health.trouble = ""

    async def stop(self) -> None:
        """Let passes finish, give up the lease, close everything."""
        self._cluster.stop()
        await self._queue.stop(PASS_GRACE_SECONDS)
        self._polling.close()
        await self._cluster.close(EVENT_GRACE_SECONDS)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._leader.release()
        await self._server.stop()
        await self._client.close()

    def job_event(self, kind: str | None, obj: dict[str, Any]) -> None:
        """kopf has heard of a job; without a kind it was in a list."""
        self._store.jobs.watched(kind or "ADDED", obj)

    @property
    def host(self) -> str:
        """The API server's address."""
        return self._client.host

    async def session(self) -> aiohttp.ClientSession:
        """A session for kopf."""
        return await self._client.session(self._census.trace())

    def _jobs_led(self) -> Iterable[JobRecord]:
        """Every job, or none while another process leads: two that told of the same jobs would double every sum."""
        return self._store.jobs if self._leader.is_leading() else ()

    def _label(self, uid: str) -> str:
        record = self._store.jobs.get(uid)
        return record.label if record is not None else uid

    def _changed(self, uid: str) -> None:
        """Something happened to the job or to a pod that says it belongs to it."""
        if self._store.jobs.get(uid) is not None:
            self._queue.add(uid)
        else:
            self._queue.forget(uid)
            self._reconciler.forget(uid)

    async def _wait_for_jobs(self) -> None:
        """A chart installs definition, rights and operator in any order: say what is missing, and wait."""
        told = ""
        while trouble := await self._jobs_trouble():
            if trouble != told:
                logger.warning("waiting: %s", trouble)
            told = self._health.trouble = trouble
            await asyncio.sleep(WAIT_SECONDS)

    async def _jobs_trouble(self) -> str:
        try:
            for namespace in self._options.namespaces or ("",):
                await self._client.request("list", JOBS, namespace, query={"limit": "1"}, patience=ONCE)
        except NotFound:
            return f"the kind {names.KIND} is not installed; kubectl apply -f crds/resnetboostjobs.yaml"
        except Refused as error:
            return f"{error.words}; grant what charts/resnetboost/files/rbac.yaml lists"
        except ApiError as error:
            return str(error)
        return ""

    async def _lead(self) -> NoReturn:
        """Stand by with everything in view, then plan and write until the lease is lost."""
        await self._until_filled()
        logger.info("watching %s", readable.plural(len(self._store.jobs), "job"))
        await self._leader.acquire()
        self._metrics.leading.set(1)
        await asyncio.gather(self._leader.keep(), self._take_over())
        raise AssertionError("keep() never ends")

    async def _take_over(self) -> None:
        """Look at every job. A watch may be behind without knowing it: nobody must miss what the leader before did.

        Jobs come first: a pod that is newer than its job's status is waited for, one that is older would be missed.
        """
        await self._census.list_anew()
        await self._list_pods_again()
        self._reconciler.since = time.time()
        self._queue.start()
        for job in self._store.jobs:
            self._queue.add(job.uid)

    async def _list_pods_again(self) -> None:
        for task in self._pod_tasks:
            task.cancel()
        await asyncio.gather(*self._pod_tasks, return_exceptions=True)
        for watch in self._pod_watches:
            watch.start_over()
        self._store.doubt_pods()
        self._watch_pods()
        await self._until_filled()

    async def _until_filled(self) -> None:
        while not self._store.filled:
            await asyncio.sleep(0.05)

    def _watch_pods(self) -> None:
        self._pod_tasks = [self._begin(watch.run()) for watch in self._pod_watches]

    def _begin(self, work: Coroutine[Any, Any, NoReturn]) -> asyncio.Task[NoReturn]:
        task = asyncio.create_task(_forever(work, self._options.start_over))
        self._tasks.append(task)
        return task


async def _forever(work: Coroutine[Any, Any, NoReturn], start_over: bool) -> NoReturn:
    """No part ends by itself. If one does, what it left half done is safe with the next process and nowhere else."""
    try:
        await work
    except LeaseLost as error:
        logger.critical("%s; another operator may lead: leaving at once", error)
    except Exception:
        logger.critical("a part of the operator has failed; leaving, to be started again", exc_info=True)
    restart.leave(start_over)
