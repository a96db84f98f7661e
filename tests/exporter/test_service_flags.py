"""Flags, environment, and what is said about wrong ones."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.service.flags import LOG_LEVEL, Flag, UsageError, Values, listen_address, read_flags
from exporter.service.parsers import (
    Address,
    address,
    boolean,
    choice,
    comma_separated,
    duration,
    optional,
    path,
    positive_duration,
    positive_int,
    text,
)
from exporter.settings import read_settings

LISTEN = listen_address(":9779")
TOKEN_FILE = Flag(name="token-file", default=None, parse=path, help="needed", metavar="FILE")
PEERS = Flag(name="peer", default="", parse=comma_separated(address), help="many", repeatable=True)
DRY_RUN = Flag(name="dry-run", default="false", parse=boolean, help="100% dry", switch=True)
LIMIT = Flag(name="limit", default="", parse=optional(positive_int), help="may be left out")
ALL = (LISTEN, TOKEN_FILE, PEERS, DRY_RUN, LIMIT, LOG_LEVEL)


def read(*argv: str, **environ: str) -> Values:
    return read_flags(
        ALL, program="prog", description="d", env_prefix="PROG_", argv=argv, environ=environ, commands=("remove",)
    )


def problems(*argv: str, **environ: str) -> tuple[str, ...]:
    with pytest.raises(UsageError) as caught:
        read(*argv, **environ)
    return caught.value.problems


def test_the_command_line_wins_over_the_environment_and_that_over_the_default() -> None:
    assert read("--token-file=x")[LISTEN] == Address("", 9779)
    assert read("--token-file=x", PROG_WEB_LISTEN_ADDRESS="h:1")[LISTEN] == Address("h", 1)
    given = read("--token-file=x", "--web.listen-address", "h:2", PROG_WEB_LISTEN_ADDRESS="h:1")
    assert given[LISTEN] == Address("h", 2)
    assert read("--token-file=x", PROG_WEB_LISTEN_ADDRESS="")[LISTEN] == Address("", 9779)


def test_repeatable_flags_switches_and_optional_flags() -> None:
    values = read("--token-file=x", "--peer=a:1,b:2", "--peer", "c:3", "--dry-run")
    assert values[PEERS] == (Address("a", 1), Address("b", 2), Address("c", 3))
    assert values[DRY_RUN] is True
    assert values[LIMIT] is None
    values = read(PROG_TOKEN_FILE="x", PROG_PEER="a:1, b:2", PROG_DRY_RUN="true", PROG_LIMIT="4")
    assert values[PEERS] == (Address("a", 1), Address("b", 2))
    assert values[DRY_RUN] is True
    assert values[LIMIT] == 4
    assert read("--token-file=x", "--dry-run=false")[DRY_RUN] is False


def test_all_problems_are_reported_at_once() -> None:
    found = problems("--web.listen-adress=:1", "--limit=0", "--log.level", "--dry-run", "--dry-run", PROG_PEER="x")
    assert found == (
        "reading the command line: unknown argument '--web.listen-adress'; did you mean '--web.listen-address'",
        "reading --token-file: expected a value (FILE), got none; it has no default",
        "reading $PROG_PEER: expected an address such as '127.0.0.1:9779' or ':9779', got 'x'",
        "reading --dry-run: expected to be given once, got 2 times",
        "reading --limit: expected an integer of at least 1, got '0'",
        "reading --log.level: expected a value (LEVEL), got none",
    )


def test_variables_that_kubernetes_injects_for_a_service_are_ignored() -> None:
    assert read("--token-file=x", PROG_PORT="tcp://10.0.0.1:9779", PROG_SERVICE_HOST="10.0.0.1")[LIMIT] is None


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_are_printed_and_end_well(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        read(option)
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert ("$PROG_WEB_LISTEN_ADDRESS" in printed and "100% dry" in printed) or printed.startswith("prog ")


def test_help_shows_what_a_flag_takes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read("--help")
    printed = capsys.readouterr().out
    assert "--dry-run [true|false]" in printed
    assert "--token-file [FILE]" in printed
    assert printed.startswith("usage: prog [--flag=value ...]\n       prog remove [OPTIONS]\n\n")


@pytest.mark.parametrize("width", range(40, 90))
def test_help_splits_no_name_at_a_hyphen(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    hyphened = Flag(name="x", default="", parse=text, help="device-taint-rule, node-taint or in-memory, as you like")
    with pytest.raises(SystemExit):
        read_flags((hyphened,), program="prog", description="what-is it", env_prefix="P_", argv=("--help",), environ={})
    assert not [line for line in capsys.readouterr().out.splitlines() if line.endswith("-")]


MISPLACED = "; expected it first: prog remove [OPTIONS]"


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (("--limit", "4", "remove"), f"reading the command line: unknown argument 'remove'{MISPLACED}"),
        (("--dry-run", "remove"), f"reading --dry-run: expected 'true' or 'false', got 'remove'{MISPLACED}"),
        (("remov",), "reading the command line: unknown argument 'remov'; did you mean 'remove'?"),
        (("serve",), "reading the command line: unknown argument 'serve'"),
    ],
)
def test_a_command_that_stands_elsewhere_or_is_misspelt_is_said_to_be(argv: tuple[str, ...], problem: str) -> None:
    assert problems("--token-file=x", *argv) == (problem,)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("500ms", 0.5), ("5s", 5), ("0.5s", 0.5), ("2m", 120), ("1m30s", 90), ("1h", 3600), ("0s", 0)],
)
def test_durations(written: str, seconds: float) -> None:
    assert duration(written) == seconds


@pytest.mark.parametrize(
    ("written", "address_"),
    [
        ("127.0.0.1:9779", Address("127.0.0.1", 9779)),
        (":0", Address("", 0)),
        ("[::1]:9779", Address("::1", 9779)),
        ("localhost:65535", Address("localhost", 65535)),
    ],
)
def test_addresses_and_back(written: str, address_: Address) -> None:
    assert address(written) == address_
    assert str(address_) == written


@pytest.mark.parametrize(
    ("parse", "written"),
    [
        (duration, "5"),
        (duration, "-5s"),
        (duration, "5 s"),
        (duration, ""),
        (duration, "9" * 400 + "s"),
        (positive_duration, "0s"),
        (address, "9779"),
        (address, "::1:9779"),
        (address, "h:65536"),
        (address, "h h:1"),
        (positive_int, "0"),
        (positive_int, "-1"),
        (positive_int, "1.5"),
        (positive_int, "٣"),
        (boolean, "yes"),
        (text, ""),
        (path, ""),
        (path, "a\0b"),
        (choice("a", "b"), "c"),
    ],
)
def test_what_a_parser_refuses_it_names_with_what_it_expected(parse: Callable[[str], object], written: str) -> None:
    with pytest.raises(ValueError, match=r"^expected .+, got .+"):
        parse(written)


@given(st.lists(st.text(), max_size=4), st.dictionaries(st.sampled_from(["PROG_LIMIT", "PROG_PEER"]), st.text()))
def test_any_command_line_is_values_or_a_usage_error(argv: list[str], environ: dict[str, str]) -> None:
    argv = [argument for argument in argv if argument not in {"-h", "--help", "--version"}]
    found: tuple[str, ...] = ()
    try:
        values = read(*argv, "--token-file=x", **environ)
    except UsageError as error:
        found = error.problems
    else:
        assert isinstance(values[LISTEN], Address)
    assert all(problem.startswith("reading ") and "\n" not in problem for problem in found)


def test_a_heartbeat_timeout_too_short_to_be_seen_is_refused() -> None:
    with pytest.raises(UsageError, match="expected at least 4 times --refresh-interval"):
        read_settings(["--refresh-interval=10s"], {})
    assert read_settings(["--devices.expected=16"], {}).devices_expected == 16
    with pytest.raises(UsageError, match="at most 1024 devices"):
        read_settings(["--devices.expected=1000000000"], {})
