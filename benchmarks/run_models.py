"""Speed of every model of the corpus: fused with the library against unfused at the runtime's full optimization.

    make bench-models                                          # python -m benchmarks.run_models
    python -m benchmarks.run_models --models snac_decoder,encodec --threads 1 --seconds 5
    python -m benchmarks.run_models --resume run-output/models.json

The unfused model, the fused one and the unfused one again run in turn in one process, with the feed of the corpus
(see `onnxfuse.timing`); the first against the last is the noise. Each model has a process of its own, so that a crash
or a lack of memory costs that model alone. The result is written after every model; `--resume` uses those of an earlier
run again, unless the sources, the library or the runtime have changed since. A model in which nothing is fused is the
same file and is not measured.

The corpus and its cache are found as tests/long/corpus.py says.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import child, table
from benchmarks.table import Figure, View
from onnxfuse.timing import Ratio, bind, interleave, ratio
from tests.long.corpus import cache_folder, catalog, corpus_folder, fingerprint

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "run-output" / "models.json"
SECONDS = 3.0
ROUNDS = 7  # at least, for models that are too slow for so many within the seconds
LIMIT = 1800  # seconds for one model
SHARE = 30.0  # percent of elementwise time from which a model counts for the geometric mean
MEAN = 1.4  # that they are to reach
FASTER, SLOWER = 1.1, 0.97  # speed-ups from which a model counts as faster, and below which as slower


@dataclass(frozen=True)
class Speed:
    """At one number of threads: milliseconds of a run (medians), how much faster the fused model is, and the noise."""

    before_ms: float
    after_ms: float
    speedup: Ratio
    noise: Ratio
    rounds: int


@dataclass
class Row:
    """One model. ``share``: percent of the kernel time that is elementwise, from the index of the corpus. ``speeds``
    goes by number of threads and is empty if nothing was fused or ``problem`` says why there is no figure."""

    name: str
    share: float
    groups: int = 0
    ops_fused: int = 0
    speeds: dict[str, Speed] = field(default_factory=dict)
    problem: str = ""
    key: str = ""

    @staticmethod
    def of(data: Mapping[str, Any]) -> Row:
        """From JSON."""
        speeds = {
            threads: Speed(**{**speed, "speedup": Ratio(**speed["speedup"]), "noise": Ratio(**speed["noise"])})
            for threads, speed in data["speeds"].items()
        }
        return Row(**{**data, "speeds": speeds})


# ------------------------------------------------------------------------------------------------ one model


def examine(name: str, threads: Sequence[int], seconds: float) -> Row:
    """Optimize and measure one model in this process. Raises what the corpus, optimizer or runtime raise."""
    from onnxfuse import api

    models = catalog(corpus_folder())
    row = Row(name, float(models.index()[name]["ew_share"]))
    path = Path(models.materialize(name, cache_folder()))
    with tempfile.TemporaryDirectory(prefix="onnxfuse-bench-", ignore_cleanup_errors=True) as temporary:
        target = Path(temporary) / "fused.onnx"
        report = api.optimize(path, target, validate=False, targets=("cpu",)).report
        row.groups, row.ops_fused = len(report.groups), report.ops_fused
        if row.groups:
            feed = models.feed(name)
            row.speeds = {str(count): measure(path, target, feed, count, seconds) for count in threads}
    return row


def measure(before: Path, after: Path, feed: Mapping[str, Any], threads: int, seconds: float) -> Speed:
    """Two models on one feed, the second with the library."""
    from onnxfuse.check import sessions
    from onnxfuse.library import library_path

    def session(path: Path, library: str | None = None) -> Any:
        return sessions.create(path, optimize=True, library=library, threads=threads)

    calls = [bind(session(before), feed), bind(session(after, library_path()), feed), bind(session(before), feed)]
    start = time.perf_counter()
    calls[0]()
    once = time.perf_counter() - start
    times = interleave(calls, max(seconds, ROUNDS * len(calls) * once))
    first, fused, last = times
    return Speed(statistics.median(first) / 1e6, statistics.median(fused) / 1e6, ratio(first, fused),
                 ratio(first, last), len(first))


# ------------------------------------------------------------------------------------------------ all models


def run_one(name: str, share: float, threads: Sequence[int], seconds: float) -> Row:
    """The row of a model from a process of its own."""
    arguments = ["--one", name, "--threads", ",".join(map(str, threads)), "--seconds", str(seconds), "--json"]
    try:
        return Row.of(child.answer("benchmarks.run_models", arguments, LIMIT))
    except child.Problem as problem:
        return Row(name, share, problem=str(problem))


def earlier(path: Path | None, key: str, threads: Sequence[int]) -> dict[str, Row]:
    """Rows of an earlier run with the same key that have all numbers of threads."""
    if path is None or not path.exists():
        return {}
    rows = [Row.of(data) for data in json.loads(path.read_text(encoding="utf-8"))["rows"]]
    wanted = {str(count) for count in threads}
    return {r.name: r for r in rows if r.key == key and not r.problem and (not r.groups or wanted <= set(r.speeds))}


def speedups(rows: Iterable[Row], threads: str) -> dict[str, float]:
    """By model; 1 where nothing was fused."""
    return {row.name: row.speeds[threads].speedup.median if row.groups else 1.0
            for row in rows if not row.problem and (not row.groups or threads in row.speeds)}


def figures(rows: Sequence[Row], threads: Iterable[int]) -> list[Figure]:
    """What is to be reached, for each number of threads."""
    found = []
    for count in threads:
        values = speedups(rows, str(count))
        heavy = [values[row.name] for row in rows if row.share >= SHARE and row.name in values]
        where = f"{count} thread{'s' if count > 1 else ''}"
        found += [
            Figure(f"slowest model, {where}", min(values.values(), default=None), SLOWER, unit=" times"),
            Figure(f"geometric mean of {len(heavy)} models with {SHARE:.0f} % elementwise or more, {where}",
                   table.geometric_mean(heavy), MEAN, unit=" times"),
        ]
    return found


def notes(rows: Sequence[Row], threads: Iterable[int]) -> list[str]:
    """How many models gain, which lose, which have no figure."""
    found = []
    for count in threads:
        values = speedups(rows, str(count))
        slower = [f"{name} {value:.2f}" for name, value in values.items() if value < SLOWER]
        found.append(
            f"{count} thread{'s' if count > 1 else ''}: {len(values)} models, "
            f"{sum(value > FASTER for value in values.values())} above {FASTER}, "
            f"{len(slower)} below {SLOWER}{': ' if slower else ''}{', '.join(slower)}."
        )
    same = sum(not row.groups and not row.problem for row in rows)
    found.append(f"Models in which nothing is fused, which stay the same file and count as 1: {same}.")
    return [*found, *(f"{row.name}: {row.problem}." for row in rows if row.problem)]


def views(data: Mapping[str, Any]) -> list[View]:
    """Tables of a result: the models, those with the largest elementwise share first, and the figures."""
    rows = [Row.of(row) for row in data["rows"]]
    threads = data["options"]["threads"]
    columns = ["model", "elementwise %", "fused nodes", "ops in them"]
    for count in threads:
        columns += [f"ms, {count} thread{'s' if count > 1 else ''}", "times faster (10-90 %)", "noise (10-90 %)"]
    cells = []
    for row in sorted((row for row in rows if row.groups), key=lambda row: (-row.share, row.name)):
        line = [row.name, f"{row.share:.1f}", str(row.groups), str(row.ops_fused)]
        for count in threads:
            speed = row.speeds.get(str(count))
            line += [table.number(speed.before_ms), speed.speedup.text(), speed.noise.text()] if speed else [""] * 3
        cells.append(line)
    return [View("Real models", columns, cells, notes(rows, threads)),
            table.figures_view([Figure.of(figure) for figure in data["figures"]])]


# ------------------------------------------------------------------------------------------------ command


def result(rows: Sequence[Row], threads: Sequence[int], seconds: float) -> dict[str, Any]:
    """The record of a run."""
    return table.record("models", {"threads": list(threads), "seconds": seconds}, {
        "rows": [asdict(row) for row in rows],
        "figures": [figure.to_dict() for figure in figures(rows, threads)],
    })


def run_all(names: Sequence[str], shares: Mapping[str, float], threads: Sequence[int], seconds: float, target: Path,
            known: Mapping[str, Row], key: str) -> list[Row]:
    """The rows of these models, a line each while it lasts; saved after each."""
    rows: list[Row] = []
    for place, name in enumerate(names, 1):
        row = known.get(name)
        if row is None:
            row = dataclasses.replace(run_one(name, shares[name], threads, seconds), key=key)
        rows.append(row)
        table.write(target, result(rows, threads, seconds))
        state = row.problem or ("nothing fused" if not row.groups else ", ".join(
            f"{speed.speedup.text()} noise {speed.noise.text()}" for speed in row.speeds.values()))
        print(f"[{place}/{len(names)}] {name}: {state}", file=sys.stderr, flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """1 if a model has no figure; one that is not reached is no failure. 2 without the corpus."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run_models", description=__doc__.split("\n")[0])
    parser.add_argument("--models", metavar="A,B", help="some models (default: all)")
    parser.add_argument("--threads", default="1,2", help="numbers of threads (default: 1,2)")
    parser.add_argument("--seconds", type=float, default=SECONDS,
                        help=f"time for a model and a number of threads (default {SECONDS}; slow models take longer)")
    parser.add_argument("--json", type=Path, metavar="FILE",
                        help=f"result (default: the file of --resume, else {OUTPUT.relative_to(ROOT)})")
    parser.add_argument("--resume", metavar="FILE", type=Path, help="use results of an earlier run again")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    threads = [int(text) for text in options.threads.split(",")]
    if options.one:
        row = examine(options.one, threads, options.seconds)
        options.json.write_text(json.dumps(asdict(row)), encoding="utf-8")
        return 0
    folder = corpus_folder()
    if not (folder / "index.tsv").exists():
        print(f"no corpus at {folder}: set ONNXFUSE_CORPUS", file=sys.stderr)
        return 2
    shares = {name: float(entry["ew_share"]) for name, entry in catalog(folder).index().items()}
    names = options.models.split(",") if options.models else list(shares)
    if set(names) - set(shares):
        parser.error(f"no such model in the corpus: {', '.join(sorted(set(names) - set(shares)))}")
    key = fingerprint()
    rows = run_all(names, shares, threads, options.seconds, options.json or options.resume or OUTPUT,
                   earlier(options.resume, key, threads), key)
    data = result(rows, threads, options.seconds)
    table.show(views(data), data)
    return 1 if any(row.problem for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
