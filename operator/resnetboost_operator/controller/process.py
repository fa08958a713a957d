"""The operator's process: builds the parts, starts and stops them in order."""

import asyncio
import gc
import logging
import secrets
import time
from collections.abc import Coroutine, Iterable
from typing import Any, NoReturn

import aiohttp

from resnetboost_api import names
from resnetboost_api.policies import NodeExclusion
from resnetboost_operator import launcher_client, readable
from resnetboost_operator.controller import reexec
from resnetboost_operator.controller.health import Health
from resnetboost_operator.controller.job_metrics import JobMetrics
from resnetboost_operator.controller.jobs import JobRecord
from resnetboost_operator.controller.kueue_lookups import KueueLookups
from resnetboost_operator.controller.launcher_links import LauncherLinks
from resnetboost_operator.controller.leaderelection import LeaderElector, LeaseLost
from resnetboost_operator.controller.metrics import Metrics
from resnetboost_operator.controller.node_taints import NodeTaints
from resnetboost_operator.controller.optional_watches import OptionalWatches
from resnetboost_operator.controller.options import KEY_BYTES, Options
from resnetboost_operator.controller.progress_poller import ProgressPoller
from resnetboost_operator.controller.reconciler import Reconciler
from resnetboost_operator.controller.resync import Resync
from resnetboost_operator.controller.server import Server
from resnetboost_operator.controller.store import Store
from resnetboost_operator.controller.workqueue import WorkQueue
from resnetboost_operator.controller.writer import Cluster
from resnetboost_operator.kubeclient import connection
from resnetboost_operator.kubeclient.client import NO_RETRIES, Client
from resnetboost_operator.kubeclient.errors import ApiError, NotFound, Refused
from resnetboost_operator.kubeclient.reflector import Reflector
from resnetboost_operator.kubeclient.resources import JOBS, NODES, PODS
from resnetboost_operator.observed import podfields
from resnetboost_operator.observed.capabilities import Capabilities
from resnetboost_operator.planning import exclusion

logger = logging.getLogger(__name__)

# Together less than the 30 s that a pod has between SIGTERM and SIGKILL.
PASS_GRACE_SECONDS = 15.0
EVENT_GRACE_SECONDS = 3.0
WAIT_SECONDS = 2.0
_OURS = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"


