"""The command `python -m alerts`: list the fault table, write the generated files, check they are current.

Reads and writes files and nothing else; what they contain is decided in `alerts.render` and `alerts.runbook`.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

from alerts.faults import FAULTS, WITHHELD
from alerts.intervals import Intervals, parse_interval
from alerts.render import rules_file
from alerts.runbook import runbook, withheld_runbook

HOME: Final = Path(__file__).parent
RULES: Final = Path("neuron-device-health.rules.yaml")
_RUNBOOKS: Final = Path("runbooks")
_GENERATE: Final = "make generate"
_T = TypeVar("_T")


def generated_files() -> Mapping[Path, str]:
    """Return every committed generated file, by its path below `alerts/`."""
    runbooks = {_RUNBOOKS / f"{fault.alert}.md": runbook(fault) for fault in FAULTS.values()}
    withheld = {_RUNBOOKS / f"{WITHHELD}.md": withheld_runbook()}
    return {RULES: rules_file(FAULTS.values(), Intervals()), **runbooks, **withheld}


def find_outdated(home: Path) -> list[str]:
    """Return one sentence for each generated file below `home` that is not what would be generated now."""
    expected = generated_files()
    outdated = [
        f'checking "{home / path}": {problem}; run `{_GENERATE}`'
        for path, text in expected.items()
        if (problem := _problem(home / path, text))
    ]
    orphans = [
        f'checking "{file}": no fault has this alert; delete the file'
        for file in sorted((home / _RUNBOOKS).glob("*.md"))
        if file.relative_to(home) not in expected
    ]
    return outdated + orphans


def _problem(file: Path, text: str) -> str | None:
    if not file.is_file():
        return "the file is missing"
    return None if file.read_text(encoding="utf-8") == text else "not what the fault table gives"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0, 1 for outdated files, 2 for wrong usage."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.command == "list":
        sys.stdout.write(_table())
        return 0
    if options.command == "check":
        problems = find_outdated(HOME)
        sys.stderr.writelines(f"{problem}\n" for problem in problems)
        return 1 if problems else 0
    return _generate(parser, options)


def _generate(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    try:
        intervals = Intervals(scrape=options.scrape_interval, evaluation=options.evaluation_interval)
    except ValueError as error:
        parser.error(str(error))
    if options.output is not None:
        files = {options.output: rules_file(FAULTS.values(), intervals, runbook_url=options.runbook_url)}
    elif intervals != Intervals() or options.runbook_url is not None:
        parser.error("generating the shipped rules: they have the default settings; give --output for others")
    else:
        files = {HOME / path: text for path, text in generated_files().items()}
        (HOME / _RUNBOOKS).mkdir(exist_ok=True)
    for file, text in files.items():
        try:
            # Into folders that are there: one that is not is a mistyped path.
            file.write_text(text, encoding="utf-8")
        except OSError as error:
            parser.error(f'writing "{file}": {error.strerror}')
    sys.stderr.write(f'wrote "{options.output}"\n' if options.output else f'wrote {len(files)} files below "{HOME}"\n')
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m alerts", description="Neuron fault rules")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="print the fault table")
    commands.add_parser("check", help="exit with 1 if a generated file is not current, and name it")
    generate = commands.add_parser("generate", help="write the rules and runbooks; with --output, only rules")
    interval = _argument(parse_interval)
    generate.add_argument(
        "--scrape-interval",
        type=interval,
        default="1s",
        metavar="DURATION",
        help="scrape_interval of both jobs, 1s to 2m (default 1s); set it there as well",
    )
    generate.add_argument(
        "--evaluation-interval",
        type=interval,
        default="1s",
        metavar="DURATION",
        help="how often the rules are evaluated, 1s to 2m (default 1s); written into the file",
    )
    generate.add_argument(
        "--runbook-url",
        type=_argument(_web_address),
        metavar="URL",
        help="where the runbooks are published; without it alerts carry no link",
    )
    generate.add_argument("--output", type=Path, metavar="FILE", help="write only the rules, to this file")
    return parser


def _argument(parse: Callable[[str], _T]) -> Callable[[str], _T]:
    """Let argparse show the message of a ValueError, which it replaces by one of its own."""

    def convert(text: str) -> _T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert


def _web_address(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.netloc:
        raise ValueError(f'reading URL "{text}": not a web address; expected one that begins with "https://"')
    return text


def _table() -> str:
    rows = [("fault", "alert", "severity", "effect", "taint value", "ends", "driver token")]
    rows.extend(
        (
            fault.name,
            fault.alert,
            fault.severity,
            fault.effect,
            fault.value,
            "with the node" if fault.latched else "when clean",
            fault.token or "(derived)",
        )
        for fault in FAULTS.values()
    )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
