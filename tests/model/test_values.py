"""Element types and shape terms of every value."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, numpy_helper

from onnxfuse.model import Model, Term, from_proto
from onnxfuse.model.infer import stripped
from onnxfuse.model.shapes import fresh, join, known, padded, public_dims


def model_of(source: str, opset: str = '"" : 17') -> Model:
    return from_proto(onnx.parser.parse_model(f"<ir_version: 8, opset_import: [{opset}]>\n{source}"))


def dims(*values: int | str) -> Term:
    return known(values, "here")


@pytest.mark.parametrize(("a", "b", "result"), [
    (dims("N", 1), dims(1, 4), dims("N", 4)),
    (dims("N"), dims(3, 1, 1), dims(3, 1, "N")),
    (dims(), dims("N"), dims("N")),
    (dims("N"), dims(5), dims(5)),
    (dims("N"), dims(0), dims(0)),
    (dims("N"), dims("M"), Term((("M", "N"),))),
    (fresh("a"), dims(), fresh("a")),
    (fresh("a"), dims(1), Term((1,), ("?a",))),
])
def test_join(a: Term, b: Term, result: Term) -> None:
    assert join([a, b]) == join([b, a]) == result
    assert join([result, a]) == join([result, b]) == result


def test_dims_without_a_name_are_told_apart() -> None:
    assert known(["", ""], "v").dims == (("?v:0",), ("?v:1",))
    assert known([""], "v") != known([""], "w")


def test_a_wide_join_is_one_name_that_depends_on_its_parts() -> None:
    symbols = [known([f"d{i}"], "v") for i in range(40)]
    assert join(symbols) == join(list(symbols))
    assert len(str(join(symbols).dims[0])) < 60
    assert join(symbols) != join([*symbols[:-1], known(["other"], "v")])
    assert join([fresh(f"a{i}") for i in range(40)]) != join([fresh(f"b{i}") for i in range(40)])


def test_padding_needs_a_rank() -> None:
    assert padded(dims("C"), 2) == dims("C", 1, 1)
    assert padded(fresh("v"), 0) == fresh("v")
    assert padded(fresh("v"), 1) is None
    assert public_dims(join([dims("N"), dims("M")])) == ("M|N",)


def test_elementwise_values_of_unknown_rank_keep_their_shape() -> None:
    model = model_of("""g (float[6] x, int64[R] s) => (float[K] y)
        <float two = {2.0}, float[1] one = {1.0}, int64[1] flat = {-1}> {
        a = Reshape(x, s)  b = Sigmoid(a)  c = Mul(a, b)  d = Mul(c, two)  e = Add(d, one)  y = Reshape(e, flat) }""")
    terms = {name: model.term_of(model.main, name) for name in "abcde"}
    assert terms["a"].rank is None
    assert terms["a"] == terms["b"] == terms["c"] == terms["d"] != terms["e"]


def test_types_of_operators_outside_onnx() -> None:
    model = model_of("""g (float16[N, 4] x, float16[4] b) => (float16[N, 4] y, z) {
        a = com.microsoft.BiasGelu(x, b)  c = Neg(a)  y = Cast<to = 10>(c)  q = house.Own(x)  z = Neg(q) }""",
                     '"" : 17, "com.microsoft" : 1, "house" : 1')
    assert [model.type_of(model.main, name) for name in "acyqz"] == [10, 10, 10, None, None]
    assert model.term_of(model.main, "c") == model.term_of(model.main, "x")


def test_bodies_see_types_from_outside() -> None:
    model = model_of("""g (float[3] x, int64 n, bool c) => (float[3] last, float[N] y) <bool go = {1}> {
        last = Loop (n, go, x) <
            body = body (i, d, s) => (d2, s2) { d2 = Identity(d)  f = Cast<to = 1>(i)  s2 = Add(s, f) }
        >
        y = If (c) < then_branch = t () => (u) { u = Neg(last) }, else_branch = e () => (v) { v = Abs(x) } >
    }""")
    body, then = model.graphs["last.body"], model.graphs["y.then_branch"]
    assert [model.type_of(body, name) for name in ("i", "d", "s", "f", "s2", "d2")] == [7, 9, 1, 1, 1, 9]
    assert model.term_of(body, "i") == Term()
    assert model.term_of(body, "s").rank is None  # a carried value may change its shape
    assert model.type_of(then, "u") == TensorProto.FLOAT
    assert set(body.free) == set()
    assert set(then.free) == {"last"}


def test_dims_of_a_loop_body_are_not_those_outside() -> None:
    model = model_of("""g (float[N] x, int64 n) => (float[M] last) <bool go = {1}> {
        last = Loop (n, go, x) <
            body = body (int64 i, bool d, float[N] s) => (bool d2, float[K] s2) {
                d2 = Identity(d)  s2 = Concat<axis = 0>(s, x)
            }
        > }""")
    body = model.graphs["last.body"]
    assert model.term_of(body, "s") != model.term_of(body, "x")


def test_wrong_shapes_in_value_info_are_not_believed() -> None:
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[N, 4] x) => (float[N, 4] y) <float[7] a> { a = Neg(x)  y = Abs(a) }""")
    model = from_proto(proto)
    assert model.term_of(model.main, "a") == model.term_of(model.main, "x")


def test_dims_without_a_name_keep_one_symbol_through_inference() -> None:
    model = model_of("""g (float[N, ?] x) => (float[N, ?] y) { a = Neg(x)  b = local.f(a)  y = Sub(a, b) }
        <domain: "local", opset_import: ["" : 17]> f (v) => (w) { u = Abs(v)  w = Neg(u) }""", '"" : 17, "local" : 1')
    assert model.term_of(model.main, "b") == model.term_of(model.main, "y") == model.term_of(model.main, "x")


def test_inference_never_sees_large_weights() -> None:
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[N, 300] x) => (float[N, 300] y) {
            c = Constant<value_float = 1.0>()  a = MatMul(x, w)  y = Add(a, k) }""")
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((300, 300), np.float32), "w"))
    proto.graph.node[0].CopyFrom(onnx.helper.make_node(
        "Constant", [], ["k"], value=numpy_helper.from_array(np.ones(3000, np.float32).reshape(10, 300))))
    model = from_proto(proto)
    copy = stripped(proto, model.main)
    assert copy.ByteSize() < 2000
    assert model.term_of(model.main, "a") == dims("N", 300)
    assert model.term_of(model.main, "y").dims == (10, 300)


def test_a_model_that_inference_gives_up_on_still_has_types(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(model: ModelProto, **options: object) -> ModelProto:
        raise RuntimeError("no")

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", fail)
    model = model_of("""g (float[N] x) => (bool[N] y) {
        a = Neg(x)  i = Cast<to = 7>(a)  s = Shape(x)  y = Equal(i, i) }""")
    assert [model.type_of(model.main, name) for name in "aisy"] == [1, 7, 7, 9]
    assert model.term_of(model.main, "y") == dims("N")
