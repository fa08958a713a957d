"""tests/long.txt: which tests `make test` leaves to `make test-long`."""

import pytest

from support import tiers


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ("tests/a.py::test_one", ["tests/a.py::test_one", "tests/a.py::test_one[x]"]),
        ("tests/a.py::test_one[x]", ["tests/a.py::test_one[x]"]),
        ("tests/a.py", ["tests/a.py::test_one", "tests/a.py::test_one[x]", "tests/a.py::test_one_more"]),
    ],
)
def test_an_entry_names_a_test_its_parametrisation_or_its_file(entry: str, named: list[str]) -> None:
    nodeids = ["tests/a.py::test_one", "tests/a.py::test_one[x]", "tests/a.py::test_one_more", "tests/ab.py::test_one"]
    assert [nodeid for nodeid in nodeids if tiers.matches(entry, nodeid)] == named


def test_comments_and_empty_lines_are_no_entries() -> None:
    assert tiers.entries("# of networks\n\ntests/a.py::test_one\n") == ("tests/a.py::test_one",)


def test_an_entry_that_a_rename_left_behind_is_found() -> None:
    listed = ("tests/a.py::test_one", "tests/a.py::test_old", "tests/not_collected.py::test_one")
    assert tiers.unmatched(listed, ["tests/a.py::test_one[x]"]) == ["tests/a.py::test_old"]
