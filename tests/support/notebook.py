"""Executes the code of a notebook in this process, as Jupyter's kernel does: cell by cell, within a running event loop.

usage: python -m support.notebook FILE
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any


def code(path: Path) -> list[str]:
    """The code of each code cell."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


async def execute(path: Path) -> None:
    """Execute all cells in one namespace; the first exception ends it."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for number, source in enumerate(code(path)):
        exec(compile(source, f"{path.name}, code cell {number}", "exec"), namespace)


if __name__ == "__main__":
    asyncio.run(execute(Path(sys.argv[1])))
