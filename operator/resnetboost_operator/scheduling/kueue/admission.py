"""What an admission by Kueue puts on the pods: nodes and tolerations of its flavors, updates of checks, topology."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from resnetboost_api import names
from resnetboost_operator.job import Job
from resnetboost_operator.manifests.placement import Placement
from resnetboost_operator.observed.flavor import Flavor
from resnetboost_operator.observed.workload import WorkloadView
from resnetboost_operator.scheduling.kueue import keys, topology
from resnetboost_operator.scheduling.kueue.workload import POD_SET, topology_request

Manifest = Mapping[str, Any]

# A ClusterQueue's name may be longer than a label's value.
_LABEL_VALUE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def flavor_names(workload: WorkloadView) -> tuple[str, ...]:
    """Names of the ResourceFlavors that the ranks were admitted to, in the order of their resources."""
    flavors = _assignment(workload).get("flavors") or {}
    return tuple(dict.fromkeys(flavors[resource] for resource in sorted(flavors)))


def placed(placement: Placement, job: Job, workload: WorkloadView, flavors: Mapping[str, Flavor]) -> Placement:
    """The placement with what the admission says. All flavors must be known."""
    given = [flavors[name] for name in flavor_names(workload)]
    updates = list(_updates(workload))
    assigned = _assignment(workload).get("topologyAssignment") or {}
    return replace(
        placement,
        labels={**placement.labels, **_foreign(updates, "labels"), **_labels(workload)},
        annotations={
            **placement.annotations,
            **_foreign(updates, "annotations"),
            **(_topology_annotations(job, workload) if assigned else {}),
        },
        node_selector={
            **placement.node_selector,
            **{key: value for flavor in given for key, value in flavor.node_labels.items()},
            **{key: value for update in updates for key, value in (update.get("nodeSelector") or {}).items()},
        },
        node_selector_of=topology.node_selectors(assigned) if assigned else placement.node_selector_of,
        tolerations=_tolerations(placement, given, updates),
        topology_key="" if assigned else placement.topology_key,
    )


def _assignment(workload: WorkloadView) -> Manifest:
    assignments = workload.admission.get("podSetAssignments") or ()
    return next((found for found in assignments if found.get("name") == POD_SET), {})


def _updates(workload: WorkloadView) -> Iterable[Manifest]:
    """What admission checks (a provisioned node pool) want changed."""
    for check in workload.checks:
        yield from (update for update in check.get("podSetUpdates") or () if update.get("name") == POD_SET)


def _foreign(updates: Iterable[Manifest], field: str) -> dict[str, str]:
    """Labels or annotations of the updates, without ours, by which the operator knows its pods."""
    given = ((key, value) for update in updates for key, value in (update.get(field) or {}).items())
    ours = (f"{names.GROUP}/", names.LABEL_MANAGED_BY)
    return {key: value for key, value in given if not key.startswith(ours)}


def _labels(workload: WorkloadView) -> dict[str, str]:
    cluster_queue = workload.admission.get("clusterQueue", "")
    found = {keys.LABEL_POD_SET: POD_SET, keys.LABEL_LOCAL_QUEUE: workload.queue}
    return found | ({keys.LABEL_CLUSTER_QUEUE: cluster_queue} if _LABEL_VALUE.fullmatch(cluster_queue) else {})


def _topology_annotations(job: Job, workload: WorkloadView) -> dict[str, str]:
    """Without one of them, Kueue counts the pods a second time, as pods that it did not place."""
    found, request = {keys.ANNOTATION_WORKLOAD: workload.name}, topology_request(job)
    if not request:
        return found | {keys.ANNOTATION_UNCONSTRAINED_TOPOLOGY: "true"}
    found[keys.ANNOTATION_REQUIRED_TOPOLOGY] = request["required"]
    if "podSetSliceSize" in request:
        found[keys.ANNOTATION_SLICE_TOPOLOGY] = request["podSetSliceRequiredTopology"]
        found[keys.ANNOTATION_SLICE_SIZE] = str(request["podSetSliceSize"])
    return found


def _tolerations(placement: Placement, flavors: list[Flavor], updates: list[Manifest]) -> tuple[Manifest, ...]:
    found = list(placement.tolerations)
    given = [toleration for flavor in flavors for toleration in flavor.tolerations]
    given += [toleration for update in updates for toleration in update.get("tolerations") or ()]
    found += [one for place, one in enumerate(given) if one not in given[:place] and one not in found]
    return tuple(found)
