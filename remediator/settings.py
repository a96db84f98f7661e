"""Flags of the remediator → settings. It checks, with all problems at once; it opens and connects to nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from alerts.faults import Effect
from exporter.service.flags import LOG_FORMAT, LOG_LEVEL, Flag, UsageError, listen_address, read_flags
from exporter.service.parsers import Address, boolean, choice, optional, path, positive_duration, text
from remediator import names
from remediator.budget import DEFAULT, Limits, Share
from remediator.election import LONGEST
from remediator.names import is_subdomain
from remediator.placement import Choice

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

PROGRAM = "neuron-remediator"
DESCRIPTION = (
    "Receive Alertmanager's webhook and put the mapped Kubernetes taint on exactly the faulty Neuron device. "
    "What it has put into a cluster is taken away by the command uninstall: see neuron-remediator uninstall --help."
)
ENV_PREFIX = "NEURON_REMEDIATOR_"
UNINSTALL = "uninstall"
COMMANDS = (UNINSTALL,)
"""What the process may be asked for instead of serving: `remediator.__main__` takes it when it comes first."""

_LABEL_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_DRIVER_LIMIT = 63
_COUNT_DIGITS = 9
_WHOLE = 100
MEMORY = "memory"
"""The value of --backend that needs no cluster; the others are `remediator.placement.Choice`."""

DEFAULT_NAMESPACE = "neuron-device-taints"
"""Where the product is installed unless told otherwise."""


def _driver(value: str) -> str:
    if not is_subdomain(value, limit=_DRIVER_LIMIT):
        raise ValueError(f"expected a driver name such as 'neuron.aws.com', got {value!r}")
    return value


def _taint_key(value: str) -> str:
    prefix, slash, name = value.rpartition("/")
    prefix_fits = is_subdomain(prefix) if slash else True
    if not (prefix_fits and _LABEL_NAME.fullmatch(name)):
        raise ValueError(f"expected a label name such as 'neuron.aws.com/device-unhealthy', got {value!r}")
    return value


def _name(value: str) -> str:
    if not is_subdomain(value):
        raise ValueError(f"expected a Kubernetes name such as 'neuron-remediator', got {value!r}")
    return value


def _lease_duration(value: str) -> int:
    seconds = positive_duration(value)
    # The API server keeps it as a whole number of seconds.
    if seconds != int(seconds) or seconds > LONGEST:
        raise ValueError(f"expected whole seconds, from '1s' to '{LONGEST}s', got {value!r}")
    return int(seconds)


def _count(value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) <= _COUNT_DIGITS):
        raise ValueError(f"expected a whole number, or 'none' for no limit, got {value!r}")
    return int(value)


def _max_new(value: str) -> int | None:
    return None if value == "none" else _count(value)


def _max_unavailable(value: str) -> Share | int | None:
    if not value.endswith("%"):
        return _max_new(value)
    percent = value[:-1]
    if not (percent.isascii() and percent.isdigit() and 1 <= int(percent[:4]) <= _WHOLE):
        raise ValueError(f"expected a share from '1%' to '100%', a whole number, or 'none' for no limit, got {value!r}")
    return Share(int(percent))


LISTEN_ADDRESS = listen_address(":9780")
TOKEN_FILE = Flag(
    name="webhook.token-file",
    default="",
    parse=optional(path),
    metavar="FILE",
    help="file with the bearer token Alertmanager must send; read again when it changes",
)
ALLOW_ANONYMOUS = Flag(
    name="webhook.allow-anonymous",
    default="false",
    parse=boolean,
    switch=True,
    help="take notifications from anybody who can reach the port",
)
CLUSTER = Flag(
    name="cluster",
    default="",
    parse=optional(text),
    metavar="NAME",
    help="act only on alerts whose cluster label is NAME; without it, on those of the first cluster seen",
)
DRIVER = Flag(
    name="driver",
    default="neuron.aws.com",
    parse=_driver,
    metavar="NAME",
    help="DRA driver whose devices are tainted",
)
TAINT_KEY = Flag(
    name="taint.key",
    default=names.TAINT_KEY,
    parse=_taint_key,
    metavar="KEY",
    help="key of every taint; the default is the driver's own, so that tolerations written for it work",
)
BACKEND = Flag(
    name="backend",
    default=Choice.AUTO.value,
    parse=choice(*(one.value for one in Choice), MEMORY),
    metavar="NAME",
    help="what is tainted: auto (the device, by a DeviceTaintRule, where the cluster serves those and the node has "
    "Neuron slices, else the Node), device-taint-rule, node-taint, or memory (needs no cluster, taints nothing)",
)
NODE_NO_EXECUTE = Flag(
    name="node-taint.allow-no-execute",
    default="false",
    parse=boolean,
    switch=True,
    help="let the taint of a Node evict too: it takes every pod that does not tolerate it off the node, whatever "
    "device that uses, Neuron Observer and the DRA driver included",
)
KUBECONFIG = Flag(
    name="kubeconfig",
    default="",
    parse=optional(path),
    metavar="FILE",
    help="credentials of the cluster; without it, those of the Pod's service account",
)
MAX_EFFECT = Flag(
    name="max-effect",
    default="NoExecute",
    parse=choice(*map(str, Effect)),
    metavar="EFFECT",
    help="strongest effect of any taint: NoExecute, NoSchedule, or None for a preview in which rules are there and "
    "nothing moves",
)
DRY_RUN = Flag(
    name="dry-run",
    default="false",
    parse=boolean,
    switch=True,
    help="write nothing at all to the cluster: decide, count and log what would be done; needs no Lease",
)
MAX_UNAVAILABLE = Flag(
    name="budget.max-unavailable",
    default="20%",
    parse=_max_unavailable,
    metavar="SHARE",
    help="most targets (devices, and Neuron nodes without slices) that may be unavailable through us or the driver: "
    "a share such as 20%, a number, or none; it holds back raises only",
)
MAX_NEW = Flag(
    name="budget.max-new",
    default="10",
    parse=_max_new,
    metavar="NUMBER",
    help="most targets newly disrupted within ten minutes: a number, or none; it holds back raises only",
)
LEASE_DURATION = Flag(
    name="lease.duration",
    default="15s",
    parse=_lease_duration,
    metavar="DURATION",
    help="how long a leader that is not heard of stays the leader; whole seconds",
)
LEASE_NAME = Flag(
    name="lease.name",
    default="neuron-remediator",
    parse=_name,
    metavar="NAME",
    help="name of the Lease by which replicas agree on a leader",
)
LEASE_NAMESPACE = Flag(
    name="lease.namespace",
    default="",
    parse=optional(_name),
    metavar="NAME",
    help="namespace of the Lease and of our Pods; without it, that of the Pod's service account, "
    f"else {DEFAULT_NAMESPACE}",
)
LEASE_POD = Flag(
    name="lease.pod",
    default="",
    parse=optional(_name),
    metavar="NAME",
    help="name of the Pod this replica runs in, which is labelled neuron-remediator/role=leader while it leads; "
    "without it, the name of the host",
)
PER_DEVICE = Flag(
    name="inventory.per-device",
    default="false",
    parse=boolean,
    switch=True,
    help="export a line for each device there is; takes some 14 ms of every scrape for each thousand devices, during "
    "which nothing else is done: for small fleets",
)
FLAGS = (
    LISTEN_ADDRESS,
    LOG_LEVEL,
    LOG_FORMAT,
    TOKEN_FILE,
    ALLOW_ANONYMOUS,
    CLUSTER,
    DRIVER,
    TAINT_KEY,
    BACKEND,
    NODE_NO_EXECUTE,
    KUBECONFIG,
    MAX_EFFECT,
    DRY_RUN,
    MAX_UNAVAILABLE,
    MAX_NEW,
    LEASE_DURATION,
    LEASE_NAME,
    LEASE_NAMESPACE,
    LEASE_POD,
    PER_DEVICE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be set. `token_file` is None only when anonymous notifications are allowed.

    `lease_duration` is in seconds; `lease_namespace` and `lease_pod` are None where the surroundings are to tell them.
    """

    listen_address: Address
    log_level: str
    log_format: str
    token_file: Path | None
    cluster: str | None
    driver: str
    taint_key: str
    backend: str
    kubeconfig: Path | None
    max_effect: Effect = Effect.NO_EXECUTE
    dry_run: bool = False
    limits: Limits = DEFAULT
    lease_duration: int = 15
    lease_name: str = "neuron-remediator"
    lease_namespace: str | None = None
    lease_pod: str | None = None
    per_device: bool = False
    node_no_execute: bool = False


