"""Ops with parameters along an axis: BatchNormalization, QuantizeLinear, DequantizeLinear."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from onnxfuse import ops
from onnxfuse.ops import Operand, op_reason
from onnxfuse.program.dtypes import NUMPY
from tests.ops.harness import BF16, Case, assert_close, assert_same, current_runtime, values

pytestmark = current_runtime

F32 = np.float32
RNG = np.random.default_rng(11)

# --- BatchNormalization -------------------------------------------------------------------------------------------


def batch(shape: tuple[int, ...], dtype: Any = F32, parameters: Any = None) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    channels = shape[1] if len(shape) > 1 else 1
    vectors = [rng.uniform(-2, 2, channels), rng.normal(0, 1, channels), rng.normal(0, 1, channels),
               rng.uniform(0.1, 3, channels)]
    return [rng.normal(0, 2, shape).astype(dtype)] + [v.astype(parameters or dtype) for v in vectors]


@pytest.mark.parametrize("opset", [7, 9, 14, 15])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 3, 4), (4, 3), (1, 1, 2, 2), (2, 3, 2, 2, 2)])
def test_batch_normalization_is_the_runtimes_bit_for_bit(shape: tuple[int, ...], opset: int) -> None:
    case = Case("BatchNormalization", batch(shape), opset, epsilon=0.01)
    wanted = case.runtime()
    assert wanted is not None
    assert_same(case.ours(), wanted, (shape, opset))
    assert [o.pad for o in ops.operands(case.node, case.context)] == [0] + [len(shape) - 2] * 4


def test_batch_normalization_in_other_types() -> None:
    double = Case("BatchNormalization", batch((2, 3, 4), np.float64), 15)
    wanted = double.runtime()
    assert wanted is not None
    assert_close(double.ours(), wanted, "f64", 1e-13, 1e-13)
    for dtype in (np.float16, BF16):
        for parameters in (dtype, F32):
            case = Case("BatchNormalization", batch((2, 3, 4), dtype, parameters), 15)
            x, scale, shift, mean, var = (v.astype(np.float64) for v in case.inputs.values())
            exact = (x - mean[:, None]) / np.sqrt(var + 1e-5)[:, None] * scale[:, None] + shift[:, None]
            eps = 2.0**-8 if dtype == BF16 else 2.0**-11
            got = case.ours()
            assert got.dtype == dtype
            np.testing.assert_allclose(got.astype(np.float64), exact, rtol=1.01 * eps, atol=1e-5)
    mixed = Case("BatchNormalization", batch((2, 3, 4), F32, np.float64), 15)
    assert mixed.ours().dtype == F32


def test_batch_normalization_of_rank_one() -> None:
    """X [N] has one channel; not run by ONNX Runtime here, as 1.18 aborts on it."""
    case = Case("BatchNormalization", batch((5,)), 15)
    x, scale, shift, mean, var = case.inputs.values()
    factor = scale * (F32(1) / np.sqrt(var + F32(1e-5)))
    assert_same(case.ours(), x * factor + (shift - mean * factor), "rank 1")


def test_batch_normalization_refusals() -> None:
    inputs = batch((2, 3, 4))
    training = op_reason("training-mode", op="BatchNormalization")
    assert Case("BatchNormalization", inputs, 15, training_mode=1).examine() == training
    assert Case("BatchNormalization", inputs, 9, outputs=5).examine() == training
    assert Case("BatchNormalization", inputs, 7, spatial=0).examine() == op_reason("not-per-channel")
    unknown = op_reason("unknown-rank", op="BatchNormalization", value="x0")
    assert Case("BatchNormalization", inputs, 15, ranks_unknown=True).examine() == unknown
    assert Case("BatchNormalization", inputs[:4], 15).examine() == op_reason(
        "missing-input", index=4, op="BatchNormalization")


# --- QuantizeLinear -----------------------------------------------------------------------------------------------

EDGES = np.concatenate([[0.5, 1.5, 2.5, -0.5, 127.5, 128.5, -128.5, -129, 254.5, 255.5, 1e10, -1e10, np.inf, -np.inf,
                         np.nan, 0.0, -0.0, 32767.5, 65535.5], RNG.uniform(-300, 300, 60)]).astype(F32)


@pytest.mark.parametrize("opset", [10, 13, 19, 21, 23, 25])
@pytest.mark.parametrize("dtype", ["i8", "u8", "i16", "u16"])
def test_quantize(dtype: str, opset: int) -> None:
    """Halves to even, saturation, NaN to the lowest, the zero point after rounding; division, not a reciprocal."""
    if dtype[1:] == "16" and opset < 21:
        return
    for scale, zero in ((1.0, 0), (1.0, 3), (0.037, 100), (0.5, None)):
        point = None if zero is None else np.array(zero, NUMPY[dtype])
        if point is None and dtype != "u8":
            continue
        inputs = [EDGES * F32(scale), F32(scale), point] if point is not None else [EDGES * F32(scale), F32(scale)]
        case = Case("QuantizeLinear", inputs, opset)
        wanted = case.runtime()
        assert wanted is not None
        assert_same(case.ours(), wanted, (dtype, opset, scale, zero))


def test_quantize_ties_show_the_division() -> None:
    """(k + 0.5) * s over s: a product with 1 / s falls on the other side of the tie 28 times."""
    scale = F32(0.037)
    x = ((np.arange(-128, 127) + 0.5) * scale).astype(F32)
    case = Case("QuantizeLinear", [x, scale, np.int8(3)], 21)
    wanted = case.runtime()
    assert wanted is not None
    assert_same(case.ours(), wanted, "ties")
    by_reciprocal = np.clip(np.rint(x * (F32(1) / scale)) + 3, -128, 127).astype(np.int8)
    assert (by_reciprocal != wanted).any()


def test_quantize_of_half_types_divides_in_float32() -> None:
    x = np.random.default_rng(2).uniform(-5, 5, 4000).astype(np.float16)
    case = Case("QuantizeLinear", [x, np.float16(0.037), np.int8(3)], 21)
    wanted = case.runtime()
    assert wanted is not None
    assert_same(case.ours(), wanted, "f16")
    wide = x.astype(np.float32).astype(BF16)
    got = Case("QuantizeLinear", [wide, np.float32(0.037).astype(BF16), np.int8(3)], 21).ours()
    by_hand = np.rint(wide.astype(F32) / np.float32(0.037).astype(BF16).astype(F32)) + 3
    assert_same(got, np.clip(by_hand, -128, 127).astype(np.int8), "bf16")


def test_quantize_takes_its_type_from_output_dtype() -> None:
    for number, word in ((TensorProto.INT8, "i8"), (TensorProto.UINT16, "u16")):
        case = Case("QuantizeLinear", [EDGES, F32(1)], 21, output_dtype=number)
        assert ops.result_dtype(case.node, case.context) == word
        wanted = case.runtime()
        assert wanted is not None
        assert_same(case.ours(), wanted, word)


def test_quantize_of_int32() -> None:
    x = np.array([-7, 5, 1000, 3], np.int32)
    got = Case("QuantizeLinear", [x, F32(2), np.uint8(10)], 23).ours()
    assert_same(got, np.array([6, 12, 255, 12], np.uint8), "i32")


# --- DequantizeLinear ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [10, 13, 19, 21, 23, 25])
def test_dequantize(opset: int) -> None:
    for dtype in ("i8", "u8", "i32", "i16", "u16"):
        if dtype[1:] == "16" and opset < 21:
            continue
        for zero in (None, 0 if dtype == "i32" else 3):
            inputs = [values(dtype), F32(0.1), *([] if zero is None else [np.array(zero, NUMPY[dtype])])]
            case = Case("DequantizeLinear", inputs, opset)
            wanted = case.runtime()
            assert wanted is not None
            assert_same(case.ours(), wanted, (dtype, opset, zero))


def test_dequantize_to_half_types() -> None:
    x = values("i8")
    half = Case("DequantizeLinear", [x, np.float16(0.1), np.int8(3)], 21)
    found = half.runtime()
    assert found is not None
    assert_same(half.ours(), found, "f16")
    wide = Case("DequantizeLinear", [x, np.float16(0.1), np.int8(3)], 23, output_dtype=TensorProto.FLOAT)
    found = wide.runtime()
    assert found is not None
    assert_same(wide.ours(), found, "f16 scale, f32 result")
    narrow = Case("DequantizeLinear", [x, np.float32(0.1).astype(BF16), np.int8(3)], 21)
    assert narrow.ours().dtype == BF16


# --- axes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "axis", "pad"), [
    ((2, 3, 4), 1, 1), ((2, 3, 4), None, 1), ((2, 3, 4), -1, 0), ((2, 3, 4), 0, 2), ((2, 3, 4), -3, 2), ((5,), 0, 0)])
def test_per_axis(shape: tuple[int, ...], axis: int | None, pad: int) -> None:
    attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
    length = shape[1 if axis is None else axis]
    scale = np.linspace(0.5, 2, length).astype(F32)
    zero = np.arange(length).astype(np.int8)
    x = RNG.uniform(-90, 90, shape).astype(F32)
    for opset in (13, 21):
        case = Case("QuantizeLinear", [x, scale, zero], opset, **attributes)
        wanted = case.runtime()
        assert wanted is not None
        assert_same(case.ours(), wanted, (shape, axis))
        assert ops.operands(case.node, case.context) == [Operand("x0"), Operand("x1", pad), Operand("x2", pad)]
        back = Case("DequantizeLinear", [wanted, scale, zero], opset, **attributes)
        found = back.runtime()
        assert found is not None
        assert_same(back.ours(), found, (shape, axis))


def test_one_element_needs_no_rank() -> None:
    x, scale = values("f32"), np.array([0.5], F32)
    for case in (Case("QuantizeLinear", [x, scale], 13, constants=[1], ranks_unknown=True),
                 Case("QuantizeLinear", [x, scale], 10)):
        assert case.examine() is None
        assert ops.operands(case.node, case.context)[1] == Operand("x1")


@pytest.mark.parametrize("name", ["QuantizeLinear", "DequantizeLinear"])
def test_axis_refusals(name: str) -> None:
    x = np.ones((2, 3), F32) if name == "QuantizeLinear" else np.ones((2, 3), np.int8)
    vector, plane = np.ones(3, F32), np.ones((2, 3), F32)
    assert Case(name, [x, vector], 13, ranks_unknown=True).examine() == op_reason("unknown-rank", op=name, value="x1")
    assert Case(name, [x, vector], 13, ranks_unknown=True, constants=[1]).examine() == op_reason(
        "unknown-rank", op=name, value="x0")
    assert Case(name, [x, vector], 13, axis=2).examine() == op_reason("bad-axis", axis=2, op=name, rank=2)
    assert Case(name, [x, vector], 21, block_size=2).examine() == op_reason("blocked-quantization", op=name)
    assert Case(name, [x, plane], 21).examine() == op_reason("blocked-quantization", op=name)
    assert Case(name, [x, vector], 10).examine().code == "bad-attribute"  # type: ignore[union-attr]


def test_other_types_are_refused() -> None:
    x = np.ones(3, F32)
    for number in (TensorProto.INT4, TensorProto.FLOAT8E4M3FN, TensorProto.INT32):
        reason = Case("QuantizeLinear", [x, F32(1)], 21, output_dtype=number).examine()
        assert reason is not None
        assert reason.code == "unsupported-dtype"
    float8 = Case("QuantizeLinear", [x, F32(1), np.uint8(0)], 21)
    float8.context.dtypes["x2"] = "float8e4m3fn"  # type: ignore[index]
    assert float8.examine() == op_reason("unsupported-dtype", op="QuantizeLinear", dtype="float8e4m3fn", value="x2")
    assert Case("QuantizeLinear", [x, F32(1)], 25, precision=TensorProto.DOUBLE).examine() == op_reason(
        "precision", op="QuantizeLinear")
    assert Case("QuantizeLinear", [x, F32(1)], 25, precision=TensorProto.FLOAT).examine() is None
    int4 = Case("DequantizeLinear", [np.ones(3, np.int8), F32(1)], 21)
    int4.context.dtypes["x0"] = "int4"  # type: ignore[index]
    assert int4.examine() == op_reason("unsupported-dtype", op="DequantizeLinear", dtype="int4", value="x0")
    odd = Case("DequantizeLinear", [np.ones(3, np.int8), F32(1)], 23, output_dtype=TensorProto.DOUBLE)
    assert odd.examine().code == "unsupported-dtype"  # type: ignore[union-attr]
