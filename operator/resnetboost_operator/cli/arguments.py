"""Arguments and options that several commands take."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

FILE = click.argument("file", type=click.Path(path_type=Path))
SET: Callable[[Any], Any] = click.option(
    "--set",
    "assignments",
    metavar="PATH=VALUE",
    multiple=True,
    help="Set a field of the job, for example stages[0].epochs=3. Repeatable. The prefix 'spec.' is optional; the "
    "value is YAML.",
)
