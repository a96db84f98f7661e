"""Find a program of the stack, obtaining it where that is allowed.

Tests take exactly the pinned versions; the demo takes what is quickest to get.
"""

import os
import shutil
from pathlib import Path

import pytest

from tests.stack import debian
from tests.stack.build import GO_MINIMUM, build
from tests.stack.tools import StackBuildError, StackUnavailableError, Tool, tool

_BIN_VARIABLE = "NEURON_STACK_BIN"
_GO = f"Go ≥ {GO_MINIMUM[0]}.{GO_MINIMUM[1]} (https://go.dev/dl/)"


def find(name: str) -> Path | None:
    """Return the binary if it is ready; neither builds nor downloads."""
    wanted = tool(name)
    if folder := os.environ.get(_BIN_VARIABLE):
        return _given(wanted, Path(folder))
    return wanted.cached if wanted.cached.is_file() else None


def locate(name: str) -> Path:
    """Return the binary in ``$NEURON_STACK_BIN`` if that is set, else from the cache, built with Go if need be.

    ``StackUnavailableError`` is one line saying what to install; ``StackBuildError`` means that building failed.
    """
    if (ready := find(name)) is not None:
        return ready
    try:
        return build(tool(name))
    except StackUnavailableError as error:
        raise StackUnavailableError(
            f'"{name}" is not built yet, and {error}; install {_GO}, '
            f"or point {_BIN_VARIABLE} at a folder with ready binaries"
        ) from error


def locate_for_demo(name: str) -> Path:
    """Return the binary that is quickest to get: PATH, the stack's cache, Debian's package, a build with Go.

    ``StackUnavailableError`` names all of these ways.
    """
    if os.environ.get(_BIN_VARIABLE):
        return locate(name)
    if on_path := shutil.which(name):
        return Path(on_path)
    if (ready := find(name) or debian.fetched(name)) is not None:
        return ready
    problems = []
    try:
        return debian.fetch_debian(name)
    except (StackUnavailableError, StackBuildError) as error:
        problems.append(str(error))
    try:
        return build(tool(name))
    except StackUnavailableError as error:
        problems.append(str(error))
    raise StackUnavailableError(
        f'"{name}" cannot be had ({"; ".join(problems)}); put it on PATH, run where apt-get can download '
        f"Debian's package, install {_GO}, or point {_BIN_VARIABLE} at a folder with ready binaries"
    )


def require(*names: str) -> dict[str, Path]:
    """Return the binaries for a test; without them the test is skipped, or fails where ``CI=true``."""
    try:
        return {name: locate(name) for name in names}
    except StackUnavailableError as error:
        message = f"needs the real stack: {error}"
    # A run that is meant to guard everything must not pass because it could not look.
    if os.environ.get("CI") == "true":
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


def _given(wanted: Tool, folder: Path) -> Path:
    path = folder / wanted.name
    if not os.access(path, os.X_OK) or not path.is_file():
        raise StackUnavailableError(
            f'looking for "{wanted.name}" in {_BIN_VARIABLE}="{folder}": no such executable; '
            "expected a folder with every binary the tests need"
        )
    return path
