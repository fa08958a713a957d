"""Looks at a cluster for `resnetboost doctor`: reads what the caller may read, and changes nothing.

Which rights the caller has, it learns by SelfSubjectAccessReviews, which no server stores.
"""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from resnetboost_operator.kubeclient import connection, errors, in_cluster
from resnetboost_operator.kubeclient.client import Client, RetryPolicy
from resnetboost_operator.kubeclient.reader import USER_AGENT, as_user_errors
from resnetboost_operator.kubeclient.resources import Resource

# A user waits for the response.
_RETRIES = RetryPolicy(tries=2, timeout_seconds=15.0)
MOST_ITEMS = 500

_REVIEWS = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews", frozenset({"create"}))

_object = msgspec.json.Decoder(dict[str, Any])


class Inspector:
    """Reads one cluster; `namespace` is where the caller's jobs are. All methods raise an `ApiError`."""

    def __init__(self, client: Client, namespace: str) -> None:
        client.may_write = lambda: True  # reviews alone: the resources of this module have no other verb that writes
        self._client = client
        self.namespace = namespace

    @property
    def host(self) -> str:
        """The API server's address."""
        return self._client.host

    async def document(self, path: str) -> dict[str, Any]:
        """A document of the server, such as /version."""
        return _decoded(path, await self._client.document(path, _RETRIES))

    async def serves(self, api: str, plural: str) -> bool:
        """Whether the server has that resource in the API (group/version)."""
        try:
            found = await self.document(f"/apis/{api}")
        except errors.NotFound:
            return False
        return any(resource.get("name") == plural for resource in found.get("resources") or ())

    async def items(
        self, group: str, version: str, plural: str, namespace: str = "", labels: str = ""
    ) -> list[dict[str, Any]]:
        """The first MOST_ITEMS objects, of all namespaces if none is given."""
        resource = Resource(group, version, plural, frozenset({"list"}))
        query = {"limit": str(MOST_ITEMS)} | ({"labelSelector": labels} if labels else {})
        answer = await self._client.request("list", resource, namespace, query=query, retries=_RETRIES)
        found: list[dict[str, Any]] = _decoded(plural, answer).get("items") or []
        return found

    async def may(self, verb: str, group: str, plural: str) -> bool:
        """Whether the caller may do that in the namespace."""
        asked = {"namespace": self.namespace, "verb": verb, "group": group, "resource": plural}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        }
        answer = await self._client.request("create", _REVIEWS, body=body, retries=_RETRIES)
        return bool((_decoded("review", answer).get("status") or {}).get("allowed"))


@contextlib.asynccontextmanager
async def connected(namespace: str = "") -> AsyncIterator[tuple[Inspector, dict[str, Any]]]:
    """An inspector of the cluster that the kubeconfig names, and the server's version. Raises `UserError`."""
    client = Client(await connection.connect(USER_AGENT))
    try:
        inspector = Inspector(client, namespace or connection.namespace() or in_cluster.own_namespace())
        with as_user_errors(client.host):
            version = await inspector.document("/version")
        yield inspector, version
    finally:
        await client.close()


def _decoded(what: str, answer: bytes) -> dict[str, Any]:
    try:
        return _object.decode(answer)
    except msgspec.MsgspecError as error:
        raise errors.ApiError(f"{what}: the answer is no object of Kubernetes: {error}") from error
