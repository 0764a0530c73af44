"""Checks of a finished plan, independent of how it was made: always on in tests, by `PlanOptions.verify` for users."""

from __future__ import annotations

from onnxfuse import ops
from onnxfuse.fusion.context import Context
from onnxfuse.fusion.plan import Group, Plan, shapes_proved
from onnxfuse.fusion.surgeon import followers, surgeon_graph
from onnxfuse.model import GraphView, Model
from onnxfuse.program.instructions import MAX_INPUTS, MAX_OUTPUTS, MAX_STATEMENTS

__all__ = ["PlanError", "verify_plan"]


class PlanError(Exception):
    """The plan breaks a rule: a fault of ours."""


def verify_plan(model: Model, plan: Plan) -> None:
    """Raises PlanError unless groups are disjoint, have what they read and give what is read, stay within the limits,
    have provable shapes and real work, unless the graph of groups has no cycle, or if an elementwise node has neither a
    group nor a reason; those in a group for the GPU alone have both."""
    for path, view in model.graphs.items():
        groups = [group for group in plan.groups if group.path == path]
        context = Context(model, view, plan.half_math)
        owner: dict[int, int] = {}
        for number, group in enumerate(groups):
            for index in group.nodes:
                if index in owner:
                    raise PlanError(f"node {index} of graph {path!r} is in two groups")
                owner[index] = number
        place = {index: at for at, index in enumerate(view.order)}
        for group in groups:
            if sorted(group.nodes, key=place.__getitem__) != list(group.nodes):
                raise PlanError(f"group at node {group.nodes[0]} of graph {path!r}: nodes are not in topological order")
            _verify_group(context, group)
        _verify_order(view, owner)
        left = {item.output for item in plan.left if item.graph == path}
        for index in view.order:
            node = view.graph.node[index]
            first = next((o for o in node.output if o), "")
            grouped = index in owner and not groups[owner[index]].on_gpu_alone
            if ops.elementwise_like(node.domain, node.op_type) and grouped == (first in left):
                raise PlanError(f"{node.op_type} that makes {first!r} has not exactly one of a group and a reason")


def _verify_group(context: Context, group: Group) -> None:
    view, what = context.view, f"group at node {group.nodes[0]} of graph {group.path!r}"
    nodes, members = [view.graph.node[index] for index in group.nodes], set(group.nodes)
    made = [o for node in nodes for o in node.output if o]
    needed = [o for o in made if o in view.kept or any(r not in members for r in view.readers.get(o, ()))]
    if list(group.outputs) != needed or not needed:
        raise PlanError(f"{what}: outputs are {group.outputs}, needed are {needed}")
    used = {operand.value for node in nodes for operand in ops.operands(node, context)}
    if not used.issuperset(o for o in made if o not in needed):
        raise PlanError(f"{what}: nothing reads {sorted(set(made) - set(needed) - used)}, which adds to its shape")
    entering = {read.value for read in group.reads}
    if entering & set(made):
        raise PlanError(f"{what}: a value both enters and is made")
    if any(read.is_scalar and view.constant(read.value) is None for read in group.reads):
        raise PlanError(f"{what}: an attribute is no constant")
    if any(read.is_scalar and len(context.term(read.value).dims) > _least_rank(context, group) for read in group.reads):
        raise PlanError(f"{what}: an attribute may carry the rank")
    present = {(read.value, read.pad) for read in group.reads} | {(name, 0) for name in made}
    for node in nodes:
        if not all((operand.value, operand.pad) in present for operand in ops.operands(node, context)):
            raise PlanError(f"{what}: {node.op_type} reads what does not enter")
    if not any(ops.counts(node, context) for node in nodes):
        raise PlanError(f"{what}: no op that counts")
    if not shapes_proved(context, group):
        raise PlanError(f"{what}: several values leave, and their shapes are not proved to be equal")
    _verify_program(context, group, what)


def _least_rank(context: Context, group: Group) -> int:
    return max((len(context.term(r.value).dims) + r.pad for r in group.reads if not r.is_scalar), default=0)


def _verify_program(context: Context, group: Group, what: str) -> None:
    program = group.program
    program.verify()
    named = {value.name: value for value in program.inputs}
    if len(named) != len(group.reads) or len(program.outputs) != len(group.outputs):
        raise PlanError(f"{what}: the program has other inputs or outputs")
    for read in group.reads:
        value = named.get(read.name)
        pad = 0 if read.is_scalar else read.pad
        if value is None or value.dtype != context.dtype(read.value) or value.pad != pad:
            raise PlanError(f"{what}: {read.name} does not fit {read.value!r}")
    for result, name in zip(program.outputs, group.outputs, strict=True):
        if program.dtype_of(result) != context.dtype(name):
            raise PlanError(f"{what}: output {name!r} is {context.dtype(name)}, the program gives another type")
    if (len(program.inputs) > MAX_INPUTS or len(program.outputs) > MAX_OUTPUTS
            or len(program.statements) > MAX_STATEMENTS):
        raise PlanError(f"{what}: a limit of the format is passed")


def _verify_order(view: GraphView, owner: dict[int, int]) -> None:
    """The graph with each group as one node has no cycle, with the edges that onnx-graphsurgeon finds: an opinion of
    its own beside those of the planner."""
    unit = [-1 - owner[index] if index in owner else index for index in view.order]
    after: dict[int, set[int]] = {u: set() for u in unit}
    missing = dict.fromkeys(after, 0)
    for own, readers in zip(unit, followers(surgeon_graph(view)), strict=True):
        after[own].update(unit[place] for place in readers if unit[place] != own)
    for units in after.values():
        for follower in units:
            missing[follower] += 1
    ready = [u for u, count in missing.items() if count == 0]
    done = 0
    while ready:
        done += 1
        for follower in after[ready.pop()]:
            missing[follower] -= 1
            if missing[follower] == 0:
                ready.append(follower)
    if done < len(after):
        raise PlanError(f"the groups of graph {view.path!r} make a cycle")
