"""What the operator promises a queue, checked on the histories of Workloads and pods of a namespace."""

import itertools
from collections.abc import Collection, Sequence
from typing import Any

from beds.queue.history import Change
from resnetboost_api import names
from support.kueuestatus import holds_quota, is_true

Manifest = dict[str, Any]

UNADMITTED, EARLY = "unadmitted", "early"


def broken(workloads: Sequence[Change], pods: Sequence[Change], excused: Collection[str] = ()) -> list[str]:
    """Promises that were broken, but for those that are excused:

    - no pod is created while its job is not admitted (an eviction may overtake a creation: that does not count);
    - quota is given back, by a release, an end or a deletion, only when no pod of the job is alive.
    """
    checks = {UNADMITTED: _unadmitted, EARLY: _early}
    return [words for name, check in checks.items() if name not in excused for words in check(workloads, pods)]


def releases(workloads: Sequence[Change]) -> int:
    """How often quota was given back by a patch."""
    return sum(
        holds_quota(before.obj) and not is_true(after.obj, "QuotaReserved") and after.kind == "MODIFIED"
        for before, after in _steps(workloads)
    )


def evictions(workloads: Sequence[Change]) -> int:
    """How often a Workload was evicted."""
    return sum(
        is_true(after.obj, "Evicted") and not is_true(before.obj, "Evicted") for before, after in _steps(workloads)
    )


def _unadmitted(workloads: Sequence[Change], pods: Sequence[Change]) -> list[str]:
    found = []
    for created in (change for change in pods if change.kind == "ADDED"):
        uid = created.obj["metadata"]["labels"][names.LABEL_JOB_UID]
        known = [change for change in workloads if _owner(change.obj) == uid and change.version < created.version]
        if not known or known[-1].kind == "DELETED" or not is_true(known[-1].obj, "Admitted"):
            found.append(f"pod {created.obj['metadata']['name']} was created while its job was not admitted")
    return found


def _early(workloads: Sequence[Change], pods: Sequence[Change]) -> list[str]:
    found = []
    for before, after in _steps(workloads):
        if holds_quota(before.obj) and (after.kind == "DELETED" or not holds_quota(after.obj)):
            alive = _alive(pods, _owner(after.obj), after.version)
            found += [f"the quota of {after.obj['metadata']['name']} was given back before {name}" for name in alive]
    return found


def _steps(workloads: Sequence[Change]) -> list[tuple[Change, Change]]:
    """Each change of a Workload with the one before."""
    by_uid: dict[str, list[Change]] = {}
    for change in workloads:
        by_uid.setdefault(change.obj["metadata"]["uid"], []).append(change)
    return [pair for changes in by_uid.values() for pair in itertools.pairwise(changes)]


def _alive(pods: Sequence[Change], job_uid: str, version: int) -> list[str]:
    """Names of the job's pods that run, or may run, at that version."""
    last = {change.obj["metadata"]["uid"]: change for change in pods if change.version < version}
    ours = [found for found in last.values() if found.obj["metadata"]["labels"][names.LABEL_JOB_UID] == job_uid]
    ended = ("Succeeded", "Failed")
    alive = [one.obj for one in ours if one.kind != "DELETED" and one.obj["status"].get("phase") not in ended]
    return sorted(str(pod["metadata"]["name"]) for pod in alive)


def _owner(workload: Manifest) -> str:
    return next((str(found["uid"]) for found in workload["metadata"].get("ownerReferences", [])), "")
