"""Tables and JSON of the benches: for the terminal, for docs/, and with machine and versions beside the figures.

    python -m benchmarks.table run-output/bench.json [--markdown]
    python -m benchmarks.table run-output/bench.json --into docs/performance.md

prints the tables of a result again, or puts them into a document, between the lines `<!-- begin chains -->` and
`<!-- end chains -->` (for the bench of that name). A result is the JSON of one run: `schema`, `command` (the bench:
chains, instructions, models, optimizer), `versions`, `machine`, `options`, and what the bench itself adds.
`benchmarks.run_<command>.views(result)` gives its tables.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from onnxfuse.report import schema
from onnxfuse.report.machine import machine
from onnxfuse.report.summary import versions
from onnxfuse.timing import Ratio

__all__ = [
    "Figure", "View", "environment", "figures_view", "geometric_mean", "number", "progress", "ratio_text", "record",
    "show", "write",
]

SCHEMA = 1
_WIDTH = 200  # columns where there is no terminal
_COMMANDS = ("chains", "cuda", "instructions", "models", "optimizer")


@dataclass(frozen=True)
class View:
    """One table: titles of the columns, rows of text, and lines that stand under it. The first `left` columns are
    words, the others numbers."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    left: int = 1

    def rich(self) -> Table:
        """For the terminal."""
        table = Table(title=escape(self.title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        for index, name in enumerate(self.columns):
            table.add_column(escape(name), justify="left" if index < self.left else "right", overflow="fold")
        for row in self.rows:
            table.add_row(*(escape(cell) for cell in row))
        return table

    def markdown(self) -> str:
        """For a document: a heading, the table, the notes as paragraphs."""
        dashes = ["---" if index < self.left else "---:" for index in range(len(self.columns))]
        cells = ([cell.replace("|", "/") for cell in row] for row in (self.columns, dashes, *self.rows))
        lines = [f"| {' | '.join(row)} |" for row in cells]
        notes = [line for note in self.notes for line in ("", note)]
        return "\n".join([f"### {self.title}", "", *lines, *notes, ""])


@dataclass(frozen=True)
class Figure:
    """A figure that a bench is to reach: at least `target`, or at most where `at_most`. `value` is None where it was
    not measured."""

    name: str
    value: float | None
    target: float
    at_most: bool = False
    unit: str = ""

    @property
    def met(self) -> bool | None:
        """None where it was not measured."""
        if self.value is None:
            return None
        return self.value <= self.target if self.at_most else self.value >= self.target

    def cells(self) -> list[str]:
        """A row: name, value, target, whether it is met."""
        sign = "≤" if self.at_most else "≥"
        value = "" if self.value is None else f"{number(self.value)}{self.unit}"
        said = {True: "met", False: "not met", None: "not measured"}[self.met]
        return [self.name, value, f"{sign} {self.target:g}{self.unit}", said]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "met": self.met}

    @staticmethod
    def of(data: Mapping[str, Any]) -> Figure:
        """From JSON."""
        return Figure(**{key: value for key, value in data.items() if key != "met"})


def figures_view(figures: Sequence[Figure], title: str = "Figures to reach") -> View:
    """All figures as one table."""
    return View(title, ("figure", "measured", "target", ""), [figure.cells() for figure in figures])


def geometric_mean(values: Sequence[float]) -> float | None:
    """None for no values."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def number(value: float | None) -> str:
    """Three digits that count, `` for None."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def ratio_text(data: Mapping[str, float] | None, with_range: bool = False) -> str:
    """A ratio of a result as text, `` where it was not measured."""
    if data is None:
        return ""
    return Ratio(**data).text() if with_range else number(data["median"])


def environment(more_versions: Mapping[str, str | None] | None = None) -> dict[str, Any]:
    """`versions` (with those of opponents) and `machine`."""
    return {"versions": {**versions(), **(more_versions or {})}, "machine": machine()}


def environment_text(data: Mapping[str, Any]) -> str:
    """One line: the processor, its extensions, cores, and what is installed."""
    where = data["machine"]
    installed = ", ".join(f"{name} {version}" for name, version in data["versions"].items() if version)
    memory = f", {where['memory_gib']:g} GiB" if where["memory_gib"] else ""
    isa = f", ONNXFUSE_ISA={where['isa']}" if where["isa"] else ""
    return (
        f"{where['processor']} ({', '.join(where['extensions'])}), {where['cores']} cores{memory}, {where['system']}"
        f"{isa}; {installed}"
    )


def record(
    command: str, options: Mapping[str, Any], body: Mapping[str, Any],
    more_versions: Mapping[str, str | None] | None = None,
) -> dict[str, Any]:
    """A result: what all benches say, then `body`."""
    return {"schema": SCHEMA, "command": command, **environment(more_versions), "options": dict(options), **body}


def write(path: str | Path, data: dict[str, Any]) -> None:
    """A result as JSON; folders are made, the file appears as a whole."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f".{target.name}.part")
    beside.write_text(schema.to_json(data), encoding="utf-8")
    beside.replace(target)


def console(file: Any = None) -> Console:
    """For tables: as wide as the terminal, or wide enough."""
    file = file or sys.stdout
    return Console(file=file, width=None if file.isatty() else _WIDTH, highlight=False)


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A function that says what is being done: one line that changes, on a terminal only."""
    screen = Console(stderr=True)
    if not screen.is_terminal:
        yield lambda text: None
        return
    with screen.status("starting") as status:
        yield lambda text: status.update(escape(text))


def show(views: Sequence[View], data: Mapping[str, Any]) -> None:
    """Tables on standard output, then the machine."""
    screen = console()
    for view in views:
        screen.print(view.rich())
        for note in view.notes:
            screen.print(note, markup=False)
        screen.print()
    screen.print(environment_text(data), markup=False)


def markdown(views: Sequence[View], data: Mapping[str, Any]) -> str:
    """Tables and machine for a document."""
    return "\n".join([*(view.markdown() for view in views), f"Measured on {environment_text(data)}."])


def insert(document: Path, name: str, text: str, *, shorter: bool = False) -> None:
    """Replaces what stands between the marks of a bench in a document. ValueError if they are not there, or if the new
    tables have fewer rows than the old ones and are not said to be `shorter`."""
    begin, end = (f"<!-- {word} {name} -->\n" for word in ("begin", "end"))
    before, found, rest = document.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{document} has no lines {begin.strip()} and {end.strip()}")
    old, new = (sum(line.startswith("|") for line in part.splitlines()) for part in (rest.partition(end)[0], text))
    if new < old and not shorter:
        raise ValueError(f"{document} has {old} rows there, the result {new}; --shorter if that is meant")
    document.write_text(f"{before}{begin}\n{text}\n\n{end}{after}", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """2 for a file that is no result of a bench."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.table", description="The tables of a result again.")
    parser.add_argument("file", type=Path, help="JSON that a bench has written")
    parser.add_argument("--markdown", action="store_true", help="as Markdown, for a document")
    parser.add_argument("--into", type=Path, metavar="DOC.md", help="write them into a document, between its marks")
    parser.add_argument("--shorter", action="store_true", help="with --into: also where rows are lost")
    options = parser.parse_args(arguments)
    try:
        data = json.loads(options.file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        parser.error(f"{options.file}: {error}")
    command = str(data.get("command") if isinstance(data, dict) else "").removeprefix("bench-")
    if command not in _COMMANDS:
        parser.error(f"{options.file}: no result of a bench")
    module = importlib.import_module(f"benchmarks.run_{command}")
    if not hasattr(module, "views"):
        parser.error(f"{options.file}: benchmarks.run_{command} has no tables for it")
    views: list[View] = module.views(data)
    if options.into:
        try:
            insert(options.into, command, markdown(views, data), shorter=options.shorter)
        except (OSError, ValueError) as error:
            parser.error(str(error))
    elif options.markdown:
        print(markdown(views, data))
    else:
        show(views, data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
