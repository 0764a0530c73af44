"""Plans for the CPU, for a GPU, and for both in one file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from onnxfuse.fusion.groups import Grower
from onnxfuse.fusion.plan import Plan
from onnxfuse.ops.reason import Reason
from onnxfuse.rewrite import apply
from tests.fusion.planning import plan_of
from tests.fusion.test_groups import random_model

BOTH = ("cpu", "cuda")
BLOCKED = Reason("blocked-layout", "in the blocked layout")
FUSED = Reason("fused-by-runtime", "part of LayerNormalization")


class Answer:
    """What the runtime would do: nodes by first output, those of the main graph; `cpu` on the CPU alone."""

    def __init__(self, cpu: Sequence[str] = (), everywhere: Sequence[str] = (), pattern: Sequence[str] = ()) -> None:
        self.gpu = {"": dict.fromkeys(everywhere, FUSED)}
        self.graphs = {"": dict.fromkeys(cpu, BLOCKED) | self.gpu[""]}
        self.patterns = [self] if pattern else []
        self.op, self.outputs, self.path = "QuickGelu", tuple(pattern), ""


def groups(plan: Plan, *, gpu: bool) -> list[tuple[str, ...]]:
    return [group.op_types for group in plan.groups if group.on_gpu_alone == gpu]


RESIDUAL = """g (float[N, 8] x, float[N, 8] z) => (float[N, 8] y, float[N, 8] w) {
    a = Add(x, z)  r = Relu(a)  s = Softmax(r)  e = Exp(s)  y = Tanh(e)  t = Neg(r)  m = Softmax(t)  w = Relu(m)
}"""


def test_what_the_cpu_alone_does_better_is_a_group_on_a_gpu() -> None:
    answer = Answer(cpu=("a", "r"))
    _, cpu = plan_of(RESIDUAL, reserved=answer)
    _, both = plan_of(RESIDUAL, reserved=answer, targets=BOTH)
    _, gpu = plan_of(RESIDUAL, reserved=answer, targets=("cuda",))
    assert groups(cpu, gpu=False) == groups(both, gpu=False) == [("Exp", "Tanh")]
    assert (groups(cpu, gpu=True), groups(both, gpu=True)) == ([], [("Add", "Relu", "Neg")])
    assert groups(gpu, gpu=False) == [("Add", "Relu", "Neg"), ("Exp", "Tanh")]
    assert groups(gpu, gpu=True) == []
    reasons = {left.output: left.reason.code for left in both.left}
    assert reasons == {"a": "blocked-layout", "r": "blocked-layout", "t": "single", "w": "single"}
    assert both.left == cpu.left
    assert {left.output for left in gpu.left} == {"w"}


def test_what_is_fused_on_a_gpu_too_is_left_there() -> None:
    _, plan = plan_of(RESIDUAL, reserved=Answer(cpu=("a",), everywhere=("r",)), targets=BOTH)
    assert groups(plan, gpu=True) == []  # Add and Neg stand alone then


def test_a_pattern_of_the_runtime_is_left_unless_the_group_is_larger() -> None:
    source = "g (float[N, 8] x) => (float[N, 8] y) {{ a = Sigmoid(x)  b = Mul(x, a)  s = Softmax(b)  y = {} }}"
    for last in ("Neg(s)", "Add(s, b)"):
        _, plan = plan_of(source.format(last), reserved=Answer(pattern=("a", "b")), targets=("cuda",))
        assert groups(plan, gpu=False) == []
    larger = source.replace("s = Softmax(b)", "s = Exp(b)").format("Softmax(s)")
    _, plan = plan_of(larger, reserved=Answer(pattern=("a", "b")), targets=("cuda",))
    assert groups(plan, gpu=False) == [("Sigmoid", "Mul", "Exp")]


NORMALIZATION = """g (float[N, 8, H, W] x) => (float[N, 8, H, W] y)
    <float[8] s = {1, 1, 1, 1, 1, 1, 1, 1}, float[8] b = {0, 0, 0, 0, 0, 0, 0, 0}> {
    n = BatchNormalization(x, s, b, b, s)  y = Relu(n)
}"""


def test_a_normalization_by_channel_pays_on_a_gpu() -> None:
    model, plan = plan_of(NORMALIZATION, targets=BOTH)
    assert groups(plan, gpu=False) == []
    assert groups(plan, gpu=True) == [("BatchNormalization", "Relu")]
    assert [left.reason.code for left in plan.left] == ["channel-parameters", "single"]
    assert [f.name for f in apply(model, plan, BOTH).functions] == ["FusedDevice1"]


def test_an_op_alone_pays_on_the_cpu_only() -> None:
    source = "g (float[N, 8] x) => (float[N, 8] y) { y = Softplus(x) }"
    assert [len(plan_of(source, targets=targets)[1].groups) for targets in (("cpu",), ("cuda",), BOTH)] == [1, 0, 1]


def test_a_group_for_a_gpu_goes_around_those_of_the_cpu() -> None:
    """With a group of the CPU between them, two nodes may not become one: it would feed itself."""
    source = """g (float[N, 8] x) => (float[N, 8] y, float[N, 8] z) {
        a = Neg(x)  b = Exp(a)  c = Tanh(b)  d = Add(a, c)  y = Softmax(d)  z = Abs(d)
    }"""
    _, plan = plan_of(source, reserved=Answer(cpu=("a", "d", "z")), targets=BOTH)
    assert groups(plan, gpu=False) == [("Exp", "Tanh")]
    assert groups(plan, gpu=True) == [("Add", "Abs")]


def test_a_group_of_the_cpu_that_is_wider_than_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it is made of is not looked for again; a pattern that is left beside it is there."""
    monkeypatch.setattr("onnxfuse.fusion.partition._NARROW", 0)
    source = """g (float[N, 8] x) => (float[N, 8] y, float[N, 8] z) {
        a = Neg(x)  b = Exp(a)  c = Tanh(b)  d = Add(c, a)  s = Softmax(d)  e = Abs(s)  y = Relu(e)
        p = Softmax(x)  q = Sigmoid(p)  z = Mul(p, q)
    }"""
    answer = Answer(cpu=("e", "y"), pattern=("q", "z"))
    _, before = plan_of(source, reserved=answer, targets=BOTH)

    class Narrow(Grower):
        """After the groups of the CPU no search goes anywhere."""

        def __init__(self, *arguments: Any) -> None:
            if len(arguments) > 3:
                monkeypatch.setattr("onnxfuse.fusion.partition._WIDE", 3)
            super().__init__(*arguments)

    monkeypatch.setattr("onnxfuse.fusion.plan.Grower", Narrow)
    _, after = plan_of(source, reserved=answer, targets=BOTH)
    assert after == before
    assert (groups(after, gpu=False), groups(after, gpu=True)) == ([("Neg", "Exp", "Tanh", "Add")], [("Abs", "Relu")])


