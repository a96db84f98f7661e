"""The stack's own code: getting the programs, running processes, waiting, watching for leftover tasks."""

import asyncio
import contextlib
import os
import re
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.stack import __main__ as command_line
from tests.stack import binaries, build, debian
from tests.stack.controlplane import ControlPlane
from tests.stack.process import Process, free_port, wait_for, wait_until
from tests.stack.releases import DEFAULT_RULES, VERSIONED, Release
from tests.stack.tools import TOOLS, StackBuildError, StackUnavailableError

REPOSITORY = Path(__file__).parent.parent


# Getting the programs


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NEURON_STACK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("NEURON_STACK_BIN", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    (tmp_path / "path").mkdir()
    return tmp_path / "cache"


@pytest.mark.parametrize(
    ("go", "problem"),
    [
        (None, "no go on PATH"),
        ("echo go version go1.25.9 linux/amd64", r"/go is go1\.25"),
        ("echo what?", r"expected Go ≥ 1\.26, got 'what\?"),
    ],
    ids=["none", "too old", "unreadable"],
)
def test_without_a_fitting_go_one_line_says_what_to_install(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, go: str | None, problem: str
) -> None:
    if go:
        _program(empty_cache.parent / "path" / "go", go)
    with pytest.raises(StackUnavailableError) as raised:
        binaries.locate("etcd")
    message = str(raised.value)
    assert re.search(problem, message)
    assert "install Go ≥ 1.26" in message
    assert "NEURON_STACK_BIN" in message
    assert "\n" not in message

    monkeypatch.setenv("CI", "")
    with pytest.raises(pytest.skip.Exception, match="install Go"):
        binaries.require("etcd")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="install Go"):
        binaries.require("etcd")


@pytest.mark.parametrize("go", ["1.26.0", "1.27", "2.0.1"])
def test_a_newer_go_will_do(empty_cache: Path, go: str) -> None:
    program = _program(empty_cache.parent / "path" / "go", f"echo go version go{go} linux/amd64")
    assert build.find_go() == program


def test_a_build_that_fails_or_is_killed_leaves_no_binary(empty_cache: Path) -> None:
    tool = TOOLS["etcd"]
    _fake_go(empty_cache, 'printf half > "$out"; echo "link: killed" >&2; exit 1')
    with pytest.raises(StackBuildError, match=r"(?s)building etcd: go ended with 1.*link: killed"):
        build.build(tool)
    assert list(tool.cached.parent.iterdir()) == []

    started = empty_cache / "started"
    _fake_go(empty_cache, f'printf half > "$out"; true > {started}; exec /bin/sleep 600')
    with _building():
        wait_until(started.exists, timeout=10, what="the build to be under way")
    # Killed outright, so that nothing could tidy up.
    assert [path.name for path in tool.cached.parent.iterdir()] != []
    assert not tool.cached.exists()

    _fake_go(empty_cache, 'printf whole > "$out"')
    assert build.build(tool).read_text(encoding="utf-8") == "whole"
    assert [path.name for path in tool.cached.parent.iterdir()] == ["etcd"]


def test_two_builds_at_once_build_once(empty_cache: Path) -> None:
    count = empty_cache / "count"
    _fake_go(empty_cache, f'echo built >> {count}; /bin/sleep 0.3; printf whole > "$out"')
    with _building() as first, _building() as second:
        assert (first.wait(20), second.wait(20)) == (0, 0)
    assert count.read_text(encoding="utf-8") == "built\n"


def test_given_binaries_are_used_and_a_missing_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_STACK_BIN", str(tmp_path))
    given = _program(tmp_path / "etcd", "exit 0")
    assert binaries.locate("etcd") == given
    with pytest.raises(StackUnavailableError, match=r'looking for "kubectl" in NEURON_STACK_BIN=.*no such executable'):
        binaries.locate("kubectl")


