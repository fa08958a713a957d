"""Fetching ahead: what is fetched when, how much is held, and who gets an error."""

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from resnetboost_trainer.data import stream
from resnetboost_trainer.data.stream import Selection, Stream

SECONDS = 60


class Storage:
    """Images of a hundred bytes, which say their number; a request waits while the storage is `open` no more."""

    def __init__(self, images: int = 64) -> None:
        self.open = threading.Event()
        self.open.set()
        self.fetched: list[int] = []
        self.broken: set[int] = set()
        self.begun = threading.Semaphore(0)
        self.stream = Stream(self.fetch, np.full(images, 100))

    def fetch(self, index: int) -> bytes:
        self.fetched.append(index)
        self.begun.release()
        assert self.open.wait(SECONDS)
        if index in self.broken:
            raise OSError(f"image {index}")
        return b"%100d" % index

    def await_requests(self, number: int) -> None:
        for _ in range(number):
            assert self.begun.acquire(timeout=SECONDS)

    def batches(self, *batches: list[int]) -> Iterator[list[int]]:
        return self.stream.ahead(batches, lambda batch: np.array(batch, np.int64))


def take(storage: Storage, *indices: int) -> None:
    for index in indices:
        assert int(storage.stream.take(index)) == index


def test_each_image_comes_once_in_any_order_of_use() -> None:
    storage = Storage()
    for batch in storage.batches([5, 3, 9], [1, 2], [60]):
        take(storage, *reversed(batch))
    assert sorted(storage.fetched) == [1, 2, 3, 5, 9, 60]


def test_images_are_fetched_before_their_batch_is_asked_for() -> None:
    storage = Storage()
    batches = storage.batches([0, 1], [2, 3], [4])
    assert next(batches) == [0, 1]
    storage.await_requests(5)
    assert sorted(storage.fetched) == [0, 1, 2, 3, 4]


def test_an_image_that_is_used_twice_is_fetched_once_if_both_uses_are_known() -> None:
    storage = Storage()
    batches = storage.batches([7, 7], [7])
    next(batches)
    take(storage, 7, 7, 7)
    assert storage.fetched == [7]
    take(storage, 7)
    assert storage.fetched == [7, 7]


def test_no_more_is_held_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "AHEAD_BYTES", 1000)
    storage = Storage()
    batches = storage.batches(*([first, first + 1] for first in range(0, 64, 2)))
    used = 0
    for batch in batches:
        take(storage, *batch)
        used += len(batch)
        assert len(storage.fetched) <= used + 10
    assert sorted(storage.fetched) == list(range(64))


def test_an_image_that_nobody_announced_does_not_wait_for_those_that_are_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "AHEAD_BYTES", 200)
    storage = Storage()
    next(storage.batches(list(range(32))))
    storage.await_requests(2)
    take(storage, 50, 31)
    assert sorted(storage.fetched) == [0, 1, 31, 50], "there is room for two"
    take(storage, *range(31))


def test_an_error_reaches_the_one_who_takes_the_image_alone() -> None:
    storage = Storage()
    storage.broken = {1}
    next(storage.batches([0, 1, 2]))
    take(storage, 0, 2)
    with pytest.raises(OSError, match="image 1"):
        storage.stream.take(1)


def test_whoever_waits_for_a_storage_that_does_not_answer_is_freed() -> None:
    storage = Storage()
    storage.open.clear()
    next(storage.batches([0]))
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            storage.stream.take(0)
        except BaseException as error:
            ended.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    storage.await_requests(1)
    deadline = time.monotonic() + SECONDS
    while waiting.is_alive() and time.monotonic() < deadline:  # it may not wait yet
        storage.stream.forget()
        waiting.join(0.01)
    assert len(ended) == 1
    storage.open.set()
    take(storage, 0)


def test_a_new_call_forgets_what_the_one_before_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "AHEAD_BYTES", 400)
    storage = Storage()
    next(storage.batches([0, 1], [2, 3], [4, 5]))
    for _ in range(3):
        for batch in storage.batches(*([number] for number in range(8))):
            take(storage, *batch)


def test_a_split_fetches_its_own_images_and_the_other_part_forgets_none_of_them() -> None:
    storage = Storage()
    other = Selection(storage.stream.again(), np.array([1, 4], np.int64))
    chosen = Selection(storage.stream, np.array([7, 8, 40], np.int64))
    batches = chosen.ahead([[2], [0]], lambda batch: np.array(batch, np.int64))
    assert next(batches) == [2]
    storage.await_requests(2)
    other.forget()
    take(storage, 40, 7)
    assert sorted(storage.fetched) == [7, 40]
