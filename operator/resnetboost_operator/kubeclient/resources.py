"""Which resources the operator asks for, with which verbs and under which paths; the chart grants the same."""

from typing import Literal

import msgspec

from resnetboost_operator import names

Verb = Literal["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"]

# A watch is a list that does not end; its query says so.
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
READING: frozenset[Verb] = frozenset({"get", "list", "watch"})
# Their path without a name is that of a collection.
OF_ONE: frozenset[Verb] = frozenset({"get", "update", "patch", "delete"})


class Resource(msgspec.Struct, frozen=True):
    """One resource of the API; `plural` may name a subresource (jobs/status) and is as RBAC writes it."""

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
PODS = Resource("", "v1", "pods", READING | {"create", "patch", "delete", "deletecollection"})
CONFIG_MAPS = Resource("", "v1", "configmaps", frozenset({"get", "create", "deletecollection"}))
SERVICES = Resource("", "v1", "services", frozenset({"get", "create", "deletecollection"}))
NODES = Resource("", "v1", "nodes", frozenset({"list", "watch"}))
EVENTS = Resource("", "v1", "events", frozenset({"create"}))
LEASES = Resource("coordination.k8s.io", "v1", "leases", frozenset({"get", "create", "update"}))

# Whether the holder of a lease is still there.
HOLDERS = Resource("", "v1", "pods", frozenset({"get"}))

EVERYWHERE = (JOBS, JOB_STATUS, PODS, CONFIG_MAPS, SERVICES, NODES, EVENTS)
IN_OWN_NAMESPACE = (LEASES, HOLDERS)

# What a manifest of the plan is created as.
BY_KIND = {"Pod": PODS, "ConfigMap": CONFIG_MAPS, "Service": SERVICES}
