"""Reading the cluster once: lists of several pages, and API servers that do not say who is asking."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import yaml

from remediator.cli.reading import Cluster
from remediator.cluster import connect
from remediator.errors import ExpiredError, UnavailableError
from tests.remediator.apiserver import ScriptedCollection, page, text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from pytest_aiohttp import AiohttpServer

    from tests.remediator.apiserver import Step
    from tests.remediator.samples import Json


def rule(name: str) -> Json:
    """A rule of somebody's."""
    metadata = {"name": name, "uid": name, "resourceVersion": "1"}
    return {"metadata": metadata, "spec": {"taint": {"key": "x", "effect": "None"}}}


GONE = text(json.dumps({"kind": "Status", "reason": "Expired", "code": 410}), status=410)


@asynccontextmanager
async def reading(
    server: AiohttpServer, folder: Path, *lists: Step
) -> AsyncIterator[tuple[Cluster, list[dict[str, str]]]]:
    """Read from an API server that answers by a script; also what it was asked."""
    collection = ScriptedCollection(lists=list(lists))
    serving = await server(collection.app())
    file = folder / "config"
    content = {
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "clusters": [{"name": "x", "cluster": {"server": str(serving.make_url("")).rstrip("/")}}],
        "users": [{"name": "x", "user": {}}],
    }
    file.write_text(yaml.safe_dump(content))
    async with connect(file) as api:
        yield Cluster(api, "neuron.aws.com", "v1"), collection.listed


async def test_all_pages_are_read(aiohttp_server: AiohttpServer, tmp_path: Path) -> None:
    first, second = page(rule("a"), following="next"), page(rule("b"))
    async with reading(aiohttp_server, tmp_path, first, second) as (cluster, asked):
        rules = await cluster.rules()
    assert [one.metadata.name for one in rules] == ["a", "b"]
    assert asked == [{"limit": "500"}, {"limit": "500", "continue": "next"}]


async def test_pages_that_expire_are_read_in_one(aiohttp_server: AiohttpServer, tmp_path: Path) -> None:
    steps = page(rule("a"), following="next"), GONE, page(rule("a"), rule("b"))
    async with reading(aiohttp_server, tmp_path, *steps) as (cluster, asked):
        rules = await cluster.rules()
    assert [one.metadata.name for one in rules] == ["a", "b"]
    assert asked[-1] == {}


async def test_a_list_that_cannot_be_had_is_an_error(aiohttp_server: AiohttpServer, tmp_path: Path) -> None:
    async with reading(aiohttp_server, tmp_path, GONE) as (cluster, _asked):
        with pytest.raises(ExpiredError):
            await cluster.rules()


@pytest.mark.parametrize("answer", [text("{}"), text(json.dumps({"reason": "Forbidden"}), status=403)])
async def test_a_caller_nobody_knows_is_who_is_logged_in_here(
    aiohttp_server: AiohttpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Step
) -> None:
    monkeypatch.setenv("LOGNAME", "alice")
    async with reading(aiohttp_server, tmp_path, answer) as (cluster, _asked):
        assert (await cluster.caller()).name == "alice"


async def test_a_caller_is_not_guessed_while_the_server_fails(aiohttp_server: AiohttpServer, tmp_path: Path) -> None:
    async with reading(aiohttp_server, tmp_path, text("{}", status=500)) as (cluster, _asked):
        with pytest.raises(UnavailableError, match="500"):
            await cluster.caller()
