"""Placement: what the scheduler and the queue in charge of a gang put on its pods."""

from collections.abc import Mapping
from typing import Any

import msgspec

Manifest = Mapping[str, Any]


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Additions to each pod of an attempt; by default none.

    `labels`, `annotations`, `node_selector`, `tolerations`: added to the pod's own. `node_selector_of`: by index, more
    labels of the node of that one pod (Kueue's topology assignment). `pod_group`: name in `schedulingGroup`, for
    kube-scheduler. `topology_key`: node label that the whole gang shares by pod affinity, where no group or queue
    places it. `excluded_nodes`: names of nodes that no pod may run on, but for those whose node a queue has chosen.
    """

    scheduler_name: str = ""
    priority_class_name: str = ""
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    node_selector: Mapping[str, str] = {}
    node_selector_of: Mapping[int, Mapping[str, str]] = {}
    tolerations: tuple[Manifest, ...] = ()
    pod_group: str = ""
    topology_key: str = ""
    excluded_nodes: tuple[str, ...] = ()


# A pod that the default scheduler places by itself.
PLAIN = Placement()
