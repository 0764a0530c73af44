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
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from onnxfuse.report.summary import versions
from onnxfuse.timing import Ratio, bind, interleave, ratio
from tests.long.corpus import cache_folder, catalog, corpus_folder, fingerprint

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "run-output" / "models.json"
SECONDS = 2.0
ROUNDS = 9  # at least, for models that are too slow for so many within the seconds
LIMIT = 1800  # seconds for one model
SHARE = 30.0  # percent of elementwise time from which a model counts for the geometric mean
FASTER, SLOWER = 1.1, 0.97


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

    def lowest(self) -> float:
        """The smallest speed-up of all numbers of threads; 1 if nothing was fused."""
        return min((speed.speedup.median for speed in self.speeds.values()), default=1.0)


# ------------------------------------------------------------------------------------------------ one model


def examine(name: str, threads: Sequence[int], seconds: float) -> Row:
    """Optimize and measure one model in this process. Raises what the corpus, optimizer or runtime raise."""
    from onnxfuse import api

    models = catalog(corpus_folder())
    row = Row(name, float(models.index()[name]["ew_share"]))
    path = Path(models.materialize(name, cache_folder()))
    with tempfile.TemporaryDirectory(prefix="onnxfuse-bench-", ignore_cleanup_errors=True) as temporary:
        target = Path(temporary) / "fused.onnx"
        report = api.optimize(path, target, validate=False).report
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
    with tempfile.TemporaryDirectory(prefix="onnxfuse-bench-") as temporary:
        result, log = Path(temporary) / "row.json", Path(temporary) / "log"
        command = [sys.executable, "-m", "benchmarks.run_models", "--one", name, "--json", str(result),
                   "--threads", ",".join(map(str, threads)), "--seconds", str(seconds)]
        with open(log, "wb") as output:
            try:
                code = subprocess.run(
                    command, cwd=ROOT, stdout=output, stderr=output, timeout=LIMIT, check=False
                ).returncode
            except subprocess.TimeoutExpired:
                return Row(name, share, problem=f"took longer than {LIMIT} s")
        if code or not result.exists():
            last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            return Row(name, share, problem=f"process ended with {code}: {''.join(last)[:300]}")
        return Row.of(json.loads(result.read_text(encoding="utf-8")))


def earlier(path: Path | None, key: str, threads: Sequence[int]) -> dict[str, Row]:
    """Rows of an earlier run with the same key that have all numbers of threads."""
    if path is None or not path.exists():
        return {}
    rows = [Row.of(data) for data in json.loads(path.read_text(encoding="utf-8"))["rows"]]
    wanted = {str(count) for count in threads}
    return {r.name: r for r in rows if r.key == key and not r.problem and (not r.groups or wanted <= set(r.speeds))}


def summary(rows: Sequence[Row], threads: Sequence[int]) -> dict[str, Any]:
    """By number of threads: lowest model, geometric mean where elementwise time counts, how many gain and lose."""
    found = {}
    for count in map(str, threads):
        values = {row.name: row.speeds[count].speedup.median if row.groups else 1.0
                  for row in rows if not row.groups or count in row.speeds}
        heavy = [values[row.name] for row in rows if row.share >= SHARE and row.name in values]
        lowest = min(values, key=values.__getitem__, default=None)
        found[count] = {
            "models": len(values),
            "lowest": None if lowest is None else {"model": lowest, "speedup": values[lowest]},
            "geometric_mean": math.exp(sum(map(math.log, heavy)) / len(heavy)) if heavy else None,
            "models_in_mean": len(heavy),
            "faster": sum(value > FASTER for value in values.values()),
            "slower": sorted(name for name, value in values.items() if value < SLOWER),
        }
    return found


