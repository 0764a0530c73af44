"""What a fused model looks like, and that everything else survives."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from onnxfuse.fusion.plan import Plan, PlanOptions, make_plan
from onnxfuse.model import from_proto
from onnxfuse.program import Program
from onnxfuse.rewrite import apply
from tests.runtime import assert_same_results


def parse(source: str, opset: str = '"" : 17', ir: int = 8) -> ModelProto:
    return onnx.parser.parse_model(f"<ir_version: {ir}, opset_import: [{opset}]>\n{source}")


def fuse(proto: ModelProto, **options: int) -> ModelProto:
    """The fused model, checked: valid, final, and the original untouched."""
    before = proto.SerializeToString()
    model = from_proto(proto)
    result = apply(model, make_plan(model, PlanOptions(verify=True, max_fusions=options.get("max_fusions"))))
    assert proto.SerializeToString() == before
    onnx.checker.check_model(result, full_check=True)
    if "max_fusions" not in options:
        again = from_proto(result)
        assert apply(again, make_plan(again)) is result
    return result


def fused_nodes(graph: onnx.GraphProto) -> list[NodeProto]:
    return [node for node in graph.node if node.domain == "onnxfuse"]


def attribute(node: NodeProto, name: str) -> AttributeProto:
    found: AttributeProto = next(a for a in node.attribute if a.name == name)
    return found


CHAIN = """g (float[N, 4] x, float[4] w) => (float[N, 4] y) <float scale = {0.5}, float[1] shift = {1.0}> {
    [first] a = Mul(x, scale)
    [second] b = Add(a, shift)
    [third] y = Mul(b, w)
}"""


def test_a_fused_node() -> None:
    proto = parse(CHAIN)
    result = fuse(proto)
    assert_same_results(proto, result)
    (node,) = result.graph.node
    assert (node.domain, node.op_type, node.name) == ("onnxfuse", "FusedElementwise1", "fused_first_to_third")
    assert list(node.input) == ["onnxfuse_kernels", "x", "w"]
    assert list(node.output) == ["y"]
    assert [a.name for a in node.attribute] == ["program", "c0", "c1"]
    assert attribute(node, "program").s.startswith(b"onnxfuse 1\nin x0 f32\nin x1 f32\nin c0 f32\nin c1 f32\n")
    Program.parse(attribute(node, "program").s.decode())
    shift = attribute(node, "c1").t
    assert (list(shift.dims), shift.data_type, shift.name) == ([1], TensorProto.FLOAT, "")
    assert json.loads(next(e.value for e in node.metadata_props if e.key == "onnxfuse.source")) == [
        "first", "second", "third"]
    (kernels,) = result.graph.initializer
    assert (kernels.name, kernels.data_type, list(kernels.dims), kernels.raw_data) == (
        "onnxfuse_kernels", TensorProto.UINT8, [1], b"\0")


def test_the_function_of_a_fused_node() -> None:
    (function,) = fuse(parse(CHAIN)).functions
    assert (function.domain, function.name) == ("onnxfuse", "FusedElementwise1")
    assert list(function.input) == ["kernels", "x0", "x1"]
    assert list(function.output) == ["y0"]
    assert list(function.attribute) == ["program", "c0", "c1"]
    assert [(o.domain, o.version) for o in function.opset_import] == [("", 17)]
    assert [(n.op_type, list(n.input), list(n.output), n.name) for n in function.node] == [
        ("Constant", [], ["c0"], ""), ("Constant", [], ["c1"], ""), ("Mul", ["x0", "c0"], ["t0"], ""),
        ("Add", ["t0", "c1"], ["t1"], ""), ("Mul", ["t1", "x1"], ["y0"], "")]
    assert function.node[0].attribute[0].ref_attr_name == "c0"


def test_a_node_with_several_outputs_says_how_many() -> None:
    proto = parse("""g (float[N] x, float[N] w) => (float[N] y, float[N] z) {
        a = Mul(x, w)
        y = Tanh(a)
        z = Neg(a)
    }""")
    result = fuse(proto)
    assert_same_results(proto, result)
    (node,) = result.graph.node
    assert [a.name for a in node.attribute] == ["program", "outputs"]
    assert attribute(node, "outputs").i == len(node.output) == 2
    assert list(result.functions[0].attribute) == ["program", "outputs"]


def test_stamps_of_the_model() -> None:
    result = fuse(parse(CHAIN, ir=7))
    assert result.ir_version == 8
    assert [(o.domain, o.version) for o in result.opset_import] == [("", 17), ("onnxfuse", 1)]
    stamps = {e.key: e.value for e in result.metadata_props}
    assert set(stamps) == {"onnxfuse.version", "onnxfuse.targets", "onnxfuse.onnx", "onnxfuse.onnxruntime"}
    assert stamps["onnxfuse.targets"] == "cpu"
    assert stamps["onnxfuse.onnx"] == onnx.__version__
    assert fuse(parse(CHAIN, ir=10)).ir_version == 10


def test_bodies_are_numbered_by_the_nodes_they_replace_and_shared() -> None:
    proto = parse("""g (float[N, 4] x) => (float[N, 4] y) <int64 axis = {1}, float two = {2.0}, float three = {3.0}> {
        a = Neg(x)  b = Abs(a)  b2 = Tanh(b)  c = CumSum(b2, axis)
        d = Mul(c, two)  e = Exp(d)  f = CumSum(e, axis)
        g = Mul(f, three)  h = Exp(g)  y = CumSum(h, axis)
    }""")
    result = fuse(proto)
    assert_same_results(proto, result)
    assert [n.op_type for n in fused_nodes(result.graph)] == [
        "FusedElementwise2", "FusedElementwise1", "FusedElementwise1"]
    assert [f.name for f in result.functions] == ["FusedElementwise1", "FusedElementwise2"]
    assert [numpy_helper.to_array(attribute(n, "c0").t) for n in fused_nodes(result.graph)[1:]] == [2, 3]


def test_numbers_go_on_after_those_present_and_equal_bodies_are_used_again() -> None:
    proto = parse("""g (float[N, 4] x) => (float[N, 4] y) <int64 axis = {1}> {
        a = Neg(x)  b = Abs(a)  c = CumSum(b, axis)
        d = Tanh(c)  e = Exp(d)  f = CumSum(e, axis)
        h = Neg(f)  y = Abs(h)
    }""")
    first = fuse(proto, max_fusions=1)
    assert [f.name for f in first.functions] == ["FusedElementwise1"]
    second = fuse(first)
    assert [n.op_type for n in fused_nodes(second.graph)] == [
        "FusedElementwise1", "FusedElementwise2", "FusedElementwise1"]
    assert {n.input[0] for n in fused_nodes(second.graph)} == {"onnxfuse_kernels"}
    assert [t.name for t in second.graph.initializer] == ["axis", "onnxfuse_kernels"]
    assert_same_results(proto, second)


def test_value_info_of_fused_outputs_has_no_invented_shape() -> None:
    proto = parse("""g (float[N, 4] x) => (float[N, 4] y) <int64 axis = {1}, float[N, 4] a, float[N, 4] e> {
        a = Neg(x)  b = Abs(a)  c = CumSum(b, axis)  d = Neg(c)  e = Abs(d)  y = CumSum(e, axis)
    }""")
    result = fuse(proto)
    infos = {v.name: v for v in result.graph.value_info}
    assert set(infos) == {"b", "e"}  # a is inside now
    assert infos["b"].type.tensor_type.elem_type == TensorProto.FLOAT
    assert not infos["b"].type.tensor_type.HasField("shape")
    assert infos["e"] == next(v for v in proto.graph.value_info if v.name == "e")


def test_value_info_has_a_shape_where_scalars_enter() -> None:
    proto = parse("""g (float[N, 4] x, float f, bool c) => (float[N, 4] y, float[N] g)
    <int64 axis = {1}, float[N, 4] e> {
        a = Mul(x, f)  b = Neg(a)  d = CumSum(b, axis)  e = Abs(d)  y = Neg(e)
        g = Scan (x) <num_scan_inputs = 1, body = step (float[4] r) => (float s) {
            m = ReduceMax<keepdims = 0>(r)  n = Neg(m)  s = Abs(n) }>
    }""")
    result = fuse(proto)
    dims = {v.name: v.type.tensor_type.shape.dim for v in result.graph.value_info}
    assert [(d.WhichOneof("value"), d.dim_value) for d in dims["b"]] == [(None, 0), ("dim_value", 4)]
    assert list(result.graph.output) == list(proto.graph.output)


def test_outputs_of_bodies_get_their_type() -> None:
    proto = parse("""g (float[N, 4] x, bool c) => (float[N, 4] y) {
        y = If (c) < then_branch = t () => (u) { a = Neg(x)  u = Abs(a) }, else_branch = e () => (v) { v = Neg(x) } >
    }""")
    result = fuse(proto)
    then, other = (a.g for a in result.graph.node[0].attribute)
    assert then.output[0].type.tensor_type.elem_type == TensorProto.FLOAT
    assert not then.output[0].type.tensor_type.HasField("shape")
    assert other.output[0].type.WhichOneof("value") is None
    assert [t.name for t in then.initializer] == ["onnxfuse_kernels"]
    assert not result.graph.initializer
    assert_same_results(proto, result)


def test_kernels_stand_in_the_graph_of_their_node_under_a_name_of_its_own() -> None:
    proto = parse("""g (float[N] x, bool c) => (float[N] y, float[N] onnxfuse_kernels) {
        a = Neg(x)  b = Abs(a)
        y = If (c) <
            then_branch = t () => (float[N] u) { d = Exp(b)  u = Neg(d) },
            else_branch = e () => (float[N] v) { f = Tanh(b)  v = Neg(f) }
        >
        onnxfuse_kernels = Identity(b)
    }""")
    result = fuse(proto)
    graphs = [result.graph, *(a.g for n in result.graph.node for a in n.attribute if a.type == AttributeProto.GRAPH)]
    names = [next(t.name for t in g.initializer) for g in graphs]
    assert len(set(names)) == 3
    assert "onnxfuse_kernels" not in names
    assert [fused_nodes(g)[0].input[0] for g in graphs] == names
    assert_same_results(proto, result)


def test_initializers_of_old_models_leave_the_inputs() -> None:
    source = "g (float[N] x, float k = {2.0}) => (float[N] y) { a = Mul(x, k)  y = Neg(a) }"
    old, new = fuse(parse(source, opset='"" : 9', ir=3)), fuse(parse(source, ir=8))
    assert [v.name for v in old.graph.input] == ["x"]
    assert [v.name for v in new.graph.input] == ["x", "k"]
    assert [a.name for a in old.graph.node[0].attribute] == ["program", "c0"]
    assert list(new.graph.node[0].input) == ["onnxfuse_kernels", "x", "k"]


def test_constants_stay_while_anything_needs_them() -> None:
    proto = parse("""g (float[N] x, bool c) => (float[N] y, float[N] z, float kept)
    <float gone = {2.0}, float kept = {3.0}, float below = {4.0}, float unused = {5.0}> {
        k = Constant<value_float = 6.0>()
        a = Mul(x, gone)  b = Add(a, kept)  d = Mul(b, below)  y = Add(d, k)
        z = If (c) <
            then_branch = t () => (float[N] u) { u = Mul(x, below) },
            else_branch = e () => (float[N] v) { v = Neg(x) }
        >
    }""")
    result = fuse(proto)
    assert [t.name for t in result.graph.initializer] == ["kept", "below", "unused", "onnxfuse_kernels"]
    assert [n.op_type for n in result.graph.node] == ["FusedElementwise1", "If"]
    assert_same_results(proto, result)


def test_names_never_collide() -> None:
    nodes = [helper.make_node("Neg", ["x"], ["a"], name="n"), helper.make_node("Abs", ["a"], ["fused_n_2"], name="n"),
             helper.make_node("CumSum", ["fused_n_2", "axis"], ["c"], name="fused_n"),
             helper.make_node("Neg", ["c"], ["d"], name="n"), helper.make_node("Abs", ["d"], ["y"], name="n")]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N"])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N"])],
                              [numpy_helper.from_array(np.array(0, np.int64), "axis")])
    result = fuse(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    assert [n.name for n in result.graph.node] == ["fused_n_1", "fused_n", "fused_n_3"]


@pytest.mark.parametrize(("source", "ops", "opset"), [
    ("g (float[N] x, float16[M] like) => (float16[N] y) { a = Neg(x)  b = CastLike(a, like)  y = Abs(b) }",
     ["Neg", "Cast", "Abs"], 17),
    ("g (float[N] x, float ratio) => (float[N] y) { a = Neg(x)  b = Dropout(a, ratio)  y = Abs(b) }",
     ["Neg", "Identity", "Abs"], 17),
])
def test_bodies_do_without_operands_that_the_program_does_not_read(source: str, ops: list[str], opset: int) -> None:
    proto = parse(source, f'"" : {opset}')
    result = fuse(proto)
    assert [n.op_type for n in result.functions[0].node] == ops
    assert list(result.graph.node[0].input) == ["onnxfuse_kernels", "x"]
    assert_same_results(proto, result)


def decorate(proto: ModelProto) -> None:
    """Everything a model can say about itself."""
    proto.producer_name, proto.producer_version, proto.domain = "maker", "1.2", "org.example"
    proto.model_version, proto.doc_string = 42, "text of the model"
    proto.metadata_props.add(key="stride", value="32")
    graph = proto.graph
    graph.doc_string = "text of the graph"
    graph.metadata_props.add(key="author", value="somebody")
    graph.input[0].doc_string = "an image"
    graph.input[0].type.denotation = "IMAGE"
    graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    graph.node[-1].doc_string = "text of a node"
    graph.node[-1].metadata_props.add(key="layer", value="7")
    note = graph.quantization_annotation.add(tensor_name="b")
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="b_scale")
    graph.initializer.append(numpy_helper.from_array(np.array(0.5, np.float32), "b_scale"))
    sparse = graph.sparse_initializer.add(dims=[4])
    sparse.values.CopyFrom(numpy_helper.from_array(np.ones(1, np.float32), "sparse"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.zeros(1, np.int64), ""))
    step = onnx.parser.parse_graph("step (float q) => (float w_new) { w_new = Sub(w, q) }")
    proto.training_info.add().algorithm.CopyFrom(step)
    proto.training_info[0].update_binding.add(key="w", value="w_new")


def test_everything_else_survives() -> None:
    proto = parse("""g (float[N, 4] x) => (float[N, 4] y, float[N, 4] q) <float w = {2.0}, int64 axis = {1}> {
        a = Mul(x, w)  b = Add(a, w)  d = Neg(b)  y = Abs(d)
        q = CumSum(y, axis)
    }""", '"" : 17, "unused.domain" : 3')
    decorate(proto)
    model = from_proto(proto)
    result = apply(model, make_plan(model, PlanOptions(verify=True)))
    assert fused_nodes(result.graph)[0].output[:] == ["b", "y"]  # the annotated value leaves
    assert fused_nodes(result.graph)[0].input[:] == ["onnxfuse_kernels", "x", "w"]  # training changes w
    assert [t.name for t in result.graph.initializer] == ["w", "axis", "b_scale", "onnxfuse_kernels"]
    reduced = ModelProto()
    reduced.CopyFrom(result)
    expected = ModelProto()
    expected.CopyFrom(proto)
    for changed in (reduced, expected):
        changed.ClearField("functions")
        del changed.graph.node[:-1], changed.opset_import[2:], changed.metadata_props[1:]
        del changed.graph.value_info[:], changed.graph.initializer[3:]
    assert reduced == expected


def test_a_model_without_anything_to_fuse_is_returned_as_it_is() -> None:
    proto = parse("g (float[N] x) => (float[N] y) { y = Neg(x) }")
    model = from_proto(proto)
    assert apply(model, make_plan(model)) is proto
    assert apply(model, Plan((), ())) is proto


def test_nodes_out_of_order_are_sorted_even_if_nothing_is_fused() -> None:
    proto = parse("g (float[N] x) => (float[N] y) <int64 axis = {0}> { y = CumSum(a, axis)  a = Neg(x) }")
    model = from_proto(proto)
    result = apply(model, make_plan(model))
    assert [n.op_type for n in result.graph.node] == ["Neg", "CumSum"]
    assert not result.metadata_props
    onnx.checker.check_model(result, full_check=True)


@pytest.mark.parametrize("sort", [True, False])
def test_the_result_is_sorted_and_near_to_the_old_order(sort: bool) -> None:
    proto = parse("""g (float[N, 4] x) => (float[N, 4] y, float[N, 4] z) <int64 axis = {1}> {
        s = CumSum(x, axis)  a = Neg(x)  m = CumSum(a, axis)  b = Abs(a)  n = CumSum(s, axis)
        y = Mul(b, m)  z = Add(n, m)
    }""")
    if not sort:
        proto.graph.node.reverse()
    result = fuse(proto)
    if sort:
        assert [list(n.output) for n in result.graph.node] == [["s"], ["a", "b"], ["m"], ["n"], ["y", "z"]]
    made = {v.name for v in result.graph.input} | {t.name for t in result.graph.initializer}
    for node in result.graph.node:
        assert set(node.input) - {""} <= made
        made |= set(node.output)


FAMILIES = """g (float[N, 8, H] x) => (float[N, 8, H] y, float[N, 8, H] z) <float[8] s = {1, 2, 3, 4, 5, 6, 7, 8}> {
    a = BatchNormalization(x, s, s, s, s)  b = Relu(a)  c = Softmax(b)  d = Exp(c)  e = Tanh(d)  f = Softmax(e)
    h = BatchNormalization(f, s, s, s, s)  y = Relu(h)  i = Softmax(y)  j = Neg(i)  z = Abs(j)
}"""


def test_groups_for_a_gpu_alone_have_names_of_their_own() -> None:
    """Numbers go by family; what a body is, and what is final, does not depend on it."""
    targets = ("cpu", "cuda")
    proto = parse(FAMILIES)
    model = from_proto(proto)
    plan = make_plan(model, PlanOptions(targets=targets, verify=True))
    result = apply(model, plan, targets)
    onnx.checker.check_model(result, full_check=True)
    assert_same_results(proto, result)
    assert [node.op_type for node in fused_nodes(result.graph)] == [
        "FusedDevice1", "FusedElementwise1", "FusedDevice1", "FusedElementwise2"
    ]
    assert [f.name for f in result.functions] == ["FusedDevice1", "FusedElementwise1", "FusedElementwise2"]
    again = from_proto(result)
    assert apply(again, make_plan(again, PlanOptions(targets=targets)), targets) is result


def test_numbers_of_a_family_go_on_after_those_in_the_model() -> None:
    targets = ("cpu", "cuda")
    model = from_proto(parse(FAMILIES))
    first = apply(model, make_plan(model, PlanOptions(targets=targets, max_fusions=1)), targets)
    again = from_proto(first)
    result = apply(again, make_plan(again, PlanOptions(targets=targets)), targets)
    straight = apply(model, make_plan(model, PlanOptions(targets=targets)), targets)
    assert sorted(f.name for f in result.functions) == sorted(f.name for f in straight.functions)
    assert [node.op_type for node in fused_nodes(result.graph)].count("FusedDevice1") == 2
