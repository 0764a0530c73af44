"""The op table: which ONNX ops are elementwise, when a node of one can be fused, and the instructions it becomes.

One op is one row in the file of its family; everything here reads the rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from onnxfuse.ops import (
    activations,
    arithmetic,
    casts,
    comparison,
    contrib,
    functions,
    logic,
    normalization,
    quantization,
)
from onnxfuse.ops.context import NodeContext, Operand, PlainContext
from onnxfuse.ops.reason import OP_REASONS, Reason, op_reason
from onnxfuse.ops.table import Call, Lowering, Op
from onnxfuse.program.builder import Builder
from onnxfuse.program.dtypes import NUMPY
from onnxfuse.program.instructions import HALVES

__all__ = ["NEWEST_OPSET", "OPS", "OP_REASONS", "NodeContext", "Op", "Operand", "PlainContext", "Reason", "counts",
           "elementwise_like", "enter", "examine", "find", "leave", "look", "lower", "op_reason", "operands",
           "result_dtype"]

NEWEST_OPSET = 28
"""The newest opset of the ai.onnx domain whose operator texts the table follows."""

OPS: tuple[Op, ...] = (*arithmetic.OPS, *functions.OPS, *activations.OPS, *comparison.OPS, *logic.OPS, *casts.OPS,
                       *normalization.OPS, *quantization.OPS, *contrib.OPS)
"""Every row, by family."""

_BY_NAME = {(op.domain, op.name): op for op in OPS}


def find(domain: str, op_type: str) -> Op | None:
    """The row of an op; ``ai.onnx`` is the domain ``""``."""
    return _BY_NAME.get(("" if domain == "ai.onnx" else domain, op_type))


def elementwise_like(domain: str, op_type: str) -> bool:
    """Whether an op is in the table, so that leaving a node of it alone needs a reason."""
    return find(domain, op_type) is not None


def examine(node: onnx.NodeProto, ctx: NodeContext) -> Reason | None:
    """None if the node can be lowered, else why not."""
    found = look(node, ctx)
    return found if isinstance(found, Reason) else None


def look(node: onnx.NodeProto, ctx: NodeContext) -> tuple[list[Operand], bool] | Reason:
    """`operands` and `counts` of a node that can be lowered, else why it cannot: one look instead of three."""
    op = find(node.domain, node.op_type)
    if op is None:
        return op_reason("not-in-table", op=node.op_type)
    call = Call(op, node, ctx)
    reason = _examine_version(call) or _examine_inputs(call) or op.check(call)
    return reason or (_operands(call), op.counts(call))


def counts(node: onnx.NodeProto, ctx: NodeContext) -> bool:
    """Whether the node is work: False for those that are carried along (Identity, a Cast to the same type, …)."""
    return (call := _call(node, ctx)).op.counts(call)


def operands(node: onnx.NodeProto, ctx: NodeContext) -> list[Operand]:
    """The values that the node's program reads, each once, in order of first use."""
    return _operands(_call(node, ctx))


def result_dtype(node: onnx.NodeProto, ctx: NodeContext) -> str:
    """Element type of the node's first output, for a node that `examine` has passed."""
    return _call(node, ctx).result


def lower(node: onnx.NodeProto, ctx: NodeContext, builder: Builder, values: Mapping[tuple[str, int], str]) -> list[str]:
    """Emits the node's instructions; returns the program value of each output ("" for further outputs, all unused).

    `values` maps every operand as (value name, pad) to its program value; float16 and bfloat16 tensors are f32 there
    (see `enter`), and so is a half result.
    """
    call = _call(node, ctx)
    lowering = Lowering(call, builder, values)
    value = call.op.lower(lowering)
    if ctx.half_math == "strict" and call.op.counts(call):
        value = lowering.rounded(value, call.result)
    return [value] + [""] * (len(node.output) - 1)


def enter(builder: Builder, dtype: str, value: str) -> str:
    """A value that enters a program, as the instructions see it: half types widened to f32."""
    return builder.emit("cast", value, to="f32") if dtype in HALVES else value


def leave(builder: Builder, dtype: str, value: str) -> str:
    """A value as it leaves a program: half types rounded. A value that was only widened is itself again."""
    return builder.emit("cast", value, to=dtype) if dtype in HALVES else value


def _call(node: onnx.NodeProto, ctx: NodeContext) -> Call:
    op = find(node.domain, node.op_type)
    if op is None:
        raise KeyError(f"{node.domain or 'ai.onnx'}.{node.op_type} is not in the op table")
    return Call(op, node, ctx)


def _operands(call: Call) -> list[Operand]:
    return list(dict.fromkeys([Operand(call.inputs[index], pad) for index, pad in call.reads.items()]))


def _examine_version(call: Call) -> Reason | None:
    op, opset = call.op, call.opset
    if opset < op.since:
        return op_reason("old-opset", op=op.name, opset=opset, since=op.since)
    if op.domain == "" and opset > NEWEST_OPSET:
        return op_reason("new-opset", op=op.name, opset=opset, newest=NEWEST_OPSET)
    for attribute in call.node.attribute:
        if attribute.ref_attr_name:
            return op_reason("attribute-reference", name=attribute.name, op=op.name)
    return None


def _examine_inputs(call: Call) -> Reason | None:
    op = call.op
    for index in range(op.required):
        if not call.given(index):
            return op_reason("missing-input", index=index, op=op.name)
    types: dict[str, str] = {}
    for index in call.reads:
        letter = op.letter(index)
        dtype, value = call.dtype(index), call.inputs[index]
        if dtype is None:
            return op_reason("unknown-dtype", value=value)
        if dtype == "string":
            return op_reason("string", value=value)
        if dtype not in NUMPY or dtype not in op.allowed(index):
            return op_reason("unsupported-dtype", op=op.name, dtype=dtype, value=value)
        if types.setdefault(letter, dtype) != dtype:
            return op_reason("type-mismatch", op=op.name, value=value, dtype=dtype, wanted=types[letter])
    return None
