"""Every op of one type and one shape rule, in every dtype and opset version, against ONNX Runtime's CPU kernels.

Where ONNX Runtime has no kernel, onnx.reference takes its place. Ops with their own rules about types or parameters
(Cast, Pow, Clip, quantization, …) have files of their own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxfuse import ops
from onnxfuse.program.dtypes import NUMPY
from tests.ops.harness import RUNTIME_OPSET, Array, Case, assert_close, assert_same, pairs, schema_takes, values

EXACT_UNARY = """Neg Abs Sign Reciprocal Sqrt Floor Ceil Round Relu LeakyRelu ThresholdedRelu HardSigmoid HardSwish Shrink
    IsNaN IsInf Not BitwiseNot Identity""".split()
EXACT_BINARY = """Add Sub Mul Max Min Sum Mean PRelu Equal Less LessOrEqual Greater GreaterOrEqual And Or Xor BitwiseAnd
    BitwiseOr BitwiseXor""".split()
FUNCTIONS = """Exp Log Erf Sigmoid Tanh Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh Elu Selu Celu Softplus
    Softsign Gelu Mish Swish""".split()
CONTRIB = "Gelu QuickGelu FastGelu BiasGelu".split()

# onnx.reference, which serves where ORT has no kernel, does not follow the operator there: it has no bfloat16 arithmetic
# for these, or the result of another type.
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "LeakyRelu": [{}, {"alpha": 0.3}, {"alpha": -0.5}],
    "ThresholdedRelu": [{}, {"alpha": -1.0}],
    "HardSigmoid": [{}, {"alpha": 0.3, "beta": 0.25}],
    "Shrink": [{}, {"lambd": 1.5, "bias": 0.7}, {"lambd": -0.5, "bias": 1.0}],
    "IsInf": [{}, {"detect_negative": 0}, {"detect_positive": 0}, {"detect_negative": 0, "detect_positive": 0}],
    "Elu": [{}, {"alpha": 0.3}],
    "Selu": [{}, {"alpha": 1.1, "gamma": 2.0}],
    "Celu": [{}, {"alpha": 2.0}],
    "Gelu": [{}, {"approximate": "tanh"}],
    "Swish": [{}, {"alpha": 1.3}],
    "QuickGelu": [{}, {"alpha": 1.0}],
}

TOLERANCE = {"f32": (2e-5, 2e-6), "f64": (1e-12, 1e-14), "f16": (2e-3, 1e-4), "bf16": (1.6e-2, 1e-3)}


def opsets(name: str) -> list[int]:
    """One opset for each version of the op, and the newest that runs."""
    row = ops.find("", name)
    assert row is not None
    known = {max(v, row.since) for v in row.versions} | {RUNTIME_OPSET}
    return sorted(v for v in known if v >= row.since)


def expected(case: Case) -> Array:
    found = case.runtime()
    return case.reference() if found is None else found


def cases(name: str, inputs: Any) -> list[tuple[str, Case]]:
    row = ops.find("", name)
    assert row is not None
    found = []
    for opset in opsets(name):
        for dtype in row.allowed(0):
            if schema_takes(name, opset, 0, dtype):
                found += [(f"{name} {dtype} opset {opset} {attributes}", Case(name, inputs(dtype), opset, **attributes))
                          for attributes in VARIANTS.get(name, [{}])]
    assert found
    return found


@pytest.mark.parametrize("name", EXACT_UNARY)
def test_exact_unary(name: str) -> None:
    for note, case in cases(name, lambda dtype: [values(dtype)]):
        assert_same(case.ours(), expected(case), note)


@pytest.mark.parametrize("name", EXACT_BINARY)
def test_exact_binary(name: str) -> None:
    """Of zeros of both signs, ORT's Max and Min give now the first, now the second, by position and broadcasting."""
    for note, case in cases(name, pairs):
        assert_same(case.ours(), expected(case), note, zero_signs=name not in ("Max", "Min"))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    for note, case in cases(name, lambda dtype: [values(dtype)]):
        dtype = str(case.context.dtypes["x0"])
        assert_close(case.ours(), expected(case), note, *TOLERANCE[dtype])


@pytest.mark.parametrize("name", CONTRIB)
def test_contrib(name: str) -> None:
    for attributes in VARIANTS[name] if name == "QuickGelu" else [{}]:
        for dtype in ("f32", "f16"):
            inputs = [values(dtype)]
            if name != "BiasGelu":
                case = Case(name, inputs, 17, "com.microsoft", **attributes) if name != "BiasGelu" else None
                assert case is not None
                _close_to_runtime(case, dtype)
            if name in ("BiasGelu", "FastGelu"):
                _close_to_runtime(Case(name, [*inputs, values(dtype, seed=5)], 17, "com.microsoft"), dtype)


def _close_to_runtime(case: Case, dtype: str) -> None:
    wanted = case.runtime()
    assert wanted is not None, case.node
    assert_close(case.ours(), wanted, case.node.op_type, *TOLERANCE[dtype])


@pytest.mark.parametrize("name", ["Max", "Min", "Sum", "Mean"])
def test_variadic(name: str) -> None:
    for dtype in ("f32", "f64", "f16", "i32"):
        if not schema_takes(name, 13, 0, dtype):
            continue
        a, b = pairs(dtype)
        one = Case(name, [b], 13)
        assert not ops.counts(one.node, one.context)
        assert_same(one.ours(), b, name)
        four = Case(name, [b, a, values(dtype, 1, 9)[:1], values(dtype, 3, 8)[-1].reshape(())], 13)
        assert ops.counts(four.node, four.context)
        assert_same(four.ours(), expected(four), f"{name} of four, {dtype}", zero_signs=name not in ("Max", "Min"))


@pytest.mark.parametrize("dtype", [d for d in NUMPY if d not in ("bool",)])
def test_div(dtype: str) -> None:
    a, b = pairs(dtype)
    if NUMPY[dtype].kind in "iu":
        # x / 0 and the lowest number / -1 are excluded (ORT ends with a signal there).
        b = b[(b != 0) & (b != NUMPY[dtype].type(-1) if NUMPY[dtype].kind == "i" else b != 0)]
    for opset in opsets("Div"):
        if schema_takes("Div", opset, 0, dtype):
            case = Case("Div", [a, b], opset)
            wanted = case.runtime()
            if wanted is None:
                wanted = (a.astype(np.float32) / b.astype(np.float32)).astype(NUMPY[dtype])
            assert_same(case.ours(), wanted, f"Div {dtype}")
