"""Fixtures every test may use: the real stack, and the watch over leftover asyncio tasks.

What is missing of the stack is built before the first test, where its progress can be shown and no test's time
limit runs; a test that needs what cannot be had is skipped, or fails where ``CI=true``.
"""

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.stack.binaries import locate, require
from tests.stack.controlplane import COMPONENTS, ControlPlane
from tests.stack.kube import Admin
from tests.stack.monitoring import Alertmanager, Prometheus
from tests.stack.tools import TOOLS, StackBuildError, StackUnavailableError

_MONITORING = ("prometheus", "promtool", "alertmanager", "amtool")
_FIXTURES = frozenset({"control_plane", "prometheus", "alertmanager"})

PrometheusFactory = Callable[..., Prometheus]
AlertmanagerFactory = Callable[..., Alertmanager]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what uses the stack's fixtures before tests are chosen by mark."""
    for item in items:
        if _FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("stack")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Build what the chosen tests need and nobody has built yet, with the progress on the terminal."""
    marked = [item for item in session.items if item.get_closest_marker("stack")]
    if session.config.option.collectonly or not marked:
        return
    whole = any("control_plane" in getattr(item, "fixturenames", ()) for item in marked)
    needed = (*(COMPONENTS if whole else ()), *_MONITORING)
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
        for name in (name for name in TOOLS if name in needed):
            try:
                locate(name)
            except StackUnavailableError:
                continue  # each test that needs it says so itself
            except StackBuildError as error:
                pytest.exit(str(error), returncode=pytest.ExitCode.TESTS_FAILED)


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Start the one control plane of this run."""
    require(*COMPONENTS)
    plane = ControlPlane(tmp_path_factory.mktemp("control-plane"))
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()


@pytest.fixture
def admin(control_plane: ControlPlane) -> Iterator[Admin]:
    """Give the administrator's client; whatever a test has made in the cluster is gone after it."""
    client = Admin(control_plane)
    yield client
    client.clean()


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[PrometheusFactory]:
    """Give a factory of running servers: ``prometheus(config, rule_files=())``."""
    require("prometheus")
    with ExitStack() as servers:

        def start(config: Mapping[str, Any], rule_files: Sequence[Path] = ()) -> Prometheus:
            return servers.enter_context(Prometheus(_folder(tmp_path, "prometheus"), config, rule_files))

        yield start


@pytest.fixture
def alertmanager(tmp_path: Path) -> Iterator[AlertmanagerFactory]:
    """Give a factory of running servers: ``alertmanager(config)``."""
    require("alertmanager")
    with ExitStack() as servers:

        def start(config: Mapping[str, Any]) -> Alertmanager:
            return servers.enter_context(Alertmanager(_folder(tmp_path, "alertmanager"), config))

        yield start


def _folder(parent: Path, name: str) -> Path:
    return next(path for number in range(100) if not (path := parent / f"{name}-{number}").exists())


@pytest.fixture(autouse=True)
def no_task_left_behind(request: pytest.FixtureRequest) -> None:
    """Fail each coroutine test that leaves an asyncio task running once its other fixtures are torn down."""
    if inspect.iscoroutinefunction(getattr(request, "function", None)):
        request.getfixturevalue("_watch_tasks")


@pytest.fixture
async def _watch_tasks() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    await asyncio.sleep(0)  # what the last teardown has cancelled may take this turn to end
    left = sorted(task.get_name() for task in asyncio.all_tasks() - before - {asyncio.current_task()})
    if left:
        pytest.fail(f"the test left asyncio tasks behind: {', '.join(left)}", pytrace=False)
