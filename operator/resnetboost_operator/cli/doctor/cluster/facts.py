"""Reads from a cluster what the checks judge. What the caller may not read is Unknown, with the server's reason."""

import time
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from resnetboost_api import findings, names
from resnetboost_api.findings import Finding
from resnetboost_operator.kubeclient import errors
from resnetboost_operator.kubeclient import lease as leases
from resnetboost_operator.kubeclient.inspector import Inspector
from resnetboost_operator.kubeclient.lease import Lease
from resnetboost_operator.observed import capabilities

Manifest = dict[str, Any]
Fact = TypeVar("Fact")

MONITORING = "monitoring.coreos.com/v1"
# A resource of each optional API, to see whether it is served.
OPTIONAL_APIS = {
    **dict.fromkeys(capabilities.POD_GROUP_APIS, "podgroups"),
    capabilities.KUEUE: "workloads",
    MONITORING: "prometheusrules",
}
# What a user does with jobs.
VERBS = ("create", "list", "watch", "patch", "delete")
_SCHEMA = f"/openapi/v3/apis/{names.API_VERSION}"
_OPERATORS = "app.kubernetes.io/component=operator"
_CHART = "resnetboost-"


class Unknown(msgspec.Struct, frozen=True):
    """Why something could not be read."""

    reason: str


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a cluster has.

    `has_namespace` says whether `namespace` exists.
    `schema` is the OpenAPI document of our API, None if it is not served. `operators` are the chart's Deployments.
    `served` says of each of OPTIONAL_APIS whether it is. `rights` says of each of VERBS whether the caller has it on
    jobs in `namespace`. `now` is this machine's time (unix seconds).
    """

    namespace: str
    has_namespace: bool | Unknown
    version: Manifest
    now: float
    schema: Manifest | Unknown | None
    leases: Sequence[Lease] | Unknown
    operators: Sequence[Manifest] | Unknown
    rights: Mapping[str, bool] | Unknown
    nodes: Sequence[Manifest] | Unknown
    served: Mapping[str, bool] | Unknown
    local_queues: Sequence[Manifest] | Unknown
    storage_classes: Sequence[Manifest] | Unknown

    @property
    def arguments(self) -> Sequence[str]:
        """The arguments of the first operator, none where they are not known."""
        if isinstance(self.operators, Unknown) or not self.operators:
            return ()
        return arguments(self.operators[0])


async def gather(cluster: Inspector, version: Manifest) -> Facts:
    """Read everything, one request after another: a cluster is not to be flooded by its doctor."""
    served = await _or_unknown(_served(cluster))
    has_queues = not isinstance(served, Unknown) and served[capabilities.KUEUE]
    group, _, kueue_version = capabilities.KUEUE.partition("/")
    return Facts(
        namespace=cluster.namespace,
        has_namespace=await _or_unknown(_has_namespace(cluster)),
        version=version,
        now=time.time(),
        schema=await _or_unknown(_schema(cluster)),
        leases=await _or_unknown(_leases(cluster)),
        operators=await _or_unknown(_operators(cluster)),
        rights=await _or_unknown(_rights(cluster)),
        nodes=await _or_unknown(cluster.items("", "v1", "nodes")),
        served=served,
        local_queues=await _or_unknown(cluster.items(group, kueue_version, "localqueues", cluster.namespace))
        if has_queues
        else (),
        storage_classes=await _or_unknown(cluster.items("storage.k8s.io", "v1", "storageclasses")),
    )


async def _or_unknown(question: Awaitable[Fact]) -> Fact | Unknown:
    try:
        return await question
    except errors.Refused as error:
        return Unknown(error.words)
    except errors.ApiError as error:
        return Unknown(str(error))


async def _schema(cluster: Inspector) -> Manifest | None:
    try:
        return await cluster.document(_SCHEMA)
    except errors.NotFound:
        return None


async def _has_namespace(cluster: Inspector) -> bool:
    try:
        await cluster.document(f"/api/v1/namespaces/{cluster.namespace}")
    except errors.NotFound:
        return False
    return True


async def _leases(cluster: Inspector) -> list[Lease]:
    label = f"{names.LABEL_LEASE}={names.LEASE_OF_OPERATOR}"
    return [leases.read(found) for found in await cluster.items("coordination.k8s.io", "v1", "leases", labels=label)]


async def _operators(cluster: Inspector) -> list[Manifest]:
    found = await cluster.items("apps", "v1", "deployments", labels=_OPERATORS)
    return [one for one in found if str(labels(one).get("helm.sh/chart", "")).startswith(_CHART)]


async def _rights(cluster: Inspector) -> dict[str, bool]:
    return {verb: await cluster.may(verb, names.GROUP, names.PLURAL) for verb in VERBS}


async def _served(cluster: Inspector) -> dict[str, bool]:
    return {api: await cluster.serves(api, plural) for api, plural in OPTIONAL_APIS.items()}


def arguments(operator: Manifest) -> Sequence[str]:
    """The arguments of an operator's Deployment."""
    containers = operator["spec"]["template"]["spec"]["containers"]
    return tuple(str(word) for word in containers[0].get("args") or ())


def labels(manifest: Manifest) -> Mapping[str, str]:
    """An object's labels."""
    return manifest.get("metadata", {}).get("labels") or {}


def name(manifest: Manifest) -> str:
    """An object's name."""
    return str(manifest.get("metadata", {}).get("name", "?"))


def unknown(check: str, fact: Unknown) -> Iterator[Finding]:
    """The finding about something that could not be read."""
    yield findings.warning(check, f"not known: {fact.reason}", "ask an administrator to run this")
