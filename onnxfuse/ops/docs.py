"""docs/ops.md, written from the op table: `python -m onnxfuse.ops.docs > docs/ops.md`."""

from __future__ import annotations

import sys

import onnx

from onnxfuse import ops
from onnxfuse.ops.context import PlainContext
from onnxfuse.ops.reason import OP_REASONS
from onnxfuse.ops.table import Op
from onnxfuse.program import Builder, Program
from onnxfuse.program.instructions import DTYPES, FLOATS, HALVES, INTS, SIGNED, UNSIGNED

_HEAD = """# Ops that can be fused

Generated from the op table (`onnxfuse/ops/`) by `python -m onnxfuse.ops.docs > docs/ops.md`; do not edit.

An op in this list is elementwise: a node of it joins a group unless a reason below (or one of the planner's) speaks
against it. **Opsets** are the versions of the operator that were read, from the lowest that is handled; models of opset
7 to {newest} are. **Types** are those of the first input
that has a choice: float is f32 f64 f16 bf16, int is i8 to i64 and u8 to u64.
**Instructions** are what a node of f32 (else i32, u8 or bool) with default attributes becomes; their exact semantics
and error bounds stand in `onnxfuse/program/instructions.py`. float16 and bfloat16 are computed in f32.

NaN, infinities and signed zeros come out as the operator text says, else as ONNX Runtime's CPU kernels have them: Relu
and Clip keep a NaN and the sign of a zero beside a bound of zero, Clip ignores a bound that is NaN, and a bound that is
missing is the largest finite number of the type.
"""

_REASONS_HEAD = """
## Reasons

Why a node of one of these ops is left alone. The codes are stable; they stand in `explain` and in the report.

| code | words |
|---|---|
"""

_SETS = ((FLOATS + HALVES + INTS + ("bool",), "float, int, bool"), (FLOATS + HALVES + INTS, "float, int"),
         (FLOATS + HALVES + SIGNED, "float, signed int"), (FLOATS + HALVES, "float"), (INTS, "int"),
         (UNSIGNED, "unsigned int"), (("bool",), "bool"))


def example(op: Op) -> tuple[onnx.NodeProto, PlainContext]:
    """A node of the op with default attributes, on scalars where an op has parameters along an axis."""
    names = [f"x{k}" for k in range(max(op.required, 2 if "*" in op.signature else 1))]
    dtypes = {}
    for index, name in enumerate(names):
        letter = op.letter(index)
        allowed = DTYPES if letter == "?" else op.allowed(index)
        dtypes[name] = next(d for d in ("f32", "i32", "u8", "bool") if d in allowed)
    if op.name == "CastLike":
        dtypes["x1"] = "i32"
    if op.name == "Clip":
        names += ["x1", "x2"]
        dtypes |= {"x1": "f32", "x2": "f32"}
    if op.name == "DequantizeLinear":
        dtypes["x0"] = "u8"
    shapes: dict[str, tuple[int | str, ...]] = dict.fromkeys(names, ())
    shapes["x0"] = ("N", "C", "L")
    node = onnx.helper.make_node(op.name, names, ["y"], domain=op.domain, **op.example)
    opsets = {"": ops.NEWEST_OPSET, op.domain: max(op.versions) if op.domain else ops.NEWEST_OPSET}
    return node, PlainContext(dtypes, shapes, opsets=opsets)


def program(op: Op) -> Program:
    """The program of the example alone."""
    node, context = example(op)
    reason = ops.examine(node, context)
    if reason is not None:
        raise AssertionError(f"example of {op.name}: {reason.text}")
    builder = Builder()
    values = {(o.value, o.pad): builder.input(context.dtypes[o.value], o.pad) for o in ops.operands(node, context)}
    builder.output(ops.lower(node, context, builder, values)[0])
    return builder.build()


def instructions(op: Op) -> list[str]:
    """Names of the instructions that the example becomes, in order; `nothing` where there are none."""
    return [s.name for s in program(op).statements if s.name != "const"] or ["nothing"]


def types(op: Op) -> str:
    """The types of the first input that is not always bool, in words."""
    letters = op.signature.split("->")[0]
    allowed = op.allowed(next((k for k, letter in enumerate(letters) if letter != "B"), 0))
    for known, words in _SETS:
        if set(known) == set(allowed):
            return words
    rest = tuple(d for d in allowed if d not in FLOATS + HALVES)
    return f"float, {' '.join(rest)}" if set(FLOATS + HALVES) < set(allowed) else " ".join(allowed)


def page() -> str:
    """The whole page."""
    parts = [_HEAD.format(newest=ops.NEWEST_OPSET)]
    family = ""
    for op in ops.OPS:
        if op.family != family:
            family = op.family
            parts.append(f"\n## {family}\n\n| op | computes | opsets | types | instructions | notes |\n"
                         "|---|---|---|---|---|---|\n")
        versions = ", ".join(str(v) for v in (op.since, *(v for v in op.versions if v > op.since)))
        cells = [op.name, op.text.replace("|", "\\|"), versions, types(op), ", ".join(instructions(op)), op.notes]
        parts.append("| " + " | ".join(cells) + " |\n")
    parts.append(_REASONS_HEAD)
    parts += [f"| `{code}` | {words} |\n" for code, words in OP_REASONS.items()]
    return "".join(parts)


if __name__ == "__main__":
    sys.stdout.write(page())
