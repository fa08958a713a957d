"""Object cache: same final content in whatever order watch events, lists and answers to writes arrive."""

from typing import Any

import hypothesis
import pytest
from hypothesis import strategies

from resnetboost_operator.kubeclient.cache import Cache


def thing(uid: str, version: int, word: str = "") -> dict[str, Any]:
    return {"metadata": {"uid": uid, "resourceVersion": str(version)}, "word": word or f"{uid}@{version}"}


class Told:
    """A cache of words, and the changes it reported."""

    def __init__(self) -> None:
        self.changes: list[tuple[str | None, str | None]] = []
        self.cache: Cache[str] = Cache(
            lambda obj: None if obj["word"] == "foreign" else str(obj["word"]),
            lambda before, after: self.changes.append((before, after)),
        )

    @property
    def words(self) -> list[str]:
        return sorted(self.cache)


@pytest.fixture
def told() -> Told:
    """A cache after a list of one object, a@5, at resource version 10."""
    told = Told()
    told.cache.begin_list()
    told.cache.add_listed(thing("a", 5))
    told.cache.end_list(10)
    told.changes.clear()
    return told


def test_a_list_fills_it() -> None:
    told = Told()
    assert not told.cache.synced
    told.cache.begin_list()
    told.cache.add_listed(thing("a", 5))
    assert not told.cache.synced
    told.cache.end_list(10)
    assert told.cache.synced
    assert told.changes == [(None, "a@5")]


def test_an_older_event_changes_nothing(told: Told) -> None:
    told.cache.apply_event("MODIFIED", thing("a", 12))
    told.cache.apply_event("MODIFIED", thing("a", 11))
    assert told.words == ["a@12"]
    assert told.changes == [("a@5", "a@12")]


def test_an_event_without_a_change_is_not_reported(told: Told) -> None:
    told.cache.apply_event("MODIFIED", thing("a", 12, "a@5"))
    assert told.changes == []
    told.cache.apply_event("MODIFIED", thing("a", 11, "older"))
    assert told.words == ["a@5"], "its version counts all the same"


def test_a_deleted_object_is_removed(told: Told) -> None:
    told.cache.apply_event("DELETED", thing("a", 12))
    assert (told.words, told.changes) == ([], [("a@5", "a@12"), ("a@12", None)]), "its last words are heard"


def test_an_answer_to_a_write_enters_before_its_event(told: Told) -> None:
    assert told.cache.apply_response(thing("b", 12)) == "b@12"
    told.cache.apply_event("ADDED", thing("b", 12))
    assert told.words == ["a@5", "b@12"]
    assert told.changes == [], "who wrote knows already"


def test_an_answer_after_the_deletion_adds_nothing(told: Told) -> None:
    told.cache.apply_event("ADDED", thing("b", 12))
    told.cache.apply_event("DELETED", thing("b", 14))
    assert told.cache.apply_response(thing("b", 12)) is None
    assert told.words == ["a@5"]


def test_an_answer_older_than_a_bookmark_adds_nothing(told: Told) -> None:
    told.cache.advance(20)
    assert told.cache.apply_response(thing("b", 12)) is None
    assert told.words == ["a@5"]


def test_an_answer_about_a_known_object_counts(told: Told) -> None:
    told.cache.advance(20)
    assert told.cache.apply_response(thing("a", 12)) == "a@12"
    assert told.words == ["a@12"]


def test_a_new_list_forgets_what_is_no_longer_there(told: Told) -> None:
    told.cache.begin_list()
    told.cache.add_listed(thing("b", 15))
    told.cache.end_list(20)
    assert told.words == ["b@15"]


def test_a_list_does_not_forget_what_was_written_after_it_was_made(told: Told) -> None:
    told.cache.begin_list()
    told.cache.apply_response(thing("new", 25))
    told.cache.end_list(20)
    assert told.words == ["new@25"]


def test_an_object_that_no_longer_matches_is_removed(told: Told) -> None:
    told.cache.apply_event("MODIFIED", thing("a", 12, "foreign"))
    assert (told.words, told.changes) == ([], [("a@5", None)])


@hypothesis.given(strategies.data())
def test_any_order_of_events_ends_in_the_current_state(data: strategies.DataObject) -> None:
    """Answers to our creations arrive at any time after them, before or after any event of the watch."""
    names = strategies.lists(strategies.sampled_from("abc"), max_size=12)
    told, there = Told(), dict[str, str]()
    events, answers = list[tuple[str, dict[str, Any]]](), list[tuple[int, dict[str, Any]]]()
    for version, name in enumerate(data.draw(names), start=1):
        if name in there:
            events.append(("DELETED", thing(there.pop(name), version)))
        else:
            there[name] = f"{name}-{version}"  # a re-created object has a new uid
            events.append(("ADDED", thing(there[name], version)))
            answers.append((len(events) - 1, thing(there[name], version)))
    late = {index: data.draw(strategies.integers(0, 3)) for index, _ in answers}
    for position in range(len(events) + 4):
        for index, obj in answers:
            if position == max(0, index + late[index] - 1):
                told.cache.apply_response(obj)
        if position < len(events):
            told.cache.apply_event(*events[position])
    assert {uid for uid in ("", *there.values()) if told.cache.get(uid)} == set(there.values())
    assert len(told.cache) == len(there)
