"""Arguments and options that commands share, read and checked: what is wrong with one is wrong usage."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from alerts.faults import FAULTS
from exporter.service.parsers import positive_duration
from remediator.cli.address import FAULT, Address, parse_address, shortened
from remediator.names import is_subdomain
from remediator.settings import ENV_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable

    from exporter.service.flags import Flag
    from remediator.cli.picture import Held

LONGEST_RELEASE = timedelta(days=7)
"""Who wants more wants the fault to be looked at again in between."""

_SHORTEST_RELEASE = timedelta(seconds=1)
_TEXT_LIMIT = 200
_DRIVER_LIMIT = 63


class _Parsed(click.ParamType[Any]):
    """A parameter that a function reads; its ValueError is the user's."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _words(text: str) -> str:
    stripped = text.strip()
    if not stripped or len(stripped) > _TEXT_LIMIT or not stripped.isprintable():
        raise ValueError(f"expected 1 to {_TEXT_LIMIT} printable characters, got {shortened(text)}")
    return stripped


def _release_time(text: str) -> timedelta:
    try:
        length = timedelta(seconds=positive_duration(text))
    except (ValueError, OverflowError):
        length = timedelta(0)
    if not _SHORTEST_RELEASE <= length <= LONGEST_RELEASE:
        raise ValueError(f"expected a duration such as '30m', '4h' or '2d', at most '7d', got {shortened(text)}")
    return length


def _driver(text: str) -> str:
    if not is_subdomain(text, limit=_DRIVER_LIMIT):
        raise ValueError(f"expected a driver name such as 'neuron.aws.com', got {shortened(text)}")
    return text


def _file(text: str) -> Path:
    if not text or not text.isprintable():
        raise ValueError(f"expected a path, got {shortened(text)}")
    return Path(text)


def _address_of_pages(text: str) -> str:
    stripped = text.rstrip("/")
    if not stripped or not stripped.isprintable():
        raise ValueError(f"expected an address or a folder, got {shortened(text)}")
    return stripped


ADDRESS: click.ParamType[Address] = _Parsed("address", parse_address)
WORDS: click.ParamType[str] = _Parsed("text", _words)
RELEASE_TIME: click.ParamType[timedelta] = _Parsed("duration", _release_time)


RUNBOOK_URL: click.ParamType[str] = _Parsed("url", _address_of_pages)


def check_fault(about: Address, held: Held) -> None:
    """Refuse a fault that nobody knows; a newer remediator's records may have some that this version does not."""
    if about.fault in (None, *FAULTS) or any(about.names(record.key) for record in held.records):
        return
    says = f"no fault {about.fault!r}; expected one of {', '.join(sorted(FAULTS))}"
    raise click.UsageError(says, click.get_current_context(silent=True))


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command --kubeconfig and --driver."""
    command = click.option(
        "--driver",
        type=_Parsed("name", _driver),
        default="neuron.aws.com",
        show_default=True,
        metavar="NAME",
        help="DRA driver whose devices are meant.",
    )(command)
    return click.option(
        "--kubeconfig",
        type=_Parsed("file", _file),
        default=None,
        metavar="FILE",
        help="Credentials of the cluster. By default as kubectl: $KUBECONFIG, ~/.kube/config, else the Pod's own.",
    )(command)


def fault_name(text: str) -> str:
    """Read the name of a fault that may have been in the table once; raises ValueError for what no fault is called."""
    if not FAULT.fullmatch(text):
        raise ValueError(f"expected a fault such as 'hbm', got {shortened(text)}")
    return text


FAULT_NAME: click.ParamType[str] = _Parsed("name", fault_name)


def service_option(flag: Flag[Any], says: str | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command an option that is called, read and set by environment as the service's flag is."""
    name = flag.name.replace(".", "_").replace("-", "_")
    return click.option(
        f"--{flag.name}",
        name,
        type=_Parsed(flag.metavar.lower(), flag.parse),
        default=flag.default or None,
        show_default=bool(flag.default),
        metavar=flag.metavar,
        envvar=f"{ENV_PREFIX}{name.upper()}",
        show_envvar=True,
        help=says or f"{flag.help[:1].upper()}{flag.help[1:]}.",
    )
