"""`resnetboost report`: redraws the report of a run folder."""

from pathlib import Path

import click

from resnetboost_operator.runs import report as reports
from resnetboost_operator.runs import runfolder


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
def report(folder: Path) -> None:
    """Redraw report.html and report.png of the run folder DIR.

    A run writes its report at its end. This command works at any time, also during the run.

    \b
    Example:
      resnetboost report runs/digits
    """
    found = runfolder.open_existing(folder)
    reports.write_report(found)
    click.echo(found.report_html)
