"""PodGroupView: a PodGroup of any gang scheduler's API, with the fields that planning needs."""

from collections.abc import Mapping
from typing import Any

import msgspec

from resnetboost_api import names
from resnetboost_operator.observed import conditions
from resnetboost_operator.observed.conditions import Condition


class PodGroupView(msgspec.Struct, frozen=True):
    """A group of one attempt's pods. `phase` is '' in APIs that have none."""

    api: str
    namespace: str
    name: str
    uid: str
    job_uid: str
    attempt: int
    phase: str
    deleting: bool
    conditions: Mapping[str, Condition]


def view(group: Mapping[str, Any], api: str) -> PodGroupView:
    """Read a PodGroup of that API (group/version). Raises KeyError or ValueError for one that is not a job's."""
    metadata, status = group["metadata"], group.get("status") or {}
    labels = metadata.get("labels") or {}
    return PodGroupView(
        api=api,
        namespace=metadata.get("namespace", ""),
        name=metadata["name"],
        uid=metadata["uid"],
        job_uid=labels[names.LABEL_JOB_UID],
        attempt=int(labels[names.LABEL_ATTEMPT]),
        phase=status.get("phase", ""),
        deleting="deletionTimestamp" in metadata,
        conditions=conditions.read(status),
    )
