"""Whose word counts that something is not there: the API server's own, and nobody's in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from remediator.cluster import Api, connect
from remediator.errors import UnavailableError
from remediator.inventory import Node

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from pytest_aiohttp import AiohttpServer

NOT_FOUND = {"kind": "Status", "status": "Failure", "reason": "NotFound", "message": 'nodes "n" not found', "code": 404}


async def _answer(request: web.Request) -> web.Response:
    if request.path.startswith("/own"):
        return web.json_response(NOT_FOUND, status=404)
    return web.Response(status=404, text="<html>no such page</html>", content_type="text/html")


@pytest.fixture
async def api(aiohttp_server: AiohttpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Api]:
    """Connect to a server that finds nothing: below /own as the API server says it, elsewhere as a proxy does."""
    monkeypatch.setenv("NO_PROXY", "*")
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", _answer)
    server = await aiohttp_server(app)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "current-context: x\n"
        "contexts: [{name: x, context: {cluster: x, user: x}}]\n"
        f"clusters: [{{name: x, cluster: {{server: 'http://{server.host}:{server.port}'}}}}]\n"
        "users: [{name: x, user: {token: t}}]\n"
    )
    async with connect(kubeconfig) as connected:
        yield connected


async def test_what_the_api_server_does_not_find_is_not_there(api: Api) -> None:
    assert await api.get("/own/nodes/n", Node) is None
    await api.delete("/own/rules/r", uid="u", resource_version="1")


async def test_what_a_proxy_does_not_find_may_well_be_there(api: Api) -> None:
    """Believed, its page would make a Node unknown and an alert about it ignored, or a rule deleted that stands."""
    with pytest.raises(UnavailableError, match="404"):
        await api.get("/proxied/nodes/n", Node)
    with pytest.raises(UnavailableError, match="404"):
        await api.delete("/proxied/rules/r", uid="u", resource_version="1")
