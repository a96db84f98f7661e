"""Flags of the remediator → settings. It checks, with all problems at once; it opens and connects to nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from exporter.service.flags import LOG_FORMAT, LOG_LEVEL, Flag, UsageError, listen_address, read_flags
from exporter.service.parsers import Address, boolean, choice, optional, path, text
from remediator.names import is_subdomain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

PROGRAM = "neuron-remediator"
DESCRIPTION = "Receive Alertmanager's webhook and put the mapped Kubernetes taint on exactly the faulty Neuron device."
ENV_PREFIX = "NEURON_REMEDIATOR_"

_LABEL_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_DRIVER_LIMIT = 63


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
    default="neuron.aws.com/device-unhealthy",
    parse=_taint_key,
    metavar="KEY",
    help="key of every taint; the default is the driver's own, so that tolerations written for it work",
)
BACKEND = Flag(
    name="backend",
    default="device-taint-rule",
    parse=choice("device-taint-rule", "memory"),
    metavar="NAME",
    help="where records are kept: device-taint-rule, or memory (needs no cluster, taints nothing)",
)
KUBECONFIG = Flag(
    name="kubeconfig",
    default="",
    parse=optional(path),
    metavar="FILE",
    help="credentials of the cluster; without it, those of the Pod's service account",
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
    KUBECONFIG,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be set. `token_file` is None only when anonymous notifications are allowed."""

    listen_address: Address
    log_level: str
    log_format: str
    token_file: Path | None
    cluster: str | None
    driver: str
    taint_key: str
    backend: str
    kubeconfig: Path | None


def read(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Read the settings; raises `UsageError` with every problem."""
    values = read_flags(
        FLAGS, program=PROGRAM, description=DESCRIPTION, env_prefix=ENV_PREFIX, argv=argv, environ=environ
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
        kubeconfig=values[KUBECONFIG],
    )