class Operator:
    """The operator, on the running event loop."""

    @classmethod
    async def connected(cls, options: Options) -> "Operator":
        """Connect to the API server and serve the probes. Raises `UserError` if either is impossible."""
        operator = cls(options, await connection.connect())
        address = await operator._server.start(options.host, options.port)
        logger.info("serving probes and metrics on %s", address)
        return operator

    def __init__(self, options: Options, api: Any) -> None:
        self._options = options
        self._metrics = Metrics()
        self._client = Client(api, self._metrics.count_request)
        enabled = Capabilities(gangs_enabled=options.gang_scheduling, kueue_enabled=options.kueue)
        key = _token_key(options)
        self._store = Store(
            options.namespaces, self._changed, options.images, enabled, launcher_key=launcher_client.key_id(key)
        )
        self._metrics.watch_phases(lambda: [job.status.phase for job in self._store.jobs])
        self._metrics.watch_nodes(self._node_points)
        self._metrics.append(JobMetrics(self._jobs_led).text)
        self._polling = ProgressPoller(self._changed)
        self._links = LauncherLinks(key, self._changed)
        self._cluster = Cluster(self._client, self._store, options.identity, self._changed, self._links.token)
        lookups = KueueLookups(self._client, self._store)
        self._reconciler = Reconciler(self._store, self._cluster, lookups, self._polling, self._links, self._metrics)
        self._queue = WorkQueue(self._reconciler.reconcile, self._label, self._metrics)
        self._elector = LeaderElector(
            self._client, options.lease_namespace, options.lease_name, options.identity, options.pod
        )
        self._client.may_write = self._elector.is_leading
        pods = self._store.pods.items()
        self._pod_reflectors = [
            Reflector(self._client, PODS, cache, name, _OURS, decode=podfields.decode) for name, cache in pods
        ]
        self._node_reflector = Reflector(self._client, NODES, self._store.nodes)
        self._resync = Resync(self._client, self._store, options.namespaces, self._metrics.count_request)
        reflectors = [self._node_reflector, *self._pod_reflectors]
        self._optional = OptionalWatches(self._client, self._store, _OURS, self._begin)
        self._health = Health(
            self._store, self._queue, self._elector, reflectors, self._optional, self._resync, options.identity
        )
        self._server = Server(self._metrics, self._health.stuck, self._health.unready, self._health.role)
        self._tasks: list[asyncio.Task[NoReturn]] = []
        self._pod_tasks: list[asyncio.Task[NoReturn]] = []

    async def start(self) -> None:
        """Wait until jobs can be listed, then start all parts."""
        await self._wait_for_jobs()
        self._begin(self._node_reflector.run())
        self._watch_pods()
        self._optional.start()
        if (effect := self._options.taint_nodes) is not None:
            leads = self._elector.is_leading
            self._begin(NodeTaints(self._client, self._store, leads, self._node_points, effect).run())
        self._begin(self._resync.run())
        self._begin(self._lead())
        await asyncio.sleep(0)  # let each task start
        gc.collect()
        gc.freeze()  # modules and what they hold stay: later collections need not look at them again
        self._health.trouble = ""

    async def stop(self) -> None:
        """Let passes finish, release the lease, close all parts."""
        self._cluster.stop()
        await self._queue.stop(PASS_GRACE_SECONDS)
        self._polling.close()
        self._links.close()
        await self._cluster.close(EVENT_GRACE_SECONDS)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._elector.release()
        await self._server.stop()
        await self._client.close()

    def job_event(self, kind: str | None, obj: dict[str, Any]) -> None:
        """Apply a job event of kopf; `kind` is None for an item of a list."""
        self._store.jobs.apply_event(kind or "ADDED", obj)

    @property
    def host(self) -> str:
        """The API server's address."""
        return self._client.host

    async def session(self) -> aiohttp.ClientSession:
        """A session for kopf."""
        return await self._client.session(self._resync.trace())

    def _jobs_led(self) -> Iterable[JobRecord]:
        """All jobs, or none while another process leads: sums over both processes would count each job twice."""
        return self._store.jobs if self._elector.is_leading() else ()

    def _node_points(self) -> dict[str, float]:
        """The points of nodes by the failures of all jobs, none while another process leads."""
        half_life = NodeExclusion().half_life_seconds
        return exclusion.points_by_node((job.status.attempts for job in self._jobs_led()), half_life, time.time())

    def _label(self, uid: str) -> str:
        record = self._store.jobs.get(uid)
        return record.label if record is not None else uid

    def _changed(self, uid: str) -> None:
        """Queue the job after a change of itself or of what runs and schedules it; forget it if it is gone."""
        if self._store.jobs.get(uid) is not None:
            self._queue.add(uid)
        else:
            self._queue.forget(uid)
            self._reconciler.forget(uid)

    async def _wait_for_jobs(self) -> None:
        """Log what is missing and wait: a chart installs CRD, rights and operator in any order."""
        logged = ""
        while trouble := await self._jobs_trouble():
            if trouble != logged:
                logger.warning("waiting: %s", trouble)
            logged = self._health.trouble = trouble
            await asyncio.sleep(WAIT_SECONDS)

    async def _jobs_trouble(self) -> str:
        try:
            for namespace in self._options.namespaces or ("",):
                await self._client.request("list", JOBS, namespace, query={"limit": "1"}, retries=NO_RETRIES)
        except NotFound:
            return f"the kind {names.KIND} is not installed; kubectl apply -f crds/resnetboostjobs.yaml"
        except Refused as error:
            return f"{error.words}; grant what charts/resnetboost/files/rbac.yaml lists"
        except ApiError as error:
            return str(error)
        return ""

    async def _lead(self) -> NoReturn:
        """Stand by with synced caches, then reconcile until the lease is lost."""
        await self._until_synced()
        logger.info("watching %s", readable.plural(len(self._store.jobs), "job"))
        await self._elector.acquire()
        self._metrics.leading.set(1)
        await asyncio.gather(self._elector.renew(), self._take_over())
        raise AssertionError("renew() never returns")

    async def _take_over(self) -> None:
        """List everything again and queue every job: a watch may lag behind the writes of the previous leader.

        Jobs are listed before pods: the plan waits for a job's status that is older than its pods, but would not see
        that a pod is missing.
        """
        await self._resync.relist()
        await self._list_again()
        self._reconciler.since = time.time()
        self._queue.start()
        for job in self._store.jobs:
            self._queue.add(job.uid)

    async def _list_again(self) -> None:
        for task in self._pod_tasks:
            task.cancel()
        await asyncio.gather(*self._pod_tasks, return_exceptions=True)
        for reflector in self._pod_reflectors:
            reflector.reset()
        self._store.invalidate()
        self._watch_pods()
        self._optional.list_again()
        await self._until_synced()

    async def _until_synced(self) -> None:
        while not self._store.synced:
            await asyncio.sleep(0.05)

    def _watch_pods(self) -> None:
        self._pod_tasks = [self._begin(reflector.run()) for reflector in self._pod_reflectors]

    def _begin(self, work: Coroutine[Any, Any, NoReturn]) -> asyncio.Task[NoReturn]:
        task = asyncio.create_task(_forever(work, self._options.start_over))
        self._tasks.append(task)
        return task


def _token_key(options: Options) -> bytes:
    """The key of launchers' tokens. Only a file's is that of the next process too."""
    if options.token_key:
        return options.token_key
    logger.warning("no --token-key-file: gangs that run now will be restarted with new pods by any later operator")
    return secrets.token_bytes(KEY_BYTES)


async def _forever(work: Coroutine[Any, Any, NoReturn], start_over: bool) -> NoReturn:
    """Run a part of the operator; leave the process if it ends, since only a new process can finish its work safely."""
    try:
        await work
    except LeaseLost as error:
        logger.critical("%s; another operator may lead: exiting at once", error)
    except Exception:
        logger.critical("a part of the operator has failed; exiting, to be restarted", exc_info=True)
    reexec.leave(start_over)
