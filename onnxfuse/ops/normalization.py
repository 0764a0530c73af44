"""BatchNormalization in inference: scale and shift per channel."""

from __future__ import annotations

from onnxfuse.ops.reason import Reason, op_reason
from onnxfuse.ops.table import ANY_FLOAT, Call, Lowering, Op, kind

FAMILY = "normalization"


def _check(call: Call) -> Reason | None:
    if call.integer("training_mode", 0) or any(call.node.output[1:]):
        return op_reason("training-mode", op="BatchNormalization")
    if call.opset < 9 and not call.integer("spatial", 1):
        return op_reason("not-per-channel")
    if call.ctx.rank(call.inputs[0]) is None:
        return op_reason("unknown-rank", op="BatchNormalization", value=call.inputs[0])
    return None


def _reads(call: Call) -> dict[int, int]:
    """The four vectors of [C] lie along axis 1 of X [N, C, …]."""
    pad = max((call.ctx.rank(call.inputs[0]) or 0) - 2, 0)
    return {0: 0, 1: pad, 2: pad, 3: pad, 4: pad}


def _lower(c: Lowering) -> str:
    """x * factor + (B - mean * factor) with factor = scale * (1 / sqrt(var + epsilon)).

    Of the spellings of the formula this is the one that ORT's kernel computes, bit for bit, and the factor and the
    shift depend on the channel alone, so that a back end can compute them once a row.
    """
    kinds = [c.kind(v) for v in c.operands()]
    wide = "f64" if "f64" in kinds else "f32"
    x, scale, shift, mean, variance = (c.cast(v, wide) for v in c.operands())
    root = c.do("sqrt", c.do("add", variance, c.call.number("epsilon", 9.999999747378752e-06)))
    factor = c.do("mul", scale, c.do("div", 1.0, root))
    moved = c.do("sub", shift, c.do("mul", mean, factor))
    return c.cast(c.do("add", c.do("mul", x, factor), moved), kind(c.call.result))


OPS = (
    Op("BatchNormalization", FAMILY, "x * factor + (B - mean * factor), factor = scale * (1 / sqrt(var + epsilon))",
       "TUUVV->T", {"T": ANY_FLOAT, "U": ANY_FLOAT, "V": ANY_FLOAT}, (7, 9, 14, 15), _lower, check=_check, reads=_reads,
       notes="inference only; the rank of X must be known"),
)
