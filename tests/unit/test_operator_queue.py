"""Work queue in virtual time: order, delays and concurrency of reconciliations."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from resnetboost_operator.controller import workqueue
from resnetboost_operator.controller.metrics import Metrics
from resnetboost_operator.controller.workqueue import WorkQueue
from resnetboost_operator.kubeclient.errors import Unavailable
from support import virtualtime

SECONDS = 0.5


class Worker:
    """Reconciliations that take SECONDS; records when each began and how many ran at once."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.queue = WorkQueue(self.work, str, self.metrics)
        self.begun: list[tuple[float, str]] = []
        self.running: list[str] = []
        self.most = 0
        self.wait: float | None = None
        self.errors: list[Exception] = []

    async def work(self, key: str) -> float | None:
        assert key not in self.running, "two passes of one key at once"
        self.begun.append((round(asyncio.get_running_loop().time(), 3), key))
        self.running.append(key)
        self.most = max(self.most, len(self.running))
        await asyncio.sleep(SECONDS)
        self.running.remove(key)
        if self.errors:
            raise self.errors.pop(0)
        return self.wait

    def times(self, key: str = "a") -> list[float]:
        return [time for time, found in self.begun if found == key]


def played(script: Callable[[Worker], Awaitable[None]]) -> Worker:
    """The worker after the script and another hour of virtual time."""

    async def play() -> Worker:
        worker = Worker()
        worker.queue.start()
        await script(worker)
        await asyncio.sleep(3600)
        await worker.queue.stop(1.0)
        return worker

    return virtualtime.run(play())


def test_an_added_key_is_reconciled_once_and_at_once() -> None:
    async def script(worker: Worker) -> None:
        for _ in range(1000):
            worker.queue.add("a")

    assert played(script).times() == [0.0]


def test_events_during_a_pass_cause_one_more_pass() -> None:
    async def script(worker: Worker) -> None:
        worker.queue.add("a")
        for _ in range(10):
            await asyncio.sleep(SECONDS / 20)
            worker.queue.add("a")

    assert played(script).times() == [0.0, SECONDS + workqueue.SPACING_SECONDS]


def test_passes_of_one_key_are_spaced() -> None:
    async def script(worker: Worker) -> None:
        worker.queue.add("a")
        await asyncio.sleep(SECONDS + 0.01)
        worker.queue.add("a")

    assert played(script).times() == [0.0, SECONDS + workqueue.SPACING_SECONDS]


def test_many_keys_run_at_once_but_not_more_than_the_limit() -> None:
    async def script(worker: Worker) -> None:
        for number in range(3 * workqueue.LIMIT):
            worker.queue.add(f"key-{number}")

    worker = played(script)
    assert worker.most == workqueue.LIMIT
    assert len(worker.begun) == 3 * workqueue.LIMIT
    assert [key for _, key in worker.begun] == [f"key-{number}" for number in range(3 * workqueue.LIMIT)], "first come"


def test_a_pass_returns_the_delay_of_the_next() -> None:
    async def script(worker: Worker) -> None:
        worker.wait = 100.0
        worker.queue.add("a")
        await asyncio.sleep(50)
        worker.wait = None

    assert played(script).times() == [0.0, 100.0 + SECONDS]


def test_an_event_precedes_the_timer_and_the_pass_resets_it() -> None:
    async def script(worker: Worker) -> None:
        worker.wait = 100.0
        worker.queue.add("a")
        await asyncio.sleep(50)
        worker.queue.add("a")
        await asyncio.sleep(60)
        worker.wait = None

    assert played(script).times() == [0.0, 50.0, 150.0 + SECONDS]


def test_a_failed_pass_is_retried_with_back_off() -> None:
    async def script(worker: Worker) -> None:
        worker.errors = [Unavailable("later")] * 9
        worker.queue.add("a")

    worker = played(script)
    gaps = [later - earlier - SECONDS for earlier, later in zip(worker.times(), worker.times()[1:], strict=False)]
    assert len(gaps) == 9
    for number, gap in enumerate(gaps):
        longest = min(workqueue.BACKOFF.most_seconds, workqueue.BACKOFF.first_seconds * 2**number)
        assert longest / 2 - 0.001 <= gap <= longest + 0.001
    assert worker.metrics.registry.get_sample_value("resnetboost_operator_reconcile_failures_total") == 9