def test_the_demo_takes_what_is_quickest_to_get(empty_cache: Path) -> None:
    with pytest.raises(StackUnavailableError) as raised:
        binaries.locate_for_demo("prometheus")
    for way in ("PATH", "Debian", "Go ≥ 1.26", "NEURON_STACK_BIN"):
        assert way in str(raised.value)
    packaged = _program(empty_cache / "debian/prometheus/usr/bin/prometheus", "exit 0")
    assert debian.fetch_debian("prometheus") == packaged
    assert binaries.locate_for_demo("prometheus") == packaged
    built = _program(TOOLS["prometheus"].cached, "exit 0")
    assert binaries.locate_for_demo("prometheus") == built
    on_path = _program(empty_cache.parent / "path" / "prometheus", "exit 0")
    assert binaries.locate_for_demo("prometheus") == on_path


def test_an_index_that_cannot_be_had_is_named_and_costs_only_its_own_packages(empty_cache: Path) -> None:
    programs = empty_cache.parent / "path"
    _program(programs / "dpkg-deb", "exit 1")
    failing = 'case "$*" in *update) echo "E: no index"; exit 100;; *) echo "E: no package"; exit 100;; esac'
    _program(programs / "apt-get", failing)
    with pytest.raises(StackBuildError, match="E: no index"):
        debian.fetch_debian("prometheus")
    _program(programs / "apt-get", failing.replace('echo "E: no package"; exit 100', ": >prometheus.deb"))
    with pytest.raises(StackBuildError, match=r'running "dpkg-deb -x .*/prometheus\.deb'):
        debian.fetch_debian("prometheus")


def test_debians_alertmanager_finds_its_templates_where_it_was_unpacked(tmp_path: Path) -> None:
    original = _program(
        tmp_path / "usr/bin/prometheus-alertmanager", "exec /bin/cat /usr/share/prometheus/alertmanager/t"
    )
    size = original.stat().st_size
    templates = tmp_path / "usr/share/prometheus/alertmanager"
    templates.mkdir(parents=True)
    (templates / "t").write_text("template", encoding="utf-8")
    debian._relocate_alertmanager(tmp_path)
    assert original.stat().st_size == size
    assert subprocess.check_output(tmp_path / "usr/bin/alertmanager", text=True) == "template"


