"""The process `neuron-remediator`: settings, wiring, life and death. It decides nothing."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from exporter.service import logs
from exporter.service.build_info import version
from exporter.service.connections import Connections, Limits
from exporter.service.process import StartError, run, serve
from remediator import settings as settings_module
from remediator.app import Webhook, make_app
from remediator.audit import LOGGER as AUDIT_LOGGER
from remediator.credentials import Token
from remediator.errors import UnavailableError
from remediator.wiring import wire

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remediator.settings import Settings

_COLLECT_AFTER = 50_000
"""New container objects before the collector looks for cycles; the default of 700 looks several times a request."""

_LOG = logging.getLogger("remediator")


async def _main(settings: Settings) -> None:
    token = None if settings.token_file is None else await Token.load(settings.token_file)
    connections = Connections(Limits.of_this_process())
    async with AsyncExitStack() as stack:
        try:
            running = await wire(settings, connections, stack)
        except UnavailableError as error:
            raise StartError(str(error)) from error
        parts = running.parts
        background = [*running.background]
        if token is not None and settings.token_file is not None:
            background.append(partial(token.follow, settings.token_file))
        _LOG.info("starting", extra=_told(settings))
        app = make_app(Webhook(parts.remediator, parts.metrics, token), parts.remediator, parts.metrics)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(run_for_ever()) for run_for_ever in background]
                unasked = [group.create_task(write_for_ever()) for write_for_ever in running.unasked]
                await serve(app, settings.listen_address, connections=connections)
                # Nothing may be written any more when another replica is let in.
                for task in unasked:
                    task.cancel()
                await asyncio.wait(unasked)
                for farewell in running.farewell:
                    await farewell()
                for task in tasks:
                    task.cancel()
        except BaseExceptionGroup as failures:
            # A single failure is told as itself: a sentence for the operator must not come as a group's traceback.
            raise failures if len(failures.exceptions) > 1 else failures.exceptions[0] from None


def _told(settings: Settings) -> dict[str, object]:
    return {
        "version": version(),
        "backend": settings.backend,
        "driver": settings.driver,
        "cluster": settings.cluster,
        "max_effect": str(settings.max_effect),
        "dry_run": settings.dry_run,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the remediator, or the command that takes its objects away; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    if list(arguments[:1]) == [settings_module.UNINSTALL]:
        # What it shows things with takes long to load, and is of no use to the service.
        from remediator.cli.uninstall_command import process  # noqa: PLC0415

        return process(arguments[1:])
    # What is loaded by now lives as long as the process, and a request makes far more objects than garbage cycles.
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER)

    async def start() -> None:
        settings = settings_module.read(arguments, os.environ)
        logs.configure(settings.log_level, settings.log_format, audit=(AUDIT_LOGGER,))
        await _main(settings)

    return run(start)


if __name__ == "__main__":
    sys.exit(main())
