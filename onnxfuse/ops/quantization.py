"""QuantizeLinear and DequantizeLinear, per tensor and per axis."""

from __future__ import annotations

import numpy as np

from onnxfuse.ops.reason import Reason, op_reason
from onnxfuse.ops.table import Call, Lowering, Op, word_of
from onnxfuse.program.dtypes import NUMPY
from onnxfuse.program.instructions import HALVES

FAMILY = "quantization"

_SCALES = ("f32", *HALVES)
_QUANTIZED = ("i8", "u8", "i16", "u16")


def _one_element(call: Call, index: int) -> bool:
    """Whether a parameter is known to have one element (of rank 0 or 1)."""
    value = call.ctx.constant(call.inputs[index])
    if value is not None:
        return value.size == 1 and value.ndim <= 1
    return call.ctx.rank(call.inputs[index]) == 0 or call.ctx.dims(call.inputs[index]) == (1,)


def _pad(call: Call) -> int | Reason:
    """Dims to add behind a scale of rank 1 that lies along an axis of X; 0 for one element."""
    name, x = call.op.name, call.inputs[0]
    if _one_element(call, 1):
        return 0
    value = call.ctx.constant(call.inputs[1])
    rank = value.ndim if value is not None else call.ctx.rank(call.inputs[1])
    if rank is None:
        return op_reason("unknown-rank", op=name, value=call.inputs[1])
    if rank != 1:
        return op_reason("blocked-quantization", op=name)
    if call.opset < 13:
        return op_reason("bad-attribute", op=f"{name} before opset 13", name="y_scale", value="not a scalar")
    x_rank = call.ctx.rank(x)
    if x_rank is None:
        return op_reason("unknown-rank", op=name, value=x)
    axis = call.integer("axis", 1)
    if not -x_rank <= axis < x_rank:
        return op_reason("bad-axis", axis=axis, op=name, rank=x_rank)
    return x_rank - 1 - axis % x_rank


def _reads(call: Call) -> dict[int, int]:
    pad = _pad(call)
    return {k: pad if k and isinstance(pad, int) else 0 for k in call.inputs_given()}


def _check_axis(call: Call) -> Reason | None:
    if call.integer("block_size", 0):
        return op_reason("blocked-quantization", op=call.op.name)
    pad = _pad(call)
    return pad if isinstance(pad, Reason) else None


def _quantized(call: Call) -> str:
    """The zero point's type, else `output_dtype`, else u8."""
    if call.given(2):
        return call.dtype(2) or ""
    number = call.integer("output_dtype", 0)
    return word_of(number) if number else "u8"


def _check_quantize(call: Call) -> Reason | None:
    result = _quantized(call)
    if result not in _QUANTIZED:
        return op_reason("unsupported-dtype", op=call.op.name, dtype=result, value=call.node.output[0])
    if call.integer("precision", 0) not in (0, 1):
        return op_reason("precision", op=call.op.name)
    return _check_axis(call)


def _quantize(c: Lowering) -> str:
    """Division in float32 (also for half types, as ORT does), halves to even, then the zero point, then the limits.

    NaN becomes the lowest number, as in ORT: hence the comparison the other way round than in at_least.
    """
    target = c.call.result
    q = c.do("round", c.do("div", c.cast(c.x(0), "f32"), c.x(1)))
    if c.call.given(2):
        q = c.do("add", q, c.cast(c.x(2), "f32"))
    limits = np.iinfo(NUMPY[target])
    q = c.do("select", c.do("lt", float(limits.min), q), q, float(limits.min))
    return c.cast(c.at_most(q, float(limits.max)), target)


def _dequantized(call: Call) -> str:
    number = call.integer("output_dtype", 0)
    return word_of(number) if number else call.dtype(1) or ""


def _check_dequantize(call: Call) -> Reason | None:
    result = _dequantized(call)
    if result not in _SCALES:
        return op_reason("unsupported-dtype", op=call.op.name, dtype=result, value=call.node.output[0])
    return _check_axis(call)


def _dequantize(c: Lowering) -> str:
    """The difference in int32, which is exact for narrower types, then times the scale in float32."""
    difference = c.cast(c.x(0), "i32")
    if c.call.given(2):
        difference = c.do("sub", difference, c.cast(c.x(2), "i32"))
    return c.do("mul", c.cast(difference, "f32"), c.x(1))


_VERSIONS = (10, 13, 19, 21, 23, 24, 25, 28)
_NOTES = "scale of one element, or of rank 1 along `axis` (then the rank of x must be known)"

OPS = (
    Op("QuantizeLinear", FAMILY, "saturate(round(x / scale) + zero point)", "TUZ->?",
       {"T": (*_SCALES, "i32"), "U": _SCALES, "Z": _QUANTIZED}, _VERSIONS, _quantize, least=2, check=_check_quantize,
       reads=_reads, result=_quantized, notes=_NOTES),
    Op("DequantizeLinear", FAMILY, "(x - zero point) * scale", "ZUZ->?",
       {"Z": (*_QUANTIZED, "i32"), "U": _SCALES}, _VERSIONS, _dequantize, least=2, check=_check_dequantize,
       reads=_reads, result=_dequantized, notes=_NOTES),
)
