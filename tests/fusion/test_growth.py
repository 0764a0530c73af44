"""Work of the optimizer against the size of the model: calls of functions, not seconds, so that no machine matters."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest
from onnx import ModelProto

from benchmarks.synthetic import SHAPES, build
from onnxfuse.fusion import ort_child, reserved
from onnxfuse.fusion.ort_child import OptGraph, OptNode
from onnxfuse.fusion.plan import make_plan
from onnxfuse.fusion.reserved import compare
from onnxfuse.model import from_proto
from onnxfuse.rewrite import apply
from tests.fusion.planning import parse

NODES = 300
MOST = 2.2  # times the calls for twice the nodes; 2 and something for what varies in a made-up graph


def calls(work: Callable[[], object]) -> int:
    """Calls of functions, Python's and built-in ones."""
    count = 0

    def see(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def unchanged(view: Any) -> OptGraph:
    """What a runtime makes of a graph in which it finds nothing."""
    nodes = tuple(OptNode(n.domain, n.op_type, tuple(n.input), tuple(n.output)) for n in view.graph.node)
    return OptGraph(tuple(view.inputs), tuple(view.outputs), frozenset(view.initializers), nodes)


def optimize(proto: ModelProto) -> None:
    """All that the optimizer does but asking the runtime, reading and writing files."""
    model = from_proto(proto)
    graph = unchanged(model.main)
    plan = make_plan(model, None, compare(model.main, graph, graph))
    assert plan.groups
    apply(model, plan)


@pytest.mark.parametrize("shape", SHAPES)
def test_twice_the_nodes_are_twice_the_work(shape: str) -> None:
    optimize(build(shape, 50))  # what is imported and remembered once
    models = [build(shape, nodes) for nodes in (NODES, 2 * NODES)]
    once, twice = (calls(partial(optimize, model)) for model in models)
    assert once > 50 * NODES
    assert twice < MOST * once


def test_short_cuts_for_large_models_change_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merged constants and passes that are left out, against the runtime as it is."""
    pytest.importorskip("onnxruntime", reason="the runtime itself decides what it fuses")
    model = from_proto(build("groups", 80))
    plain = reserved.reserved_nodes(model)
    assert len(plain.by_output) > 5
    monkeypatch.setattr(reserved, "MANY_SCALARS", 2)
    monkeypatch.setattr(ort_child, "_LARGE", 2)
    assert reserved.reserved_nodes(model) == plain


def test_passes_that_can_find_nothing_are_left_out() -> None:
    assert ort_child.idle_passes({"MatMul", "Add"}, 10**6) >= {"QDQS8ToU8Transformer", "TransposeOptimizer"}
    few = ort_child.idle_passes({"MatMul", "DequantizeLinear", "ReduceMean"}, 10**6)
    assert "BiasDropoutFusion" in few
    assert not few & {"QDQS8ToU8Transformer", "LayerNormFusionL2"}
    assert few >= {"NotWhereFusion", "GeluFusionL1", "FastGeluFusion", "QuickGeluFusion", "GroupQueryAttentionFusion"}
    gates = ort_child.idle_passes({"HardSigmoid", "Tanh", "Where"}, 10**6)
    assert not gates & {"NotWhereFusion", "FastGeluFusion", "BiasGeluFusion", "QuickGeluFusion"}
    assert not ort_child.idle_passes({"MatMul"}, 100)


def test_equal_constants_become_one() -> None:
    source = """g (float[N] x) => (float[N] y, float z)
        <float a = {0.5}, float b = {0.5}, float z = {0.5}, float[1] c = {0.5}> {
        d = Constant <value = float {0.5}> ()
        t = Mul(x, a)
        u = Mul(t, b)
        v = Add(u, c)
        w = Add(v, d)
        y = Add(w, z)
    }"""
    graph = parse(source).graph
    ort_child._merge_scalars(graph)
    assert [tensor.name for tensor in graph.initializer] == ["a", "z", "c"]
    assert [list(node.input) for node in graph.node] == [["x", "a"], ["t", "a"], ["u", "c"], ["v", "a"], ["w", "z"]]


def test_many_constants_are_counted() -> None:
    assert sum(1 for _ in ort_child.scalars(build("constants", 300).graph)) > 150