def test_events_do_not_shorten_the_back_off() -> None:
    async def script(worker: Worker) -> None:
        worker.errors = [Unavailable("later")] * 20
        worker.queue.add("a")
        for _ in range(600):
            await asyncio.sleep(0.1)
            worker.queue.add("a")

    assert len([time for time in played(script).times() if time < 60]) < 10


def test_an_exception_in_a_pass_does_not_stop_the_queue() -> None:
    async def script(worker: Worker) -> None:
        worker.errors = [ZeroDivisionError("a bug")]
        worker.queue.add("a")
        await asyncio.sleep(SECONDS / 2)
        worker.queue.add("b")

    worker = played(script)
    assert len(worker.times("a")) == 2
    assert len(worker.times("b")) == 1


def test_success_resets_the_back_off() -> None:
    async def script(worker: Worker) -> None:
        worker.errors = [Unavailable("later")] * 6
        worker.queue.add("a")
        await asyncio.sleep(1000)
        worker.errors = [Unavailable("later")]
        worker.queue.add("a")

    first, second = played(script).times()[-2:]
    assert second - first - SECONDS <= workqueue.BACKOFF.first_seconds + 0.001


@pytest.mark.parametrize("moment", [0.0, SECONDS / 2, SECONDS * 2], ids=["due", "running", "waiting"])
def test_a_forgotten_key_is_not_reconciled(moment: float) -> None:
    async def script(worker: Worker) -> None:
        worker.wait = 100.0
        worker.queue.add("a")
        await asyncio.sleep(moment)
        worker.queue.forget("a")

    assert len(played(script).begun) <= 1


def test_a_key_forgotten_and_added_during_its_pass_gets_one_more_pass() -> None:
    async def script(worker: Worker) -> None:
        worker.queue.add("a")
        await asyncio.sleep(SECONDS / 2)
        worker.queue.forget("a")
        worker.queue.add("a")

    assert played(script).times() == [0.0, SECONDS + workqueue.SPACING_SECONDS]


def test_nothing_happens_before_the_start_nor_after_the_stop() -> None:
    async def play() -> Worker:
        worker = Worker()
        worker.queue.add("early")
        worker.queue.start()
        worker.wait = 1.0
        worker.queue.add("a")
        await asyncio.sleep(SECONDS / 2)
        await worker.queue.stop(60.0)
        assert not worker.running, "it waited for the pass in hand"
        worker.queue.add("late")
        await asyncio.sleep(3600)
        return worker

    assert virtualtime.run(play()).begun == [(0.0, "a")]


def test_a_stop_waits_for_a_pass_with_a_timeout() -> None:
    async def play() -> float:
        worker = Worker()
        worker.queue.start()
        worker.queue.add("a")
        await asyncio.sleep(0.001)
        await worker.queue.stop(SECONDS / 2)
        return asyncio.get_running_loop().time()

    assert virtualtime.run(play()) == pytest.approx(SECONDS / 2, abs=0.01)


def test_depth_wait_and_the_longest_pass_are_measured() -> None:
    async def play() -> None:
        worker = Worker()
        worker.queue.start()
        for number in range(workqueue.LIMIT + 5):
            worker.queue.add(str(number))
        value = worker.metrics.registry.get_sample_value
        assert value("resnetboost_operator_queue_depth") == 5
        await asyncio.sleep(SECONDS / 2)
        assert worker.queue.longest_seconds() == pytest.approx(SECONDS / 2)
        await asyncio.sleep(SECONDS)
        assert value("resnetboost_operator_queue_depth") == 0
        assert value("resnetboost_operator_queue_wait_seconds_sum") == pytest.approx(5 * SECONDS, abs=0.01)
        await worker.queue.stop(10.0)

    virtualtime.run(play())
