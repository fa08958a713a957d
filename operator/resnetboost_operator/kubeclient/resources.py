"""The resources the operator uses, with their verbs and paths. The chart's RBAC rules grant the same."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from resnetboost_api import names
from resnetboost_operator.observed import capabilities

# `apply` is a patch by the API server's own merge (server-side apply); the right to it is that to patch.
Verb = Literal["get", "list", "watch", "create", "update", "patch", "apply", "delete", "deletecollection"]

# A watch is a list request with a query parameter.
METHODS: dict[Verb, str] = {
    "get": "GET",
    "list": "GET",
    "watch": "GET",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "apply": "PATCH",
    "delete": "DELETE",
    "deletecollection": "DELETE",
}
READ_VERBS: frozenset[Verb] = frozenset({"get", "list", "watch"})
# Verbs that need an object's name: without it, the path is that of the collection.
NAMED_VERBS: frozenset[Verb] = frozenset({"get", "update", "patch", "apply", "delete"})


class Resource(msgspec.Struct, frozen=True):
    """One resource of the API; `plural` may name a subresource (jobs/status), as in RBAC rules."""

    group: str
    version: str
    plural: str
    verbs: frozenset[Verb]

    def path(self, namespace: str = "", name: str = "") -> str:
        """The path of a collection (of all namespaces if none is given) or of one object."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        place = f"{root}/namespaces/{namespace}" if namespace else root
        plural, _, subresource = self.plural.partition("/")
        parts = [place, plural, name, subresource]
        return "/".join(part for part in parts if part)


JOBS = Resource(names.GROUP, names.VERSION, "resnetboostjobs", frozenset({"list", "watch", "delete"}))
JOB_STATUS = Resource(names.GROUP, names.VERSION, "resnetboostjobs/status", frozenset({"update"}))
PODS = Resource("", "v1", "pods", READ_VERBS | {"create", "patch", "delete", "deletecollection"})
CONFIG_MAPS = Resource("", "v1", "configmaps", frozenset({"get", "create", "deletecollection"}))
SERVICES = Resource("", "v1", "services", frozenset({"get", "create", "deletecollection"}))
SECRETS = Resource("", "v1", "secrets", frozenset({"create"}))
NODES = Resource("", "v1", "nodes", frozenset({"list", "watch"}))
EVENTS = Resource("", "v1", "events", frozenset({"create"}))
LEASES = Resource("coordination.k8s.io", "v1", "leases", frozenset({"get", "create", "update"}))

# What an API has, which every service account may ask (Client.api_resources); its path has no plural.
DISCOVERY = Resource("", "", "discovery", frozenset({"get"}))

# Kueue's, which the operator uses only if the chart says so (kueue.enabled).
WORKLOADS = Resource(
    "kueue.x-k8s.io", "v1beta2", "workloads", frozenset({"get", "list", "watch", "create", "patch", "delete"})
)
WORKLOAD_STATUS = Resource("kueue.x-k8s.io", "v1beta2", "workloads/status", frozenset({"patch"}))
RESOURCE_FLAVORS = Resource("kueue.x-k8s.io", "v1beta2", "resourceflavors", frozenset({"get"}))
WORKLOAD_PRIORITIES = Resource("kueue.x-k8s.io", "v1beta2", "workloadpriorityclasses", frozenset({"get"}))
PRIORITIES = Resource("scheduling.k8s.io", "v1", "priorityclasses", frozenset({"get"}))

# Nodes to taint, which the operator does only if the chart says so (nodeExclusion.taint).
TAINTED_NODES = Resource("", "v1", "nodes", frozenset({"get", "patch"}))

# PodGroups of each API of a gang scheduler.
_GROUP_VERBS: frozenset[Verb] = frozenset({"get", "list", "watch", "create", "deletecollection"})
POD_GROUPS = {
    api: Resource(group, version, "podgroups", _GROUP_VERBS)
    for api in capabilities.POD_GROUP_APIS
    for group, _, version in [api.partition("/")]
}

# The pod of a lease's holder, to see whether it still exists.
HOLDERS = Resource("", "v1", "pods", frozenset({"get"}))

EVERYWHERE = (JOBS, JOB_STATUS, PODS, CONFIG_MAPS, SERVICES, SECRETS, NODES, EVENTS)
WITH_KUEUE = (WORKLOADS, WORKLOAD_STATUS, RESOURCE_FLAVORS, WORKLOAD_PRIORITIES, PRIORITIES)
WITH_GANGS = tuple(POD_GROUPS.values())
WITH_TAINTS = (TAINTED_NODES,)
IN_OWN_NAMESPACE = (LEASES, HOLDERS)

BY_KIND = {"Pod": PODS, "ConfigMap": CONFIG_MAPS, "Service": SERVICES, "Secret": SECRETS}


def of(manifest: Mapping[str, Any]) -> Resource:
    """The resource of an object that a plan creates."""
    return POD_GROUPS[manifest["apiVersion"]] if manifest["kind"] == "PodGroup" else BY_KIND[manifest["kind"]]
