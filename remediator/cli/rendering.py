"""How documents look on a terminal, in a pipe, and to programs. It decides nothing of what is said.

Colour only where somebody looks at it: never in a pipe, never against NO_COLOR or a dumb terminal. In a pipe nothing is
wrapped either, so that one row is one line.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table as Grid
from rich.text import Text

from alerts.faults import Effect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rich.console import RenderableType

    from remediator.cli.explanation import Explanation, Section
    from remediator.cli.listing import Table

_UNBOUNDED = 100_000
_GAP = 2
_STYLES = {Effect.NO_EXECUTE: "bold red", Effect.NO_SCHEDULE: "yellow"}


def console(stream: TextIO | None = None) -> Console:
    """Somewhere to write to, by default standard output."""
    stream = stream or sys.stdout
    watched = stream.isatty()
    colour = watched and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Console(
        file=stream,
        force_terminal=watched,
        color_system="auto" if colour else None,
        width=None if watched else _UNBOUNDED,
        highlight=False,
        markup=False,
        emoji=False,
    )


def show_json(document: Any) -> None:
    """Write a document for programs."""
    sys.stdout.write(f"{json.dumps(document, indent=2, ensure_ascii=False)}\n")


def fits(out: Console, table: Table) -> bool:
    """Whether a table is no wider than the terminal."""
    return _width(table.headings, table.rows) <= out.width


def show_table(out: Console, table: Table) -> None:
    """Write a table. Where it is too wide, a node is a heading above its rows, and at last each row is a list."""
    if fits(out, table):
        _put(out, _grid(table.headings, table.rows))
        return
    headings = table.headings[1:]
    for node, group in groupby(table.rows, key=lambda row: row[0]):
        out.print(Text(node, style="bold"), soft_wrap=True)
        rows = [row[1:] for row in group]
        if _width(headings, rows) + _GAP <= out.width:
            _put(out, _indented(_grid(headings, rows)))
            continue
        for row in rows:
            _put(out, _indented(_pairs(zip(headings, row, strict=True))))
            out.print()


def _width(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    columns = [max(map(cell_len, column)) for column in zip(headings, *rows, strict=True)]
    return sum(columns) + _GAP * (len(columns) - 1)


def _put(out: Console, what: RenderableType) -> None:
    """Write it without the blanks that fill its lines up: they are in the way of whoever copies or compares them."""
    with out.capture() as captured:
        out.print(what)
    out.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def _indented(what: RenderableType, by: int = _GAP) -> Padding:
    return Padding(what, (0, 0, 0, by), expand=False)


def _pairs(pairs: Iterable[tuple[str, str]]) -> Grid:
    grid = Grid(box=None, show_header=False, padding=(0, _GAP, 0, 0), pad_edge=False)
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for word, text in pairs:
        grid.add_row(Text(word), Text(text, style=_style(text)))
    return grid


def _grid(headings: Iterable[str], rows: Iterable[tuple[str, ...]]) -> Grid:
    grid = Grid(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold")
    for heading in headings:
        grid.add_column(Text(heading), overflow="fold")
    for row in rows:
        grid.add_row(*(Text(cell, style=_style(cell)) for cell in row))
    return grid


def _style(cell: str) -> str:
    return _STYLES[Effect(cell)] if cell in {*_STYLES} else ""


def show_explanation(out: Console, document: Explanation) -> None:
    """Write an explanation. Commands are never broken, so that they can be copied."""
    out.print(Text(document.title, style="bold"), soft_wrap=True)
    for section in document.sections:
        out.print()
        _show_section(out, section)


def _show_section(out: Console, section: Section) -> None:
    style = _STYLES.get(section.effect, "bold") if section.effect else "bold"
    out.print(Text(section.title, style=style), soft_wrap=True)
    if section.table is not None:
        show_table(out, section.table)
    if section.lines:
        _put(out, _indented(_pairs(section.lines)))
    for command in section.commands:
        out.print(Text(f"  $ {command.command}", style="cyan"), soft_wrap=True)
        _put(out, _indented(Text(command.purpose), 2 * _GAP))


@contextmanager
def progress(out: Console, doing: str, total: float) -> Iterator[Callable[[float], None]]:
    """Show how far something has got, where somebody looks on; yields a way to say by how much more.

    Where nobody does, it says once what is being done.
    """
    if not out.is_terminal:
        say(out, f"{doing} …")
        yield lambda _more: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=out, transient=True) as bar:
        task = bar.add_task(doing, total=total)
        yield lambda more: bar.advance(task, more)


def say(out: Console, text: str, style: str = "") -> None:
    """Write one statement; the terminal wraps it, so that it can be copied and searched for."""
    out.print(Text(text, style=style), soft_wrap=True)
