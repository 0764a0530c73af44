"""A plan as text for people and goldens."""

from __future__ import annotations

from onnxfuse.fusion.plan import Plan
from onnxfuse.model import Model

__all__ = ["show_plan"]


def show_plan(model: Model, plan: Plan) -> str:
    """One paragraph a group, then one line for every elementwise node left alone::

        group 1: Mul Add -> y
          x0 = x
          c0 = scale
          | t0 = mul.f32 x0 c0
        left: Relu -> z (single)
    """
    lines: list[str] = []
    for number, group in enumerate(plan.groups, 1):
        where = f" in {group.path}" if group.path else ""
        view = model.graphs[group.path]
        made = [next(o for o in view.graph.node[index].output if o) for index in group.nodes]
        steps = " ".join(f"{op}({name})" for op, name in zip(group.op_types, made, strict=True))
        lines.append(f"group {number}{where}: {steps} -> {', '.join(group.outputs)}")
        lines += [f"  {read.name} = {read.value}{f' pad {read.pad}' if read.pad else ''}" for read in group.reads]
        lines += [f"  body only: {name}" for name in group.baked]
        lines += [f"  | {line}" for line in group.program.text.splitlines()[1:]]
    for left in plan.left:
        where = f" in {left.graph}" if left.graph else ""
        lines.append(f"left{where}: {left.op} -> {left.output} ({left.reason.code})")
    return "\n".join(lines) + "\n"
