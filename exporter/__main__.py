"""The ``neuron-exporter`` process."""

import logging
import os
import sys
from typing import Final

from exporter.app import make_app, make_poller
from exporter.service import logs, process
from exporter.service.build_info import version
from exporter.settings import read_settings

_LOG: Final = logging.getLogger("exporter")


async def _serve() -> None:
    settings = read_settings(sys.argv[1:], os.environ)
    logs.configure(settings.log_level, settings.log_format)
    _LOG.info("starting", extra={"version": version(), "sysfs_root": str(settings.sysfs_root)})
    await process.serve(make_app(make_poller(settings)), settings.listen_address)


def main() -> int:
    """Run until SIGTERM or SIGINT; the exit code is 0 then, 2 for wrong usage."""
    return process.run(_serve)


if __name__ == "__main__":
    sys.exit(main())
