"""GPU code as the first input of fused nodes: where it stands, that it is shared, what becomes of what was there."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import ModelProto, TensorProto

from onnxfuse.fusion.plan import make_plan
from onnxfuse.model import from_proto
from onnxfuse.rewrite import apply
from onnxfuse.rewrite.kernels import NO_CODE, program_of, programs_of
from tests.rewrite.test_apply import fused_nodes, parse
from tests.runtime import assert_same_results

TWICE = """g (float[N, 4] x, float[N, 4] z) => (float[N, 4] y, float[N, 4] w) <int64 axis = {1}> {
    a = Mul(x, z)  b = Add(a, x)  s = CumSum(b, axis)  c = Mul(s, x)  t = Add(c, s)
    u = CumSum(t, axis)  d = Exp(u)  y = Sub(d, z)  w = CumSum(y, axis)
}"""
IN_BODIES = """g (float[N, 4] x, bool c) => (float[N, 4] y) {
    a = Mul(x, x)  b = Add(a, x)
    y = If(c) <then_branch = g1 () => (float[N, 4] p) { q = Mul(b, b)  p = Add(q, b) },
               else_branch = g2 () => (float[N, 4] r) { e = Exp(b)  r = Sub(e, b) }>
}"""


def code_of(texts: Sequence[str]) -> dict[str, bytes]:
    """Something for each program that is easy to tell apart."""
    return {text: b"code of " + text.encode() for text in texts}


def fuse(proto: ModelProto) -> ModelProto:
    model = from_proto(proto)
    result = apply(model, make_plan(model), ("cpu", "cuda"), code_of)
    onnx.checker.check_model(result, full_check=True)
    return result


def places(graph: onnx.GraphProto, home: onnx.GraphProto) -> list[tuple[onnx.GraphProto, onnx.GraphProto]]:
    """Each graph with the one that holds the code of its nodes."""
    found = [(graph, home)]
    for node in graph.node:
        for a in node.attribute:
            if a.HasField("g"):
                found += places(a.g, home if node.op_type == "If" else a.g)
    return found


def check(result: ModelProto) -> int:
    """Every fused node reads the code of its program from its own graph, or from the one around an If; the number of
    nodes. No graph has the same code twice, and none has a byte without code."""
    count = 0
    for graph, home in places(result.graph, result.graph):
        held = {t.name: t for t in home.initializer}
        assert len({t.raw_data for t in home.initializer}) == len(home.initializer)
        nodes = fused_nodes(graph)
        count += len(nodes)
        for node in nodes:
            tensor, text = held[node.input[0]], program_of(node)
            assert text is not None
            assert tensor.data_type == TensorProto.UINT8
            assert tensor.raw_data == code_of([text])[text]
            assert list(tensor.dims) == [len(tensor.raw_data)]
        assert len({n.input[0] for n in nodes}) == len({program_of(n) for n in nodes})
        assert not [t for t in graph.initializer if t.raw_data == NO_CODE]
    return count


def test_one_initializer_for_each_program() -> None:
    proto = parse(TWICE)
    result = fuse(proto)
    assert check(result) == 3
    assert len(programs_of(result)) == 2
    assert len([t for t in result.graph.initializer if t.data_type == TensorProto.UINT8]) == 2
    assert_same_results(proto, result)


def test_branches_of_an_if() -> None:
    """Their code stands around the If, once."""
    proto = parse(IN_BODIES)
    result = fuse(proto)
    assert check(result) == 3
    assert len(programs_of(result)) == 2  # the one of the main graph is that of one of the branches
    assert len([t for t in result.graph.initializer if t.data_type == TensorProto.UINT8]) == 2
    assert not [t for node in result.graph.node for a in node.attribute for t in a.g.initializer]
    assert_same_results(proto, result)


def test_the_body_of_a_loop() -> None:
    """It has code of its own, around an If in it."""
    proto = parse("""g (float[N, 4] x, bool c) => (float[N, 4] y) <int64 n = {3}> {
        y = Loop(n, c, x) <body = b (int64 i, bool k, float[N, 4] v) => (bool l, float[N, 4] w) {
            l = Identity(k)
            a = Mul(v, v)  b = Add(a, v)
            w = If(c) <then_branch = g1 () => (float[N, 4] p) { q = Mul(b, b)  p = Add(q, b) },
                       else_branch = g2 () => (float[N, 4] r) { r = Identity(b) }>
        }>
    }""")
    result = fuse(proto)
    assert check(result) == 2
    (loop,) = result.graph.node
    assert [len(t.raw_data) > 1 for a in loop.attribute for t in a.g.initializer] == [True]


def test_again_is_the_same_model() -> None:
    result = fuse(parse(TWICE))
    model = from_proto(result)
    assert apply(model, make_plan(model), ("cpu", "cuda"), code_of) is result


def test_a_model_that_was_made_for_the_cpu() -> None:
    """Its nodes get code, and the byte that stood in its place goes; without a compiler it stays as it is."""
    model = from_proto(parse(TWICE))
    plain = apply(model, make_plan(model))
    before = plain.SerializeToString()
    again = from_proto(plain)
    result = apply(again, make_plan(again), ("cpu", "cuda"), code_of)
    assert plain.SerializeToString() == before
    assert check(result) == 3
    assert next(p.value for p in result.metadata_props if p.key == "onnxfuse.targets") == "cpu,cuda"
    final = from_proto(result)
    assert apply(final, make_plan(final)) is result


def test_nothing_fused_nothing_stored() -> None:
    model = from_proto(parse("g (float[N] x) => (float[N] y) { y = Neg(x) }"))
    assert apply(model, make_plan(model), ("cpu", "cuda"), code_of) is model.proto


def test_names_that_are_taken() -> None:
    proto = parse(TWICE.replace("  s = ", "  onnxfuse_kernels = ").replace("(s,", "(onnxfuse_kernels,")
                  .replace(", s)", ", onnxfuse_kernels)"))  # fmt: skip
    result = fuse(proto)
    assert check(result) == 3
