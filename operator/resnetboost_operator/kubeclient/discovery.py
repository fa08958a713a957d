"""Discovery: finds out again and again which optional APIs the API server serves."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import NoReturn

import msgspec

from resnetboost_operator.kubeclient.client import Client
from resnetboost_operator.kubeclient.errors import ApiError, NotFound
from resnetboost_operator.kubeclient.retry import Backoff

logger = logging.getLogger(__name__)

# An API comes and goes with its CRD or with a flag of the API server, so rarely.
LOOK_SECONDS = 60.0
BACKOFF = Backoff(first_seconds=1.0, most_seconds=30.0)


class _Resource(msgspec.Struct):
    name: str


class _ResourceList(msgspec.Struct):
    resources: list[_Resource] = []


_resource_list = msgspec.json.Decoder(_ResourceList)


class Discovery:
    """Follows which of the wanted APIs are served.

    `wanted`: the resource (plural) to look for in each API (group/version). `changed` is called with all served APIs
    once every one of them is known, and after each change. An API is served or not only by the API server's own word,
    and gone only if two looks in a row miss it; after an error, what was known stays.
    `trouble` is the last error or ''.
    """

    def __init__(self, client: Client, wanted: Mapping[str, str], changed: Callable[[frozenset[str]], None]) -> None:
        self._client = client
        self._wanted = wanted
        self._changed = changed
        self._known: dict[str, bool] = {}
        self._missed: set[str] = set()
        self._announced: frozenset[str] | None = None
        self.trouble = ""

    async def run(self) -> NoReturn:
        """Look for ever."""
        failures = 0
        while True:
            failures = 0 if await self.look() else failures + 1
            await asyncio.sleep(BACKOFF.delay_seconds(failures) if failures else LOOK_SECONDS)

    async def look(self) -> bool:
        """Ask for each API once; True if all requests were answered."""
        troubles = [trouble for api in self._wanted if (trouble := await self._ask(api))]
        self._complain(troubles[0] if troubles else "")
        served = frozenset(api for api, known in self._known.items() if known)
        if self._known.keys() == self._wanted.keys() and served != self._announced:
            self._announced = served
            self._changed(served)
        return not troubles

    async def _ask(self, api: str) -> str:
        """Ask for one API. Returns why there was no answer, or ''."""
        try:
            answer = _resource_list.decode(await self._client.api_resources(api))
        except NotFound:
            self._miss(api)
        except (ApiError, msgspec.MsgspecError) as error:  # what responds may not be an API server
            return str(error)
        else:
            if self._wanted[api] in {resource.name for resource in answer.resources}:
                self._known[api] = True
                self._missed.discard(api)
            else:
                self._miss(api)
        return ""

    def _miss(self, api: str) -> None:
        """Count a served API as gone at the second look that misses it: its CRD may only be installed anew."""
        if self._known.get(api) and api not in self._missed:
            self._missed.add(api)
        else:
            self._known[api] = False
            self._missed.discard(api)

    def _complain(self, trouble: str) -> None:
        """Log a problem once, however long it lasts."""
        if trouble and trouble != self.trouble:
            logger.warning("cannot find out which APIs are served; trying again: %s", trouble)
        self.trouble = trouble
