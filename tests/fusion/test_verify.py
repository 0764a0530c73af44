"""The verifier finds what it promises to find; the surgeon's view agrees with ours."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from onnxfuse.fusion.plan import Group, Plan, Read
from onnxfuse.fusion.surgeon import followers, surgeon_graph
from onnxfuse.fusion.verify import PlanError, verify_plan
from onnxfuse.model import from_proto
from onnxfuse.program import Program
from tests.fusion.planning import FILES, plan_of, read_plan_file

SOURCE = """g (float[N, 4] x, float[M, 4] z) => (float[N, 4] y)
<float two = {2.0}, float[1, 1, 1] one = {1.0}, int64 axis = {1}> {
    a = Mul(x, two)
    b = Neg(a)
    s = CumSum(b, axis)
    c = Add(s, b)
    y = Mul(c, two)
}"""


def changed(group: Group, **fields: Any) -> Group:
    return dataclasses.replace(group, **fields)


def text(group: Group, old: str, new: str) -> Program:
    return Program.parse(group.program.text.replace(old, new))


@pytest.mark.parametrize(("change", "words"), [
    (lambda g: [g[0], changed(g[1], nodes=(1, *g[1].nodes))], "two groups"),
    (lambda g: [changed(g[0], nodes=g[0].nodes[::-1]), g[1]], "topological order"),
    (lambda g: [changed(g[0], outputs=("a",)), g[1]], "outputs are"),
    (lambda g: [changed(g[0], reads=g[0].reads[:1]), g[1]], "what does not enter"),
    (lambda g: [changed(g[0], reads=(*g[0].reads, Read("a", 0, "x1"))), g[1]], "both enters and is made"),
    (lambda g: [changed(g[0], reads=(Read("x", 0, "c1"), g[0].reads[1])), g[1]], "no constant"),
    (lambda g: [changed(g[0], reads=(*g[0].reads, Read("one", 0, "c1"))), g[1]], "carry the rank"),
    (lambda g: [changed(g[0], reads=(*g[0].reads, Read("z", 0, "x1"))), g[1]], "other inputs"),
    (lambda g: [changed(g[0], program=text(g[0], "f32", "f64")), g[1]], "does not fit"),
    (lambda g: [g[0]], "exactly one of a group and a reason"),
])
def test_faults_are_found(change: Any, words: str) -> None:
    model, plan = plan_of(SOURCE)
    assert len(plan.groups) == 2
    with pytest.raises(PlanError, match=words):
        verify_plan(model, Plan(tuple(change(list(plan.groups))), plan.left))


def test_a_cycle_of_two_convex_groups_is_found() -> None:
    source = """g (float[N, 4] x, float[N, 4] z) => (float[N, 4] y, float[N, 4] w) <int64 axis = {1}> {
        p = Exp(x)  q = Exp(z)  ps = CumSum(p, axis)  qs = CumSum(q, axis)  y = Mul(p, qs)  w = Mul(q, ps) }"""
    model, plan = plan_of(source)
    (group,) = plan.groups
    assert group.outputs == ("p", "y")
    twin = changed(group, nodes=(1, 5), outputs=("q", "w"), reads=(Read("z", 0, "x0"), Read("ps", 0, "x1")))
    with pytest.raises(PlanError, match="cycle"):
        verify_plan(model, Plan((group, twin), ()))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_surgeons_view_has_our_edges(path: Path) -> None:
    model = from_proto(read_plan_file(path)[0])
    for view in model.graphs.values():
        place = {index: at for at, index in enumerate(view.order)}
        ours: list[set[int]] = [set() for _ in view.order]
        for name, readers in view.readers.items():
            if name in view.producer:
                ours[place[view.producer[name]]].update(place[r] for r in readers)
        assert followers(surgeon_graph(view)) == [sorted(edges) for edges in ours]
