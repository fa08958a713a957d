"""`resnetboost status`: whether jobs of a cluster are meant or runs of this machine, and what tells of them."""

import os
import sys
from pathlib import Path
from typing import Literal

import msgspec

from resnetboost_operator import readable
from resnetboost_operator.errors import UserError

Form = Literal["text", "json", "yaml"]
RUNS = Path("runs")  # where `resnetboost run` puts them


class Wanted(msgspec.Struct, frozen=True):
    """What the user asks for: `target` is a job, a run or '', `namespace` '' that of the kubeconfig's context."""

    target: str
    namespace: str
    everywhere: bool
    follow: bool
    form: Form

    @property
    def of_a_cluster(self) -> bool:
        """Whether an option says that only a cluster is meant."""
        return bool(self.namespace or self.everywhere or self.form != "text")


def run(wanted: Wanted) -> int:
    """Tell; the exit code. Raises `UserError`."""
    target = wanted.target
    if os.sep in target or target in (".", ".."):
        if wanted.of_a_cluster:
            raise UserError(f"{target} is a folder, and -n, -A and -o are for jobs of a cluster; leave them out")
        return _tell_of_run(wanted, Path(target))
    if wanted.of_a_cluster:
        return _tell_of_cluster(wanted)
    return _tell_by_name(wanted) if target else _tell_of_all(wanted)


def _tell_by_name(wanted: Wanted) -> int:
    """A bare name is a run's here, a job's, or both; what would end with one of the two must say which."""
    name = wanted.target
    here = next((found for found in (Path(name), RUNS / name) if (found / "job.yaml").is_file()), None)
    if here is None:
        return _tell_of_cluster(wanted) if _has_cluster() else _say_neither(wanted, f"no run {RUNS / name}")
    if not _has_cluster():
        return _tell_of_run(wanted, here)
    if wanted.follow or here != RUNS / name:
        folder, follow = here if here == RUNS / name else f"./{name}", " -w" if wanted.follow else ""
        either = f"write {folder}{follow} for the folder, {name} -n NAMESPACE{follow} for a job of the cluster"
        raise UserError(f"a run folder {here} is here: {either}")
    _tell_of_run(wanted, here)
    _tell_of_cluster_too(wanted)
    return 0


def _tell_of_all(wanted: Wanted) -> int:
    """Runs of this folder first: they need no network."""
    from resnetboost_operator.runs import runfolder

    runs, cluster = runfolder.below(RUNS), _has_cluster()
    if not runs and not cluster:
        return _say_neither(wanted, f"no run in the folder {RUNS}")
    if wanted.follow:
        if cluster:
            return _tell_of_cluster(wanted)
        raise UserError(f"-w follows one run of this machine; name it: resnetboost status {runs[0].path} -w")
    if not runs:
        return _tell_of_cluster(wanted)
    from resnetboost_operator.cli.status import local_runs

    local_runs.show(runs)
    return _tell_of_cluster_too(wanted) if cluster else 0


def _say_neither(wanted: Wanted, missing: str) -> int:
    """Raises `UserError`: without a kubeconfig and without a run there is nothing to tell of."""
    try:
        return _tell_of_cluster(wanted)
    except UserError as error:
        raise UserError(f"there is {missing} here, and {error}") from None


def _tell_of_run(wanted: Wanted, path: Path) -> int:
    from resnetboost_operator.cli.status import local_run
    from resnetboost_operator.runs import runfolder

    return local_run.run(runfolder.open_existing(path), follow=wanted.follow)


def _has_cluster() -> bool:
    from resnetboost_operator.kubeclient import connection

    return connection.is_configured()


def _tell_of_cluster_too(wanted: Wanted) -> int:
    """After the runs of this machine; that there is no answer must not look as if those were wrong."""
    print(flush=True)
    try:
        return _tell_of_cluster(wanted)
    except UserError as error:
        readable.make_plain(sys.stderr)
        print(f"resnetboost: {readable.printable(str(error))}", file=sys.stderr)
        return error.exit_code


def _tell_of_cluster(wanted: Wanted) -> int:
    if wanted.everywhere and (wanted.namespace or wanted.target):
        what = f"the job {wanted.target} is in one; use -n" if wanted.target else "-n means one of them; use either"
        raise UserError(f"-A means all namespaces, {what}")
    from resnetboost_operator.cli.status import cluster as cluster_status

    return cluster_status.run(wanted)
