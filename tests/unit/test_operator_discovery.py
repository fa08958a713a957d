"""Which optional APIs there are, by a server that answers in every way a server may."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from resnetboost_operator.kubeclient import discovery
from resnetboost_operator.kubeclient.discovery import Discovery
from resnetboost_operator.kubeclient.retry import Backoff
from resnetboost_operator.observed.capabilities import KUEUE, VOLCANO
from support.scriptedserver import Answer, ScriptedServer, refuses, says

WANTED = {KUEUE: "workloads", VOLCANO: "podgroups"}
MISSING = refuses(404, "NotFound")


def lists(*plurals: str) -> Answer:
    return says({"kind": "APIResourceList", "resources": [{"name": name, "verbs": ["get"]} for name in plurals]})


class Played:
    """What was announced, and what the server was asked."""

    def __init__(self, *answers: Answer, wanted: dict[str, str] | None = None) -> None:
        self.announced: list[frozenset[str]] = []
        self.looks: list[bool] = []
        self._answers = answers
        self._wanted = WANTED if wanted is None else wanted

    def after(self, script: Callable[["Played"], Awaitable[None]]) -> "Played":
        async def play() -> None:
            async with ScriptedServer(self._answers) as server, asyncio.timeout(20):
                server.client.may_write = lambda: False
                self.called = asyncio.Event()
                self.discovery = Discovery(server.client, self._wanted, self._changed)
                await script(self)
            self.requests = server.requests
            value = server.metrics.registry.get_sample_value
            labels = {"verb": "get", "resource": "discovery", "code": "404"}
            self.counted_404 = value("resnetboost_operator_api_requests_total", labels)

        asyncio.run(play())
        return self

    def looked(self, times: int = 1) -> "Played":
        async def script(played: "Played") -> None:
            for _ in range(times):
                played.looks.append(await played.discovery.look())

        return self.after(script)

    def _changed(self, served: frozenset[str]) -> None:
        self.announced.append(served)
        self.called.set()


def test_an_api_is_served_if_it_has_the_resource() -> None:
    played = Played(lists("localqueues", "workloads", "workloads/status"), lists("jobs")).looked()
    assert played.requests == ["GET /apis/kueue.x-k8s.io/v1beta2", "GET /apis/scheduling.volcano.sh/v1beta1"]
    assert played.announced == [{KUEUE}]
    assert played.looks == [True]


def test_an_api_that_does_not_exist_is_no_trouble() -> None:
    played = Played(MISSING, MISSING).looked()
    assert (played.announced, played.looks, played.discovery.trouble) == ([frozenset()], [True], "")
    assert played.counted_404 == 2


def test_only_a_change_is_announced() -> None:
    both = lists("workloads", "podgroups")
    played = Played(both, MISSING, both, MISSING, both, both, MISSING, both, MISSING, both).looked(5)
    assert played.announced == [{KUEUE}, {KUEUE, VOLCANO}, {VOLCANO}]


@pytest.mark.parametrize("missed", [MISSING, lists("localqueues")], ids=["the API", "its resource"])
def test_an_api_that_is_missing_for_a_moment_is_not_announced_as_gone(missed: Answer) -> None:
    """Else every job that waits in a queue would start without quota while somebody installs the CRD anew."""
    there = lists("workloads")
    played = Played(there, MISSING, missed, MISSING, there, MISSING, missed, MISSING, there, MISSING).looked(5)
    assert played.announced == [{KUEUE}]


def test_what_was_not_asked_for_is_never_announced() -> None:
    played = Played(lists("podgroups"), wanted={VOLCANO: "podgroups"}).looked()
    assert played.announced == [{VOLCANO}]
    assert len(played.requests) == 1


@pytest.mark.parametrize(
    "trouble",
    [refuses(403, "Forbidden"), refuses(429), refuses(503), says("no list"), says({"resources": 1})],
    ids=["forbidden", "too many requests", "not installed yet", "a text", "another form"],
)
def test_after_an_error_is_true_what_was_true_before(trouble: Answer) -> None:
    first = Played(lists("workloads"), trouble, lists("workloads"), lists("podgroups")).looked(2)
    assert first.looks == [False, True]
    assert first.announced == [{KUEUE, VOLCANO}], "not before everything is known"
    later = Played(lists("workloads"), MISSING, trouble, MISSING).looked(2)
    assert later.looks == [True, False]
    assert later.announced == [{KUEUE}]
    assert later.discovery.trouble


def test_an_error_is_tried_again_sooner_than_everything_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "BACKOFF", Backoff(0.01, 0.02))

    async def script(played: Played) -> None:
        running = asyncio.create_task(played.discovery.run())
        await played.called.wait()
        running.cancel()

    played = Played(*[refuses(503)] * 6, lists("workloads"), MISSING).after(script)
    assert played.announced == [{KUEUE}]


def test_everything_is_asked_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "LOOK_SECONDS", 0.01)

    async def script(played: Played) -> None:
        running = asyncio.create_task(played.discovery.run())
        while len(played.announced) < 2:
            played.called.clear()
            await played.called.wait()
        running.cancel()

    gone = Played(lists("workloads"), MISSING, lists("workloads"), MISSING, *[MISSING] * 4).after(script)
    assert gone.announced == [{KUEUE}, frozenset()]
