"""float16 and bfloat16: carried as float32 inside a program, rounded where they leave, at casts, and when strict."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from onnxfuse import ops
from onnxfuse.ops import PlainContext
from onnxfuse.program import Builder, Program
from onnxfuse.program.dtypes import NUMPY
from tests.ops.harness import BF16, Case, assert_same, current_runtime, values


def chain(dtype: str, half_math: str) -> Program:
    """y = (x * x) * s, then z = Cast(y to float32), both out."""
    nodes = [helper.make_node("Mul", ["x", "x"], ["a"]), helper.make_node("Mul", ["a", "s"], ["y"]),
             helper.make_node("Cast", ["a"], ["z"], to=TensorProto.FLOAT)]
    context = PlainContext(dtypes={"x": dtype, "s": dtype, "a": dtype, "y": dtype, "z": "f32"}, opsets={"": 17},
                           half_math=half_math)
    builder = Builder()
    bound = {(n, 0): ops.enter(builder, dtype, builder.input(dtype)) for n in ("x", "s")}
    for node in nodes:
        assert ops.examine(node, context) is None
        bound[node.output[0], 0] = ops.lower(node, context, builder, bound)[0]
    builder.output(ops.leave(builder, dtype, bound["y", 0]))
    builder.output(ops.leave(builder, "f32", bound["z", 0]))
    return builder.build()


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_rounding_where_values_leave_or_after_each_op(dtype: str) -> None:
    kind = NUMPY[dtype]
    x = np.array([1, 300, 0.1, -7.3, 255], np.float32).astype(kind)
    s = np.array(0.001, np.float32).astype(kind)
    wide, scale = x.astype(np.float32), s.astype(np.float32)
    square = wide * wide
    loose, z = chain(dtype, "float32").evaluate([x, s])
    with np.errstate(all="ignore"):
        assert_same(loose, (square * scale).astype(kind), "rounded once")
        rounded = square.astype(kind).astype(np.float32)
        assert_same(z, rounded, "an explicit cast rounds")
        strict, z = chain(dtype, "strict").evaluate([x, s])
        assert_same(strict, (rounded * scale).astype(kind), "rounded after each op")
        assert_same(z, rounded, "strict cast")
    if dtype == "f16":
        assert np.isfinite(loose[1].astype(float))
        assert np.isinf(strict[1].astype(float))


@current_runtime
def test_strict_results_are_those_of_onnx_reference() -> None:
    """One rounding from float32 to the half type is the rounding of the exact result, for these ops."""
    for name in ("Add", "Mul", "Div", "Sub"):
        a, b = values("f16", 200, 3)[13:], values("f16", 200, 4)[13:]
        case = Case(name, [a, b], 17, half_math="strict")
        assert_same(case.ours(), case.reference(), name)


def test_a_value_that_passes_unchanged_is_not_converted() -> None:
    for dtype in ("f16", "bf16"):
        case = Case("Identity", [values(dtype)], 17)
        assert case.program()[0].statements == ()
        as_float = Case("Cast", [values(dtype)], 17, to=TensorProto.FLOAT)
        assert [s.opcode for s in as_float.program()[0].statements] == [f"cast.{dtype}.f32"]


def test_half_programs_compute_on_float32_alone() -> None:
    """The format lets half types be cast and leave, nothing else: every op's program of them is accepted."""
    for dtype in ("f16", "bf16"):
        for name in ("Add", "Gelu", "Clip", "Softplus", "IsNaN", "Equal"):
            row = ops.find("", name)
            assert row is not None
            inputs = [values(dtype)] * row.required
            program = Case(name, inputs, 20).program()[0]
            arithmetic = {s.types[0] for s in program.statements if s.name not in ("cast", "const")}
            assert arithmetic <= {"f32", "bool"}, name


def test_a_comparison_of_half_values() -> None:
    a = np.array([1, 2, np.nan], np.float32).astype(BF16)
    got = Case("Greater", [a, a[::-1].copy()], 13, half_math="strict").ours()
    np.testing.assert_array_equal(got, [False, False, False])
