#!/usr/bin/env python3
"""Draws docs/terminal.svg from real runs: `make terminal-picture`. Needs tmux, whose screen the picture shows.

It trains examples/digits.yaml, of which a rank is killed on the way, and the same with THOR, and compares both.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "terminal.svg"
SESSION = f"resnetboost-{os.getpid()}"
COLUMNS, LINES = 116, 200
_SECONDS = 240.0
_PROMPT = "$ "
_SETTINGS = "settings that differ"
_LOADED_FONT = re.compile(r"@font-face \{.*?\}\s*", re.S)  # the document's reader fetches nothing from elsewhere


def main() -> None:
    """Run the commands and write the picture."""
    if shutil.which("tmux") is None:
        sys.exit("make terminal-picture: there is no tmux here; install it")
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "examples", Path(folder, "examples"))
        try:
            PICTURE.write_text(draw(film(Path(folder))))
        finally:
            subprocess.run(["tmux", "kill-session", "-t", SESSION], stderr=subprocess.DEVNULL, check=False)
    print(f"written: {PICTURE.relative_to(ROOT)}")


def film(folder: Path) -> str:
    """The screen, with ANSI codes of its colours, after the commands have run in it."""
    settings = [f"PS1={_PROMPT}", f"PATH={Path(sys.executable).parent}:{os.environ['PATH']}"]
    shell = ["env", *settings, "bash", "--norc", "--noprofile"]
    size = [f"-x{COLUMNS}", f"-y{LINES}"]
    command = ["tmux", "new-session", "-d", f"-s{SESSION}", f"-c{folder}", *size, *shell]
    subprocess.run(command, check=True)
    until(lambda: prompts() == 1, "the shell")
    type_in("resnetboost run examples/digits.yaml")
    until(lambda: any(folder.glob("runs/digits/checkpoints/*/*/*/step-*")), "a checkpoint")
    pattern = f"resnetboost_trainer {(folder / 'runs/digits').resolve()}/"
    subprocess.run(["pkill", "-9", "-n", "-f", pattern], check=True)
    until(lambda: prompts() == 2, "the end of the first run")
    type_in("resnetboost run examples/digits-thor.yaml")
    until(lambda: prompts() == 3, "the end of the second run")
    type_in("resnetboost compare runs/digits runs/digits-thor")
    until(lambda: prompts() == 4, "the comparison")
    return screen("-e")


def type_in(command: str) -> None:
    """Type a command and Return."""
    subprocess.run(["tmux", "send-keys", f"-t{SESSION}", command, "Enter"], check=True)


def prompts() -> int:
    """How many prompts of the shell the screen shows, with what was typed there or without."""
    return sum(line == _PROMPT.rstrip() or line.startswith(_PROMPT) for line in screen().splitlines())


def until(holds: Callable[[], object], what: str) -> None:
    """Wait for a condition; ends the program where it does not come."""
    deadline = time.monotonic() + _SECONDS
    while not holds():
        if time.monotonic() > deadline:
            sys.exit(f"make terminal-picture: {what} did not come within {_SECONDS:g} s; the screen:\n{screen()}")
        time.sleep(0.2)


def screen(*options: str) -> str:
    """What the terminal shows."""
    command = ["tmux", "capture-pane", "-p", *options, f"-t{SESSION}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def draw(lines: str) -> str:
    """An SVG of the screen up to the comparison's settings, which are many."""
    shown = lines.split(_SETTINGS, maxsplit=1)[0].rstrip()
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True, color_system="truecolor")
        console.print(Text.from_ansi(shown))
        return _LOADED_FONT.sub("", console.export_svg(title="resnetboost", theme=DIMMED_MONOKAI))


if __name__ == "__main__":
    main()