def save(path: Path, rows: Sequence[Row], threads: Sequence[int], seconds: float) -> None:
    """Everything as JSON, written beside and renamed."""
    data = {
        "schema": 1, "command": "bench-models", "versions": versions(), "machine": machine(),
        "threads": list(threads), "seconds": seconds, "summary": summary(rows, threads),
        "rows": [asdict(row) for row in rows],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    beside.write_text(json.dumps(data, indent=1), encoding="utf-8")
    os.replace(beside, path)


def machine() -> dict[str, Any]:
    """What was measured on."""
    model = next((line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), "")
    return {"processor": model, "cores": os.cpu_count()}


def table(rows: Sequence[Row], threads: Sequence[int]) -> Table:
    """One line a model, those with the largest elementwise share first."""
    view = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    view.add_column("model", no_wrap=True)
    for title in ("share\n%", "fused\nnodes", "ops in\nthem"):
        view.add_column(title, justify="right", no_wrap=True)
    for count in threads:
        view.add_column(f"ms, {count} thread{'s' if count > 1 else ''}", justify="right", no_wrap=True)
        view.add_column("times faster\n(10-90 %)", justify="right", no_wrap=True)
        view.add_column("noise\n(10-90 %)", justify="right", style="dim", no_wrap=True)
    for row in sorted(rows, key=lambda row: (-row.share, row.name)):
        cells = [row.name, f"{row.share:.1f}", str(row.groups), str(row.ops_fused)]
        for count in threads:
            speed = row.speeds.get(str(count))
            if speed is None:
                cells += [row.problem[:24] or "same file", "", ""]
                continue
            median = speed.speedup.median
            style = "bold red" if median < SLOWER else "bold green" if median > FASTER else ""
            text = speed.speedup.text()
            cells += [f"{speed.before_ms:.3g}", f"[{style}]{text}[/]" if style else text, speed.noise.text()]
        view.add_row(*cells)
    return view


def show_summary(console: Console, rows: Sequence[Row], threads: Sequence[int]) -> None:
    """What the targets are about, one line for each number of threads."""
    for count, found in summary(rows, threads).items():
        lowest = found["lowest"]
        if lowest is None:
            continue
        mean = found["geometric_mean"]
        console.print(
            f"{count} thread{'s' if count != '1' else ''}: {found['models']} models; "
            f"lowest {lowest['speedup']:.2f} ({lowest['model']}); "
            + (f"geometric mean {mean:.2f} over the {found['models_in_mean']} with {SHARE:.0f} % elementwise or more; "
               if mean is not None else "")
            + f"{found['faster']} above {FASTER}; below {SLOWER}: {', '.join(found['slower']) or 'none'}"
        )
    for row in rows:
        if row.problem:
            console.print(f"{row.name}: {row.problem}", style="red", markup=False, highlight=False)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Speed of every model of the corpus, fused against unfused.")
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
    unknown = [name for name in names if name not in shares]
    if unknown:
        print(f"no such model in the corpus: {', '.join(unknown)}", file=sys.stderr)
        return 2
    rows = run_all(names, shares, threads, options)
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table(rows, threads))
    show_summary(console, rows, threads)
    return 1 if any(row.problem for row in rows) else 0


def run_all(names: Sequence[str], shares: Mapping[str, float], threads: Sequence[int],
            options: argparse.Namespace) -> list[Row]:
    """The rows of these models, a line each while it lasts; saved after each."""
    key, target = fingerprint(), options.json or options.resume or OUTPUT
    known = earlier(options.resume, key, threads)
    rows: list[Row] = []
    for place, name in enumerate(names, 1):
        row = known.get(name)
        if row is None:
            row = dataclasses.replace(run_one(name, shares[name], threads, options.seconds), key=key)
        rows.append(row)
        save(target, rows, threads, options.seconds)
        state = row.problem or ("nothing fused" if not row.groups else ", ".join(
            f"{speed.speedup.text()} noise {speed.noise.text()}" for speed in row.speeds.values()))
        print(f"[{place}/{len(names)}] {name}: {state}", file=sys.stderr, flush=True)
    return rows


if __name__ == "__main__":
    sys.exit(main())
