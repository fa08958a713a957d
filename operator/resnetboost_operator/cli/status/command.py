"""`resnetboost status`: decides whether the user means local runs or jobs in a cluster, and shows them."""

import os
import sys
from pathlib import Path

import click

from resnetboost_operator import readable
from resnetboost_operator.cli.status.request import Form, StatusRequest
from resnetboost_operator.errors import UserError
from resnetboost_operator.runs import place
from resnetboost_operator.runs.place import RUNS


@click.command()
@click.argument("target", metavar="[JOB|RUN]", required=False, default="")
@click.option("-w", "--watch", "follow", is_flag=True, help="Follow changes; with a JOB or RUN, until it ends.")
@click.option(
    "-n", "--namespace", metavar="NAME", default="", help="Namespace of the jobs.  [default: the context's namespace]"
)
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Jobs in all namespaces.")
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(["json", "yaml"]),
    help="Print the objects like kubectl; with -w, one after another.",
)
@click.option("--sweep", metavar="NAME", default="", help="The trials of a sweep, with value and parameters.")
@click.pass_context
def status(
    ctx: click.Context, target: str, follow: bool, namespace: str, everywhere: bool, form: Form | None, sweep: str
) -> None:
    """Show the status of a local RUN or of a JOB in the cluster; without a name, list all.

    A job that does not train has the reason under it. A Queued one waits for Kueue: in which queue, and for how long.

    RUN is the folder of a local run, written with a / (runs/digits), or the name of a folder in ./runs. -n, -A and
    -o apply to jobs in the cluster only.

    The cluster is the one in $KUBECONFIG (default: ~/.kube/config). The command needs the verb list on
    resnetboostjobs, and watch for -w; it does not poll.

    \b
    Exit codes:
      0   status shown; with a name and -w: complete
      1   with a name and -w: failed, stopped or deleted
      10  no cluster, no permission, or no such job or folder: the message says which
      130 Ctrl-C

    \b
    Examples:
      resnetboost status
      resnetboost status runs/digits -w
      resnetboost status digits -n team-a
      resnetboost status digits -n team-a -w && kubectl delete rbj digits -n team-a
      resnetboost status --sweep digits
      resnetboost status -A -o json | jq '.items[].status.phase'
    """
    ctx.exit(show(StatusRequest(target, namespace, everywhere, follow, form or "text", sweep)))


def show(request: StatusRequest) -> int:
    """Show what is requested and return the exit code. Raises `UserError`."""
    target = request.target
    if request.sweep:
        return _show_sweep(request)
    if os.sep in target or target in (".", ".."):
        if request.of_a_cluster:
            raise UserError(f"{target} is a folder, and -n, -A and -o are for jobs of a cluster; leave them out")
        return _show_run(request, Path(target))
    if request.of_a_cluster:
        return _show_cluster(request)
    return _show_by_name(request) if target else _show_all(request)


def _show_sweep(request: StatusRequest) -> int:
    """Show the trials of a sweep: those that its folder lists, or its jobs in the cluster."""
    if request.target or request.follow or request.everywhere or request.form == "yaml":
        raise UserError(f"--sweep {request.sweep} shows all trials once, as text or json; leave JOB, -w and -A out")
    from resnetboost_operator.cli.status import sweep_trials

    return sweep_trials.run(request, in_cluster=_has_cluster())


def _show_by_name(request: StatusRequest) -> int:
    """A bare name may be a local run, a job, or both; if the answer depends on it, the user must choose."""
    name = request.target
    here = Path(place.named(name))
    if not (here / place.JOB).is_file():
        return _show_cluster(request) if _has_cluster() else _show_cluster_or_fail(request, f"no run {RUNS / name}")
    if not _has_cluster():
        return _show_run(request, here)
    if request.follow or here != RUNS / name:
        folder, follow = here if here == RUNS / name else f"./{name}", " -w" if request.follow else ""
        either = f"write {folder}{follow} for the folder, {name} -n NAMESPACE{follow} for a job of the cluster"
        raise UserError(f"a run folder {here} is here: {either}")
    _show_run(request, here)
    _show_cluster_after_runs(request)
    return 0


def _show_all(request: StatusRequest) -> int:
    """Show local runs first: they need no network."""
    from resnetboost_operator.runs import runfolder

    runs, cluster = runfolder.below(RUNS), _has_cluster()
    if not runs and not cluster:
        return _show_cluster_or_fail(request, f"no run in the folder {RUNS}")
    if request.follow:
        if cluster:
            return _show_cluster(request)
        raise UserError(f"-w follows one run of this machine; name it: resnetboost status {runs[0].path} -w")
    if not runs:
        return _show_cluster(request)
    from resnetboost_operator.cli.status import local_runs

    local_runs.show(runs)
    return _show_cluster_after_runs(request) if cluster else 0


def _show_cluster_or_fail(request: StatusRequest, missing: str) -> int:
    """Show the cluster's jobs. Raises `UserError` with both reasons if there is neither a cluster nor a run."""
    try:
        return _show_cluster(request)
    except UserError as error:
        raise UserError(f"there is {missing} here, and {error}") from None


def _show_run(request: StatusRequest, path: Path) -> int:
    from resnetboost_operator.cli.status import local_run
    from resnetboost_operator.runs import runfolder

    return local_run.run(runfolder.open_existing(path), follow=request.follow)


def _has_cluster() -> bool:
    from resnetboost_operator.kubeclient import connection

    return connection.is_configured()


def _show_cluster_after_runs(request: StatusRequest) -> int:
    """Show the cluster's jobs after local runs; print its error, so that it does not look like the runs' error."""
    print(flush=True)
    try:
        return _show_cluster(request)
    except UserError as error:
        readable.make_plain(sys.stderr)
        print(f"resnetboost: {readable.printable(str(error))}", file=sys.stderr)
        return error.exit_code


def _show_cluster(request: StatusRequest) -> int:
    if request.everywhere and (request.namespace or request.target):
        what = f"the job {request.target} is in one; use -n" if request.target else "-n means one of them; use either"
        raise UserError(f"-A means all namespaces, {what}")
    from resnetboost_operator.cli.status import cluster_jobs as cluster_status

    return cluster_status.run(request)
