#!/usr/bin/env python3
"""Sets the version of everything that is released together, or checks that all places agree: `make version`.

`set_version.py 0.2.0` writes api/resnetboost_api/__init__.py, which the programs read, and the places that cannot read
it: project files, the chart, and documents that name an image. `set_version.py --check` compares them.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = "api/resnetboost_api/__init__.py"
NUMBER = r"[0-9]+\.[0-9]+\.[0-9]+(?:(?:a|b|rc)[0-9]+)?"
_IMAGE = rf"resnetboost/(?:operator|trainer-[a-z]+):({NUMBER})"
# By file: what surrounds its versions.
PLACES = {
    SOURCE: rf'^__version__ = "({NUMBER})"$',
    "api/pyproject.toml": rf'^version = "({NUMBER})"$',
    "operator/pyproject.toml": rf'^version = "({NUMBER})"$|"resnetboost-api==({NUMBER})"',
    "trainer/pyproject.toml": rf'^version = "({NUMBER})"$|"resnetboost-api==({NUMBER})"',
    "charts/resnetboost/Chart.yaml": rf"^(?:version|appVersion): ({NUMBER})$",
    "charts/resnetboost/README.md": _IMAGE,
    "docs/after.md": _IMAGE,
    "docs/images.md": _IMAGE,
    "docs/operator.md": _IMAGE,
    "docs/tracking.md": _IMAGE,
    "docs/tutorial-ascend.md": _IMAGE,
    "docs/tutorial-cluster.md": _IMAGE,
}


def main() -> None:
    """Write or compare."""
    if len(sys.argv) != 2 or not re.fullmatch(f"--check|{NUMBER}", sys.argv[1]):
        sys.exit("usage: set_version.py VERSION|--check, where VERSION is such as 0.2.0 or 0.2.0rc1")
    wanted = current() if sys.argv[1] == "--check" else sys.argv[1]
    changed = [name for name in PLACES if (ROOT / name).read_text() != rewritten(name, wanted)]
    if sys.argv[1] == "--check":
        problems = [f"{name} has not the version of {SOURCE}; run: make version VERSION={wanted}" for name in changed]
        sys.exit("\n".join(problems) or 0)
    for name in changed:
        (ROOT / name).write_text(rewritten(name, wanted))
    print(f"version {wanted}: {len(changed)} files changed")


def current() -> str:
    """The version that the programs report."""
    match = re.search(PLACES[SOURCE], (ROOT / SOURCE).read_text(), re.M)
    assert match is not None
    return match[1]


def rewritten(name: str, version: str) -> str:
    """The file with that version in each of its places. Fails where it has none."""
    text = (ROOT / name).read_text()
    spans = list(_spans(PLACES[name], text))
    if not spans:
        sys.exit(f"{name} has no version where set_version.py looks for it")
    for begin, end in reversed(spans):
        text = text[:begin] + version + text[end:]
    return text


def _spans(pattern: str, text: str) -> Iterator[tuple[int, int]]:
    for match in re.finditer(pattern, text, re.M):
        yield match.span(match.lastindex or 0)


if __name__ == "__main__":
    main()
