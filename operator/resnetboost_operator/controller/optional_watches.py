"""Watches of Workloads and PodGroups: they begin when the API server serves their API and end when it stops to."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, NoReturn

from resnetboost_operator.controller.store import Store
from resnetboost_operator.kubeclient.client import Client
from resnetboost_operator.kubeclient.discovery import Discovery
from resnetboost_operator.kubeclient.reflector import Reflector
from resnetboost_operator.kubeclient.resources import POD_GROUPS, WORKLOADS
from resnetboost_operator.observed.capabilities import KUEUE

logger = logging.getLogger(__name__)

Begin = Callable[[Coroutine[Any, Any, NoReturn]], asyncio.Task[NoReturn]]


class OptionalWatches:
    """Fills the store's caches of the optional APIs. `labels` selects the operator's objects; `begin` starts a task."""

    def __init__(self, client: Client, store: Store, labels: str, begin: Begin) -> None:
        self._client = client
        self._store = store
        self._labels = labels
        self._begin = begin
        self._reflectors: dict[str, list[Reflector]] = {}
        self._tasks: dict[str, list[asyncio.Task[NoReturn]]] = {}
        self._discovery = Discovery(client, store.optional_apis, self._serve)

    @property
    def reflectors(self) -> Iterator[Reflector]:
        """All that run now."""
        return itertools.chain.from_iterable(self._reflectors.values())

    @property
    def trouble(self) -> str:
        """Why it is not known yet which APIs are served; '' once it is."""
        return "" if self._store.discovered else self._discovery.trouble or "not asked yet"

    def start(self) -> None:
        """Begin to follow the APIs that the operator may use, if there are any."""
        if self._store.optional_apis:
            self._begin(self._discovery.run())

    def list_again(self) -> None:
        """Begin every watch anew with a list. The old ones are not waited for: cancelled, they deliver nothing more."""
        for api, reflectors in self._reflectors.items():
            for task in self._tasks[api]:
                task.cancel()
            for reflector in reflectors:
                reflector.reset()
            self._watch(api)

    def _serve(self, apis: frozenset[str]) -> None:
        for api in self._reflectors.keys() - apis:
            logger.warning("the API server no longer serves %s", api)
            del self._reflectors[api]
            for task in self._tasks.pop(api):
                task.cancel()
        self._store.serve(apis)
        for api in sorted(apis - self._reflectors.keys()):
            logger.info("the API server serves %s", api)
            resource = WORKLOADS if api == KUEUE else POD_GROUPS[api]
            self._reflectors[api] = [
                Reflector(self._client, resource, cache, namespace, self._labels)
                for namespace, cache in self._store.objects_of(api).caches.items()
            ]
            self._watch(api)

    def _watch(self, api: str) -> None:
        self._tasks[api] = [self._begin(reflector.run()) for reflector in self._reflectors[api]]
