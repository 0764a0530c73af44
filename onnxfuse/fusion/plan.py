"""The plan: which nodes become which fused node, and why each elementwise node left alone was left. Plain data.

    make_plan(model, PlanOptions(), reserved) -> Plan

A group is planned within one graph; bodies of If, Loop and Scan are planned as graphs of their own, with the values
they read from outside as inputs. Functions that the model brings are left as they are.

For CPU and CUDA both, groups are made for the CPU first, which pay on CUDA, too; then, of what the CPU leaves alone,
groups that pay on CUDA only. The latter are ordinary nodes on the CPU and keep their reasons.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from onnx import NodeProto

from onnxfuse import ops
from onnxfuse.fusion import worth
from onnxfuse.fusion.candidates import Candidate, find_candidates
from onnxfuse.fusion.context import Context
from onnxfuse.fusion.groups import Grower
from onnxfuse.model import GraphView, Model
from onnxfuse.model.shapes import join, padded
from onnxfuse.ops.reason import Reason
from onnxfuse.program import Builder, Program

__all__ = ["Group", "Left", "Plan", "PlanOptions", "Read", "make_plan"]

FUEL = Reason("max-fusions", "the number of fusions that was asked for is reached")
_LEAST_ON_GPU = 2
"""Ops of the smallest group that pays on the GPU alone."""
FUNCTION = Reason("function-body", "it stands in a function that the model brings, which stays as it is")


@dataclass(frozen=True)
class PlanOptions:
    """``targets``: "cpu", "cuda" or both, where the groups should pay. ``half_math``: "float32" computes float16 and
    bfloat16 groups in float32, "strict" rounds each op. ``max_fusions``: stop after so many groups. ``verify``: check
    the finished plan (see `verify_plan`)."""

    targets: tuple[str, ...] = ("cpu",)
    half_math: str = "float32"
    max_fusions: int | None = None
    verify: bool = False


@dataclass(frozen=True)
class Read:
    """A value that enters a group. ``name`` in the program: x0, x1, … (tensors) or c0, c1, … (attributes)."""

    value: str
    pad: int
    name: str

    @property
    def is_scalar(self) -> bool:
        """Whether it becomes an attribute of the node."""
        return self.name.startswith("c")


@dataclass(frozen=True)
class Group:
    """One fused node: ``nodes`` are places in the graph ``path``, in topological order; ``reads`` are in order of first
    use, ``outputs`` in order of production; ``baked`` are constants that only the function body needs;
    ``on_gpu_alone``: on the CPU its nodes stay as they are."""

    path: str
    nodes: tuple[int, ...]
    reads: tuple[Read, ...]
    baked: tuple[str, ...]
    outputs: tuple[str, ...]
    program: Program
    op_types: tuple[str, ...]
    counting: int
    on_gpu_alone: bool = False


@dataclass(frozen=True)
class Left:
    """An elementwise node that is left alone. ``graph`` is the path of its graph, "" for the main graph."""

    graph: str
    node: str
    op: str
    output: str
    reason: Reason


@dataclass(frozen=True)
class Plan:
    """``groups``: main graph first, then bodies, each in topological order of their first node, in each graph those
    that pay on the GPU alone last; ``left``: nodes that are in no group, or in none on the CPU."""

    groups: tuple[Group, ...]
    left: tuple[Left, ...]
    half_math: str = "float32"
    notes: tuple[str, ...] = ()
    runtime: str | None = None


class Pattern(Protocol):
    """Nodes of one graph, by first output, that the runtime makes one elementwise node."""

    @property
    def op(self) -> str: ...
    @property
    def outputs(self) -> tuple[str, ...]: ...
    @property
    def path(self) -> str: ...


class ReservedNodes(Protocol):
    """What `onnxfuse.fusion.reserved` finds out: reasons by graph path and first output, on the CPU and on a GPU, and
    patterns that win over a group which is no larger."""

    @property
    def graphs(self) -> Mapping[str, Mapping[str, Reason]]: ...
    @property
    def gpu(self) -> Mapping[str, Mapping[str, Reason]]: ...
    @property
    def patterns(self) -> Sequence[Pattern]: ...


@dataclass(frozen=True)
class _Nothing:
    graphs: Mapping[str, Mapping[str, Reason]] = field(default_factory=dict)
    gpu: Mapping[str, Mapping[str, Reason]] = field(default_factory=dict)
    patterns: Sequence[Pattern] = ()


def make_plan(model: Model, options: PlanOptions | None = None,
              reserved: ReservedNodes | Mapping[str, Reason] | Callable[[], ReservedNodes] | None = None) -> Plan:
    """The plan for a model. ``reserved`` are nodes that are left to the runtime: a mapping goes by first output in the
    main graph, a function is called when the answer is needed and everything else that can be prepared is."""
    options = options or PlanOptions()
    drafts = [_Draft(model, view, options) for view in model.graphs.values()]
    if callable(reserved):
        for draft in drafts:
            draft.foresee()
    known: ReservedNodes = (_Nothing() if reserved is None
                            else _Nothing({"": reserved}, {"": reserved}) if isinstance(reserved, Mapping)
                            else reserved() if callable(reserved) else reserved)
    finished = [draft.finish(known) for draft in drafts]
    if options.max_fusions is not None:
        _limit(finished, options.max_fusions)
    groups = [group for found, _ in finished for group in found]
    left = [_left(draft.view.path, draft.view.graph.node[index], reasons[index])
            for draft, (_, reasons) in zip(drafts, finished, strict=True)
            for index in draft.view.order if index in reasons]
    plan = Plan(tuple(groups), (*left, *_function_nodes(model)), options.half_math,
                runtime=getattr(known, "runtime", None))
    if options.verify:
        from onnxfuse.fusion.verify import verify_plan

        verify_plan(model, plan)
    return plan


def _limit(finished: Sequence[tuple[list[Group], dict[int, Reason]]], most: int) -> None:
    """Takes groups away until no more are left: those that pay on the GPU alone first, which the CPU does not miss."""
    for on_gpu_alone in (False, True):
        for found, reasons in finished:
            for group in [group for group in found if group.on_gpu_alone == on_gpu_alone]:
                if most > 0:
                    most -= 1
                    continue
                found.remove(group)
                if not on_gpu_alone:
                    reasons.update(dict.fromkeys(group.nodes, FUEL))


class _Draft:
    """The plan of one graph: what can be known without the runtime, then, with what it reserves, the rest."""

    def __init__(self, model: Model, view: GraphView, options: PlanOptions) -> None:
        self.view = view
        self.context = Context(model, view, options.half_math)
        self.on_cpu, self.on_gpu = "cpu" in options.targets, "cuda" in options.targets
        self.rules = worth.CPU if self.on_cpu else worth.CUDA
        found, self.reasons = find_candidates(self.context)
        self.all_candidates = dict(found)
        self.candidates = found
        worth.exclude(self.context, self.candidates, self.reasons, self.rules)
        self.grower = Grower(self.context, self.candidates, self.rules)
        self.foreseen: tuple[list[Group], dict[int, Reason]] | None = None

    def foresee(self) -> None:
        """Plans as if nothing were reserved, where that is likely: in a graph of elementwise nodes alone, which have no
        other node beside them that could take them in."""
        if len(self.candidates) + len(self.reasons) == len(self.view.order):
            self.foreseen = self._planned(self.grower, self.candidates, self.rules, ())

    def finish(self, reserved: ReservedNodes) -> tuple[list[Group], dict[int, Reason]]:
        """Groups, and the reason of every elementwise node that is in none, or in none on the CPU."""
        gpu = reserved.gpu.get(self.view.path, {})
        lost = self._set_aside(reserved.graphs.get(self.view.path, {}) if self.on_cpu else gpu)
        patterns = [pattern for pattern in reserved.patterns if pattern.path == self.view.path]
        if self.foreseen is not None and not lost and not patterns:
            groups, reasons = self.foreseen
        else:
            if self.foreseen is not None:
                self.grower = Grower(self.context, self.candidates, self.rules)
            else:
                for index in lost:
                    self.grower.release(index)
            groups, reasons = self._planned(self.grower, self.candidates, self.rules, patterns)
        if self.on_cpu and self.on_gpu:
            groups = groups + self._beside(groups, gpu, patterns)
        return groups, self.reasons | reasons

    def _beside(self, made: list[Group], reserved: Mapping[str, Reason], patterns: Sequence[Pattern]) -> list[Group]:
        """Groups that pay on the GPU alone, of nodes that are in none of those ``made``."""
        nodes, taken = self.view.graph.node, {index for group in made for index in group.nodes}
        left = {
            index: candidate for index, candidate in self.all_candidates.items()
            if index not in taken and next(iter(nodes[index].output), "") not in reserved
        }  # fmt: skip
        if sum(candidate.counts for candidate in left.values()) < _LEAST_ON_GPU:
            return []
        grower = Grower(self.context, left, worth.CUDA, [group.nodes for group in made])
        return [dataclasses.replace(group, on_gpu_alone=True)
                for group in self._planned(grower, left, worth.CUDA, patterns)[0]]

    def _planned(self, grower: Grower, candidates: Mapping[int, Candidate], rules: worth.Rules,
                 patterns: Sequence[Pattern]) -> tuple[list[Group], dict[int, Reason]]:
        """Groups of the candidates, and the reason of every one that is in none."""
        view, context = self.view, self.context
        reasons: dict[int, Reason] = {}
        grower.grow()
        for pattern in patterns:
            _yield_to(pattern, view, candidates, grower, reasons)
        grower.siblings()
        groups: list[Group] = []
        for members in grower.groups():
            reason = worth.judge(context, members, candidates, rules)
            if reason is None:
                groups.append(_group(context, members, candidates))
            else:
                reasons.update({index: worth.REPEATED if index in grower.smaller else reason for index in members})
        fused = {index for group in groups for index in group.nodes}
        reasons.update({index: worth.SINGLE for index in candidates if index not in fused and index not in reasons})
        return groups, reasons

    def _set_aside(self, reserved: Mapping[str, Reason]) -> list[int]:
        """Takes out the nodes with these first outputs; returns those that were candidates."""
        lost = []
        for index in self.view.order if reserved else ():
            first = next(iter(self.view.graph.node[index].output), "")
            if first in reserved and (index in self.candidates or index in self.reasons):
                if self.candidates.pop(index, None) is not None:
                    lost.append(index)
                self.reasons[index] = reserved[first]
        return lost


def _yield_to(pattern: Pattern, view: GraphView, candidates: Mapping[int, Candidate], grower: Grower,
              reasons: dict[int, Reason]) -> None:
    """Leaves a pattern to the runtime where our group would have no op beyond it."""
    nodes = {view.producer[o] for o in pattern.outputs if o in view.producer}
    inside = [index for index in nodes if index in candidates]
    if not inside or any(index in reasons for index in inside):
        return
    members = set().union(*(grower.members(index) for index in inside))
    if any(candidates[index].counts for index in members - nodes):
        return
    reason = Reason("runtime-pattern", f"ONNX Runtime makes it one {pattern.op} node, and a group would be no larger")
    for index in sorted(members):
        if index not in reasons:
            group = grower.members(index)
            grower.release(index)
            reasons.update(dict.fromkeys(group, reason))


def _group(context: Context, members: list[int], candidates: Mapping[int, Candidate]) -> Group:
    """The group of these nodes, with its program."""
    view = context.view
    nodes = [view.graph.node[index] for index in members]
    made = {o: None for node in nodes for o in node.output if o}
    first_use = dict.fromkeys(read for index in members for read in candidates[index].reads if read[0] not in made)
    reads = _named(context, list(first_use))
    inside = set(members)
    outputs = tuple(o for o in made if o in view.kept
                    or any(r not in inside for r in view.readers.get(o, ())))
    read_values = {read.value for read in reads}
    baked = tuple(dict.fromkeys(n for index in members for n in candidates[index].baked
                                if n not in read_values and n not in made))
    return Group(view.path, tuple(members), reads, baked, outputs, _program(context, nodes, reads, outputs),
                 tuple(node.op_type for node in nodes), sum(candidates[index].counts for index in members))


def _named(context: Context, reads: list[tuple[str, int]]) -> tuple[Read, ...]:
    """Tensors and scalars told apart. A constant of one element may be an attribute if the iteration shape surely has
    its rank without it; constants of rank 0 always may."""
    single = {}
    for value, pad in reads:
        tensor = context.view.constant(value)
        if tensor is not None and math.prod(tensor.dims) == 1 and _may_be_attribute(context, value):
            single[value, pad] = len(tensor.dims) + pad
    terms = [padded(context.term(value), pad) for value, pad in reads if (value, pad) not in single]
    least = max((len(term.dims) for term in terms if term is not None), default=0)
    named, tensors, scalars = [], 0, 0
    for value, pad in reads:
        if (value, pad) in single and single[value, pad] <= least and len(single) < len(reads):
            named.append(Read(value, pad, f"c{scalars}"))
            scalars += 1
        else:
            named.append(Read(value, pad, f"x{tensors}"))
            tensors += 1
    return tuple(named)


def _may_be_attribute(context: Context, value: str) -> bool:
    """Whether a Constant in a function body can hold it: before opset 9 it has the types of floats only."""
    return context.opset("") >= 9 or context.dtype(value) in ("f16", "f32", "f64")


def _program(context: Context, nodes: list[NodeProto], reads: tuple[Read, ...], outputs: tuple[str, ...]) -> Program:
    builder = Builder()
    values: dict[tuple[str, int], str] = {}
    for read in reads:
        dtype = context.dtype(read.value) or ""
        entry = builder.scalar(dtype) if read.is_scalar else builder.input(dtype, read.pad)
        values[read.value, read.pad] = ops.enter(builder, dtype, entry)
    for node in nodes:
        results = ops.lower(node, context, builder, values)
        values.update({(name, 0): value for name, value in zip(node.output, results, strict=False) if name})
    for name in outputs:
        builder.output(ops.leave(builder, context.dtype(name) or "", values[name, 0]))
    return builder.build()


def shapes_proved(context: Context, group: Group) -> bool:
    """Whether all values that leave a group surely have its iteration shape."""
    if len(group.outputs) == 1:
        return True
    entering = [padded(context.term(read.value), read.pad) for read in group.reads]
    if any(term is None for term in entering):
        return False
    shape = join(term for term in entering if term is not None)
    return all(context.term(name) == shape for name in group.outputs)


def _left(path: str, node: NodeProto, reason: Reason) -> Left:
    return Left(path, node.name, node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}",
                next((o for o in node.output if o), ""), reason)


def _function_nodes(model: Model) -> list[Left]:
    return [_left(f"function {function.domain}::{function.name}", node, FUNCTION)
            for function in model.proto.functions if function.domain != "onnxfuse"
            for node in function.node if ops.elementwise_like(node.domain, node.op_type)]
