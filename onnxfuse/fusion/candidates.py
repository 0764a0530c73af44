"""Candidates: the nodes of one graph that may enter a group, and a reason for every elementwise node that may not."""

from __future__ import annotations

from dataclasses import dataclass

from onnx import NodeProto

from onnxfuse import ops
from onnxfuse.fusion.context import Context
from onnxfuse.model import GraphView
from onnxfuse.ops.reason import Reason
from onnxfuse.program import Builder, ProgramError
from onnxfuse.program.instructions import INSTRUCTIONS

__all__ = ["Candidate", "find_candidates", "size_and_cost"]

_RANDOM = frozenset("Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike".split())
_SHAPE_ELEMENTS = 16
_INTEGERS = frozenset({"i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"})

CONSTANT = Reason("constant", "all of its operands are constants: the runtime computes it once when a session starts")
SHAPE = Reason("shape-arithmetic", "small integers that describe shapes or positions, not data")
UNUSED = Reason("unused", "nothing reads what it makes")
OPTION = Reason("dynamic-option", "an operand that its computation does not read changes at run time")


@dataclass(frozen=True)
class Candidate:
    """A node that may enter a group.

    ``reads``: what its program reads, as (value, dims of size 1 added behind); ``baked``: constant inputs that are part
    of its function body only, because the program holds them as literals or does not need them; ``cost`` is the sum of
    `Instruction.cost` over its ``statements``.
    """

    reads: tuple[tuple[str, int], ...]
    baked: tuple[str, ...]
    counts: bool
    statements: int
    cost: float


def find_candidates(context: Context) -> tuple[dict[int, Candidate], dict[int, Reason]]:
    """Candidates and reasons by place of the node in the graph."""
    view = context.view
    constant = _constant_values(view)
    sizes: dict[object, tuple[int, float]] = {}
    found: dict[int, Candidate] = {}
    left: dict[int, Reason] = {}
    for index in view.order:
        node = view.graph.node[index]
        if not ops.elementwise_like(node.domain, node.op_type):
            continue
        answer = _judge(node, context, constant, sizes)
        if isinstance(answer, Candidate):
            found[index] = answer
        else:
            left[index] = answer
    return found, left


def _judge(node: NodeProto, context: Context, constant: set[str],
           sizes: dict[object, tuple[int, float]]) -> Candidate | Reason:
    view = context.view
    outputs = [o for o in node.output if o]
    if all(name in constant or _is_constant(view, name) for name in node.input if name):
        return CONSTANT
    if not any(view.readers.get(o) or o in view.kept for o in outputs):
        return UNUSED
    looked = ops.look(node, context)
    if isinstance(looked, Reason):
        return looked
    untyped = next((o for o in outputs if context.dtype(o) is None), None)
    if untyped is not None:
        return Reason("no-type", f"the element type of {untyped!r} is unknown")
    if _shape_arithmetic(node, context):
        return SHAPE
    operands, counts = looked
    reads = tuple(dict.fromkeys([(o.value, o.pad) for o in operands]))
    read = {value for value, _ in reads}
    unread = tuple(dict.fromkeys(n for n in node.input if n and n not in read))
    baked = tuple(n for n in unread if view.constant(n) is not None)
    if len(baked) < len(unread) and not replaceable(node):
        return OPTION
    return Candidate(reads, baked, counts, *size_and_cost(node, context, reads, sizes))


def replaceable(node: NodeProto) -> bool:
    """Whether a body can do without the operands that the program does not read: a CastLike becomes a Cast, a Dropout
    without a mask an Identity."""
    return node.op_type == "CastLike" or (node.op_type == "Dropout" and not any(node.output[1:]))


def _is_constant(view: GraphView, name: str) -> bool:
    return view.constant(name) is not None


def _constant_values(view: GraphView) -> set[str]:
    """Values of this graph that constants alone decide, by operators of ONNX that are the same in every run."""
    found: set[str] = set()
    for index in view.order:
        node = view.graph.node[index]
        if node.domain not in ("", "ai.onnx") or node.op_type in _RANDOM or index in view.children:
            continue
        names = 0
        for name in node.input:
            if name:
                if name not in found and not _is_constant(view, name):
                    break
                names += 1
        else:
            if names or node.op_type == "Constant":
                found.update(o for o in node.output if o)
    return found


def _shape_arithmetic(node: NodeProto, context: Context) -> bool:
    """Small integers in, small integers (or truth values about them, or a Cast of them) out."""
    if node.op_type in ("Cast", "CastLike"):
        if context.dtype(node.input[0]) not in _INTEGERS:
            return False
    else:
        kinds = {context.dtype(name) for name in (*node.output, *node.input) if name}
        if not (kinds <= _INTEGERS | {"bool"} and kinds & _INTEGERS):
            return False
    return all(_small(context, name) for name in (*node.output, *node.input) if name)


def _small(context: Context, name: str) -> bool:
    term = context.term(name)
    elements = term.elements
    return len(term.dims) <= 1 and elements is not None and elements <= _SHAPE_ELEMENTS


def size_and_cost(node: NodeProto, context: Context, reads: tuple[tuple[str, int], ...],
                  sizes: dict[object, tuple[int, float]]) -> tuple[int, float]:
    """Statements that the node takes in a program by itself and the sum of their costs; ``sizes`` remembers the answers
    for equal nodes."""
    key = (node.domain, node.op_type, tuple(context.dtype(n) if n else None for n in node.input), len(node.output),
           tuple(a.SerializeToString(deterministic=True) for a in node.attribute))
    if key not in sizes:
        builder = Builder()
        values = {read: ops.enter(builder, _dtype(context, read[0]), builder.input(_dtype(context, read[0]), read[1]))
                  for read in reads}
        for name, value in zip(node.output, ops.lower(node, context, builder, values), strict=False):
            if name and value:
                builder.output(ops.leave(builder, _dtype(context, name), value))
        statements = builder.build().statements
        sizes[key] = len(statements), sum(INSTRUCTIONS[statement.name].cost for statement in statements)
    return sizes[key]


def _dtype(context: Context, name: str) -> str:
    dtype = context.dtype(name)
    if dtype is None:
        raise ProgramError(f"value {name!r} has no type")
    return dtype
