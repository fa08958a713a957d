"""The Kubernetes objects a job becomes first, without a cluster; what they are is the plan's business."""

from typing import Any

from resnetboost_operator import api
from resnetboost_operator.observed.state import Observed
from resnetboost_operator.planning.plan import plan
from resnetboost_operator.status import Status

PLACEHOLDER_UID = "00000000-0000-0000-0000-000000000000"


def objects(job: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """What a cluster would create for the defaulted `job`, in order; a suspended one as if resumed."""
    metadata = {"uid": PLACEHOLDER_UID, **job["metadata"]}
    policy = {**job["spec"]["runPolicy"], "suspend": False}
    spec = {**job["spec"], "runPolicy": policy}
    return plan(api.parse({**job, "metadata": metadata, "spec": spec}), Status(), Observed(), now=0.0).create
