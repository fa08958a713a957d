"""The documents as their readers use them: shell blocks, pasted one after another."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]


def shell_blocks(page: str, without: str = "") -> list[str]:
    """A page's blocks marked `sh`, in their order. without: one that the test has done already; it must be there."""
    found = re.findall(r"^```sh\n(.*?)^```", (ROOT / page).read_text(), re.S | re.M)
    assert not without or without in found, f"{page} begins in another way than its readers' test"
    return [block for block in found if block != without]


def follow(blocks: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> str:
    """Run the blocks one after another in one shell. Returns what they print; fails with it at the first error."""
    paths = f"{Path(sys.executable).parent}:{(environment or os.environ)['PATH']}"
    script = "set -euo pipefail\n" + "".join(blocks)
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={**os.environ, **(environment or {}), "PATH": paths},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
