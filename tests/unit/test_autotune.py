"""Autotuning of data-loading threads and prefetched batches: the rule on made-up numbers, and a loader that uses it."""

import threading
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnetboost_trainer.data import autotune
from resnetboost_trainer.data.autotune import LEAST_AHEAD, MOST_AHEAD, Observation, Setting, Take
from resnetboost_trainer.data.corrupt import Corrupt
from resnetboost_trainer.data.dataset import Images, Indices
from resnetboost_trainer.data.loader import BatchRequest, DataLoader
from resnetboost_trainer.data.rng import SampleRNG
from resnetboost_trainer.data.tuner import WINDOW, Tuner

MOST = 8


@pytest.mark.parametrize(
    ("now", "seen", "then"),
    [
        (Setting(2, 2), Observation(waited=0.5, busy=2, ready=0), Setting(4, 2)),
        (Setting(2, 2), Observation(waited=0.06, busy=1.9, ready=0), Setting(3, 2)),
        (Setting(5, 2), Observation(waited=0.9, busy=5, ready=0), Setting(MOST, 2)),
        (Setting(MOST, 4), Observation(waited=0.9, busy=MOST, ready=0), Setting(MOST, 4)),
        (Setting(4, 2), Observation(waited=0.2, busy=2, ready=0), Setting(4, 3)),
        (Setting(4, MOST_AHEAD), Observation(waited=0.2, busy=2, ready=0), Setting(4, MOST_AHEAD)),
        (Setting(MOST, 2), Observation(waited=0, busy=1, ready=1), Setting(2, 2)),
        (Setting(MOST, 2), Observation(waited=0, busy=0, ready=1), Setting(1, 2)),
        (Setting(2, 5), Observation(waited=0, busy=1.5, ready=3), Setting(2, 4)),
        (Setting(2, 5), Observation(waited=0, busy=1.5, ready=1), Setting(2, 5)),
        (Setting(2, LEAST_AHEAD), Observation(waited=0, busy=1.5, ready=2), Setting(2, LEAST_AHEAD)),
        (Setting(4, 4), Observation(waited=0.03, busy=0.5, ready=3), Setting(4, 4)),
    ],
    ids=[
        "half of the time is waited for busy threads: twice as many",
        "a little is waited: one more",
        "no more than there may be",
        "all of them are too few: more batches ahead would not help",
        "threads are idle and training waits: further ahead",
        "no further than memory is meant for",
        "most threads are idle",
        "one thread is the least",
        "batches lie about",
        "no batch lies about always",
        "two ahead are the least",
        "between content and waiting nothing changes",
    ],
)
def test_next_setting_of_an_observation(now: Setting, seen: Observation, then: Setting) -> None:
    assert autotune.tuned(now, seen, MOST) == then


class Machine(NamedTuple):
    """A simulated machine: seconds that a thread takes to make a batch, and the device to use it."""

    making: float
    using: float

    def at(self, setting: Setting) -> Observation:
        """Observation of a steady state under that setting, with one batch in progress per thread."""
        period = max(self.using, self.making / setting.workers)
        waited = (period - self.using) / period
        return Observation(waited, self.making / period, 0 if waited else setting.ahead - 1)


seconds = st.floats(1e-3, 1e3)


@given(
    machine=st.builds(Machine, seconds, seconds),
    begun=st.builds(Setting, st.integers(1, MOST), st.integers(LEAST_AHEAD, MOST_AHEAD)),
)
def test_tuning_settles_without_waits_and_idle_threads(machine: Machine, begun: Setting) -> None:
    settings = [begun]
    for _ in range(20):
        settings.append(autotune.tuned(settings[-1], machine.at(settings[-1]), MOST))
    end = settings[-1]
    assert settings[-5:] == [end] * 5, "it goes back and forth"
    seen = machine.at(end)
    assert seen.waited <= autotune.WAITS or end.workers == MOST
    assert end.workers == 1 or seen.busy > autotune.LOAD * (end.workers - 1) or seen.waited >= autotune.CONTENT


