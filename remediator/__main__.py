"""The process `neuron-remediator`: settings, wiring, life and death. It decides nothing."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from exporter.service import logs
from exporter.service.build_info import version
from exporter.service.process import StartError, run, serve
from remediator import settings as settings_module
from remediator.app import Webhook, make_app
from remediator.backends.device_taint_rule import DeviceTaintRuleBackend
from remediator.backends.memory import AnyCluster, MemoryBackend
from remediator.caches import Caches
from remediator.cluster import connect
from remediator.credentials import Token
from remediator.errors import UnavailableError
from remediator.metrics import Metrics
from remediator.remediate import Identity, Remediator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remediator.backends import Backend, Surroundings
    from remediator.settings import Settings

_COLLECT_AFTER = 50_000
"""New container objects before the collector looks for cycles; the default of 700 looks several times a request."""

_LOG = logging.getLogger("remediator")

Background = Callable[[], Coroutine[None, None, None]]


async def _backend(settings: Settings, stack: AsyncExitStack) -> tuple[Backend, Surroundings, list[Background]]:
    """Make the backend the settings name, what it must know of the cluster, and what keeps that current."""
    if settings.backend == MemoryBackend.name:
        return MemoryBackend(), AnyCluster(settings.driver), []
    api = await stack.enter_async_context(connect(settings.kubeconfig))
    caches = Caches(api, driver=settings.driver, elapsed=time.monotonic)
    return DeviceTaintRuleBackend(api, caches.records), caches, [caches.run]


async def _main(settings: Settings) -> None:
    token = None if settings.token_file is None else await Token.load(settings.token_file)
    async with AsyncExitStack() as stack:
        try:
            backend, surroundings, background = await _backend(settings, stack)
        except UnavailableError as error:
            raise StartError(str(error)) from error
        metrics = Metrics(records=backend.records, backend=backend.name, surroundings=surroundings)
        remediator = Remediator(
            backend=backend,
            surroundings=surroundings,
            identity=Identity(taint_key=settings.taint_key, cluster=settings.cluster),
            metrics=metrics,
            clock=lambda: datetime.now(UTC),
            elapsed=time.monotonic,
        )
        if token is not None and settings.token_file is not None:
            background.append(partial(token.follow, settings.token_file))
        _LOG.info(
            "starting",
            extra={
                "version": version(),
                "backend": backend.name,
                "driver": settings.driver,
                "cluster": settings.cluster,
            },
        )
        app = make_app(Webhook(remediator, metrics, token), remediator, metrics)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(run_for_ever()) for run_for_ever in background]
                await serve(app, settings.listen_address)
                for task in tasks:
                    task.cancel()
        except BaseExceptionGroup as failures:
            # A single failure is told as itself: a sentence for the operator must not come as a group's traceback.
            raise failures if len(failures.exceptions) > 1 else failures.exceptions[0] from None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the remediator; returns the exit code."""
    # What is loaded by now lives as long as the process, and a request makes far more objects than garbage cycles.
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER)

    async def start() -> None:
        settings = settings_module.read(sys.argv[1:] if argv is None else argv, os.environ)
        logs.configure(settings.log_level, settings.log_format)
        await _main(settings)

    return run(start)


if __name__ == "__main__":
    sys.exit(main())
