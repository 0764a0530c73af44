"""What GPU code adds to `optimize` and its result: seconds, with nothing compiled before and with all of it, and bytes.

    python -m benchmarks.run_cuda                              # the whole corpus, half an hour
    python -m benchmarks.run_cuda --models snac_decoder,encodec --seconds 20
    python -m benchmarks.run_cuda --resume run-output/cuda.json

Every model is optimized from file to file without validation: for the CPU alone, for CPU and CUDA with an empty cache,
and again with what that left in it, in turn, until the seconds are over. Reading, planning and writing are the same for
all three but for the bytes that are added, and on a large model they move by more than the rest takes: what is added is
the difference of the rest. The time to load the compilers is in it. Beside the clock stands the processor time of all
threads, which says more on a busy machine.

The first row is the compiler by itself: the first 20 programs of tests/gpu/prepare.py, each time in a new process.

Each model has a process of its own, and the result is written after every model; `--resume` uses those of an earlier
run again, unless the sources, the library or the runtime have changed since. The corpus and its cache are found as
tests/long/corpus.py says.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import child, table
from benchmarks.table import Figure, View, number
from tests.long.corpus import cache_folder, catalog, corpus_folder, fingerprint

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "run-output" / "cuda.json"
SECONDS = 6.0  # of all rounds of a model; the last one begins within them
ROUNDS = 5  # at most
LIMIT = 1800  # seconds for one model
TWENTY, PROGRAMS, PROCESSES = "20 distinct programs", 20, 5
COLD, WARM, LARGEST = 4.0, 0.3, 100.0  # seconds that the 20 programs may take, and KB of one program
FEW = 5  # distinct programs from which a model has a row of its own


@dataclass
class Row:
    """One model, or TWENTY. `groups` and `programs`: for CPU and CUDA. `seconds`: of `optimize` for the CPU alone.
    `cold` and `warm`: seconds that GPU code adds with an empty cache and with all in it; `busy`: of a processor in the
    former. `bytes`: that it adds to the file. `largest`: bytes of the code of one program. Times are medians."""

    name: str
    nodes: int = 0
    groups: int = 0
    programs: int = 0
    seconds: float = 0.0
    cold: float = 0.0
    busy: float = 0.0
    warm: float = 0.0
    bytes: int = 0
    file: int = 0
    largest: int = 0
    rounds: int = 0
    problem: str = ""
    key: str = ""

    @property
    def share(self) -> float:
        """Percent of the file with GPU code that is GPU code."""
        return 100 * self.bytes / self.file if self.file else 0.0


# ------------------------------------------------------------------------------------------------ one model


@dataclass(frozen=True)
class Run:
    """One call of `optimize`: seconds of all; those without reading, plan and writing, by the clock and of a processor;
    bytes of all files."""

    seconds: float
    rest: float
    busy: float
    bytes: int
    report: Any


def optimize(path: Path, targets: Sequence[str], store: Path) -> Run:
    """From file to file, with the compiled code of earlier runs in `store`."""
    from onnxfuse import api

    os.environ["ONNXFUSE_CUDA_CACHE"] = str(store)
    marks: dict[str, tuple[float, float]] = {}

    def mark(step: str) -> None:
        marks.setdefault(step, (time.perf_counter(), time.process_time()))

    with tempfile.TemporaryDirectory(prefix="onnxfuse-bench-", ignore_cleanup_errors=True) as temporary:
        target = Path(temporary) / "fused.onnx"
        mark("begin")
        report = api.optimize(path, target, targets=targets, validate=False, progress=mark).report
        seconds = time.perf_counter() - marks["begin"][0]
        size = sum(file.stat().st_size for file in Path(temporary).iterdir())
    names = ("begin", "reading", "rewriting", "writing")
    rest, busy = (
        read - begin + writing - planned
        for begin, read, planned, writing in zip(*(marks[name] for name in names), strict=True)
    )
    return Run(seconds, rest, busy, size, report)


def examine(name: str, seconds: float) -> Row:
    """Optimize one model in this process as often as the seconds allow. Raises what corpus and optimizer raise."""
    models = catalog(corpus_folder())
    path = Path(models.materialize(name, cache_folder()))
    runs: list[tuple[Run, Run, Run]] = []
    begin = time.perf_counter()
    while len(runs) < ROUNDS and (not runs or time.perf_counter() - begin < seconds):
        with tempfile.TemporaryDirectory(prefix="onnxfuse-bench-") as temporary:
            store = Path(temporary)
            plain, cold = optimize(path, ("cpu",), store), optimize(path, ("cpu", "cuda"), store)
            if not cold.report.groups:
                return Row(name, plain.report.nodes_before, seconds=plain.seconds, rounds=1)
            runs.append((plain, cold, optimize(path, ("cpu", "cuda"), store)))
    plain, cold, _ = runs[0]
    return Row(
        name, plain.report.nodes_before, len(cold.report.groups), len(cold.report.codes),
        statistics.median(one.seconds for one, _, _ in runs),
        statistics.median(two.rest - one.rest for one, two, _ in runs),
        statistics.median(two.busy - one.busy for one, two, _ in runs),
        statistics.median(three.rest - one.rest for one, _, three in runs),
        cold.bytes - plain.bytes, cold.bytes, max(code.bytes for code in cold.report.codes), len(runs),
    )  # fmt: skip


def twenty() -> Row:
    """The first programs of tests/gpu/prepare.py through the compiler, once with an empty cache and then from it."""
    from benchmarks.chains import CHAINS
    from onnxfuse.codegen import Compiler
    from onnxfuse.codegen.cache import Cache
    from tests.gpu.prepare import SIZES, group_of

    cases = [chain.case(SIZES[0], dtype) for dtype in ("float32", "float16") for chain in CHAINS
             if dtype == "float32" or "uint8" not in chain.inputs.values()][:PROGRAMS]  # fmt: skip
    programs = [group_of(case).program for case in cases]
    times = []
    with tempfile.TemporaryDirectory(prefix="onnxfuse-bench-") as temporary:
        for _ in range(2):
            start, busy = time.perf_counter(), time.process_time()
            made = list(Compiler(store=Cache(Path(temporary))).compile(programs))
            times.append((time.perf_counter() - start, time.process_time() - busy))
    sizes = [len(kernels.data) for kernels in made]
    assert len({program.text for program in programs}) == PROGRAMS
    (cold, busy), (warm, _) = times
    return Row(TWENTY, programs=PROGRAMS, cold=cold, busy=busy, warm=warm, bytes=sum(sizes), largest=max(sizes),
               rounds=1)  # fmt: skip


# ------------------------------------------------------------------------------------------------ all models


def run_one(name: str, seconds: float) -> Row:
    """The row of a model from a process of its own; of TWENTY from several."""
    arguments = ["--one", name, "--seconds", str(seconds), "--json"]
    try:
        rows = [Row(**child.answer("benchmarks.run_cuda", arguments, LIMIT))
                for _ in range(PROCESSES if name == TWENTY else 1)]  # fmt: skip
    except child.Problem as problem:
        return Row(name, problem=str(problem))
    times = {name: statistics.median(asdict(row)[name] for row in rows) for name in ("cold", "busy", "warm")}
    return dataclasses.replace(rows[0], **times, rounds=sum(row.rounds for row in rows))


def earlier(path: Path | None, key: str) -> dict[str, Row]:
    """Rows of an earlier run with the same key."""
    if path is None or not path.exists():
        return {}
    rows = [Row(**data) for data in json.loads(path.read_text(encoding="utf-8"))["rows"]]
    return {row.name: row for row in rows if row.key == key and not row.problem}


def measured(rows: Sequence[Row]) -> list[Row]:
    """The models that got GPU code, the slowest to compile first."""
    return sorted((row for row in rows if row.groups), key=lambda row: (-row.cold, row.name))


def figures(rows: Sequence[Row]) -> list[Figure]:
    """What is to be reached."""
    first = next((row for row in rows if row.name == TWENTY and not row.problem), None)
    cold, warm = (first.cold, first.warm) if first else (None, None)
    largest = max((row.largest / 1000 for row in rows if row.programs), default=None)
    return [
        Figure(f"{TWENTY}, nothing compiled before", cold, COLD, at_most=True, unit=" s"),
        Figure(f"{TWENTY}, from the cache", warm, WARM, at_most=True, unit=" s"),
        Figure("largest code of a program", largest, LARGEST, at_most=True, unit=" KB"),
    ]


def views(data: Mapping[str, Any]) -> list[View]:
    """Tables of a result: the models with many programs one by one, what the others have in the middle and at most,
    and the figures."""
    rows = [Row(**row) for row in data["rows"]]
    models = measured(rows)
    many = [row for row in models if row.programs >= FEW]
    columns = ["model", "nodes", "fused nodes", "distinct programs", "optimize, s", "+ s, empty cache",
               "of a processor", "+ s, from cache", "+ KB", "% of the file", "largest program, KB"]  # fmt: skip
    first = [_cells(row) for row in rows if row.name == TWENTY and row.programs]
    cells = [["" if cell == "0" else cell for cell in line] for line in first] + [_cells(row) for row in many]
    few = [row for row in models if row.programs < FEW]
    if few:
        title = f"{len(few)} models with fewer than {FEW} programs"
        cells.append([f"{title}, median", *_over(few, statistics.median)])
        cells.append([f"{title}, most", *_over(few, max)])
    notes = [f"{len(models)} models, {sum(row.programs for row in models)} programs (those that several models have "
             f"counted in each). Median of what is added: {_median(row.cold for row in models)} s with an empty cache, "
             f"{_median(row.warm for row in models)} s from it, "
             f"{_median(row.bytes / 1000 for row in models)} KB."]  # fmt: skip
    same = sum(not row.groups and not row.problem and row.name != TWENTY for row in rows)
    notes.append(f"Models in which nothing is fused, to which nothing is added: {same}.")
    notes += [f"{row.name}: {row.problem}." for row in rows if row.problem]
    return [View("What GPU code adds", columns, cells, notes),
            table.figures_view([Figure.of(figure) for figure in data["figures"]])]  # fmt: skip


def _numbers(row: Row) -> list[float]:
    """In the order of the columns."""
    return [row.nodes, row.groups, row.programs, row.seconds, row.cold, row.busy, row.warm, row.bytes / 1000, row.share,
            row.largest / 1000]  # fmt: skip


def _texts(numbers: Sequence[float]) -> list[str]:
    counts, times = numbers[:3], numbers[3:]
    return [*(f"{count:,.0f}" for count in counts), *("0" if value == 0 else number(value) for value in times)]


def _cells(row: Row) -> list[str]:
    return [row.name, *_texts(_numbers(row))]


def _over(rows: Sequence[Row], over: Callable[[Sequence[float]], float]) -> list[str]:
    """A row of what several have: each column by itself."""
    return _texts([over(column) for column in zip(*map(_numbers, rows), strict=True)])


def _median(values: Iterator[float]) -> str:
    found = list(values)
    return number(statistics.median(found)) if found else ""


# ------------------------------------------------------------------------------------------------ command


def result(rows: Sequence[Row], seconds: float) -> dict[str, Any]:
    """The record of a run."""
    from onnxfuse.codegen import DEFAULT, Compiler

    return table.record("cuda", {"seconds": seconds, "architectures": list(DEFAULT)}, {
        "rows": [asdict(row) for row in rows],
        "figures": [figure.to_dict() for figure in figures(rows)],
    }, {"compilers": Compiler().version})  # fmt: skip


def run_all(names: Sequence[str], seconds: float, target: Path, known: Mapping[str, Row], key: str) -> list[Row]:
    """The rows, a line each while it lasts; saved after each."""
    rows: list[Row] = []
    for place, name in enumerate(names, 1):
        row = known.get(name)
        if row is None:
            row = dataclasses.replace(run_one(name, seconds), key=key)
        rows.append(row)
        table.write(target, result(rows, seconds))
        state = row.problem or ("nothing fused" if not row.programs else
                                f"{row.programs} programs, {row.cold:.2f} s, {row.warm:.3f} s, {row.bytes} bytes, "
                                f"{row.rounds} rounds")  # fmt: skip
        print(f"[{place}/{len(names)}] {name}: {state}", file=sys.stderr, flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """1 if a model has no figure; one that is not reached is no failure. 2 without the corpus."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run_cuda", description=__doc__.split("\n")[0])
    parser.add_argument("--models", metavar="A,B", help="some models (default: all)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time for a model (default: %(default)g)")
    parser.add_argument("--json", type=Path, metavar="FILE",
                        help=f"result (default: the file of --resume, else {OUTPUT.relative_to(ROOT)})")  # fmt: skip
    parser.add_argument("--resume", metavar="FILE", type=Path, help="use results of an earlier run again")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        row = twenty() if options.one == TWENTY else examine(options.one, options.seconds)
        options.json.write_text(json.dumps(asdict(row)), encoding="utf-8")
        return 0
    folder = corpus_folder()
    if not (folder / "index.tsv").exists():
        print(f"no corpus at {folder}: set ONNXFUSE_CORPUS", file=sys.stderr)
        return 2
    index = catalog(folder).index()
    names = options.models.split(",") if options.models else list(index)
    if set(names) - set(index):
        parser.error(f"no such model in the corpus: {', '.join(sorted(set(names) - set(index)))}")
    key = fingerprint()
    rows = run_all([TWENTY, *names], options.seconds, options.json or options.resume or OUTPUT,
                   earlier(options.resume, key), key)  # fmt: skip
    data = result(rows, options.seconds)
    table.show(views(data), data)
    return 1 if any(row.problem for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
