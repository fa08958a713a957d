"""Collection deletes: group the deletions of single pods into as few requests as possible."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from resnetboost_api import names
from resnetboost_operator.observed.pods import PodView
from resnetboost_operator.planning.actions import Deletion

# Kubernetes can select pods by phase.
ENDED = ("Succeeded", "Failed")
# Running pods that one request may leave out, by their labels: those whose rank has failed and that end by themselves.
SPARED_PODS = 16
UNFINISHED = "status.phase!=Succeeded,status.phase!=Failed"


class CollectionDelete(msgspec.Struct, frozen=True):
    """A request that deletes every pod its selectors match.

    As safe as a uid: the labels name the job's uid and the attempt, and a deleted pod of an attempt is never replaced.
    """

    selector: str
    field_selector: str
    grace_seconds: int
    pods: tuple[str, ...]


def group(deletions: Sequence[Deletion], pods: Iterable[PodView]) -> tuple[list[CollectionDelete], list[Deletion]]:
    """Collection deletes for whole attempts (or all of an attempt's unfinished pods), and the deletions left over.

    A restart of 1000 pods is one request instead of 1000, each of which the API server might answer with 429.
    """
    by_uid = {found.uid: found for found in deletions}
    attempts: dict[tuple[str, str, int], list[PodView]] = defaultdict(list)
    for pod in pods:
        attempts[pod.job_uid, pod.stage, pod.attempt].append(pod)
    requests = [request for views in attempts.values() if (request := _whole(views, by_uid)) is not None]
    grouped = {name for request in requests for name in request.pods}
    return requests, [found for found in deletions if found.name not in grouped]


def _whole(views: Sequence[PodView], by_uid: dict[str, Deletion]) -> CollectionDelete | None:
    """One request for all deletions among the pods of an attempt, None if it would match other pods too."""
    going = [by_uid[pod.uid] for pod in views if pod.uid in by_uid and by_uid[pod.uid].grace_seconds > 0]
    graces = {found.grace_seconds for found in going}
    if len(going) < 2 or len(graces) != 1:
        return None
    spared = [pod for pod in views if pod.uid not in by_uid and not pod.deleting]
    ended_too = any(pod.phase in ENDED for pod in views if pod.uid in by_uid)
    running = sorted(pod.index for pod in spared if pod.phase not in ENDED)
    if (spared and ended_too) or len(running) > SPARED_PODS:
        return None
    first = views[0]
    labels = {
        names.LABEL_JOB_UID: first.job_uid,
        names.LABEL_STAGE: first.stage,
        names.LABEL_ATTEMPT: str(first.attempt),
    }
    selector = ",".join(f"{key}={value}" for key, value in labels.items())
    if running:
        selector += f",{names.LABEL_INDEX} notin ({','.join(map(str, running))})"
    return CollectionDelete(selector, UNFINISHED if spared else "", graces.pop(), tuple(found.name for found in going))
