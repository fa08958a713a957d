"""`resnetboost report`: redraws the report of a run folder, or draws that of a job in object storage."""

import tempfile
from pathlib import Path

import click

from resnetboost_operator.cli.trainer import options, process
from resnetboost_operator.errors import UserError
from resnetboost_operator.runs import remoterun, runfolder
from resnetboost_operator.runs import report as reports
from resnetboost_operator.runs.runfolder import RunFolder


@click.command()
@click.argument("source", metavar="RUN|ADDRESS", callback=options.named)
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="For an ADDRESS: folder to write to. [default: reports/<job name>]",
)
@click.pass_context
def report(ctx: click.Context, /, source: str, out: Path | None) -> None:
    """Redraw report.html and report.png of a RUN: a run folder, or the name of one in ./runs.

    A run writes its report at its end. This command works at any time, also during the run.
    Of a job's checkpoints in object storage, which ADDRESS names, the report has what was copied by the
    last of them: curves, stages and settings, but no failed attempts.

    \b
    Examples:
      resnetboost report digits
      resnetboost report s3://bucket/checkpoints/UID
    """
    if "://" in source:
        click.echo(_fetched(ctx, source, out).report_html)
        return
    if out is not None:
        raise UserError("--out: the report of a run folder is written into it; leave it out")
    found = runfolder.open_existing(Path(source))
    reports.write_report(found)
    click.echo(found.report_html)


def _fetched(ctx: click.Context, source: str, out: Path | None) -> RunFolder:
    """Draw the report of a job in object storage into a folder of reports, in place of an earlier one."""
    with tempfile.TemporaryDirectory(prefix="resnetboost-report-") as temporary:
        if code := process.run("fetch-metrics", [source, temporary]):
            ctx.exit(code)
        saved = remoterun.read(Path(temporary) / "stages.json")
        folder = RunFolder(out or Path("reports") / remoterun.folder_name(saved))
        folder.path.mkdir(parents=True, exist_ok=True)
        others = [path.name for path in folder.path.iterdir() if path.name not in ("report.html", "report.png")]
        if others:
            raise UserError(f"--out: {folder.path} holds {sorted(others)[0]}; name another folder")
        work = RunFolder(Path(temporary))
        remoterun.complete(work, saved)
        reports.write_report(work)
        for path in (work.report_html, work.report_png):
            if path.exists():
                runfolder.write(folder.path / path.name, path.read_bytes())
    return folder
