"""Whose word counts that something is not there: the API server's own, and nobody's in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from aiohttp import web

from remediator.cluster import Api, connect
from remediator.discovery import rule_version
from remediator.errors import NotServedError, UnavailableError
from remediator.inventory import Node

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from pytest_aiohttp import AiohttpServer

NOT_FOUND = {
    "kind": "Status",
    "status": "Failure",
    "reason": "NotFound",
    "message": 'nodes "n" not found',
    "details": {"name": "n", "kind": "nodes"},
    "code": 404,
}


_VERSIONS = web.AppKey("versions", list[str])


async def _answer(request: web.Request) -> web.Response:
    if request.path == "/apis/resource.k8s.io/v1":
        return web.json_response({"resources": [{"name": "resourceslices"}]})
    if request.path == "/apis/resource.k8s.io":
        return web.json_response({"versions": [{"version": version} for version in request.app[_VERSIONS]]})
    if request.path.startswith("/own"):
        return web.json_response(NOT_FOUND, status=404)
    if request.path.startswith("/unserved"):
        return web.json_response(NOT_FOUND | {"message": "the server could not find it", "details": {}}, status=404)
    return web.Response(status=404, text="<html>no such page</html>", content_type="text/html")


@pytest.fixture
def versions() -> list[str]:
    """Give the versions of the group of rules that are told of; of v1 it is told that it has none."""
    return ["v1"]


@pytest.fixture
async def api(
    aiohttp_server: AiohttpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, versions: list[str]
) -> AsyncIterator[Api]:
    """Connect to a server that finds nothing: below /own as the API server says it, elsewhere as a proxy does."""
    monkeypatch.setenv("NO_PROXY", "*")
    app = web.Application()
    app[_VERSIONS] = versions
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


async def test_what_is_not_served_is_not_taken_for_missing(api: Api) -> None:
    """The API server says so in the same words, and names no object: in an upgrade, rules are there all the same."""
    with pytest.raises(NotServedError, match="404"):
        await api.get("/unserved/rules/r", Node)
    with pytest.raises(NotServedError, match="404"):
        await api.delete("/unserved/rules/r", uid="u", resource_version="1")


async def test_what_a_proxy_does_not_find_may_well_be_there(api: Api) -> None:
    """Believed, its page would make a Node unknown and an alert about it ignored, or a rule deleted that stands."""
    with pytest.raises(UnavailableError, match="404"):
        await api.get("/proxied/nodes/n", Node)
    with pytest.raises(UnavailableError, match="404"):
        await api.delete("/proxied/rules/r", uid="u", resource_version="1")


async def test_only_what_is_said_to_be_served_tells_that_rules_are_not(api: Api, versions: list[str]) -> None:
    """A page in the way, or a version that is just going, must not put every rule there is out of force."""
    with pytest.raises(NotServedError):
        await rule_version(api)
    versions.append("v1beta2")
    with pytest.raises(UnavailableError, match="404") as caught:
        await rule_version(api)
    assert not isinstance(caught.value, NotServedError)


@pytest.mark.parametrize(
    ("serving", "version"),
    [
        ({"v1": ["devicetaintrules"], "v1beta2": ["devicetaintrules"]}, "v1"),
        ({"v1": ["resourceslices"], "v1beta2": ["devicetaintrules"]}, "v1beta2"),
        ({"v1": ["resourceslices"], "v1alpha3": ["devicetaintrules", "devicetaintrules/status"]}, "v1alpha3"),
        ({"v1": ["resourceslices"], "v1alpha3": ["devicetaintrules"]}, None),
        ({"v1": ["resourceslices"]}, None),
    ],
    ids=["1.37", "1.36-gate", "1.35", "1.34", "none"],
)
async def test_rules_are_used_in_the_best_version_that_knows_all_effects(
    serving: dict[str, list[str]], version: str | None
) -> None:
    class Discovery:
        async def get(self, path: str, decode_as: type[Any]) -> Any:
            last = path.rpartition("/")[2]
            listed = {"resources": [{"name": name} for name in serving.get(last, ())]}
            offered = {"versions": [{"version": one} for one in serving]}
            return msgspec.convert(listed if last in serving else offered, decode_as)

    discovery: Any = Discovery()
    if version is not None:
        assert await rule_version(discovery) == version
    else:
        with pytest.raises(NotServedError, match="the API server serves no version of it"):
            await rule_version(discovery)
