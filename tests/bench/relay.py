"""The least a webhook in Python can do: take a request, create the object it holds, answer.

A floor for the benchmark, run as a process of its own like the remediator: no check, no decision, no record, no log.
"""

from __future__ import annotations

import os
import ssl

import aiohttp
from aiohttp import web

RULES = "/apis/resource.k8s.io/v1/devicetaintrules"


async def _session(app: web.Application) -> aiohttp.ClientSession:
    context = ssl.create_default_context(cafile=os.environ["RELAY_CA_FILE"])
    return aiohttp.ClientSession(
        os.environ["RELAY_SERVER"],
        headers={"Authorization": f"Bearer {os.environ['RELAY_TOKEN']}", "Content-Type": "application/json"},
        connector=aiohttp.TCPConnector(ssl=context),
    )


def main() -> None:
    """Serve until SIGTERM, on the port in the environment."""
    app = web.Application()
    sessions: list[aiohttp.ClientSession] = []

    async def start(app: web.Application) -> None:
        sessions.append(await _session(app))

    async def stop(_app: web.Application) -> None:
        await sessions[0].close()

    async def relay(request: web.Request) -> web.Response:
        async with sessions[0].post(RULES, data=await request.read()) as answer:
            await answer.read()
        return web.Response(status=answer.status)

    async def ready(_request: web.Request) -> web.Response:
        return web.Response()

    app.on_startup.append(start)
    app.on_cleanup.append(stop)
    app.router.add_post("/", relay)
    app.router.add_get("/readyz", ready)
    web.run_app(app, host="127.0.0.1", port=int(os.environ["RELAY_PORT"]), access_log=None, print=None)


if __name__ == "__main__":
    main()
