"""Flags and their environment variables, read once at start: all problems are reported together.

A flag is one frozen object; its value is fetched with that object, so its type is known. Precedence:
command line, then environment, then default. ``--web.listen-address`` of a program with the prefix
``NEURON_EXPORTER_`` is ``NEURON_EXPORTER_WEB_LISTEN_ADDRESS``. Unknown environment variables are ignored,
even with the prefix: Kubernetes injects some for every Service. This module must not act on any value.
"""

import argparse
import difflib
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NoReturn, TypeVar, cast

from exporter.service.build_info import version
from exporter.service.parsers import Address, address, choice

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")

_NO_VALUE: Final = "\0no value"  # cannot come from a command line, which is made of C strings


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag(Generic[T_co]):
    """One flag.

    ``default`` is text and goes through ``parse`` like any other; None means that the flag must be given. For
    a flag that may be left out, use ``default=""`` with ``parse=optional(…)``. A ``repeatable`` flag's parser
    yields a tuple (see `comma_separated`); several occurrences are joined. A ``switch`` needs no value: its
    bare form means ``true``. ``parse`` raises ValueError("expected …, got …").
    """

    name: str
    default: str | None
    parse: Callable[[str], T_co]
    help: str
    metavar: str = "VALUE"
    repeatable: bool = False
    switch: bool = False


class UsageError(Exception):
    """What is wrong with flags and environment; one sentence for each problem."""

    def __init__(self, *problems: str) -> None:
        super().__init__(*problems)
        self.problems: tuple[str, ...] = problems


class Values:
    """The parsed values, fetched by flag: ``values[LISTEN_ADDRESS].port``."""

    def __init__(self, parsed: Mapping[str, object]) -> None:
        self._parsed = parsed

    def __getitem__(self, flag: Flag[T]) -> T:
        return cast("T", self._parsed[flag.name])


LOG_LEVEL: Final = Flag(
    name="log.level",
    default="info",
    parse=choice("debug", "info", "warning", "error"),
    help="least severe records to log: debug, info, warning or error",
    metavar="LEVEL",
)
LOG_FORMAT: Final = Flag(
    name="log.format",
    default="logfmt",
    parse=choice("logfmt", "json"),
    help="how a log line is written: logfmt or json",
    metavar="FORMAT",
)


def listen_address(default: str) -> Flag[Address]:
    """``--web.listen-address`` with the default of the service."""
    return Flag(
        name="web.listen-address",
        default=default,
        parse=address,
        help="address to serve HTTP on; ':PORT' is every interface, port 0 any free one",
        metavar="HOST:PORT",
    )


def read_flags(
    flags: Sequence[Flag[Any]],
    *,
    program: str,
    description: str,
    env_prefix: str,
    argv: Sequence[str],
    environ: Mapping[str, str],
    commands: Sequence[str] = (),
) -> Values:
    """Parse every flag, or raise one UsageError with all problems; --help and --version print and exit.

    ``commands`` are words that the program takes as its first argument and does not hand on to this function: one that
    stands elsewhere, or is misspelt, is a problem that says so.
    """
    parser = _parser(flags, program=program, description=description, env_prefix=env_prefix, commands=commands)
    given, unknown = parser.parse_known_args(argv)
    problems = [_unknown_problem(argument, flags, program, commands) for argument in unknown]
    parsed: dict[str, object] = {}
    for flag in flags:
        variable = _variable(env_prefix, flag)
        texts: list[str] = getattr(given, flag.name) or []
        source = f"--{flag.name}"
        # An empty variable counts as unset: templated manifests leave many of those behind.
        if not texts and environ.get(variable):
            texts, source = [environ[variable]], f"${variable}"
        try:
            parsed[flag.name] = _value(flag, texts)
        except ValueError as error:
            misplaced = next((_expected_first(program, text) for text in texts if text in commands), "")
            problems.append(f"reading {source}: {error}{misplaced}")
    if problems:
        raise UsageError(*problems)
    return Values(parsed)


def _value(flag: Flag[Any], texts: Sequence[str]) -> object:
    if _NO_VALUE in texts:
        raise ValueError(f"expected a value ({flag.metavar}), got none")
    if len(texts) > 1 and not flag.repeatable:
        raise ValueError(f"expected to be given once, got {len(texts)} times")
    if not texts:
        if flag.default is None:
            raise ValueError(f"expected a value ({flag.metavar}), got none; it has no default")
        texts = [flag.default]
    values = [flag.parse(given) for given in texts]
    return tuple(item for value in values for item in value) if flag.repeatable else values[0]


class _Parser(argparse.ArgumentParser):
    """Argparse that raises instead of printing and exiting."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"reading the command line: {message}")


class _HelpFormatter(argparse.HelpFormatter):
    """Argparse's own, but that it splits no name at a hyphen: it is to be found, and copied, as a whole."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(f"{indent}{line}" for line in self._split_lines(text, width - len(indent)))


def _parser(
    flags: Sequence[Flag[Any]], *, program: str, description: str, env_prefix: str, commands: Sequence[str]
) -> argparse.ArgumentParser:
    usages = [f"{program} [--flag=value ...]", *(f"{program} {command} [OPTIONS]" for command in commands)]
    parser = _Parser(
        prog=program,
        description=description,
        usage=f"\n{' ' * len('usage: ')}".join(usages),
        allow_abbrev=False,
        formatter_class=_HelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"{program} {version()}")
    for flag in flags:
        default = "required" if flag.default is None else f"default {flag.default!r}" if flag.default else ""
        note = ", ".join(filter(None, (default, "repeatable" if flag.repeatable else "")))
        hint = f" ({note})" if note and not flag.switch else ""
        parser.add_argument(
            f"--{flag.name}",
            dest=flag.name,
            # A missing value and a second occurrence are ours to report, together with everything else.
            nargs="?",
            const="true" if flag.switch else _NO_VALUE,
            action="append",
            metavar="true|false" if flag.switch else flag.metavar,
            help=f"{flag.help}{hint} [${_variable(env_prefix, flag)}]".replace("%", "%%"),
        )
    return parser


def _variable(env_prefix: str, flag: Flag[Any]) -> str:
    return env_prefix + flag.name.upper().replace(".", "_").replace("-", "_")


def _unknown_problem(argument: str, flags: Sequence[Flag[Any]], program: str, commands: Sequence[str]) -> str:
    name = argument.partition("=")[0]
    says = f"reading the command line: unknown argument {name!r}"
    if name in commands:
        return f"{says}{_expected_first(program, name)}"
    if near := difflib.get_close_matches(name, [f"--{flag.name}" for flag in flags], n=1):
        return f"{says}; did you mean {near[0]!r}"
    meant = difflib.get_close_matches(name, commands, n=1)
    return f"{says}; did you mean {meant[0]!r}?" if meant else says


def _expected_first(program: str, command: str) -> str:
    return f"; expected it first: {program} {command} [OPTIONS]"