def test_the_command_line_names_what_is_known(empty_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command_line.main(["build", "etcdd"])
    assert ended.value.code == 2
    assert 'unknown program "etcdd"; expected one of kube-apiserver, ' in capsys.readouterr().err
    assert command_line.main(["build", "etcd"]) == 1
    assert "install Go" in capsys.readouterr().err
    assert command_line.main(["where"]) == 0
    assert "etcd: not built yet" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        command_line.main(["up", "--kubernetes", "1.36", "--rules", "v1"])
    assert 'choosing Kubernetes "1.36" with rules "v1"' in capsys.readouterr().err


# Which Kubernetes


@pytest.mark.parametrize(("kubernetes", "rules"), [("1.36", "v1"), ("1.35", "none"), ("1.37", "v1alpha3")])
def test_a_control_plane_that_there_is_not_is_refused(tmp_path: Path, kubernetes: str, rules: Any) -> None:
    with pytest.raises(ValueError, match=rf'choosing Kubernetes "{kubernetes}" with rules "{rules}".*1\.36 with none'):
        ControlPlane(tmp_path, kubernetes=kubernetes, rules=rules)


def test_each_version_is_built_from_its_own_pins_and_says_so() -> None:
    for kubernetes, rules in DEFAULT_RULES.items():
        release = Release(kubernetes, rules)
        assert not any(release.flags(component) for component in VERSIONED), "its defaults are asked for by no flag"
        for component in VERSIONED:
            stamp = " ".join(TOOLS[release.program(component)].module.build_flags)
            assert f"version.gitVersion=v{kubernetes}." in stamp
            assert f"version.gitMinor={kubernetes.removeprefix('1.')}" in stamp
    assert len({TOOLS[Release(*one).program("kube-apiserver")].cached for one in DEFAULT_RULES.items()}) == 2


# Processes and waiting


def test_no_process_outlives_a_run_that_is_killed(tmp_path: Path) -> None:
    script = f"""
        import os, sys, time
        from pathlib import Path
        from tests.stack.process import Process
        child = Process("child", [sys.executable, "-c", "import time; time.sleep(600)"], Path({str(tmp_path)!r}))
        child.start()
        print(child.pid, flush=True)
        time.sleep(600)
    """
    command = (sys.executable, "-c", textwrap.dedent(script))
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        pid = int(run.stdout.readline())
        assert _alive(pid)
        run.kill()
    wait_until(lambda: not _alive(pid), timeout=10, what="the child to be killed")


def test_stop_ends_what_ignores_sigterm_and_start_works_again(tmp_path: Path) -> None:
    script = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
    process = Process("stubborn", [sys.executable, "-c", script], tmp_path)
    for times in (1, 2):
        process.start()
        process.wait_ready(partial(_says_ready, process, times))
        process.stop(timeout=0.1)
        assert not process.running
        assert process.returncode == -signal.SIGKILL


def test_waiting_gives_up_with_what_it_last_saw() -> None:
    with pytest.raises(TimeoutError, match=r"waiting for the moon: not within 0\.05 s; last seen \[\]"):
        wait_until(list, timeout=0.05, what="the moon")


async def test_waiting_lets_the_loop_run() -> None:
    loop = asyncio.get_running_loop()
    later = loop.create_future()
    loop.call_soon(later.set_result, None)

    async def done() -> bool:
        return later.done()

    async def never() -> None:
        pass

    assert await wait_for(done, timeout=5, what="the loop")
    with pytest.raises(TimeoutError, match="waiting for nothing"):
        await wait_for(never, timeout=0.05, what="nothing")


def test_ports_are_handed_out_once() -> None:
    ports = [free_port() for _ in range(500)]
    assert len(set(ports)) == 500


@pytest.mark.parametrize("leaves", [True, False])
def test_a_leftover_task_fails_its_test(tmp_path: Path, leaves: bool) -> None:  # noqa: FBT001 -- a parameter of pytest
    end = "" if leaves else "task.cancel()"
    text = f"""
        import asyncio
        async def test_it():
            task = asyncio.create_task(asyncio.sleep(600), name="forgotten")
            await asyncio.sleep(0)
            {end}
    """
    (tmp_path / "test_leftover.py").write_text(textwrap.dedent(text), encoding="utf-8")
    configuration = f"--config-file={REPOSITORY / 'pyproject.toml'}"
    command = (sys.executable, "-m", "pytest", "-p", "tests.conftest", configuration, str(tmp_path))
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert ("left asyncio tasks behind: forgotten" in done.stdout) == leaves
    assert (done.returncode != 0) == leaves, done.stdout + done.stderr


def test_a_part_that_does_not_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    process = Process("picky", [sys.executable, "-c", "raise SystemExit('flag --wrong: unknown')"], tmp_path)
    process.start()
    with pytest.raises(RuntimeError, match=r"(?s)\"picky\": it ended with 1; .*flag --wrong: unknown"):
        process.wait_ready(lambda: False)


def _says_ready(process: Process, times: int) -> bool:
    return process.tail().count("ready") == times


def _program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def _fake_go(cache: Path, on_build: str) -> None:
    """Put a ``go`` on PATH that knows its version and does ``on_build`` with ``$out`` as the wanted file."""
    find_out = 'while [ "$1" != -o ]; do shift; done; out=$2'
    version = "if [ $1 = version ]; then echo go version go1.26.0 linux/amd64; exit; fi"
    _program(cache.parent / "path" / "go", f"{version}\n{find_out}\n{on_build}")


@contextlib.contextmanager
def _building() -> Iterator["subprocess.Popen[bytes]"]:
    script = "from tests.stack.build import build; from tests.stack.tools import TOOLS; build(TOOLS['etcd'])"
    with subprocess.Popen((sys.executable, "-c", script), cwd=REPOSITORY, start_new_session=True) as builder:
        try:
            yield builder
        finally:
            if builder.poll() is None:
                os.killpg(builder.pid, signal.SIGKILL)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return not Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").partition(") ")[2].startswith("Z")
