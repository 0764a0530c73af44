"""Changes of type, and ops that change nothing (Identity, Dropout in inference)."""

from __future__ import annotations

import onnx

from onnxfuse.ops.reason import Reason, op_reason
from onnxfuse.ops.table import ALL, ANY_FLOAT, Call, Lowering, Op, word_of
from onnxfuse.program.dtypes import NUMPY
from onnxfuse.program.instructions import HALVES

FAMILY = "casts"


def convert(c: Lowering, value: str, source: str, target: str) -> str:
    """A value of tensor type `source` as tensor type `target`, both as they are carried inside a program.

    An explicit cast rounds: a float16 value that was computed in float32 is first rounded to what it is.
    """
    if source == target:
        return value
    value = c.rounded(value, source)
    if target not in HALVES:
        return c.cast(value, target)
    if source in ("bool", "i8", "u8"):
        return c.cast(value, "f32")
    return c.cast(c.cast(value, target), "f32")


def _target(call: Call) -> str:
    return word_of(call.integer("to", 0))


def _like(call: Call) -> str:
    return call.dtype(1) or ""


def _check_target(call: Call) -> Reason | None:
    target = call.op.result(call)
    if not target:
        return op_reason("unknown-dtype", value=call.inputs[1])
    if target == "string":
        return op_reason("string", value=call.node.output[0])
    if target not in NUMPY:
        return op_reason("unsupported-dtype", op=call.op.name, dtype=target, value=call.node.output[0])
    return None


def _lower_cast(c: Lowering) -> str:
    return convert(c, c.x(), c.call.dtype(0) or "", c.call.result)


def _changes(call: Call) -> bool:
    return call.dtype(0) != call.result


def first_only(call: Call) -> dict[int, int]:
    return {0: 0}


def _check_dropout(call: Call) -> Reason | None:
    if call.given(2):
        mode = call.ctx.constant(call.inputs[2])
        if mode is None or mode.size != 1 or bool(mode.reshape(-1)[0]):
            return op_reason("training-mode", op="Dropout")
    if len(call.node.output) > 1 and call.node.output[1]:
        return op_reason("mask-output")
    return None


def _same(c: Lowering) -> str:
    return c.x()


def _never(call: Call) -> bool:
    return False


OPS = (
    Op("Cast", FAMILY, "the same number in the type `to`", "T->?", {"T": ALL}, (6, 9, 13, 19, 21, 23, 24, 25, 28),
       _lower_cast, check=_check_target, result=_target, counts=_changes, example={"to": onnx.TensorProto.INT32}),
    Op("CastLike", FAMILY, "the same number in the type of the second input", "T?->?", {"T": ALL},
       (15, 19, 21, 23, 24, 25), _lower_cast, check=_check_target, result=_like, counts=_changes, reads=first_only,
       notes="the second input is not read"),
    Op("Identity", FAMILY, "x", "T->T", {"T": ALL}, (1, 13, 14, 16, 19, 21, 23, 24, 25), _same, counts=_never,
       notes="carried along, does not count"),
    Op("Dropout", FAMILY, "x", "T->T", {"T": ANY_FLOAT}, (7, 10, 12, 13, 22), _same, check=_check_dropout,
       counts=_never, reads=first_only, notes="inference only; carried along, does not count"),
)
