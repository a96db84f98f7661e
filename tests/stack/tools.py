"""Which programs the stack consists of, what each is built from, and where its binary is kept.

Facts and paths only: nothing here builds, downloads or starts anything.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

MODULES = Path(__file__).parent / "modules"

_KUBERNETES_VERSION = re.compile(r"k8s\.io/kubernetes (v(\d+)\.(\d+)\.\d+)")


class StackUnavailableError(Exception):
    """A program of the stack is neither here nor obtainable; the message is one line that says what to do."""


class StackBuildError(Exception):
    """Everything needed to obtain a program is here, and obtaining it failed; the message ends in the log's tail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A folder with a ``go.mod``: the programs one dependency list is pinned for."""

    name: str
    flags: tuple[str, ...] = ()
    stamped: bool = False
    """Whether the programs are Kubernetes' own, which know their version only if the linker tells them."""
    stub_pages: tuple[str, ...] = ()
    """Files the vendored module embeds but does not carry; any HTML serves. Set only where vendoring is needed."""

    @property
    def directory(self) -> Path:
        """The pinned module files, inside the checkout; never written to."""
        return MODULES / self.name

    @property
    def build_flags(self) -> tuple[str, ...]:
        """Everything that goes between ``go build`` and ``-o``."""
        if not self.stamped:
            return self.flags
        # Without these the server calls itself v0.0.0; taken from go.mod, so that a new version has one place.
        found = _KUBERNETES_VERSION.search((self.directory / "go.mod").read_text(encoding="utf-8"))
        if found is None:
            raise StackBuildError(f'reading {self.directory / "go.mod"}: no "k8s.io/kubernetes vX.Y.Z" in it')
        version = "k8s.io/component-base/version"
        stamps = (("gitVersion", found[1]), ("gitMajor", found[2]), ("gitMinor", found[3]))
        return (*self.flags, "-ldflags", "-s -w " + " ".join(f"-X {version}.{name}={value}" for name, value in stamps))

    @property
    def key(self) -> str:
        """Names the cache folder: other pins or other flags are other binaries."""
        digest = hashlib.sha256()
        for name in ("go.mod", "go.sum"):
            digest.update((self.directory / name).read_bytes())
        digest.update("\0".join((*self.build_flags, *self.stub_pages)).encode())
        return digest.hexdigest()[:16]

    @property
    def cache(self) -> Path:
        """Where this module's binaries, logs and lock live, outside the checkout."""
        return cache_root() / self.key


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One program."""

    name: str
    module: Module
    package: str
    build_seconds: int
    """What the first build took on two cores, after those above it, to tell people what they are waiting for."""

    @property
    def cached(self) -> Path:
        """Where its binary is once built."""
        return self.module.cache / "bin" / self.name


_KUBERNETES = Module(name="kubernetes", stamped=True)
_KUBERNETES_136 = Module(name="kubernetes-1.36", stamped=True)
_MONITORING = Module(name="monitoring", flags=("-tags", "remove_all_sd"))  # file, http and static discovery stay
_DIST = "vendor/github.com/prometheus/alertmanager/ui/app/dist"
_ALERTMANAGER = Module(
    name="alertmanager",
    flags=("-mod=vendor",),
    stub_pages=(f"{_DIST}/elm/index.html", f"{_DIST}/mantine/index.html"),
)


def _table(*rows: tuple[str, Module, str, int]) -> Mapping[str, Tool]:
    tools = (
        Tool(name=name, module=module, package=package, build_seconds=seconds)
        for name, module, package, seconds in rows
    )
    return MappingProxyType({tool.name: tool for tool in tools})


TOOLS: Mapping[str, Tool] = _table(
    ("kube-apiserver", _KUBERNETES, "k8s.io/kubernetes/cmd/kube-apiserver", 330),
    ("kube-controller-manager", _KUBERNETES, "k8s.io/kubernetes/cmd/kube-controller-manager", 120),
    ("kube-scheduler", _KUBERNETES, "k8s.io/kubernetes/cmd/kube-scheduler", 20),
    ("etcd", _KUBERNETES, "go.etcd.io/etcd/server/v3", 20),
    ("kubectl", _KUBERNETES, "k8s.io/kubernetes/cmd/kubectl", 40),
    ("kube-apiserver-1.36", _KUBERNETES_136, "k8s.io/kubernetes/cmd/kube-apiserver", 190),
    ("kube-controller-manager-1.36", _KUBERNETES_136, "k8s.io/kubernetes/cmd/kube-controller-manager", 55),
    ("kube-scheduler-1.36", _KUBERNETES_136, "k8s.io/kubernetes/cmd/kube-scheduler", 10),
    ("prometheus", _MONITORING, "github.com/prometheus/prometheus/cmd/prometheus", 240),
    ("promtool", _MONITORING, "github.com/prometheus/prometheus/cmd/promtool", 20),
    ("alertmanager", _ALERTMANAGER, "github.com/prometheus/alertmanager/cmd/alertmanager", 65),
    ("amtool", _ALERTMANAGER, "github.com/prometheus/alertmanager/cmd/amtool", 10),
)
"""Every program by name, in the order worth building them in."""


def tool(name: str) -> Tool:
    """Look a program up; ``ValueError`` names the known ones."""
    try:
        return TOOLS[name]
    except KeyError:
        raise ValueError(f'looking up "{name}": no such program; expected one of {", ".join(TOOLS)}') from None


def cache_root() -> Path:
    """Return the folder of everything built or fetched: ``$NEURON_STACK_CACHE``, else under the user's cache."""
    if chosen := os.environ.get("NEURON_STACK_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "neuron-device-taints" / "stack"
