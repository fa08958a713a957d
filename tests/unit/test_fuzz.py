"""A small part of `make fuzz`: every reader of foreign input keeps its promises on some hundred mutated inputs."""

from pathlib import Path

import pytest

from fuzz import run, targets
from fuzz.mutation import Mutator
from fuzz.targets import TARGETS, Target

CASES = 150
# The rules of a job are evaluated one by one, which takes its time.
FEW = {"rules": 5}
# Whatever kubelet hands on is a message.
NEVER_REFUSED = ("termination",)


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_keeps_its_promises(name: str) -> None:
    cases = FEW.get(name, CASES)
    result = run.fuzz(name, cases, seed=20)
    assert {place: story for place, (_, story) in result.broken.items()} == {}
    assert result.cases == cases + len(run.kept(name)) + len(TARGETS[name].corpus())
    assert result.accepted > 0, "its corpus has nothing valid"
    assert result.refused > 0 or name in NEVER_REFUSED, "mutations change nothing"


def test_two_mutators_of_one_seed_make_the_same_inputs() -> None:
    corpus = TARGETS["progress"].corpus()
    one, same, other = Mutator(1, corpus), Mutator(1, corpus), Mutator(2, corpus)
    made = [one.next() for _ in range(50)]
    assert made == [same.next() for _ in range(50)]
    assert made != [other.next() for _ in range(50)]


class TooMuch(Exception):
    """The documented error of the targets below."""


def slow(data: bytes, folder: Path) -> list[str]:
    while True:
        pass


def greedy(data: bytes, folder: Path) -> list[str]:
    return [] if bytearray(run.MOST_BYTES * 2) else ["x"]


def wrong(data: bytes, folder: Path) -> list[str]:
    return [{"": ""}[data.decode()]]


def rude(data: bytes, folder: Path) -> list[str]:
    raise TooMuch("two\nlines")


@pytest.mark.parametrize(
    ("read", "kind"), [(slow, "Slow"), (greedy, "MemoryError"), (wrong, "KeyError"), (rude, "AssertionError")]
)
def test_a_broken_promise_is_found(monkeypatch: pytest.MonkeyPatch, read: object, kind: str) -> None:
    monkeypatch.setattr(run, "MOST_SECONDS", 0.2)
    broken = Target(lambda: [b"a"], read, (TooMuch,))  # type: ignore[arg-type]
    monkeypatch.setattr(run, "TARGETS", {**targets.TARGETS, "broken": broken})
    result = run.fuzz("broken", 0, seed=0)
    assert [place.partition(" ")[0] for place in result.broken] == [kind]
