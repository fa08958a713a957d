"""Run folders with the metrics of several attempts, for tests of reports and summaries."""

from resnetboost_operator.cli.view.summary import Commands
from resnetboost_operator.runs import metricsfile
from resnetboost_operator.runs.runfolder import RunFolder

COMMANDS = Commands("command", "corrected command")


def attempt(folder: RunFolder, stage: str, number: int, text: str) -> None:
    """Write an attempt's metrics.csv as its rank 0 does."""
    place = folder.checkpoints / folder.read_job()["metadata"]["uid"] / stage / f"attempt-{number}"
    place.mkdir(parents=True)
    (place / "metrics.csv").write_text(text)


def measured(folder: RunFolder) -> metricsfile.Measured:
    """Measurements of all attempts together."""
    metricsfile.merge(folder)
    return metricsfile.read(folder.metrics_file)


def height(folder: RunFolder) -> int:
    """Height of the picture in pixels."""
    return int.from_bytes(folder.report_png.read_bytes()[20:24])
