"""Asyncio servers beside a test: each in a thread with a loop of its own, whatever the test itself is.

Knows nothing of what is served.
"""

import asyncio
import contextlib
from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from threading import Thread
from typing import TypeVar

from tests.stack.process import Startable

T = TypeVar("T")

_SECONDS = 20.0


class Threaded(Startable):
    """Runs the block of ``_running()`` from start to stop. It may be started again after a stop."""

    _thread: Thread | None = None
    _loop: asyncio.AbstractEventLoop
    _ending: asyncio.Event

    @abstractmethod
    def _running(self) -> AbstractAsyncContextManager[None]:
        """Serve for the length of the block, on the loop of the thread."""

    def start(self) -> None:
        """Start the thread; returns once it serves, and raises what kept it from serving."""
        started: Future[None] = Future()
        # A daemon: a run that is interrupted while this one hangs must be able to end.
        thread = Thread(target=lambda: asyncio.run(self._serve(started)), name=type(self).__name__, daemon=True)
        thread.start()
        started.result(_SECONDS)
        self._thread = thread

    def stop(self) -> None:
        """Cut every connection and end the thread. Nothing happens if it does not run."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._loop.call_soon_threadsafe(self._ending.set)
        thread.join(_SECONDS)
        if thread.is_alive():
            raise RuntimeError(f'stopping "{thread.name}": its thread has not ended within {_SECONDS:g} s')

    def _on_loop(self, function: Callable[[], T]) -> T:
        """Call a plain function on the loop; returns once it is done. For the test's thread."""
        if self._thread is None:
            raise RuntimeError(f'changing "{type(self).__name__}": it does not run')

        async def call() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(_SECONDS)

    async def _serve(self, started: "Future[None]") -> None:
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        async with contextlib.AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self._running())
            except Exception as error:  # noqa: BLE001 - it is the starter's, in the other thread
                started.set_exception(error)
                return
            started.set_result(None)
            await self._ending.wait()
