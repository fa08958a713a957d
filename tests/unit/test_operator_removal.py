"""Deletion of a gang's pods: number of requests, and the pods each one selects."""

import asyncio
import re
import urllib.parse
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from resnetboost_api.status import Status
from resnetboost_operator.controller.deletion import SWEEP_PODS, PodDeleter
from resnetboost_operator.controller.jobs import JobRecord
from resnetboost_operator.controller.store import Store
from resnetboost_operator.manifests.pod import pod as pod_manifest
from resnetboost_operator.observed import pods
from resnetboost_operator.observed.pods import PodView
from resnetboost_operator.planning.actions import Deletion
from support.scriptedserver import ScriptedServer, refuses, says
from support.simulation import job


def gang(count: int) -> tuple[JobRecord, list[PodView]]:
    wanted = replace(job(device={"type": "CPU", "count": count}), uid="u-1")
    made = [pod_manifest(wanted, wanted.spec.stages[0], 0, index) for index in range(count)]
    views = [pods.view({**pod, "metadata": {**pod["metadata"], "uid": pod["metadata"]["name"]}}) for pod in made]
    record = JobRecord(
        uid="u-1",
        namespace="default",
        name="digits",
        version=7,
        deleting=False,
        job=wanted,
        status=Status(),
        problem="",
    )
    return record, views


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


def selectors(count: int) -> list[str]:
    """Label selectors of the requests that delete a whole gang of that many pods."""
    record, views = gang(count)
    requests = -(-count // SWEEP_PODS)

    async def play() -> list[str]:
        async with ScriptedServer([says({})] * requests) as server:
            removal = PodDeleter(server.client, Store((), lambda uid: None), lambda uid: None)
            removal.remove(record, deletions(views), views)
            await until(lambda: len(server.requests) == requests)
            await removal.close()
            queries = [urllib.parse.urlsplit(request).query for request in server.requests]
            return [urllib.parse.parse_qs(query)["labelSelector"][0] for query in queries]

    return asyncio.run(play())


def deletions(views: Sequence[PodView]) -> list[Deletion]:
    return [Deletion(pod.name, pod.uid, 5) for pod in views]


def test_a_small_gang_is_deleted_by_one_request() -> None:
    assert selectors(2) == ["resnetboost.io/job-uid=u-1,resnetboost.io/stage=base,resnetboost.io/attempt=0"]


def test_a_large_gang_is_deleted_by_several_requests_that_name_each_pod_once() -> None:
    """The API server deletes the pods of one request one after another."""
    count = 2 * SWEEP_PODS + 1
    asked = selectors(count)
    assert all(
        selector.startswith("resnetboost.io/job-uid=u-1,resnetboost.io/stage=base,resnetboost.io/attempt=0,")
        for selector in asked
    )
    named = [re.findall(r"index in \((.*)\)$", selector)[0].split(",") for selector in asked]
    assert max(map(len, named)) <= SWEEP_PODS
    assert sorted(int(index) for part in named for index in part) == list(range(count))


def test_a_refused_deletion_is_planned_again() -> None:
    record, views = gang(2)
    again: list[str] = []

    async def play() -> bool:
        async with ScriptedServer([refuses(403, "Forbidden")]) as server:
            store = Store((), lambda uid: None)
            PodDeleter(server.client, store, again.append).remove(record, deletions(views), views)
            await until(lambda: bool(again))
            return any(store.is_deletion_expected(deletion) for deletion in deletions(views))

    assert (asyncio.run(play()), again) == (False, ["u-1"])
