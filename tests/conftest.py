"""Fixtures every test may use: the real stack, and the watch over leftover asyncio tasks.

What is missing of the stack is built before the first test, where its progress can be shown and no test's time
limit runs; a test that needs what cannot be had is skipped, or fails where ``CI=true``.
"""

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import pytest

from tests.stack.binaries import locate, require
from tests.stack.controlplane import COMPONENTS, ControlPlane
from tests.stack.kube import Admin
from tests.stack.monitoring import Alertmanager, Prometheus
from tests.stack.releases import Release, Rules
from tests.stack.tools import TOOLS, StackBuildError, StackUnavailableError

_MONITORING = ("prometheus", "promtool", "alertmanager", "amtool")
_BARE = Release("1.36", "none")
_BETA = Release("1.36", "v1beta2")
_FIXTURES: Mapping[str, Collection[str]] = MappingProxyType(
    {
        "control_plane": COMPONENTS,
        "beta_plane": _BETA.programs,
        "bare_plane": _BARE.programs,
        "make_plane": {*COMPONENTS, *_BARE.programs},
        "prometheus": (),
        "alertmanager": (),
    }
)
"""The fixtures of the stack, and the programs each needs that not every test of the stack may need."""

PrometheusFactory = Callable[..., Prometheus]
AlertmanagerFactory = Callable[..., Alertmanager]


class PlaneFactory(Protocol):
    """Makes running control planes, stopped after the test."""

    def __call__(self, *, kubernetes: str = "1.37", rules: Rules = "v1") -> ControlPlane:
        """Return one that serves; ``ValueError`` for a combination that there is not."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what uses the stack's fixtures before tests are chosen by mark."""
    for item in items:
        if not _FIXTURES.keys().isdisjoint(_fixtures_of(item)):
            item.add_marker("stack")


def _fixtures_of(item: pytest.Item) -> set[str]:
    """Names of the fixtures it uses, those among them that a parameter chooses."""
    chosen = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return {*getattr(item, "fixturenames", ()), *(name for name in chosen if isinstance(name, str))}


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Build what the chosen tests need and nobody has built yet, with the progress on the terminal."""
    marked = [item for item in session.items if item.get_closest_marker("stack")]
    if session.config.option.collectonly or not marked:
        return
    used = {name for item in marked for name in _fixtures_of(item)}
    needed = {*_MONITORING, *(program for name in used for program in _FIXTURES.get(name, ()))}
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
    with _plane(tmp_path_factory, Release()) as plane:
        yield plane


@pytest.fixture(scope="session")
def beta_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Start the one control plane of 1.36 that serves DeviceTaintRules, as v1beta2; at its first use."""
    with _plane(tmp_path_factory, _BETA) as plane:
        yield plane


@pytest.fixture(scope="session")
def bare_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Start the one control plane of 1.36 as its defaults are, without DeviceTaintRules; at its first use."""
    with _plane(tmp_path_factory, _BARE) as plane:
        yield plane


@pytest.fixture
def make_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlaneFactory]:
    """Give a factory of control planes that are the test's alone, to be upgraded: see ``PlaneFactory``."""
    with ExitStack() as planes:

        def make(*, kubernetes: str = "1.37", rules: Rules = "v1") -> ControlPlane:
            return planes.enter_context(_plane(tmp_path_factory, Release(kubernetes, rules)))

        yield make


@contextlib.contextmanager
def _plane(folders: pytest.TempPathFactory, release: Release) -> Iterator[ControlPlane]:
    require(*release.programs)
    directory = folders.mktemp("control-plane")
    with ControlPlane(directory, kubernetes=release.kubernetes, rules=release.rules) as plane:
        yield plane


@pytest.fixture
def admin(control_plane: ControlPlane) -> Iterator[Admin]:
    """Give the administrator's client; whatever a test has made in the cluster is gone after it."""
    with _cleaned(control_plane) as client:
        yield client


@pytest.fixture
def beta_admin(beta_plane: ControlPlane) -> Iterator[Admin]:
    """Give the administrator's client of ``beta_plane``, as ``admin`` is."""
    with _cleaned(beta_plane) as client:
        yield client


@pytest.fixture
def bare_admin(bare_plane: ControlPlane) -> Iterator[Admin]:
    """Give the administrator's client of ``bare_plane``, as ``admin`` is."""
    with _cleaned(bare_plane) as client:
        yield client


@contextlib.contextmanager
def _cleaned(plane: ControlPlane) -> Iterator[Admin]:
    client = Admin(plane)
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
