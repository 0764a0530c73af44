"""Time of the optimizer itself on large made-up models, with other simplifiers of models beside it.

    make bench-optimizer                                       # python -m benchmarks.run_optimizer
    python -m benchmarks.run_optimizer --graphs chain,mix --nodes 1000,2000 --tools onnxfuse

Every graph of `benchmarks.synthetic` in several sizes. Each measurement has a process of its own that has imported what
it needs before the clock starts, so that its peak memory is its own too. `onnxfuse` is `onnxfuse.optimize` from file
to file without validation, split by stage; `validated` is the same with validation; onnxslim and onnxsim do other
things to the same file and are there for scale. The exponent of growth is the slope of log time over log nodes: 1 is
linear.

Beside the wall clock stands the processor time of all processes together, which says more on a machine that is busy.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import io
import itertools
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import child, table
from benchmarks.synthetic import SHAPES, build
from benchmarks.table import Figure, View, number

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "run-output" / "optimizer.json"
NODES = (5000, 10000, 20000)
LIMIT = 600.0  # seconds for one measurement
SECONDS, EXPONENT = 10.0, 1.25  # figures to reach: at 20,000 nodes, and over the sizes
OTHERS = ("onnxslim", "onnxsim")
TOOLS = ("onnxfuse", "validated", *OTHERS)
STAGES = ("read", "runtime", "trace", "plan", "rewrite", "write")
_ABOUT_STAGES = ("`runtime`: the process of the runtime, beside which the plan is prepared; `trace`: comparing what it "
                 "made with the original")
_STEPS = {"reading": "read", "asking": "runtime", "planning": "plan", "rewriting": "rewrite", "writing": "write"}


# ------------------------------------------------------------------------------------------------ one measurement


def measure(tool: str, source: Path, target: Path) -> dict[str, Any]:
    """Seconds of one run in this process, by stage where that is known, and MiB of memory at the peak."""
    run = {"onnxfuse": _onnxfuse, "validated": _validated, "onnxslim": _onnxslim, "onnxsim": _onnxsim}[tool]
    call = run(source, target)
    start, busy = time.perf_counter(), _processor_seconds()
    with contextlib.redirect_stdout(io.StringIO()):
        more = call()
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "processor_seconds": _processor_seconds() - busy, **_peaks(), **(more or {})}


def _onnxfuse(source: Path, target: Path, validate: bool = False) -> Any:
    import onnxfuse
    import onnxfuse.api

    def call() -> dict[str, Any]:
        marks: list[tuple[str, float]] = []
        with _compare_timed() as compare:
            result = onnxfuse.optimize(source, target, targets=("cpu",), validate=validate,
                                       progress=lambda text: marks.append((text, time.perf_counter())))
        marks.append(("end", time.perf_counter()))
        if validate:
            return {}
        stages = {_STEPS[text.split()[0]]: after - at
                  for (text, at), (_, after) in itertools.pairwise(marks)}
        stages["trace"], stages["runtime"] = compare[0], stages["runtime"] - compare[0]
        report = result.report
        return {"stages": stages, "groups": len(report.groups), "ops_fused": report.ops_fused, "note": report.note}

    return call


@contextlib.contextmanager
def _compare_timed() -> Iterator[list[float]]:
    """A list that gets the seconds that the comparison with the runtime's result took."""
    import onnxfuse.fusion.reserved

    reserved: Any = onnxfuse.fusion.reserved
    plain, seconds = reserved.compare, [0.0]

    def timed(*arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        try:
            return plain(*arguments, **options)
        finally:
            seconds[0] += time.perf_counter() - start

    reserved.compare = timed
    try:
        yield seconds
    finally:
        reserved.compare = plain


def _validated(source: Path, target: Path) -> Any:
    import onnxruntime  # noqa: F401  # before the clock starts

    return _onnxfuse(source, target, validate=True)


def _onnxslim(source: Path, target: Path) -> Any:
    import onnxslim

    return lambda: onnxslim.slim(str(source), str(target))


def _onnxsim(source: Path, target: Path) -> Any:
    import onnx
    import onnxsim

    def call() -> None:
        model, _ = onnxsim.simplify(str(source))
        onnx.save(model, target)

    return call


def _processor_seconds() -> float:
    import resource

    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _peaks() -> dict[str, float]:
    """MiB at the peak: of this process, and of the largest child."""
    import resource

    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return {"peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit,
            "child_peak_mib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / unit}


def measured(tool: str, source: Path, limit: float) -> dict[str, Any]:
    """The same in a process of its own; `problem` says why there is no figure."""
    try:
        data: dict[str, Any] = child.answer("benchmarks.run_optimizer", ["--one", tool, str(source)], limit)
    except child.Problem as problem:
        return {"problem": str(problem)}
    return data


# ------------------------------------------------------------------------------------------------ all


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Least squares of log seconds over log nodes; None for fewer than two sizes."""
    if len({nodes for nodes, _ in points}) < 2:
        return None
    logs = [(math.log(nodes), math.log(max(seconds, 1e-6))) for nodes, seconds in points]
    mean_x, mean_y = sum(x for x, _ in logs) / len(logs), sum(y for _, y in logs) / len(logs)
    return sum((x - mean_x) * (y - mean_y) for x, y in logs) / sum((x - mean_x) * (x - mean_x) for x, _ in logs)


def run(graphs: Sequence[str], sizes: Sequence[int], tools: Sequence[str], seed: int, repeat: int,
        limit: float) -> list[dict[str, Any]]:
    """A row for each graph and size: what each tool took in the fastest of `repeat` runs. A tool that fails on a graph,
    or takes longer than `limit` seconds, is not tried on larger ones of its kind."""
    import onnx

    rows = []
    with tempfile.TemporaryDirectory(prefix="onnxfuse-bench-") as temporary, table.progress() as say:
        folder = Path(temporary)
        for graph in graphs:
            failed: set[str] = set()
            for nodes in sorted(sizes):
                source = folder / f"{graph}.onnx"
                model = build(graph, nodes, seed)
                onnx.save(model, source)
                row: dict[str, Any] = {"graph": graph, "nodes": nodes, "all_nodes": len(model.graph.node),
                                       "initializers": len(model.graph.initializer), "bytes": source.stat().st_size}
                for tool in (tool for tool in tools if tool not in failed):
                    say(f"{graph}, {nodes:,} nodes: {tool}")
                    runs = [measured(tool, source, limit) for _ in range(repeat)]
                    row[tool] = min(runs, key=lambda one: one.get("seconds", math.inf))
                    if "problem" in row[tool]:
                        failed.add(tool)
                rows.append(row)
    return rows


def growth(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Exponents by graph: of the wall clock of every tool, of processor time, and of every stage."""
    found: dict[str, dict[str, float]] = {}
    for graph in dict.fromkeys(row["graph"] for row in rows):
        points: dict[str, list[tuple[float, float]]] = {}
        for row in (row for row in rows if row["graph"] == graph):
            for tool in (tool for tool in TOOLS if "seconds" in row.get(tool, {})):
                points.setdefault(tool, []).append((row["nodes"], row[tool]["seconds"]))
                if tool == "onnxfuse":
                    points.setdefault("processor", []).append((row["nodes"], row[tool]["processor_seconds"]))
                    for stage, seconds in row[tool]["stages"].items():
                        points.setdefault(stage, []).append((row["nodes"], seconds))
        slopes = {name: slope(own) for name, own in points.items()}
        found[graph] = {name: value for name, value in slopes.items() if value is not None}
    return found


def figures(rows: Sequence[Mapping[str, Any]], exponents: Mapping[str, Mapping[str, float]]) -> list[Figure]:
    """What is to be reached, for every graph."""
    largest = max(NODES)
    found = []
    for graph in exponents:
        own = [row["onnxfuse"].get("seconds") for row in rows
               if row["graph"] == graph and row["nodes"] == largest and "onnxfuse" in row]
        found.append(Figure(f"{graph}, {largest:,} nodes", own[0] if own else None, SECONDS, at_most=True, unit=" s"))
        found.append(Figure(f"{graph}, exponent of growth", exponents[graph].get("onnxfuse"), EXPONENT, at_most=True))
    return found


# ------------------------------------------------------------------------------------------------ tables


def views(data: Mapping[str, Any]) -> list[View]:
    """Times by stage, all tools, exponents, figures."""
    rows, exponents = data["rows"], data["growth"]
    found = []
    own = [row for row in rows if "stages" in row.get("onnxfuse", {})]
    if own:
        lines = [[row["graph"], f"{row['nodes']:,}", f"{row['onnxfuse']['groups']:,}",
                  *(number(row["onnxfuse"]["stages"].get(stage)) for stage in STAGES),
                  *(number(row["onnxfuse"][key]) for key in ("seconds", "processor_seconds", "peak_mib",
                                                             "child_peak_mib"))] for row in own]
        notes = [f"{row['graph']}, {row['nodes']:,} nodes: {row['onnxfuse']['note']}"
                 for row in own if row["onnxfuse"]["note"]]
        found.append(View("onnxfuse.optimize without validation, seconds by stage",
                          ("graph", "nodes", "groups", *STAGES, "total", "processor", "MiB", "MiB, runtime's process"),
                          lines, (_ABOUT_STAGES, *notes)))
    tools = [tool for tool in TOOLS if any(tool in row for row in rows)]
    found.append(View("Whole runs, seconds (MiB at the peak)", ("graph", "nodes", *tools),
                      [[row["graph"], f"{row['nodes']:,}", *(_cell(row.get(tool)) for tool in tools)] for row in rows]))
    names = [name for name in (*tools, "processor", *STAGES) if any(name in own for own in exponents.values())]
    if names:
        found.append(View("Exponent of growth (1 is linear)", ("graph", *names),
                          [[graph, *(number(own.get(name)) for name in names)] for graph, own in exponents.items()]))
    return [*found, table.figures_view([Figure.of(figure) for figure in data["figures"]])]


def _cell(result: Mapping[str, Any] | None) -> str:
    if result is None:
        return ""
    if "problem" in result:
        return str(result["problem"])[:40]
    return f"{number(result['seconds'])} ({result['peak_mib']:,.0f})"


# ------------------------------------------------------------------------------------------------ command


def main(arguments: Sequence[str] | None = None) -> int:
    """1 if the optimizer itself failed somewhere; a figure that is not reached is no failure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run_optimizer", description=__doc__.split("\n")[0])
    parser.add_argument("--graphs", default=",".join(SHAPES), help=f"some of {','.join(SHAPES)} (default: all)")
    parser.add_argument("--nodes", default=",".join(map(str, NODES)), help="numbers of elementwise nodes")
    parser.add_argument("--tools", default=",".join(TOOLS), help=f"some of {','.join(TOOLS)} (default: all)")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each, of which the fastest counts (default 1)")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for one (default: %(default)g)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=OUTPUT, help="result (default: run-output/optimizer.json)")
    parser.add_argument("--one", nargs=3, metavar=("TOOL", "MODEL", "RESULT"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        tool, source, result = options.one
        target = Path(source).with_suffix(".out.onnx")
        Path(result).write_text(json.dumps(measure(tool, Path(source), target)), encoding="utf-8")
        return 0
    graphs, tools = options.graphs.split(","), options.tools.split(",")
    for name, known in ((graphs, SHAPES), (tools, TOOLS)):
        if set(name) - set(known):
            parser.error(f"unknown: {', '.join(sorted(set(name) - set(known)))}")
    present = {tool: _version(tool) for tool in OTHERS}
    tools = [tool for tool in tools if present.get(tool, "") is not None]
    sizes = [int(text) for text in options.nodes.split(",")]
    rows = run(graphs, sizes, tools, options.seed, max(options.repeat, 1), options.limit)
    exponents = growth(rows)
    data = table.record(
        "optimizer", {"seed": options.seed, "repeat": options.repeat, "limit": options.limit},
        {"rows": rows, "growth": exponents, "figures": [figure.to_dict() for figure in figures(rows, exponents)]},
        present,
    )
    table.write(options.json, data)
    table.show(views(data), data)
    return 1 if any("problem" in row.get("onnxfuse", {}) for row in rows) else 0


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