def takes(count: int, computed: float, waited: float, worked: float, ready: int = 1) -> list[Take]:
    """Observed steps of that many seconds each, with that many thread-seconds per batch."""
    period = computed + waited
    return [Take(n * period, n * period + waited, n * worked, ready) for n in range(count)]


def test_observation_of_even_steps() -> None:
    seen = autotune.observed(takes(11, computed=3, waited=1, worked=2))
    assert seen == pytest.approx(Observation(waited=0.25, busy=0.5, ready=1))


def test_an_evaluation_does_not_count_as_low_demand() -> None:
    even = takes(51, computed=0.1, waited=0, worked=0.3)
    evaluated = even[:20] + [
        take._replace(asked=take.asked + 600, given=take.given + 600, worked=take.worked + 0.6) for take in even[20:]
    ]
    assert autotune.observed(evaluated).busy > 0.8 * autotune.observed(even).busy


def test_observations_are_periodic_and_begin_after_the_last_change() -> None:
    tuner, setting, changes = Tuner(MOST), Setting(2, 2), dict[int, Setting]()
    for number, take in enumerate(takes(2 * (MOST_AHEAD + WINDOW) + 1, computed=1, waited=1, worked=4)):
        then = tuner.look(setting, take)
        if then != setting:
            changes[number] = then
        setting = then
    first = MOST_AHEAD + WINDOW
    assert changes == {first: Setting(4, 2), first + MOST_AHEAD + WINDOW: Setting(4, 3)}


class Counted:
    """A data set that counts the threads inside it and releases them once there are `together` of them."""

    labels = np.zeros(4096, np.int32)
    shape = (1, 2, 2)
    each = 1
    stream = None

    def __init__(self, together: int = 1) -> None:
        self.barrier = threading.Barrier(together)
        self.inside = self.most = 0
        self._lock = threading.Lock()

    def name(self, index: int) -> str:
        return f"sample {index}"

    def fill(self, out: Images, indices: Indices, rng: SampleRNG | None) -> None:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        self.barrier.wait(timeout=60)
        out[...] = indices[0]
        with self._lock:
            self.inside -= 1


def asked(batches: int, size: int = 4) -> list[BatchRequest]:
    return [BatchRequest(np.arange(4096), number * size, size) for number in range(batches)]


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_no_more_threads_work_than_set(workers: int) -> None:
    split = Counted(together=workers)
    feed = DataLoader(split, Corrupt(0), workers=4)
    feed.set(Setting(workers, LEAST_AHEAD))
    found = [batch.images[:, 0, 0, 0].tolist() for batch in feed.batches(asked(8))]
    feed.close()
    assert found == [[4 * n, 4 * n + 1, 4 * n + 2, 4 * n + 3] for n in range(8)]
    assert split.most == workers


class Held(Counted):
    """A data set that blocks its first sample until `begun` is set, and records the order of requests."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()
        self.order: list[int] = []

    def fill(self, out: Images, indices: Indices, rng: SampleRNG | None) -> None:
        assert self.begun.wait(timeout=60)
        self.order.append(int(indices[0]))
        super().fill(out, indices, rng)


def test_disabled_threads_do_not_delay_the_next_batch() -> None:
    split = Held()
    feed = DataLoader(split, Corrupt(0), workers=8)
    feed.set(Setting(1, MOST_AHEAD))

    def wanted() -> Iterator[BatchRequest]:
        for number, item in enumerate(asked(MOST_AHEAD + 1)):
            if number == MOST_AHEAD:
                split.begun.set()  # by now every thread has a sample to make
            yield item

    for _ in feed.batches(wanted()):
        pass
    feed.close()
    assert split.order == list(range(4 * (MOST_AHEAD + 1)))


def test_the_loader_releases_unneeded_threads() -> None:
    feed = DataLoader(Counted(), Corrupt(0), workers=4, autotune=True)
    matrix = np.ones((256, 256), np.float32)
    for _ in feed.batches(asked(1024)):
        for _ in range(4):
            matrix = matrix @ matrix / 256
        if feed.setting.workers < 4:
            break
    feed.close()
    assert feed.setting.workers < 4
