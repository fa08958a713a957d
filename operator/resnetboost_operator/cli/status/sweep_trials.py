"""`resnetboost status --sweep`: the trials of a sweep with value and parameters, from its folder or from a cluster."""

import asyncio
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from resnetboost_api import names
from resnetboost_api.status import Status
from resnetboost_operator import readable
from resnetboost_operator import status as statuses
from resnetboost_operator.cli import interruptible
from resnetboost_operator.cli.output import console, standard_output
from resnetboost_operator.cli.status.request import StatusRequest
from resnetboost_operator.cli.view import trial_table
from resnetboost_operator.cli.view.trial_table import LIST, SWEEPS, Listed, TrialRow, Tried
from resnetboost_operator.errors import UserError
from resnetboost_operator.kubeclient import reader
from resnetboost_operator.kubeclient.cache import Cache

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


class _Job(msgspec.Struct, frozen=True):
    """A trial's job: what it says about its trial, and its row."""

    tried: Tried
    row: TrialRow


def run(request: StatusRequest, *, in_cluster: bool) -> int:
    """Show the trials; return the exit code. Jobs of the cluster are asked for where there is one, or with -n.

    Raises `UserError` if there is no such sweep.
    """
    name, place = request.sweep, Path(request.sweep) if os.sep in request.sweep else SWEEPS / request.sweep
    found = None if request.namespace else trial_table.read_list(place / LIST)
    if os.sep not in name and (in_cluster or request.namespace):
        if not _NAME.fullmatch(name):
            raise UserError(f"--sweep: {name!r} can be no sweep's name; use a-z, 0-9 and '-'")
        listed = list[Listed]()
        try:
            code = asyncio.run(interruptible.until_interrupted(_read(request, listed)))
        except UserError as error:
            if found is None:
                raise
            print(f"resnetboost: {readable.printable(str(error))}", file=sys.stderr, flush=True)
            code = 0
        if code:
            return code
        found = next((one for one in listed if one.trials), found)  # jobs say more than the list of who made them
    if found is None:
        raise UserError(f"--sweep: {_missing(name, place, in_cluster=in_cluster)}")
    _show(request, found)
    return 0


def _missing(name: str, place: Path, *, in_cluster: bool) -> str:
    """Where no such sweep was found, and what to do."""
    where = "change to the folder that you ran `resnetboost sweep` in"
    sweep = f"there is no sweep {place.name} in {place.parent}"
    if os.sep in name:
        return f"{sweep}; correct the path, or {where}"
    if in_cluster:
        return f"{sweep}, nor jobs of it in the cluster; {where}, or name another namespace with -n"
    return f"{sweep}, and there is no kubeconfig; {where}, or set KUBECONFIG"


async def _read(request: StatusRequest, found: list[Listed]) -> int:
    """List the sweep's jobs; add them to `found`."""
    async with reader.connected() as cluster:
        jobs: Cache[_Job] = Cache(_job, lambda before, after: None)
        namespace = request.namespace or cluster.namespace
        await cluster.fill(cluster.jobs(jobs, namespace, labels=f"{names.LABEL_SWEEP}={request.sweep}"))
        rows = tuple(job.row for job in jobs)
        for job in list(jobs)[:1]:
            ordered = trial_table.in_order(rows, job.tried.metric)
            best = ordered[0].number if ordered[0].state == "Complete" else None
            found.append(Listed(request.sweep, job.tried.metric, rows, best))
    return 0


def _job(manifest: Mapping[str, Any]) -> _Job | None:
    try:
        status = statuses.from_dict(manifest.get("status"))
    except msgspec.ValidationError:
        status = Status()
    tried, row = trial_table.tried(manifest), trial_table.of_job(manifest, status)
    return _Job(tried, row) if tried is not None and row is not None else None


def _show(request: StatusRequest, found: Listed) -> None:
    if request.form == "json":
        ordered = tuple(trial_table.in_order(found.trials, found.metric))
        text = msgspec.json.encode(msgspec.structs.replace(found, trials=ordered))
        print(msgspec.json.format(text).decode(), flush=True)
        return
    screen = console(standard_output())
    screen.print(trial_table.table(found.trials, found.metric, found.best))
