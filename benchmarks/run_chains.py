"""Speed of the twelve chains: fused with the library against unfused ONNX Runtime, and against everything else.

    make bench                                                 # python -m benchmarks.run_chains
    python -m benchmarks.run_chains --chains swiglu,lstm --sizes 65536 --threads 1 --seconds 5
    python -m benchmarks.run_chains --quick --json FILE

For each chain, size and number of threads one loop runs in turn, on the same memory (see `onnxfuse.timing`): the
unfused model with all of the runtime's optimizations, the fused model, the engine without the runtime, the loop written
by hand, a copy of the same traffic, torch.compile and numexpr where they are installed, and the unfused model again,
which gives the noise. Every result is compared with the unfused model's before anything is measured. torch is compiled
for the very shape (dynamic=False).
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

import onnxfuse
from benchmarks import costs, opponents
from benchmarks.chain_tables import BEYOND_CACHES, OPPONENTS_FROM, figures, size_text, threads_text, views
from benchmarks.chains import CHAINS, SIZES, Array, Case, Chain, chain
from benchmarks.native import Copy, Engine, Hand, OrtSession
from benchmarks.table import progress, record, show, write
from onnxfuse.check import sessions
from onnxfuse.library import DOMAIN
from onnxfuse.timing import Call, Repeated, interleave, ratio

__all__ = ["engine", "figures", "main", "measure", "views"]

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "run-output" / "bench.json"
SECONDS = {256: 1.0, 65536: 1.5, 1048576: 2.5}  # for one row, warm-up not included
LONGEST = 3.0  # larger sizes
WARM_UP = 0.05
SAMPLE = 1 << 16  # elements that are compared
TOLERANCE = {"float32": 1e-4, "float16": 2e-2}  # of the largest value

Say = Callable[[str], None]
Data = dict[str, Any]


# ---------------------------------------------------------------- what is measured


@dataclass(frozen=True)
class Fusion:
    """What the optimizer made of a model. `reason` is why it was left alone, "" where it was fused; `runtime_ops` are
    the nodes that the runtime runs for the unfused one."""

    model: onnx.ModelProto
    reason: str
    runtime_ops: tuple[str, ...]

    @staticmethod
    def of(model: onnx.ModelProto) -> Fusion:
        result = onnxfuse.optimize(model, validate=False, targets=("cpu",))
        left = Counter(node.text for node in result.report.left)
        reason = "" if result.report.groups else next(iter(left), "nothing to fuse")
        return Fusion(result.model, reason, _runtime_ops(model))

    @property
    def node(self) -> onnx.NodeProto | None:
        """The fused node, if the whole model became one."""
        nodes = self.model.graph.node
        return nodes[0] if len(nodes) == 1 and nodes[0].domain == DOMAIN else None


def _runtime_ops(model: onnx.ModelProto) -> tuple[str, ...]:
    """Op types that the runtime runs, all of its optimizations on."""
    runtime = sessions.load_runtime()
    with tempfile.TemporaryDirectory(prefix="onnxfuse-bench-") as folder:
        options = runtime.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return tuple(node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node)


class WrongResult(Exception):
    """A subject does not compute what the unfused model does: its time would mean nothing."""


class _Row:
    """The subjects of one row. All read the same inputs and, torch and numexpr aside, write the same outputs."""

    def __init__(self, case: Case, threads: int) -> None:
        self.case, self.threads = case, threads
        self.outputs = case.outputs()
        self.subjects: dict[str, Call | Repeated] = {}
        self._expected: dict[str, Array] = {}

    def add(self, name: str, subject: Repeated) -> None:
        """A subject that writes the outputs. Raises WrongResult; the first one added is right."""
        for array in self.outputs.values():
            array.fill(0)
        subject.run(1)
        self.compare(name, self.outputs)
        self.subjects[name] = subject

    def compare(self, name: str, outputs: Mapping[str, Array]) -> None:
        got = {key: self._sample(array) for key, array in outputs.items()}
        self._expected = self._expected or got
        for key, value in got.items():
            want = self._expected[key]
            error = float(np.max(np.abs(value - want)))
            if not error <= TOLERANCE[str(self.case.dtype)] * float(np.max(np.abs(want))):
                raise WrongResult(f"{name} differs by {error:.3g} in {key}")

    def _sample(self, array: Array) -> Array:
        flat = array.reshape(-1)
        return flat[:: max(1, flat.size // SAMPLE)].astype(np.float64)


def _build(case: Case, fusion: Fusion, threads: int, unroll: int | None) -> _Row:
    """All subjects that every machine has."""
    row = _Row(case, threads)
    plain = case.model.SerializeToString()
    fused, library = (plain, None) if fusion.reason else (fusion.model.SerializeToString(), onnxfuse.library_path())
    row.add("ort", OrtSession(plain, case.feed, row.outputs, threads=threads))
    row.add("fused", OrtSession(fused, case.feed, row.outputs, threads=threads, library=library))
    if fusion.node is not None:
        row.add("engine", engine(case, fusion.node, row.outputs, threads))
    operands, outputs = list(case.operands.values()), list(row.outputs.values())
    row.add("hand", Hand(case.chain.name, operands, outputs, threads=threads, unroll=unroll))
    row.add("again", OrtSession(plain, case.feed, row.outputs, threads=threads))
    row.subjects["copy"] = Copy(operands, outputs, threads=threads)
    if case.size >= BEYOND_CACHES:
        row.subjects["copy_streaming"] = Copy(operands, outputs, threads=threads, streaming=True)
    return row


def engine(case: Case, node: onnx.NodeProto, outputs: Mapping[str, Array], threads: int) -> Engine:
    """The engine on the program of a fused node, without the runtime."""
    attributes = {attribute.name: attribute for attribute in node.attribute}
    scalars = [numpy_helper.to_array(attributes[f"c{k}"].t) for k in range(len(attributes)) if f"c{k}" in attributes]
    tensors = [case.operands[name] for name in node.input[1:]]
    made = [outputs[name] for name in node.output]
    return Engine(attributes["program"].s.decode(), tensors, scalars, made, threads=threads)


@contextlib.contextmanager
def _with_opponents(row: _Row, names: Sequence[str]) -> Iterator[list[str]]:
    """Adds torch and numexpr to a row while it lasts; yields what went wrong with them."""
    problems: list[str] = []
    with contextlib.ExitStack() as stack:
        for name, prepare in (
            ("torch", (opponents.torch_threads, opponents.torch_call)),
            ("numexpr", (opponents.numexpr_threads, opponents.numexpr_call)),
        ):
            if name not in names:
                continue
            set_threads, make = prepare
            try:
                stack.enter_context(set_threads(row.threads))
                made = make(row.case)
                if made is not None:
                    row.compare(name, made[1])
                    row.subjects[name] = made[0]
            except Exception as error:  # whatever a foreign compiler raises
                problems.append(f"{name}: {' '.join(str(error).split())[:200]}")
        yield problems


def measure(
    case: Case, fusion: Fusion, threads: int, seconds: float, names: Sequence[str], unroll: int | None = None,
    warm_up: float = WARM_UP,
) -> Data:
    """One row: medians in microseconds and ratios, see `views`. `names` are the opponents wanted."""
    row = _build(case, fusion, threads, unroll)
    with _with_opponents(row, names) as problems:
        keys = list(row.subjects)
        found = interleave(list(row.subjects.values()), seconds, warm_up=warm_up)
    times = dict(zip(keys, found, strict=True))

    def over(numerator: str, denominator: str) -> Data | None:
        if numerator not in times or denominator not in times:
            return None
        return asdict(ratio(times[numerator], times[denominator]))

    return {
        "chain": case.chain.name,
        "kind": case.chain.kind,
        "cheap": case.chain.cheap,
        "size": case.size,
        "shape": list(case.shape),
        "dtype": str(case.dtype),
        "threads": threads,
        "traffic_bytes": case.traffic,
        "runtime_ops": list(fusion.runtime_ops),
        "left_alone": fusion.reason or None,
        "unroll": row.subjects["hand"].unroll,  # type: ignore[union-attr]
        "rounds": len(found[0]),
        "microseconds": {key: statistics.median(own) / 1e3 for key, own in times.items()},
        "speedup": over("ort", "fused"),
        "noise": over("ort", "again"),
        "engine_over_hand": over("engine", "hand"),
        "fused_over_hand": over("fused", "hand"),
        "share_of_copy": over("copy", "fused"),
        "share_of_streaming_copy": over("copy_streaming", "fused"),
        "torch_over_fused": over("torch", "fused"),
        "numexpr_over_fused": over("numexpr", "fused"),
        "problems": problems,
    }


# ---------------------------------------------------------------- the run


@dataclass(frozen=True)
class Options:
    """What a run measures. `seconds` None: by size. `quick`: nothing but whether it works."""

    chains: tuple[Chain, ...]
    sizes: tuple[int, ...]
    threads: tuple[int, ...]
    seconds: float | None
    opponents: tuple[str, ...]
    quick: bool
    extras: bool

    def seconds_of(self, size: int) -> float:
        return self.seconds if self.seconds is not None else SECONDS.get(size, LONGEST)

    def to_dict(self) -> Data:
        """For JSON."""
        return {**asdict(self), "chains": [one.name for one in self.chains]}

    def cases(self) -> list[tuple[Chain, int, str]]:
        """Chain, size and dtype, smallest sizes first."""
        return [
            (one, size, dtype)
            for size in self.sizes for one in self.chains
            for dtype in (("float32", "float16") if one.half else ("float32",))
        ]


def run(options: Options, say: Say) -> Data:
    """Everything; the result without machine and versions."""
    rows: list[Data] = []
    cases = options.cases()
    for number, (one, size, dtype) in enumerate(cases, 1):
        case, unroll = one.case(size, dtype), None
        fusion = Fusion.of(case.model)
        for threads in options.threads:
            say(f"{number} of {len(cases)}: {one.name}, {size_text(size)}, {dtype}, {threads_text(threads)}")
            wanted = options.opponents if size >= OPPONENTS_FROM and dtype == "float32" else ()
            row = measure(case, fusion, threads, options.seconds_of(size), wanted, unroll,
                          0.01 if options.quick else WARM_UP)
            unroll = row["unroll"]
            rows.append(row)
    extras = _extras(options.quick, say) if options.extras else {}
    return {"rows": rows, "extras": extras, "figures": [figure.to_dict() for figure in figures(rows, extras)]}


def _extras(quick: bool, say: Say) -> Data:
    say("ops of the runtime after a fused node")
    found: Data = {"unrelated_op": costs.unrelated_op(rounds=20 if quick else 400)}
    say("creation of sessions")
    small = chain("swiglu").case(65536).model
    found["creation"] = {"small": costs.creation(small, 0.05 if quick else 3.0)}
    if quick:
        return found
    found["creation"]["many"] = costs.creation(costs.many_groups(), 5.0)
    say("peak memory")
    large, layers = chain("arith16").case(BEYOND_CACHES), costs.layers()
    shape = [dim.dim_value for dim in layers.graph.input[0].type.tensor_type.shape.dim]
    feed = {"x": np.random.default_rng(0).standard_normal(shape, np.float32)}
    found["peak"] = {"chain": costs.peak(large.model, large.feed), "layers": costs.peak(layers, feed)}
    return found


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _parse(arguments: Sequence[str] | None) -> tuple[Options, Path]:
    names = [one.name for one in CHAINS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run_chains", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chains", metavar="A,B", default=",".join(names), help="only these chains")
    parser.add_argument("--sizes", metavar="N,M", type=_numbers, default=SIZES, help="numbers of elements")
    parser.add_argument("--threads", metavar="N,M", type=_numbers, default=(1, 2), help="numbers of threads")
    parser.add_argument("--seconds", type=float, help="for each row, warm-up not included; without it 1 to 3, by size")
    parser.add_argument("--opponents", metavar="A,B", default=",".join(opponents.NAMES), help="torch, numexpr; or none")
    parser.add_argument("--quick", action="store_true", help="two sizes, one thread, no opponents: does it work?")
    parser.add_argument("--no-extras", action="store_true", help="chains only: no memory, no session creation")
    parser.add_argument("--json", type=Path, default=OUTPUT, metavar="FILE", help="where the result goes")
    given = parser.parse_args(arguments)
    chosen = given.chains.split(",")
    if unknown := sorted(set(chosen) - set(names)):
        parser.error(f"no such chain: {', '.join(unknown)}; there are {', '.join(names)}")
    if min(given.sizes) < 256 or min(given.threads) < 1 or (given.seconds is not None and not 0 <= given.seconds < 1e4):
        parser.error("sizes are 256 and more, threads 1 and more, seconds 0 and more")
    installed = opponents.versions()
    wanted = tuple(name for name in given.opponents.split(",") if installed.get(name))
    sizes, threads, seconds = given.sizes, given.threads, given.seconds
    if given.quick:
        sizes, threads, wanted, seconds = sizes[:2], threads[:1], (), 0.0 if seconds is None else seconds
    chains = tuple(one for one in CHAINS if one.name in chosen)
    return Options(chains, sizes, threads, seconds, wanted, given.quick, not given.no_extras), given.json


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when everything was measured, whatever the figures are."""
    options, path = _parse(arguments)
    with progress() as say:
        body = run(options, say)
    data = record("chains", options.to_dict(), body, opponents.versions())
    write(path, data)
    show(views(data), data)
    print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
