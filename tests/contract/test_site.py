"""The documentation site: it builds from the tree as it is, and names what is broken."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("CHANGELOG.md", "README.md", "charts", "crds", "docs", "examples", "zensical.toml", "scripts/build_site.py")
FOLDERS = (".ci", ".github", "Dockerfile", "images", "operator", "tests", "trainer")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what the site is built from."""
    for part in [*PARTS, *(path.name for path in ROOT.glob("*.md"))]:
        source, target = ROOT / part, tmp_path / part
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        else:
            shutil.copyfile(source, target)
    for name in FOLDERS:  # pages link to source code
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def build(tree: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(tree / "scripts" / "build_site.py")]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_every_page_is_built_and_every_link_leads_somewhere(tree: Path) -> None:
    built = build(tree)
    assert built.returncode == 0, built.stdout + built.stderr
    pages = {path.relative_to(tree / "build/site").with_suffix(".md") for path in (tree / "build/site").rglob("*.html")}
    assert {path.relative_to(tree) for path in (tree / "docs").glob("*.md")} <= pages
    assert "rank table" in (tree / "build/site/search.json").read_text()


def test_what_is_broken_is_named(tree: Path) -> None:
    page = tree / "docs" / "thor.md"
    page.write_text(
        page.read_text() + "\n[a](#no-such-heading) [b](pca.md#neither) ![c](https://example.org/c.png) [d](gone.md)\n"
    )
    (tree / "docs" / "orphan.md").write_text("# Nobody finds this\n")
    built = build(tree)
    assert built.returncode != 0
    for problem in (
        "docs/orphan.md: not in the navigation of zensical.toml",
        "docs/thor.md: #no-such-heading: there is no such heading",
        "docs/thor.md: pca.md#neither: there is no such heading",
        "docs/thor.md: gone.md does not exist",
        "docs/thor.md: loads https://example.org/c.png",
    ):
        assert problem in built.stderr
