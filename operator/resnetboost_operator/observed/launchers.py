"""Launchers' reports laid over the pods: a rank that ended counts as a pod that ended, though its container runs.

A report is a claim of the job's own pods, bounded where it is read. It says nothing about containers that ended, whose
kubelets know better, nor about another attempt than the current one.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from resnetboost_api.launcher import GangReport, RankEnd
from resnetboost_api.status import Status
from resnetboost_operator import status as statuses
from resnetboost_operator.observed import pods
from resnetboost_operator.observed.pods import PodView, Termination


def laid_over(views: Sequence[PodView], status: Status, report: GangReport | None, now: float) -> tuple[PodView, ...]:
    """The pods; those of the gang whose rank failed, by the report, with how it ended.

    A rank that succeeded ends its container within moments, and only kubelet's word for a success counts.
    """
    if report is None or report.attempt != status.attempt:
        return tuple(views)
    ends: dict[int, RankEnd] = {}
    others = (RankEnd(index, report.attempt, exit_code, time=now) for index, exit_code in report.others_ended)
    for end in (*report.ended, *others):
        if end.attempt == status.attempt and end.exit_code != 0:
            ends.setdefault(end.index, end)
    return tuple(_with_end(view, ends, status, now) for view in views)


def _with_end(view: PodView, ends: dict[int, RankEnd], status: Status, now: float) -> PodView:
    end = ends.get(view.index)
    is_current = (view.stage, view.attempt) == (status.stage, statuses.pods_attempt(status))
    if end is None or not is_current or view.phase != "Running" or view.termination is not None:
        return view
    finished_at = min(max(end.time, 0.0), now)  # by the clock of its node
    report = pods.read_report(end.message)
    return replace(view, termination=Termination(end.exit_code, "Error", finished_at, report, by_launcher=True))
