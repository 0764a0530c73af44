"""What a group is worth: where a node of ours is known to run faster than what the runtime makes of its ops, and where
it is known not to.

All rules stand here, with their thresholds. Those of `CPU` follow from measurements (docs/planner.md); those of `CUDA`
from what a launch and an element cost on a GPU by its data sheet, and have not been measured:

- `exclude`: ops that no group takes (`CHANNEL`);
- `repeated`: a group is not joined with a larger shape where it would be computed again and again (`REPEATED`);
- `judge`: a group of one op is left alone (`SINGLE`), unless the runtime is known to be slow at it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnxfuse.fusion.candidates import Candidate
from onnxfuse.fusion.context import Context
from onnxfuse.model import Term
from onnxfuse.ops.reason import Reason

__all__ = ["CPU", "CUDA", "Rules", "exclude", "judge", "repeated"]

SOME = 32
"""What a dim that is no number is taken for."""

SHORT_ROW = 16
"""Elements of the longest innermost row over which an operand is broadcast that pays alone: the runtime calls a
function for each row (4 to 13 times slower than ours with 3 elements, 2 to 6 times with 7, 1.2 to 3 times with 16)."""

ALONE = frozenset((
    "Acosh", "Asinh", "Atanh", "Celu", "Cos", "Cosh", "Elu", "HardSwish", "Log", "Mish", "PRelu", "Pow", "Selu",
    "Shrink", "Sign", "Sin", "Sinh", "Softplus", "Tan", "Where",
))
"""Ops on float32 that are faster as one node of ours than as one of the runtime, at any size: HardSwish and Where 1.5
times from 4,096 elements, Pow 1.6 (10 with some exponents), Log, Elu, Selu, Celu and Sign 2, Sin and Cos 2.5, PRelu 6,
Softplus 5, the others 5 to 15. The runtime computes them element by element, or in several passes."""

NEVER = frozenset({"BatchNormalization"})
"""Ops that no group takes: root and quotient would be taken for every element, which the runtime does once a channel.
Groups of it and an Add, Relu or SiLU ran at 0.3 to 0.95 times the speed of the runtime's nodes."""



@dataclass(frozen=True)
class Rules:
    """What differs by provider: nanoseconds that one more node costs, nanoseconds of an element of float32 for each
    unit of `Instruction.cost`, ops that no group takes, and whether single ops may pay."""

    node_ns: float
    cost_ns: float
    never: frozenset[str]
    alone: bool


CPU = Rules(node_ns=700.0, cost_ns=0.1, never=NEVER, alone=True)
"""A small node of the runtime takes 500 to 600 ns in a session, one of ours as much and some more for each input."""

CUDA = Rules(node_ns=4000.0, cost_ns=0.0005, never=frozenset(), alone=False)
"""A launch takes some microseconds. The arithmetic of a group hides behind its memory traffic, that of a
BatchNormalization, too; one op alone is a launch either way."""

SINGLE = Reason("single", "no neighbour that it could be one node with")
REPEATED = Reason("smaller-shape", "its neighbours work on a larger shape and would compute it anew for every element")

CHANNEL = Reason("channel-parameters", "its parameters would be combined for every element, not once a channel")


def exclude(context: Context, candidates: dict[int, Candidate], reasons: dict[int, Reason], rules: Rules) -> None:
    """Takes the ops that no group takes from the candidates to the reasons."""
    nodes = context.view.graph.node
    for index in [index for index in candidates if nodes[index].op_type in rules.never]:
        del candidates[index]
        reasons[index] = CHANNEL


def repeated(cost: float, own: Term, whole: Term, rules: Rules) -> bool:
    """Whether work of ``cost`` (the sum of `Instruction.cost`) on a shape is dearer than a node of its own if it is
    done for all elements of a larger shape. Only dims of 1 beside larger ones count; of an unknown rank nothing is
    known."""
    if own.atoms or own.dims == whole.dims:
        return False
    inner, outer = 1, 1
    for place, dim in enumerate(reversed(whole.dims)):
        mine = own.dims[-1 - place] if place < len(own.dims) else 1
        size = dim if isinstance(dim, int) else SOME
        outer *= size
        inner *= 1 if mine == 1 else size
    return cost * rules.cost_ns * (outer - inner) > rules.node_ns


def judge(
    context: Context, members: Sequence[int], candidates: Mapping[int, Candidate], rules: Rules
) -> Reason | None:
    """Why these nodes, as one group, are better left to the runtime; None if they are worth a node of ours.

    ``members`` are places of nodes in the graph, at least one of which counts."""
    counting = [index for index in members if candidates[index].counts]
    if len(counting) == 1 and not (rules.alone and _pays_alone(context, counting[0], candidates[counting[0]])):
        return SINGLE
    return None


def _pays_alone(context: Context, index: int, candidate: Candidate) -> bool:
    """Whether the runtime is known to be slow at a single op."""
    node = context.view.graph.node[index]
    if any(context.dtype(name) != "f32" for name in node.output if name):
        return False
    return node.op_type in ALONE or _row(context, candidate) <= SHORT_ROW


def _row(context: Context, candidate: Candidate) -> float:
    """Elements of the innermost row over which each operand either moves or stands still; infinite if unknown, or if no
    operand is broadcast."""
    terms = [context.term(value) for value, pad in candidate.reads if not pad]
    if len(terms) < len(candidate.reads) or any(term.atoms for term in terms):
        return float("inf")
    rank = max(len(term.dims) for term in terms)
    length, first = 1, None
    for place in range(1, rank + 1):
        dims = [term.dims[-place] if place <= len(term.dims) else 1 for term in terms]
        if all(dim == 1 for dim in dims):
            continue
        moves = tuple(dim != 1 for dim in dims)
        first = first or moves
        if moves != first:
            return length
        size = max((dim for dim in dims if isinstance(dim, int)), default=None)
        if size is None or any(not isinstance(dim, int) for dim in dims):
            return float("inf")
        length *= size
    return float("inf")
