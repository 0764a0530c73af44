"""Every op of one type and one shape rule, in every dtype and opset version, against ONNX Runtime's CPU kernels.

Where ONNX Runtime has no kernel, onnx.reference takes its place. Ops with their own rules about types or parameters
(Cast, Pow, Clip, quantization, …) have files of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from onnxfuse import ops
from onnxfuse.program.dtypes import NUMPY
from tests.ops.harness import (
    RUNTIME_OPSET,
    Array,
    Case,
    assert_close,
    assert_same,
    current_runtime,
    pairs,
    schema_takes,
    values,
)

pytestmark = current_runtime

EXACT_UNARY = """Neg Abs Sign Reciprocal Sqrt Floor Ceil Round Relu LeakyRelu ThresholdedRelu HardSigmoid HardSwish
    Shrink IsNaN IsInf Not BitwiseNot Identity""".split()
EXACT_BINARY = """Add Sub Mul Max Min Sum Mean PRelu Equal Less LessOrEqual Greater GreaterOrEqual And Or Xor BitwiseAnd
    BitwiseOr BitwiseXor""".split()
FUNCTIONS = """Exp Log Erf Sigmoid Tanh Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh Elu Selu Celu Softplus
    Softsign Gelu Mish Swish""".split()
CONTRIB = "Gelu QuickGelu FastGelu BiasGelu".split()

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
    return sorted({max(v, row.since) for v in (*row.versions, RUNTIME_OPSET)})


def _gelu(x: Array, approximate: str = "none") -> Array:
    if approximate == "tanh":
        return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))
    return np.asarray(0.5 * x * (1 + _erf(x * math.sqrt(0.5))))


def _erf(x: Array) -> Array:
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x))


def _shrink(x: Array, lambd: float = 0.5, bias: float = 0.0) -> Array:
    bias = float(np.float32(bias))
    return np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0.0))


FORMULAS: dict[str, Callable[..., Array]] = {
    "PRelu": lambda x, slope: np.where(x < 0, x * slope, x),
    "LeakyRelu": lambda x, alpha=0.01: np.where(x < 0, x * float(np.float32(alpha)), x),
    "HardSwish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "Relu": lambda x: np.where(x < 0, 0.0, x),
    "Shrink": _shrink, "Erf": _erf, "Gelu": _gelu,
}
"""The operator text in float64, where there is no kernel and onnx.reference computes in float32 or loses a NaN."""


def expected(case: Case) -> tuple[Array, bool]:
    """The result, and whether the signs of its zeros mean something (onnx.reference's do not)."""
    name, dtypes = case.node.op_type, case.context.dtypes
    # ORT's Shrink computes float64 in float32, its float16 Sign gives 0 for NaN; where it has no float64 kernel, it may
    # inline the operator's function, whose Where turns -0 into 0.
    strange = (name, dtypes["x0"]) in (("Shrink", "f64"), ("Sign", "f16"), ("PRelu", "f16"), ("LeakyRelu", "f16")) or (
        name in FORMULAS and dtypes["x0"] == "f64")
    found = None if strange else case.runtime()
    if found is None and name in FORMULAS and dtypes["x0"] in ("f64", "f16", "bf16"):
        wide = [v.astype(np.float64) for v in case.inputs.values()]
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in case.node.attribute}
        attributes = {k: v.decode() if isinstance(v, bytes) else v for k, v in attributes.items()}
        with np.errstate(all="ignore"):
            return FORMULAS[name](*wide, **attributes).astype(NUMPY[dtypes["x0"]]), True
    return (case.reference(), False) if found is None else (found, True)


def cases(name: str, inputs: Any) -> list[tuple[str, Case]]:
    row = ops.find("", name)
    assert row is not None
    found = []
    for opset in opsets(name):
        for dtype in row.allowed(0):
            if schema_takes(name, opset, 0, dtype):
                found += [(f"{name} {dtype} opset {opset} {attributes}", Case(name, inputs(dtype), opset, **attributes))
                          for attributes in VARIANTS.get(name, [{}])]
    if not found:
        pytest.skip(f"onnx {onnx.__version__} does not know {name}")
    return found


@pytest.mark.parametrize("name", EXACT_UNARY)
def test_exact_unary(name: str) -> None:
    # The largest 64-bit integers are no float32 numbers, so Shrink takes them out of range.
    inputs = (lambda d: [values(d)[5:] if d[1:] == "64" else values(d)]) if name == "Shrink" else lambda d: [values(d)]
    for note, case in cases(name, inputs):
        wanted, signs = expected(case)
        if name == "HardSwish" and case.context.dtypes["x0"] == "f64":
            assert_close(case.ours(), wanted, note, 1e-15, 0)
        else:
            assert_same(case.ours(), wanted, note, signs)


@pytest.mark.parametrize("name", EXACT_BINARY)
def test_exact_binary(name: str) -> None:
    """Of zeros of both signs, ORT's Max and Min give now the first, now the second, by position and broadcasting."""
    for note, case in cases(name, pairs):
        if case.opset < 8 and name in ("Max", "Min", "Sum", "Mean"):  # no broadcasting yet
            case = Case(name, list(np.broadcast_arrays(*case.inputs.values())), case.opset)
        wanted, signs = expected(case) if name != "Mean" or case.runtime() is not None else (_mean(case), True)
        assert_same(case.ours(), wanted, note, signs and name not in ("Max", "Min"))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    for note, case in cases(name, lambda dtype: [values(dtype)]):
        dtype = str(case.context.dtypes["x0"])
        assert_close(case.ours(), expected(case)[0], note, *TOLERANCE[dtype])


@pytest.mark.parametrize("name", CONTRIB)
def test_contrib(name: str) -> None:
    for attributes in VARIANTS[name] if name == "QuickGelu" else [{}]:
        for dtype in ("f32", "f16"):
            inputs = [values(dtype)]
            if name != "BiasGelu":
                _close_to_runtime(Case(name, inputs, 17, "com.microsoft", **attributes), dtype)
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
        wanted, signs = expected(four) if name != "Mean" or four.runtime() is not None else (_mean(four), True)
        assert_same(four.ours(), wanted, f"{name} of four, {dtype}", signs and name not in ("Max", "Min"))


def _mean(case: Case) -> Array:
    with np.errstate(all="ignore"):
        wide = np.float64 if case.inputs["x0"].dtype == np.float64 else np.float32
        first, *others = (v.astype(wide) for v in case.inputs.values())
        for other in others:
            first = first + other
        return np.asarray(first * wide(1 / (1 + len(others)))).astype(case.inputs["x0"].dtype)


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
                with np.errstate(all="ignore"):
                    wanted = (a.astype(np.float32) / b.astype(np.float32)).astype(NUMPY[dtype])
            assert_same(case.ours(), wanted, f"Div {dtype}")
