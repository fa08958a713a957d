"""The Dockerfiles and their lock files, checked without building."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "images" / "locks"
DOCKERFILES = [ROOT / "Dockerfile", *sorted(ROOT.glob("images/*/Dockerfile"))]


def pinned(lock: Path) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==(\S+)", lock.read_text(), re.MULTILINE))


@pytest.mark.parametrize("name", ["build", "operator", "trainer"])
def test_an_image_has_the_versions_that_are_tested(name: str) -> None:
    assert pinned(LOCKS / f"{name}.lock").items() <= pinned(ROOT / "requirements.lock").items()


def test_the_operators_image_has_no_mindspore() -> None:
    assert "mindspore" not in pinned(LOCKS / "operator.lock")


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.parent.name)
def test_every_image_has_a_chosen_base_and_no_root_user(path: Path) -> None:
    text = path.read_text()
    assert re.search(r"^ARG BASE_IMAGE", text, re.MULTILINE)
    assert re.findall(r"^FROM (?!\$\{BASE_IMAGE\}|dependencies)", text, re.MULTILINE) == []
    assert re.findall(r"^USER (\S+)", text, re.MULTILINE) == ["1000:1000"]
    assert "HEALTHCHECK" not in text
