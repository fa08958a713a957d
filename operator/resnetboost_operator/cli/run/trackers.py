"""Sends the report and the outcome of a run on this machine to the job's trackers."""

import os
import subprocess
import sys

from resnetboost_api.status import Status
from resnetboost_operator import status as statuses
from resnetboost_operator import yamltext
from resnetboost_operator.cli.trainer import process
from resnetboost_operator.job import Job
from resnetboost_operator.manifests.trainer_config import trainer_config
from resnetboost_operator.runs.runfolder import RunFolder, write

# The trainer's command ends by itself after seconds, once it is imported.
_LIMIT_SECONDS = 60


def send(job: Job, folder: RunFolder, status: Status) -> None:
    """Send them, if the job has trackers: ranks end before the report is drawn, and may have been killed."""
    if job.spec.tracking is None:
        return
    attempt, outcome, message = _outcome(status)
    stage = next(stage for stage in job.spec.stages if stage.name == status.stage)
    config = folder.path / "pods" / "trackers.yaml"
    write(config, yamltext.dump(trainer_config(job, stage, attempt)))
    files = [str(path) for path in (folder.report_html,) if path.exists()]
    options = ["--checkpoints", str(folder.checkpoints), "--outcome", outcome, "--message", message]
    variables = {variable.name: variable.value for variable in job.spec.template.env}
    line = [sys.executable, "-m", process.TRAINER, "track", *options, "--", str(config), *files]
    try:
        environment = {**os.environ, **variables, **process.unicode_variables()}
        subprocess.run(line, env=environment, check=False, timeout=_LIMIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"resnetboost: the trackers did not get the report: {error}", file=sys.stderr)


def _outcome(status: Status) -> tuple[int, str, str]:
    """The last attempt, how it ended in a word, and a sentence about that."""
    last = status.attempts[-1] if status.attempts else None
    if last is None or statuses.is_true(status, "Complete"):
        return status.attempt, "Succeeded" if statuses.is_true(status, "Complete") else "Interrupted", ""
    return last.attempt, last.reason, last.message
