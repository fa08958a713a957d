"""Taints nodes that fail across jobs, where an administrator says so, and removes these taints in time."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import msgspec

from resnetboost_operator.controller.store import Store
from resnetboost_operator.kubeclient.client import Client
from resnetboost_operator.kubeclient.errors import ApiError
from resnetboost_operator.kubeclient.resources import TAINTED_NODES
from resnetboost_operator.planning import node_taints
from resnetboost_operator.planning.node_taints import Effect

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 15.0

_decode = msgspec.json.Decoder(dict[str, Any])


class NodeTaints:
    """Compares nodes with their points every INTERVAL_SECONDS while this process leads."""

    def __init__(
        self,
        client: Client,
        store: Store,
        leads: Callable[[], bool],
        points: Callable[[], Mapping[str, float]],
        effect: Effect,
    ) -> None:
        self._client = client
        self._store = store
        self._leads = leads
        self._points = points
        self._effect = effect

    async def run(self) -> NoReturn:
        """Compare and patch for ever. What fails is tried again the next time."""
        while True:
            if self._leads() and self._store.synced:
                await self.write()
            await asyncio.sleep(INTERVAL_SECONDS)

    async def write(self) -> None:
        """Patch the nodes that need it."""
        for name, until in node_taints.changes(self._store.every_node, self._points(), time.time()).items():
            try:
                await self._patch(name, until)
            except ApiError as error:
                logger.warning("cannot change the taint of node %s: %s", name, error)

    async def _patch(self, name: str, until: float | None) -> None:
        node = _decode.decode(await self._client.request("get", TAINTED_NODES, name=name))
        body = node_taints.patch(node, until, self._effect)
        await self._client.request("patch", TAINTED_NODES, name=name, body=body)
        logger.info("node %s is %s", name, "tainted: it fails" if until is not None else "no longer tainted")
