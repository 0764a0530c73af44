"""What `make run` does: optimize six real models, check them, measure them, and print one table.

python -m models.run [--svg FILE] [--out FOLDER] [--seconds S] [NAME ...]
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

import onnxfuse
from models.catalog import ENTRIES, Entry
from models.fetch import FetchError, fetch
from onnxfuse.api import Result
from onnxfuse.errors import OnnxfuseError
from onnxfuse.report.summary import code_line
from onnxfuse.timing import BenchReport

SEED = 0
WIDTH = 120  # columns of the picture


@dataclass(frozen=True)
class Outcome:
    """One model: what was fused and checked, and how long a run takes with one thread before and after."""

    entry: Entry
    result: Result
    speed: BenchReport


def process(entry: Entry, source: Path, target: Path, seconds: float) -> Outcome:
    """Optimize `source` into `target`, validate on the entry's own inputs, measure both. Raises OnnxfuseError."""
    feed = entry.feed(np.random.default_rng(SEED))
    result = onnxfuse.optimize(source, target, inputs=feed)
    speed = onnxfuse.bench(source, target, inputs=feed, threads=(1,), seconds=seconds)
    return Outcome(entry, result, speed)


def error_text(result: Result) -> str:
    """The largest error of any output in any run, as a share of the largest magnitude of that output."""
    check = result.report.validation
    if check is None:
        return "nothing fused"
    return f"{check.largest_error:.1e}" if check.largest_error else "0"


def table(outcomes: Sequence[Outcome]) -> Table:
    """The table of all models."""
    view = Table(title="Real models, before and after", title_justify="left", header_style="bold", box=box.SIMPLE_HEAD)
    for title in ("model", "nodes", "fused into", "largest\nerror", "ms before", "ms after", "faster by\n(10-90 %)"):
        view.add_column(title, justify="left" if title == "model" else "right", no_wrap=True)
    view.add_column("noise\n(10-90 %)", justify="right", style="dim", no_wrap=True)
    for outcome in outcomes:
        report = outcome.result.report
        groups = [group for group in report.groups if not group.on_gpu_alone]
        before, after = outcome.speed.rows
        noise = outcome.speed.noise[before.threads]
        view.add_row(
            outcome.entry.name,
            f"{report.nodes_before} → {report.nodes_on_cpu}",
            f"{sum(len(group.ops) for group in groups)} ops in {len(groups)}",
            error_text(outcome.result),
            f"{before.milliseconds:.3g}",
            f"{after.milliseconds:.3g}",
            Text(after.speedup.text(), style="bold green" if after.speedup.low > noise.high else ""),
            noise.text(),
        )
    return view


def chain_of(result: Result) -> tuple[str, ...]:
    """The ops of the longest fused float32 group that multiplies, adds and applies an activation; () without one."""
    kinds = {"Sigmoid", "HardSigmoid", "Clip", "Tanh", "Relu"}
    best: tuple[str, ...] = ()
    for group in result.report.groups:
        declared = [line for line in group.program.splitlines() if line.startswith("in ")]
        plain = all(line.endswith(" f32") or " pad " in line for line in declared)
        if plain and {"Mul", "Add"} <= set(group.ops) and kinds & set(group.ops) and len(best) < len(group.ops) < 12:
            best = group.ops
    return best


def run(entries: Sequence[Entry], folder: Path, seconds: float, console: Console) -> list[Outcome]:
    """Process every entry, a line each while it lasts; a model that fails is reported and left out."""
    paths = fetch(tuple(entries))
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = []
    progress = Console(stderr=True)
    for entry in entries:
        with progress.status(f"{entry.name}: {entry.about}"):
            try:
                outcomes.append(process(entry, paths[entry.name], folder / f"{entry.name}.onnx", seconds))
            except OnnxfuseError as error:
                console.print(f"{entry.name}: {error.message}", style="red", markup=False, highlight=False)
    return outcomes


def main(arguments: Sequence[str] | None = None) -> int:
    """1 if a model cannot be brought, fails its check, or nothing was fused at all; else 0."""
    parser = argparse.ArgumentParser(prog="python -m models.run", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="models of models/catalog.py; all without a name")
    parser.add_argument("--svg", type=Path, help="also write what is printed as a picture")
    parser.add_argument("--out", type=Path, default=Path("run-output"), help="folder for the optimized models")
    parser.add_argument("--seconds", type=float, default=3.0, help="time to measure each model, warm-up not included")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - {entry.name for entry in ENTRIES}
    if unknown:
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    entries = [entry for entry in ENTRIES if not options.names or entry.name in options.names]

    console = Console(record=options.svg is not None, width=WIDTH if options.svg or not sys.stdout.isatty() else None)
    try:
        outcomes = run(entries, options.out, options.seconds, console)
    except FetchError as error:
        print(f"models: {error}", file=sys.stderr)
        return 1
    console.print(table(outcomes))
    groups = sum(len(outcome.result.report.groups) for outcome in outcomes)
    chains = [(chain_of(outcome.result), outcome.entry.name) for outcome in outcomes]
    chain, name = max(chains, key=lambda found: len(found[0]), default=((), ""))
    if chain:
        console.print(f"For example, in {name}: {' → '.join(chain)} is one node.", highlight=False)
    console.print(
        f"{len(outcomes)} of {len(entries)} models passed: every output compared with the original's, with the library "
        f"and without it. One thread, runs interleaved. Optimized models: {options.out}/",
        highlight=False,
    )
    reports = [outcome.result.report for outcome in outcomes]
    codes = [code for report in reports for code in report.codes]
    if codes:
        alone = sum(len(report.gpu_groups) for report in reports)
        more = f" {alone} more groups are one node on a GPU alone." if alone else ""
        console.print(f"GPU code, compiled without a GPU: {code_line(codes)}.{more}", highlight=False)
    if options.svg:
        options.svg.parent.mkdir(parents=True, exist_ok=True)
        picture = console.export_svg(title="make run", unique_id="run")
        picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.S)  # no fonts from elsewhere
        options.svg.write_text(picture, encoding="utf-8")
    return 0 if groups and len(outcomes) == len(entries) else 1


if __name__ == "__main__":
    sys.exit(main())
