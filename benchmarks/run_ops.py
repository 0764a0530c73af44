"""Single ops: one node of the runtime against one of ours, which the planner's rules are made of (docs/planner.md).

    python -m benchmarks.run_ops
    python -m benchmarks.run_ops Elu PRelu --sizes 256,65536

Each case is a model of several such nodes side by side, on one thread; the planner's rules are off. Times are
microseconds a node, medians; the cost of the session is in them, shared by the nodes.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks import table
from benchmarks.table import View
from onnxfuse.check import sessions
from onnxfuse.fusion import worth
from onnxfuse.fusion.plan import make_plan
from onnxfuse.library import library_path
from onnxfuse.model import from_proto
from onnxfuse.rewrite import apply
from onnxfuse.timing import Ratio, bind, interleave, ratio

UNARY = (
    "Neg Abs Sign Reciprocal Sqrt Floor Ceil Round Exp Log Erf Sigmoid Tanh Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh "
    "Acosh Atanh Relu LeakyRelu ThresholdedRelu Elu Selu Celu HardSigmoid HardSwish Softplus Softsign Mish Gelu Shrink"
).split()
POSITIVE = frozenset({"Log", "Sqrt", "Acosh", "Pow"})
BINARY = ("Add", "Mul", "Div", "Max", "Pow", "PRelu")
ROWS = ((1365, 3), (585, 7), (256, 16), (170, 24), (73, 56), (32, 128))
SIZES = (256, 4096, 65536, 1 << 20)
BYTES = 64 << 20  # of all operands of a model at most


@dataclass(frozen=True)
class Case:
    """``op`` on float32 operands of these shapes; ``constants`` are scalars behind them; ``mask``: the first operand is
    bool."""

    label: str
    op: str
    shapes: tuple[tuple[int, ...], ...]
    constants: tuple[float, ...] = ()
    mask: bool = False
    attributes: dict[str, Any] = field(default_factory=dict)


def cases(sizes: Sequence[int]) -> Iterator[Case]:
    """Every op at every size, then operands that are broadcast in rows of 3 to 128 elements."""
    for n in sizes:
        for op in UNARY:
            yield Case(op, op, ((n,),), attributes={"bias": 0.1} if op == "Shrink" else {})
        for op in BINARY:
            yield Case(op, op, ((n,), (n,)))
        for exponent in (2.0, 3.0, 0.5, -1.0, 2.2):
            yield Case(f"Pow {exponent:g}", "Pow", ((n,),), (exponent,))
        yield Case("Clip", "Clip", ((n,),), (0.0, 6.0))
        yield Case("Where", "Where", ((n,), (n,), (n,)), mask=True)
    for rows, row in ROWS:
        yield Case(f"Mul, row of {row}", "Mul", ((rows, row), (row,)))
        yield Case(f"Mul, column by {row}", "Mul", ((rows, row), (rows, 1)))


def model_of(case: Case) -> onnx.ModelProto:
    """Several nodes of the case, each with operands of its own."""
    size = 4 * sum(math.prod(shape) for shape in case.shapes)
    nodes, inputs, outputs = [], [], []
    names = [f"c{place}" for place in range(len(case.constants))]
    for number in range(max(1, min(16, BYTES // size))):
        operands = [f"x{number}_{place}" for place in range(len(case.shapes))]
        for place, (name, shape) in enumerate(zip(operands, case.shapes, strict=True)):
            kind = TensorProto.BOOL if case.mask and not place else TensorProto.FLOAT
            inputs.append(helper.make_tensor_value_info(name, kind, shape))
        nodes.append(helper.make_node(case.op, operands + names, [f"y{number}"], **case.attributes))
        outputs.append(helper.make_tensor_value_info(f"y{number}", TensorProto.FLOAT, None))
    scalars = [numpy_helper.from_array(np.float32(c), n) for n, c in zip(names, case.constants, strict=True)]
    graph = helper.make_graph(nodes, case.label, inputs, outputs, scalars)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def measure(case: Case, seconds: float) -> tuple[float, float, Ratio]:
    """Nanoseconds of a node of the runtime's, of ours, and their ratio."""
    before = model_of(case)
    source = from_proto(before)
    with mock.patch.object(worth, "judge", return_value=None):
        plan = make_plan(source)
    count = len(before.graph.node)
    assert len(plan.groups) == count, case
    after = apply(source, plan)
    rng = np.random.default_rng(0)
    feed: dict[str, Any] = {}
    for value in before.graph.input:
        array = rng.normal(0, 1, [d.dim_value for d in value.type.tensor_type.shape.dim])
        if value.type.tensor_type.elem_type == TensorProto.BOOL:
            feed[value.name] = array > 0
        else:
            feed[value.name] = (np.abs(array) + 1 if case.op in POSITIVE else array).astype(np.float32)
    calls = [bind(sessions.create(before, optimize=True, threads=1), feed),
             bind(sessions.create(after, optimize=True, library=library_path(), threads=1), feed)]
    theirs, ours = interleave(calls, seconds, warm_up=seconds / 4)
    return statistics.median(theirs) / count, statistics.median(ours) / count, ratio(theirs, ours)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="One node of the runtime against one of ours.")
    parser.add_argument("ops", nargs="*", help="some ops (default: all)")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="elements (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.4, help="time for a case (default: %(default)s)")
    options = parser.parse_args(arguments)
    rows = []
    for case in cases([int(text) for text in options.sizes.split(",")]):
        if not options.ops or case.op in options.ops:
            theirs, ours, speedup = measure(case, options.seconds)
            shapes = " ".join(str(list(shape)) for shape in case.shapes)
            rows.append([case.label, shapes, f"{theirs / 1e3:.2f}", f"{ours / 1e3:.2f}", speedup.text()])
    columns = ("op", "shapes", "its node, us", "ours, us", "times faster (10-90 %)")
    table.show([View("Single ops", columns, rows, left=2)], table.environment())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
