"""Resync of the store: its jobs after a new list, whatever events kopf delivered or missed."""

import asyncio
from typing import Any

import pytest

from resnetboost_operator.controller import resync as censuses
from resnetboost_operator.controller.resync import Resync
from resnetboost_operator.controller.store import Store
from resnetboost_operator.kubeclient import client
from resnetboost_operator.kubeclient.retry import Backoff
from support.scriptedserver import Answer, ScriptedServer, refuses, says


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "BACKOFF", Backoff(0.01, 0.02))
    monkeypatch.setattr(censuses, "AGAIN", Backoff(0.01, 0.02))


def job(uid: str, version: int, stage: str = "") -> dict[str, Any]:
    """A job that could not run, but whose status can be read."""
    metadata = {"name": uid, "namespace": "default", "uid": uid, "resourceVersion": str(version)}
    return {"metadata": metadata, "status": {"stage": stage}}


def page(version: int, *items: dict[str, Any], more: str = "") -> Answer:
    return says({"metadata": {"resourceVersion": str(version), "continue": more}, "items": list(items)})


def listed(*answers: Answer, namespaces: tuple[str, ...] = ()) -> tuple[dict[str, str], list[str], list[str]]:
    """Stages of the jobs, enqueued jobs and requests after a resync. kopf reported three jobs and then nothing more."""

    async def play() -> tuple[dict[str, str], list[str], list[str]]:
        called: list[str] = []
        async with ScriptedServer(answers) as server:
            store = Store((), called.append)
            for uid in ("stale", "gone", "newer"):
                store.jobs.apply_event("ADDED", job(uid, 50 if uid == "newer" else 5, "before"))
            called.clear()
            async with asyncio.timeout(60):
                await Resync(server.client, store, namespaces, server.metrics.count_request).relist()
            return {found.uid: found.status.stage for found in store.jobs}, called, server.requests

    return asyncio.run(play())


def test_a_resync_adds_missed_jobs_and_keeps_newer_events() -> None:
    stages, called, _ = listed(
        page(40, job("stale", 30, "now"), job("newer", 20, "long ago"), job("unheard", 35, "now"))
    )
    assert stages == {"stale": "now", "newer": "before", "unheard": "now"}
    assert sorted(called) == ["gone", "stale", "unheard"]


def test_a_resync_retries_and_reads_every_page() -> None:
    away = [refuses(503)] * client.DEFAULT_RETRIES.tries
    stages, _, requests = listed(*away, page(40, job("stale", 30, "now"), more="next"), page(40, job("unheard", 35)))
    assert sorted(stages) == ["newer", "stale", "unheard"]
    assert len(requests) == client.DEFAULT_RETRIES.tries + 2


def test_jobs_of_several_namespaces_are_all_kept() -> None:
    answers = [page(40, job("stale", 30, "now")), page(41, job("unheard", 35, "now"))]
    stages, _, requests = listed(*answers, namespaces=("a", "b"))
    assert sorted(stages) == ["newer", "stale", "unheard"]
    assert [request.split("/")[5] for request in requests] == ["a", "b"]