def test_groups_of_the_cpu_come_first_where_their_number_is_limited() -> None:
    source = """g (bool c, float[N, 8] x) => (float[N, 8] y) {
        a = Add(x, x)  r = Relu(a)  s = Softmax(r)
        y = If (c) <
            then_branch = t () => (float[N, 8] u) { e = Exp(s) u = Tanh(e) },
            else_branch = f () => (float[N, 8] v) { v = Softmax(s) }
        >
    }"""
    answer = Answer(cpu=("a", "r"))
    _, plan = plan_of(source, reserved=answer, targets=BOTH, max_fusions=1)
    assert (groups(plan, gpu=False), groups(plan, gpu=True)) == ([("Exp", "Tanh")], [])
    _, plan = plan_of(source, reserved=answer, targets=BOTH, max_fusions=2)
    assert (groups(plan, gpu=False), groups(plan, gpu=True)) == ([("Exp", "Tanh")], [("Add", "Relu")])


def test_groups_are_counted_together() -> None:
    for count in range(4):
        _, plan = plan_of(RESIDUAL, reserved=Answer(cpu=("a", "r")), targets=BOTH, max_fusions=count)
        assert len(plan.groups) == min(count, 2)
        assert {left.output for left in plan.left} >= {"a", "r", "t", "w"}


@pytest.mark.parametrize("seed", range(20))
def test_random_models(seed: int) -> None:
    """Every other node is reserved on the CPU. The plan is verified, and its groups for the CPU are those without a
    GPU."""
    model, _ = plan_of(random_model(seed))
    names = [node.output[0] for node in model.main.graph.node][seed % 2 :: 2]
    answer = Answer(cpu=names)
    _, cpu = plan_of(model.proto, reserved=answer)
    loaded, both = plan_of(model.proto, reserved=answer, targets=BOTH)
    assert [group for group in both.groups if not group.on_gpu_alone] == list(cpu.groups)
    assert both.left == cpu.left
    assert any(group.on_gpu_alone for group in both.groups)
    names = [f.name.rstrip("0123456789") for f in apply(loaded, both, BOTH).functions]
    assert set(names) <= {"FusedElementwise", "FusedDevice"}
