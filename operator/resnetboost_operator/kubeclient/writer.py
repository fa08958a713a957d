"""Applies and deletes jobs for a user; its errors are sentences for one.

Needs `create` and `patch` on resnetboostjobs, or `delete`. The operator itself never writes a job's spec.
"""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from resnetboost_operator.errors import UserError
from resnetboost_operator.kubeclient import connection, errors, in_cluster
from resnetboost_operator.kubeclient.client import Client, RetryPolicy
from resnetboost_operator.kubeclient.reader import USER_AGENT, as_user_errors
from resnetboost_operator.kubeclient.resources import JOBS, Resource

Manifest = dict[str, Any]

FIELD_MANAGER = "resnetboost"
# A user waits for the response; both writes may be repeated.
_RETRIES = RetryPolicy(tries=3, timeout_seconds=30.0)
_APPLIED = Resource(JOBS.group, JOBS.version, JOBS.plural, frozenset({"apply", "create", "delete", "patch"}))


class Writer:
    """Writes to one cluster; `namespace` is the default namespace."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self.namespace = namespace

    async def apply(self, job: Manifest, namespace: str, *, force: bool) -> Manifest:
        """Create or update the job by server-side apply; return it as it is now. Raises `UserError`."""
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict", "force": "true" if force else "false"}
        name = job["metadata"]["name"]
        body = {**job, "metadata": {**job["metadata"], "namespace": namespace}}
        with as_user_errors(self._client.host, "create and patch"):
            try:
                answer = await self._client.request(
                    "apply", _APPLIED, namespace, name, query=query, body=body, retries=_RETRIES
                )
            except errors.Conflict as error:
                raise UserError(f"{error}; force=True takes these fields over") from None
            except errors.Invalid as error:
                raise UserError(error.words) from None
            return msgspec.json.decode(answer, type=dict[str, Any])

    async def create(self, job: Manifest, namespace: str) -> Manifest | None:
        """Create the job and return it; None if one of its name is there already. Raises `UserError`."""
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        body = {**job, "metadata": {**job["metadata"], "namespace": namespace}}
        with as_user_errors(self._client.host, "create"):
            try:
                answer = await self._client.request(
                    "create", _APPLIED, namespace, query=query, body=body, retries=_RETRIES
                )
            except errors.AlreadyExists:
                return None
            except errors.Invalid as error:
                raise UserError(error.words) from None
            return msgspec.json.decode(answer, type=dict[str, Any])

    async def patch(self, namespace: str, name: str, change: Manifest) -> None:
        """Merge a change into the job; does nothing if it is gone. Raises `UserError`."""
        with as_user_errors(self._client.host, "patch"), contextlib.suppress(errors.NotFound):
            query = {"fieldManager": FIELD_MANAGER}
            await self._client.request("patch", _APPLIED, namespace, name, query=query, body=change, retries=_RETRIES)

    async def delete(self, namespace: str, name: str, uid: str) -> None:
        """Delete the job with that uid; another one of its name stays. Raises `UserError`."""
        body = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        with as_user_errors(self._client.host, "delete"), contextlib.suppress(errors.NotFound, errors.Conflict):
            await self._client.request("delete", _APPLIED, namespace, name, body=body, retries=_RETRIES)


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[Writer]:
    """A writer to the cluster that the kubeconfig names. Raises `UserError` if there is none."""
    client = Client(await connection.connect(USER_AGENT))
    client.may_write = lambda: True  # for its user, not as the operator
    try:
        yield Writer(client, connection.namespace() or in_cluster.own_namespace())
    finally:
        await client.close()
