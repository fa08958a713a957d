"""Runs a coroutine on an event loop of its own, in a thread, for callers that may have a loop already (a notebook)."""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")


class Background(Generic[Item]):
    """One coroutine beside its caller, who takes the items that it emits, one after another."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False
        self._error: BaseException | None = None

    @contextlib.contextmanager
    def running(self, work: Callable[[], Coroutine[Any, Any, object]]) -> Iterator[None]:
        """Run the coroutine. At the end of the block it is cancelled, if it still runs, and has ended."""
        self._loop = asyncio.new_event_loop()
        # A daemon: the caller waits for it, and its ranks end with this process in any case.
        thread = threading.Thread(target=self._main, args=(self._loop, work), name="resnetboost", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.call(self._cancel)
            thread.join()

    def emit(self, item: Item) -> None:
        """Hand an item to the caller; for any thread."""
        self._items.put(item)

    def call(self, function: Callable[[], object]) -> None:
        """Call a function on the event loop; does nothing after its end."""
        assert self._loop is not None, "nothing runs"
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function)

    def next(self, timeout: float | None = None) -> Item | None:
        """The next item; None after the coroutine's end. Raises its error; TimeoutError if there is none in time."""
        try:
            item = self._items.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError from None
        if item is None and self._error is not None:
            raise self._error
        return item

    def _main(self, loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(self._until_cancelled(work))
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            self._error = error
        finally:
            self._items.put(None)

    async def _until_cancelled(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        self._task = asyncio.current_task()
        if not self._cancelled:
            await work()

    def _cancel(self) -> None:
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()


def result(work: Callable[[], Coroutine[Any, Any, Item]]) -> Item:
    """Run a coroutine to its end and return its result; an interrupt cancels it."""
    background: Background[Item] = Background()

    async def emitted() -> None:
        background.emit(await work())

    with background.running(emitted):
        found = background.next()
        assert found is not None
        return found