def read(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Read the settings; raises `UsageError` with every problem."""
    values = read_flags(
        FLAGS,
        program=PROGRAM,
        description=DESCRIPTION,
        env_prefix=ENV_PREFIX,
        argv=argv,
        environ=environ,
        commands=COMMANDS,
    )
    token_file, anonymous = values[TOKEN_FILE], values[ALLOW_ANONYMOUS]
    if token_file is None and not anonymous:
        raise UsageError(
            "starting: nothing says who may send notifications; expected --webhook.token-file=FILE, or "
            "--webhook.allow-anonymous if everybody may"
        )
    if token_file is not None and anonymous:
        raise UsageError("starting: --webhook.token-file and --webhook.allow-anonymous exclude each other")
    return Settings(
        listen_address=values[LISTEN_ADDRESS],
        log_level=values[LOG_LEVEL],
        log_format=values[LOG_FORMAT],
        token_file=token_file,
        cluster=values[CLUSTER],
        driver=values[DRIVER],
        taint_key=values[TAINT_KEY],
        backend=values[BACKEND],
        node_no_execute=values[NODE_NO_EXECUTE],
        kubeconfig=values[KUBECONFIG],
        max_effect=Effect(values[MAX_EFFECT]),
        dry_run=values[DRY_RUN],
        limits=Limits(max_unavailable=values[MAX_UNAVAILABLE], max_new=values[MAX_NEW]),
        lease_duration=values[LEASE_DURATION],
        lease_name=values[LEASE_NAME],
        lease_namespace=values[LEASE_NAMESPACE],
        lease_pod=values[LEASE_POD],
        per_device=values[PER_DEVICE],
    )
