"""Groups of larger and of random graphs: the verifier is on, and the fused models compute the same."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxfuse.fusion import plan as plan_module
from onnxfuse.fusion.candidates import find_candidates
from onnxfuse.fusion.context import Context
from onnxfuse.fusion.groups import _ALWAYS, Grower
from onnxfuse.fusion.plan import PlanOptions, make_plan
from onnxfuse.model import from_proto
from onnxfuse.ops.reason import Reason
from onnxfuse.program.instructions import MAX_INPUTS, MAX_OUTPUTS, MAX_STATEMENTS
from onnxfuse.rewrite import apply
from tests.fusion.planning import plan_of
from tests.runtime import assert_same_results

DIMS: list[int | str] = ["N", 4]


def model_of(nodes: list[onnx.NodeProto], outputs: list[str] | None = None,
             inputs: dict[str, list[int | str]] | None = None) -> ModelProto:
    """A float32 model; without ``outputs``, everything that no node reads leaves. ``k`` is 0.75, ``axis`` 1."""
    read = {name for node in nodes for name in node.input}
    leaving = outputs or [name for node in nodes for name in node.output if name not in read]
    constants = [numpy_helper.from_array(np.array(0.75, np.float32), "k"),
                 numpy_helper.from_array(np.array(1, np.int64), "axis")]
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, d) for n, d in (inputs or {"x": DIMS}).items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in leaving], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    inferred = onnx.shape_inference.infer_shapes(model)
    del model.graph.output[:]
    model.graph.output.extend(inferred.graph.output)
    return model


def random_model(seed: int, barriers: bool = True) -> ModelProto:
    """Elementwise nodes with barriers, operands of three shapes, values that leave early."""
    rng = random.Random(seed)
    values, nodes = ["x", "row", "column", "k"], []
    for number in range(rng.randrange(8, 40)):
        made = f"v{number}"
        kind = rng.randrange(10)
        recent = values[-6:]
        if kind < 6:
            nodes.append(helper.make_node(rng.choice(["Add", "Mul", "Sub", "Max"]),
                                          [rng.choice(recent), rng.choice(values)], [made]))
        elif kind < 9:
            nodes.append(helper.make_node(rng.choice(["Neg", "Abs", "Sigmoid", "Tanh", "Identity"]),
                                          [rng.choice(recent)], [made]))
        else:
            nodes.append(helper.make_node("Softmax", [rng.choice([v for v in values if v != "k"])], [made]))
        values.append(made)
    read = {name for node in nodes for name in node.input}
    leaving = [name for name in values[4:] if name not in read or rng.random() < 0.1]
    # Softmax refuses a scalar: give rank to whatever it reads
    for node in nodes:
        if node.op_type == "Softmax":
            node.op_type = "Softplus" if node.input[0] != "x" or not barriers else "Softmax"
    return model_of(nodes, leaving, {"x": DIMS, "row": [4], "column": ["N", 1]})


@pytest.mark.parametrize("seed", range(30))
def test_random_graphs(seed: int) -> None:
    proto = random_model(seed)
    model, plan = plan_of(proto)
    fused = apply(model, plan)
    onnx.checker.check_model(fused, full_check=True)
    assert_same_results(proto, fused, seeds=1)
    assert not plan_of(fused)[1].groups


@pytest.mark.parametrize("seed", range(10))
def test_a_sum_of_groups_is_what_its_members_are(seed: int) -> None:
    model = from_proto(random_model(seed))
    view, context = model.main, Context(model, model.main, "float32")
    candidates, _ = find_candidates(context)
    grower = Grower(context, candidates)
    grower.grow()
    grower.siblings()
    assert any(len(group.members) > 2 for group in grower._groups.values())
    for group in grower._groups.values():
        nodes = [view.graph.node[index] for index in group.members]
        made = {name for node in nodes for name in node.output}
        outside = {name: [r for r in view.readers.get(name, ()) if r not in group.members] for name in made}
        reads = {read for index in group.members for read in candidates[index].reads}
        assert group.reads.keys() == {read for read in reads if read[0] not in made}
        assert group.padded == {name for name, pad in group.reads if pad}
        assert group.uses == Counter(n for node in nodes for n in set(node.input) if n not in made)
        assert {name: count % _ALWAYS for name, count in group.leaving.items()} == {
            name: len(readers) for name, readers in outside.items() if readers or name in view.kept}
        assert group.statements == sum(candidates[index].statements for index in group.members)
        assert group.cost == pytest.approx(sum(candidates[index].cost for index in group.members))
        assert group.counting == sum(candidates[index].counts for index in group.members)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_planned_before_the_answer_changes_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is reserved afterwards: nothing, some nodes, a pattern."""
    growers = 0

    def counted(*arguments: Any) -> Grower:
        nonlocal growers
        growers += 1
        return Grower(*arguments)

    monkeypatch.setattr(plan_module, "Grower", counted)
    model = from_proto(random_model(seed, barriers=False))
    candidates, _ = find_candidates(Context(model, model.main, "float32"))
    outputs = [model.main.graph.node[index].output[0] for index in candidates]
    some = dict.fromkeys(random.Random(seed).sample(outputs, 3), Reason("fused-by-runtime", "part of Conv"))
    nothing = Patterns()
    nothing.patterns = []
    nodes, pattern = Patterns(), Patterns(*outputs[:3])
    nodes.patterns, nodes.graphs = [], {"": some}
    for answer, wrong in ((nothing, False), (nodes, True), (pattern, True)):
        growers = 0
        early = make_plan(model, PlanOptions(verify=True), answer.itself)
        assert growers == 1 + wrong
        assert early == make_plan(model, PlanOptions(), answer)


