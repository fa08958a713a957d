"""The resources the operator uses, with their verbs and paths. The chart's RBAC rules grant the same."""

from typing import Literal

import msgspec

from resnetboost_api import names

Verb = Literal["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"]

# A watch is a list request with a query parameter.
METHODS: dict[Verb, str] = {
    "get": "GET",
    "list": "GET",
    "watch": "GET",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
    "deletecollection": "DELETE",
}
READ_VERBS: frozenset[Verb] = frozenset({"get", "list", "watch"})
# Verbs that need an object's name: without it, the path is that of the collection.
NAMED_VERBS: frozenset[Verb] = frozenset({"get", "update", "patch", "delete"})


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
NODES = Resource("", "v1", "nodes", frozenset({"list", "watch"}))
EVENTS = Resource("", "v1", "events", frozenset({"create"}))
LEASES = Resource("coordination.k8s.io", "v1", "leases", frozenset({"get", "create", "update"}))

# The pod of a lease's holder, to see whether it still exists.
HOLDERS = Resource("", "v1", "pods", frozenset({"get"}))

EVERYWHERE = (JOBS, JOB_STATUS, PODS, CONFIG_MAPS, SERVICES, NODES, EVENTS)
IN_OWN_NAMESPACE = (LEASES, HOLDERS)

# The resource of each kind that a plan creates.
BY_KIND = {"Pod": PODS, "ConfigMap": CONFIG_MAPS, "Service": SERVICES}
