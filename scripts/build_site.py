#!/usr/bin/env python3
"""Builds the documentation site into build/site and checks it: `make docs`.

The pages keep their places in the repository, so that the same relative links work there and on the site. Files that
they link to come along; links to folders and to source code become plain text. The build fails on a page that the
navigation in zensical.toml lacks, a link or an anchor that leads nowhere, and an address outside the site that the
page would load.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "zensical.toml"
PAGES = ROOT / "build" / "pages"
SITE = ROOT / "build" / "site"
SHOWN = {".gif", ".ipynb", ".json", ".md", ".png", ".svg", ".yaml"}
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\]\([^)]*\))*)\]\((?P<target>[^)\s]+)\)")
_LOADED = {"img": "src", "script": "src", "link": "href"}  # what a browser fetches with a page
_FENCE = re.compile(r"^(```.*?^```[^\n]*$)", re.S | re.M)


def main() -> None:
    """Build the site; exit with the list of what is wrong."""
    pages = list(_navigation())
    problems = [f"{page}: not in the navigation of {CONFIG.name}" for page in sorted(_written() - set(pages))]
    assemble(pages)
    _build()
    problems += check(SITE)
    if problems:
        sys.exit("\n".join([*problems, f"make docs: {len(problems)} problem{'s'[: len(problems) > 1]}"]))
    place = SITE.relative_to(ROOT)
    print(f"written: {place}, {len(pages)} pages; to read and search them: python3 -m http.server --directory {place}")


def _build() -> None:
    """Run Zensical. Its strict mode stops at the first page with a broken link; `check` lists all of them."""
    command = [str(Path(sys.executable).parent / "zensical"), "build", "--clean"]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if built.returncode:
        sys.exit(built.stdout + built.stderr)


def _written() -> set[str]:
    """All pages of the repository that readers are meant to find."""
    places = [ROOT.glob("*.md"), (ROOT / "docs").rglob("*.md"), (ROOT / "charts").rglob("*.md")]
    return {str(path.relative_to(ROOT)) for paths in places for path in paths}


def _navigation() -> Iterator[str]:
    yield from _leaves(tomllib.loads(CONFIG.read_text())["project"]["nav"])


def _leaves(entry: object) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, dict):
        yield from _leaves(list(entry.values()))
    elif isinstance(entry, list):
        for part in entry:
            yield from _leaves(part)


def assemble(pages: Iterable[str]) -> None:
    """Copy the pages, and what they link to, into build/pages."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shown = set(pages)
    for extra in tomllib.loads(CONFIG.read_text())["project"]["extra_css"]:
        _bring(extra)
    for page in pages:
        target = PAGES / page
        target.parent.mkdir(parents=True, exist_ok=True)
        parts = _FENCE.split((ROOT / page).read_text())  # every second part is a block of code
        target.write_text("".join(part if k % 2 else _linked(part, page, shown) for k, part in enumerate(parts)))


def _bring(name: str) -> None:
    """Copy a file that pages use."""
    (PAGES / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ROOT / name, PAGES / name)


def _linked(text: str, page: str, shown: set[str]) -> str:
    """The text with links to files that the site has; the files come along."""

    def link(match: re.Match[str]) -> str:
        target = match["target"]
        if target.startswith("#") or urlsplit(target).scheme:
            return match[0]
        name = os.path.normpath(Path(page).parent / urldefrag(target).url)
        found = ROOT / name
        if found.suffix not in SHOWN or (found.suffix == ".md" and name not in shown):
            return match["text"] if found.exists() else match[0]
        if found.suffix != ".md" and found.exists():
            _bring(name)
        return f"{match['image']}[{_linked(match['text'], page, shown)}]({target})"

    return _LINK.sub(link, text)


class _Page(HTMLParser):
    """The anchors of a page, the addresses that it links to, and those that it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if (loaded := values.get(_LOADED.get(tag, ""))) and values.get("rel") != "canonical":
            self.loads.append(loaded)


def check(site: Path) -> list[str]:
    """List links and anchors that lead nowhere, and what pages load from elsewhere."""
    pages = {path: _Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    return [
        f"{_source(str(path.relative_to(site)))}: {problem}"
        for path, page in pages.items()
        if path.name != "404.html"  # its links start at the root of a server
        for problem in _problems(path, page, pages)
    ]


def _source(address: str) -> str:
    """The page of the repository that an address of the site was made from."""
    return address.replace("index.html", "README.md").replace(".html", ".md")


def _problems(path: Path, page: _Page, pages: dict[Path, _Page]) -> Iterator[str]:
    for target in page.loads:
        if urlsplit(target).netloc:
            yield f"loads {target}: the site must work without a network"
    for target in dict.fromkeys([*page.links, *page.loads]):
        parts = urlsplit(target)
        if parts.scheme or parts.netloc:
            continue
        found = path.parent.joinpath(unquote(parts.path)).resolve() if parts.path else path
        if found.is_dir():
            found /= "index.html"
        if not found.exists():
            yield f"{_source(target)} does not exist"
        elif parts.fragment and found in pages and unquote(parts.fragment) not in pages[found].anchors:
            yield f"{_source(target)}: there is no such heading"


if __name__ == "__main__":
    main()
