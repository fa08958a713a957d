"""`resnetboost status`: whether a job of a cluster is meant or a run folder, and what tells of it."""

import os
import time
from pathlib import Path
from typing import Literal

import click
import msgspec

from resnetboost_operator.errors import UserError

Form = Literal["text", "json", "yaml"]


class Wanted(msgspec.Struct, frozen=True):
    """What the user asks for: `target` is a job, a folder or '', `namespace` '' that of the kubeconfig's context."""

    target: str
    namespace: str
    everywhere: bool
    follow: bool
    form: Form


def run(wanted: Wanted) -> int:
    """Tell; the exit code. Raises `UserError`."""
    if _is_folder(wanted):
        return _tell_of_folder(Path(wanted.target))
    if wanted.everywhere and (wanted.namespace or wanted.target):
        what = f"the job {wanted.target} is in one; use -n" if wanted.target else "-n means one of them; use either"
        raise UserError(f"-A means all namespaces, {what}")
    from resnetboost_operator.terminal import clusterstatus

    return clusterstatus.run(wanted)


def _is_folder(wanted: Wanted) -> bool:
    """A / makes a folder, an option a job; refuses a bare name that may be either."""
    target = wanted.target
    for_jobs = bool(wanted.namespace or wanted.everywhere or wanted.follow or wanted.form != "text")
    if os.sep in target or target in (".", ".."):
        if for_jobs:
            raise UserError(f"{target} is a folder, and -n, -A, -w and -o are for jobs of a cluster; leave them out")
        return True
    if target and not for_jobs and (Path(target) / "job.yaml").is_file():
        either = f"write ./{target} for the folder, {target} -n NAMESPACE for a job of the cluster"
        raise UserError(f"a run folder {target} is here: {either}")
    return False


def _tell_of_folder(path: Path) -> int:
    from resnetboost_operator.runs import runfolder
    from resnetboost_operator.terminal import summary

    for line in summary.description(runfolder.open_existing(path), time.time()):
        click.echo(line)
    return 0