def test_a_deep_chain_is_split_at_the_limit_of_statements() -> None:
    count = MAX_STATEMENTS * 2 + 100
    nodes = [helper.make_node("Add" if i % 2 else "Mul", [f"v{i - 1}" if i else "x", "k"], [f"v{i}"])
             for i in range(count)]
    _, plan = plan_of(model_of(nodes))
    assert len(plan.groups) == 3
    assert sum(len(group.nodes) for group in plan.groups) == count
    assert max(len(group.program.statements) for group in plan.groups) <= MAX_STATEMENTS


def test_twenty_thousand_nodes_in_five_hundred_groups() -> None:
    nodes, last = [], "x"
    for i in range(20_000):
        op = "CumSum" if i % 40 == 39 else ("Mul", "Add", "Tanh")[i % 40 % 3]
        nodes.append(helper.make_node(op, [last, *{"Tanh": [], "CumSum": ["axis"]}.get(op, ["k"])], [f"v{i}"]))
        last = f"v{i}"
    model, plan = plan_of(model_of(nodes))
    assert [len(group.nodes) for group in plan.groups] == [39] * 500
    assert len(apply(model, plan).functions) == 1


def test_the_limit_of_inputs_splits() -> None:
    count = MAX_INPUTS * 2
    inputs: dict[str, list[int | str]] = {f"i{n}": ["N"] for n in range(count)}
    nodes = [helper.make_node("Add", [f"v{n - 1}" if n > 1 else "i0", f"i{n}"], [f"v{n}"]) for n in range(1, count)]
    proto = model_of(nodes, inputs=inputs)
    model, plan = plan_of(proto)
    assert [len(group.reads) for group in plan.groups] == [MAX_INPUTS, MAX_INPUTS]
    assert [left.reason.code for left in plan.left] == ["single"]
    assert_same_results(proto, apply(model, plan), seeds=1)


def test_the_limit_of_outputs_splits() -> None:
    nodes = [helper.make_node("Add", ["x", "k"] if n % 2 else ["k", "x"], [f"v{n}"]) for n in range(MAX_OUTPUTS + 8)]
    _, plan = plan_of(model_of(nodes))
    assert [len(group.outputs) for group in plan.groups] == [MAX_OUTPUTS, 8]


def test_fuel_stops_after_so_many_groups() -> None:
    source = """g (float[N, 4] x) => (float[N, 4] y) <int64 axis = {1}> {
        a = Neg(x)  b = Abs(a)  c = CumSum(b, axis)  d = Neg(c)  e = Abs(d)  f = CumSum(e, axis)  h = Neg(f)  y = Abs(h)
    }"""
    assert len(plan_of(source)[1].groups) == 3
    _, plan = plan_of(source, max_fusions=1)
    assert [group.outputs for group in plan.groups] == [("b",)]
    assert {left.output: left.reason.code for left in plan.left} == dict.fromkeys("dehy", "max-fusions")
    assert not plan_of(source, max_fusions=0)[1].groups


def test_reserved_nodes_are_left_with_their_reason() -> None:
    source = "g (float[N] x) => (float[N] y) { a = Neg(x)  b = Abs(a)  c = Tanh(b)  d = Exp(c)  y = Sqrt(d) }"
    reason = Reason("fused-by-runtime", "part of Conv")
    _, plan = plan_of(source, reserved={"c": reason})
    assert [group.outputs for group in plan.groups] == [("b",), ("y",)]
    assert [(left.output, left.reason) for left in plan.left] == [("c", reason)]


class Patterns:
    """What the runtime would make one node, as `fusion.reserved` tells it."""

    def __init__(self, *outputs: str) -> None:
        self.graphs: dict[str, dict[str, Reason]] = {}
        self.gpu: dict[str, dict[str, Reason]] = {}
        self.patterns = [self]
        self.op, self.outputs, self.path = "QuickGelu", outputs, ""

    def itself(self) -> Patterns:
        return self


@pytest.mark.parametrize(("more", "fused"), [("y = Identity(b)", False), ("y = Neg(b)", True)])
def test_a_pattern_wins_over_a_group_that_is_no_larger(more: str, fused: bool) -> None:
    source = f"g (float[N] x) => (float[N] y) {{ a = Sigmoid(x)  b = Mul(x, a)  {more} }}"
    _, plan = plan_of(source, reserved=Patterns("a", "b"))
    assert bool(plan.groups) == fused
    if not fused:
        assert {left.reason.code for left in plan.left} == {"runtime-pattern"}


def test_strict_half_math_rounds_each_op() -> None:
    source = "g (float16[N] x) => (float16[N] y) { a = Mul(x, x)  y = Add(a, x) }"
    rounding = [len(make_plan(from_proto(plan_of(source)[0].proto), PlanOptions(half_math=math)).groups[0]
                    .program.statements) for math in ("float32", "strict")]
    assert rounding[1] > rounding[0]
