"""kopf's handlers: startup, login, job events and cleanup. No logic.

Only `on.event` is used for jobs: kopf's other handlers write annotations and finalizers, and drop or repeat work by
their own rules. `kopf run -m resnetboost_operator.controller.handlers --all-namespaces` works too, with options from
the environment.
"""

import asyncio
import signal
from collections.abc import Iterator
from typing import Any

import kopf

from resnetboost_api import names
from resnetboost_operator.controller import options
from resnetboost_operator.controller.process import Operator
from resnetboost_operator.kubeclient.reflector import MOST_SECONDS, PAGE, SILENCE_SECONDS
from resnetboost_operator.kubeclient.resources import JOBS
from resnetboost_operator.kubeclient.retry import Backoff


class _RetryDelays:
    """Delays between kopf's retries of a request, without end: an API server that is down comes back."""

    def __iter__(self) -> Iterator[float]:
        backoff, failures = Backoff(first_seconds=0.5, most_seconds=10.0), 0
        while True:
            failures += 1
            yield backoff.delay_seconds(failures)


@kopf.on.startup(errors=kopf.ErrorsMode.PERMANENT)
async def start(settings: kopf.OperatorSettings, memo: kopf.Memo, **_: Any) -> None:
    """Start the operator; returns once jobs can be watched."""
    configure(settings)
    if "operator" not in memo:  # in `kopf run`
        memo.operator = await Operator.connected(options.from_environment())
    try:
        await memo.operator.start()
    except asyncio.CancelledError:  # cancelled during startup: kopf does not call `stop` then
        await memo.operator.stop()
        raise


@kopf.on.login()
async def log_in(memo: kopf.Memo, **_: Any) -> kopf.AiohttpSession:
    """Give kopf a session with our credentials; called again after they expire."""
    operator: Operator = memo.operator
    return kopf.AiohttpSession(server=operator.host, aiohttp_session=await operator.session())


@kopf.on.event(names.GROUP, names.VERSION, JOBS.plural)
async def job(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
    """Pass on that a job was listed, changed or deleted."""
    memo.operator.job_event(event["type"], event["object"])


@kopf.on.cleanup()
async def stop(memo: kopf.Memo, **_: Any) -> None:
    """Shut down gracefully; a second signal exits at once."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_DFL)
    await memo.operator.stop()


def configure(settings: kopf.OperatorSettings) -> None:
    """Make kopf only watch: no events, no peering, no scan for new kinds."""
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.watching.server_timeout = MOST_SECONDS
    settings.watching.client_timeout = MOST_SECONDS + 30
    settings.watching.connect_timeout = 10.0
    settings.watching.inactivity_timeout = SILENCE_SECONDS
    settings.watching.reconnect_backoff = 1.0
    settings.watching.chunk_size = PAGE
    settings.networking.request_timeout = 30.0
    settings.networking.connect_timeout = 10.0
    settings.networking.error_backoffs = _RetryDelays()
