"""Reserved nodes against the installed ONNX Runtime: small models, each with several patterns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.fusion import ort_child
from onnxfuse.fusion.ort_child import OptGraph, OptNode, RuntimeRefused, optimized_graphs
from onnxfuse.fusion.reserved import Reserved, compare, has_half, reserved_nodes
from onnxfuse.fusion.trace import Classes
from onnxfuse.model import Model, from_proto, load

pytest.importorskip("onnxruntime", reason="the runtime itself decides what it fuses")


class Graph:
    """Adds nodes whose outputs are named by the caller; weights are seeded."""

    def __init__(self, dtype: type[np.generic] = np.float32) -> None:
        self.dtype = dtype
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(7)

    def weight(self, name: str, *dims: int) -> str:
        values = self.random.standard_normal(dims) * 0.1 + 1
        self.weights.append(numpy_helper.from_array(values.astype(self.dtype), name))
        return name

    def scalar(self, name: str, value: float) -> str:
        self.weights.append(numpy_helper.from_array(np.array(value, self.dtype), name))
        return name

    def tensor(self, name: str, array: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def add(self, op: str, inputs: str, output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs.split(), output.split(), **attributes))
        return output

    def conv(self, x: str, output: str, channels: int) -> str:
        w, b = self.weight(f"{output}_w", channels, channels, 3, 3), self.weight(f"{output}_b", channels)
        return self.add("Conv", f"{x} {w} {b}", output, pads=[1, 1, 1, 1])

    def gelu(self, x: str, p: str) -> str:
        self.scalar(f"{p}_sqrt2", 2**0.5), self.scalar(f"{p}_one", 1.0), self.scalar(f"{p}_half", 0.5)
        self.add("Div", f"{x} {p}_sqrt2", f"{p}_div")
        self.add("Erf", f"{p}_div", f"{p}_erf")
        self.add("Add", f"{p}_erf {p}_one", f"{p}_plus")
        self.add("Mul", f"{x} {p}_plus", f"{p}_twice")
        return self.add("Mul", f"{p}_twice {p}_half", f"{p}_out")

    def layer_norm(self, x: str, p: str, size: int) -> str:
        self.scalar(f"{p}_two", 2.0), self.scalar(f"{p}_epsilon", 1e-5)
        self.weight(f"{p}_scale", size), self.weight(f"{p}_bias", size)
        self.add("ReduceMean", x, f"{p}_mean", axes=[-1])
        self.add("Sub", f"{x} {p}_mean", f"{p}_sub")
        self.add("Pow", f"{p}_sub {p}_two", f"{p}_pow")
        self.add("ReduceMean", f"{p}_pow", f"{p}_var", axes=[-1])
        self.add("Add", f"{p}_var {p}_epsilon", f"{p}_safe")
        self.add("Sqrt", f"{p}_safe", f"{p}_sqrt")
        self.add("Div", f"{p}_sub {p}_sqrt", f"{p}_div")
        self.add("Mul", f"{p}_div {p}_scale", f"{p}_mul")
        return self.add("Add", f"{p}_mul {p}_bias", f"{p}_out")

    def model(self, inputs: dict[str, list[int | str]], outputs: list[str], opset: int = 17) -> Model:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        graph = helper.make_graph(
            self.nodes,
            "g",
            [helper.make_tensor_value_info(name, kind, dims) for name, dims in inputs.items()],
            [helper.make_tensor_value_info(name, kind, None) for name in outputs],
            self.weights,
        )
        return from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8))


def codes(reserved: Reserved, path: str = "") -> dict[str, str]:
    return {name: reason.code for name, reason in reserved.graphs[path].items()}


@pytest.fixture(scope="module")
def convolutions() -> Reserved:
    """A residual block in the blocked layout, a folded normalization, a folded scale, and chains around them."""
    g = Graph()
    g.conv("x", "conv1", 16)
    g.add("Relu", "conv1", "relu1")
    g.conv("relu1", "conv2", 16)
    for name in ("scale", "shift", "mean", "variance"):
        g.weight(name, 16)
    g.add("BatchNormalization", "conv2 scale shift mean variance", "normal")
    g.add("Add", "relu1 normal", "sum")
    g.add("Relu", "sum", "relu2")
    g.conv("relu2", "conv3", 16)
    g.weight("factor", 16, 1, 1)
    g.add("Mul", "conv3 factor", "scaled")
    g.add("GlobalAveragePool", "scaled", "pool")
    # not in the blocked layout: the runtime has no blocked Softsign, Abs or Exp
    g.add("Softsign", "scaled", "soft")
    g.add("Abs", "soft", "abs")
    g.add("Exp", "abs", "out")
    return reserved_nodes(g.model({"x": [1, 16, 12, 12]}, ["pool", "out"]))


def test_convolutions_take_their_activations_and_scales(convolutions: Reserved) -> None:
    found = codes(convolutions)
    assert found["relu1"] == "fused-by-runtime"
    assert "FusedConv" in convolutions.by_output["relu1"].text
    assert found["normal"] == "folded-into-conv"
    assert found["scaled"] == "folded-into-conv"


def test_what_runs_in_the_blocked_layout_is_reserved(convolutions: Reserved) -> None:
    assert {name for name, code in codes(convolutions).items() if code == "blocked-layout"} == {"sum", "relu2"}


def test_on_a_gpu_convolutions_take_no_activation_and_no_layout(convolutions: Reserved) -> None:
    assert set(convolutions.gpu[""]) == {"normal", "scaled"}


def test_chains_beside_convolutions_are_free(convolutions: Reserved) -> None:
    assert not {"soft", "abs", "out"} & set(convolutions.by_output)
    assert convolutions.note is None
    assert convolutions.untraceable == 0
    assert convolutions.patterns == ()


@pytest.fixture(scope="module")
def transformer() -> Reserved:
    """Patterns of transformers, no-ops, folding and equal expressions."""
    g = Graph()
    g.layer_norm("x", "norm", 32)
    g.weight("w1", 32, 32), g.weight("b1", 32), g.weight("w2", 32, 32), g.weight("w3", 32, 32)
    g.add("MatMul", "norm_out w1", "product")
    g.add("Add", "product b1", "biased")
    g.gelu("biased", "bias_gelu")
    g.gelu("y", "gelu")
    # a scale that goes into the product; the Transpose keeps it away from everything else
    g.scalar("eighth", 0.125)
    g.add("Transpose", "norm_out", "turned", perm=[0, 2, 1])
    g.add("MatMul", "norm_out turned", "scores")
    g.add("Mul", "scores eighth", "scaled")
    g.add("Softmax", "scaled", "weights")
    # x * sigmoid(1.702 x): one QuickGelu of the runtime, to be decided by the size of the group
    g.scalar("steep", 1.702)
    g.add("Mul", "y steep", "steeper")
    g.add("Sigmoid", "steeper", "gate")
    g.add("Mul", "y gate", "quick")
    # an ordinary chain with a no-op, a folded constant and an expression that occurs twice
    g.scalar("two", 2.0), g.scalar("three", 3.0)
    g.add("Identity", "z", "same")
    g.add("Mul", "two three", "six")
    g.add("Mul", "same six", "chain1")
    g.add("Tanh", "chain1", "chain2")
    g.add("Exp", "chain2", "once")
    g.add("Exp", "chain2", "twice")
    g.add("Add", "once twice", "chain3")
    outputs = ["bias_gelu_out", "gelu_out", "weights", "quick", "chain3"]
    return reserved_nodes(g.model({"x": ["b", "t", 32], "y": [2, "n"], "z": ["n", 5]}, outputs))


def test_layer_normalization_is_reserved(transformer: Reserved) -> None:
    inside = {f"norm_{part}" for part in ("sub", "pow", "safe", "sqrt", "div", "mul", "out")}
    assert {n for n, r in transformer.by_output.items() if "LayerNormalization" in r.text} == inside


def test_gelu_with_and_without_bias_is_reserved(transformer: Reserved) -> None:
    parts = ("div", "erf", "plus", "twice", "out")
    by_op: dict[str, set[str]] = {}
    for name, reason in transformer.by_output.items():
        by_op.setdefault(next((op for op in ("BiasGelu", "Gelu") if f"one {op} " in reason.text), ""), set()).add(name)
    assert by_op["BiasGelu"] == {"biased"} | {f"bias_gelu_{part}" for part in parts}
    assert by_op["Gelu"] == {f"gelu_{part}" for part in parts}


def test_scale_of_a_product_is_reserved(transformer: Reserved) -> None:
    assert transformer.by_output["scaled"].text == "ONNX Runtime makes it part of FusedMatMul"


def test_quick_gelu_is_a_pattern(transformer: Reserved) -> None:
    assert [(p.op, p.outputs, p.path) for p in transformer.patterns] == [
        ("QuickGelu", ("steeper", "gate", "quick"), "")
    ]
    assert not {"steeper", "gate", "quick"} & set(transformer.by_output)


def test_chains_no_ops_folding_and_equal_expressions_are_free(transformer: Reserved) -> None:
    free = {"same", "six", "chain1", "chain2", "once", "twice", "chain3"}
    assert not free & set(transformer.by_output)


def test_patterns_of_transformers_are_fused_on_a_gpu_too(transformer: Reserved) -> None:
    assert transformer.gpu == transformer.graphs


def test_what_a_transpose_is_moved_past_is_reserved() -> None:
    """Also what is joined to it: the runtime keeps the names of values whose layout it changed."""
    g = Graph()
    g.weight("w", 8, 8)
    g.add("MatMul", "x w", "product")
    g.add("Transpose", "product", "turned", perm=[0, 2, 1])
    g.add("Exp", "turned", "exp")
    g.add("Mul", "turned exp", "mul")
    g.add("Tanh", "mul", "tanh")
    g.add("Transpose", "tanh", "back", perm=[0, 2, 1])
    g.add("MatMul", "back w", "y")
    g.add("Exp", "y", "apart1")
    g.add("Sin", "apart1", "apart2")
    answer = reserved_nodes(g.model({"x": ["b", "t", 8]}, ["apart2"]))
    assert codes(answer) == dict.fromkeys(("exp", "mul", "tanh"), "transposed-by-runtime")
    assert answer.gpu == answer.graphs


def test_on_a_gpu_no_transpose_is_free() -> None:
    """Beside a convolution in the blocked layout a Transpose costs nothing; on a GPU there is no such layout."""
    g = Graph()
    g.conv("x", "conv", 16)
    g.add("Transpose", "conv", "turned", perm=[0, 2, 3, 1])
    g.add("Exp", "turned", "exp")
    g.add("Tanh", "exp", "tanh")
    g.add("Transpose", "tanh", "back", perm=[0, 3, 1, 2])
    g.conv("back", "y", 16)
    answer = reserved_nodes(g.model({"x": [1, 16, 12, 12]}, ["y"]))
    assert not {"exp", "tanh"} & set(answer.by_output)
    assert {answer.gpu[""][name].code for name in ("exp", "tanh")} == {"transposed-by-runtime"}


def test_twins_and_no_ops_inside_a_fused_node_are_reserved() -> None:
    """In a group they would stand between the product and its activation."""
    g = Graph()
    g.weight("w", 8, 8), g.weight("b", 8)
    g.add("MatMul", "x w", "product")
    g.add("Identity", "product", "same")
    g.add("Add", "same b", "sum")
    g.add("Add", "product b", "twin")
    g.add("Relu", "sum", "relu")
    g.add("Relu", "twin", "relu_twin")
    g.add("Exp", "relu_twin", "exp")
    g.add("Tanh", "exp", "tanh")
    g.add("Identity", "relu", "handed")
    g.add("Sin", "handed", "sin")
    answer = reserved_nodes(g.model({"x": [4, 8]}, ["tanh", "sin"]))
    assert codes(answer) == dict.fromkeys(("same", "sum", "twin", "relu", "relu_twin"), "fused-by-runtime")
    # on a GPU the bias becomes part of a Gemm, too, its activation does not
    assert set(answer.gpu[""]) == {"same", "sum", "twin"}


def test_quantized_convolution_and_its_clamp() -> None:
    g = Graph()
    g.scalar("s", 0.05), g.scalar("ws", 0.02)
    g.tensor("z", np.array(128, np.uint8)), g.tensor("wz", np.array(0, np.int8))
    g.tensor("w", g.random.integers(-90, 90, (8, 8, 3, 3)).astype(np.int8))
    g.add("QuantizeLinear", "x s z", "xq")
    g.add("DequantizeLinear", "xq s z", "xf")
    g.add("DequantizeLinear", "w ws wz", "wf")
    g.add("Conv", "xf wf", "conv", pads=[1, 1, 1, 1])
    g.add("Relu", "conv", "relu")
    g.add("QuantizeLinear", "relu s z", "yq")
    g.add("DequantizeLinear", "yq s z", "yf")
    g.add("Add", "yf x", "sum")
    g.add("Exp", "sum", "exp")
    g.add("QuantizeLinear", "exp s z", "out")
    found = codes(reserved_nodes(g.model({"x": [1, 8, 6, 6]}, ["exp"])))
    assert {n for n, code in found.items() if code == "quantized-operator"} == {"xq", "xf", "wf", "yq", "yf"}
    assert "relu" in found
    assert not {"sum", "exp", "out"} & set(found)


def test_half_precision_models_are_seen_as_float32(tmp_path: Path) -> None:
    """Also: large weights in an external file are not needed, the folder stays as it is."""
    g = Graph(np.float16)
    g.layer_norm("x", "norm", 32)
    g.weight("w", 32, 4096)
    g.add("MatMul", "norm_out w", "product")
    g.add("Tanh", "product", "tanh")
    g.add("Exp", "tanh", "out")
    model = g.model({"x": [2, 8, 32]}, ["out"])
    path = tmp_path / "model.onnx"
    onnx.save(model.proto, str(path), save_as_external_data=True, location="model.data", size_threshold=1024)
    loaded = load(path)
    assert has_half(loaded.proto)
    memory = from_proto(loaded.proto, tmp_path)
    (tmp_path / "model.data").write_bytes(b"")  # reading the large tensor would fail
    for answer in map(reserved_nodes, (loaded, memory)):
        assert answer.note is None
        assert "norm_out" in answer.by_output
        assert not {"tanh", "out"} & set(answer.by_output)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.data", "model.onnx"]


def test_external_data_of_a_float32_model(tmp_path: Path) -> None:
    g = Graph()
    g.weight("w", 32, 512), g.weight("b", 512)
    g.add("MatMul", "x w", "product")
    g.add("Add", "product b", "sum")
    g.add("Relu", "sum", "relu")
    path = tmp_path / "model.onnx"
    model = g.model({"x": [4, 32]}, ["relu"]).proto
    onnx.save(model, str(path), save_as_external_data=True, location="w", size_threshold=64)
    loaded = load(path)
    memory = from_proto(loaded.proto, tmp_path)
    for answer in map(reserved_nodes, (loaded, memory)):
        assert {name: reason.text for name, reason in answer.by_output.items()} == dict.fromkeys(
            ("sum", "relu"), "ONNX Runtime makes it part of FusedGemm"
        )


def test_bodies_have_their_own_names() -> None:
    """The same value names in both branches; the product is in one of them."""
    g = Graph()
    g.weight("w", 8, 8), g.weight("b", 8)
    branches = []
    for first in ("MatMul", "Mul"):
        nodes = [
            helper.make_node(first, ["x", "w"], ["t"]),
            helper.make_node("Add", ["t", "b"], ["u"]),
            helper.make_node("Tanh", ["u"], ["v"]),
        ]
        output = helper.make_tensor_value_info("v", TensorProto.FLOAT, [8, 8])
        branches.append(helper.make_graph(nodes, first, [], [output]))
    g.scalar("zero", 0.0)
    g.add("ReduceSum", "x", "total", keepdims=0)
    g.add("Greater", "total zero", "positive")
    g.add("If", "positive", "out", then_branch=branches[0], else_branch=branches[1])
    answer = reserved_nodes(g.model({"x": [8, 8]}, ["out"]))
    assert set(codes(answer, "out.then_branch")) == {"u", "v"}
    assert codes(answer, "out.else_branch") == {}
    assert codes(answer) == {}


def test_what_cannot_be_traced_is_left_alone_and_counted() -> None:
    """Two Mul before, one after beside a fused node: which of them was fused is unclear."""
    g = Graph()
    g.weight("w", 8, 8), g.scalar("a", 3.0), g.scalar("b", 5.0)
    g.add("Mul", "x a", "first")
    g.add("MatMul", "first w", "product")
    g.add("Mul", "product b", "second")
    g.add("Tanh", "second", "tanh")
    model = g.model({"x": [4, 8]}, ["tanh"])
    graph = OptGraph(
        ("x",),
        ("tanh",),
        frozenset({"w", "a", "b"}),
        (
            OptNode("com.microsoft", "FusedMatMul", ("x", "w"), ("new",)),
            OptNode("", "Mul", ("new", "b"), ("second",)),
            OptNode("", "Tanh", ("second",), ("tanh",)),
        ),
    )
    answer = compare(model.main, graph, graph)
    assert codes(answer) == dict.fromkeys(("first", "second"), "untraceable")
    assert answer.untraceable == 2


def test_classes_known_before_the_answer_change_nothing() -> None:
    """Up to a Cast, which does nothing or something: that is seen in the answer."""
    g = Graph()
    g.weight("w", 8, 8), g.scalar("a", 3.0)
    g.add("Identity", "x", "same")
    g.add("Mul", "same a", "first")
    g.add("Cast", "first", "cast", to=TensorProto.FLOAT)
    g.add("Mul", "x a", "second")
    g.add("MatMul", "second w", "product")
    g.add("Add", "product cast", "sum")
    g.add("Relu", "sum", "relu")
    model = g.model({"x": [4, 8]}, ["relu"])
    graph = OptGraph(
        ("x",),
        ("relu",),
        frozenset({"w", "a"}),
        (
            OptNode("", "Mul", ("x", "a"), ("first",)),
            OptNode("com.microsoft", "FusedGemm", ("first", "w", "first"), ("relu",)),
        ),
        {"first": TensorProto.FLOAT},
    )
    early = Classes(model.main)
    assert early.of["first"] == "first"
    assert "cast" not in early.of
    answer = compare(model.main, graph, graph, classes={"": early})
    assert answer == compare(model.main, graph, graph)
    assert early.of["cast"] == early.of["second"] == "first"
    assert codes(answer) == dict.fromkeys(("cast", "sum", "relu"), "fused-by-runtime")


def test_a_model_that_the_runtime_refuses_reserves_nothing() -> None:
    g = Graph()
    g.add("Relu", "x", "a")
    g.nodes.append(helper.make_node("Unheard", ["a"], ["out"], domain="nobody"))
    model = helper.make_model(
        helper.make_graph(
            g.nodes,
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
            [helper.make_tensor_value_info("out", TensorProto.FLOAT, [4])],
        ),
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("nobody", 1)],
        ir_version=8,
    )
    answer = reserved_nodes(from_proto(model))
    assert answer.by_output == {}
    assert answer.patterns == ()
    assert answer.note is not None
    assert "Unheard" in answer.note
    assert reserved_nodes(from_proto(model)).note == answer.note, "names of temporary folders are in it"


@pytest.mark.parametrize(
    ("program", "timeout", "words"),
    [
        ("import os; os.abort()", 60.0, "SIGABRT"),
        ("import sys; sys.exit('no room')", 60.0, "no room"),
        ("import time; time.sleep(60)", 0.3, "longer than 0.3 s"),
    ],
    ids=["crash", "exit", "hang"],
)
def test_a_child_that_fails_is_a_refusal(
    program: str, timeout: float, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = tmp_path / "child.py"
    stand_in.write_text(program)
    monkeypatch.setattr(ort_child, "__file__", str(stand_in))
    with pytest.raises(RuntimeRefused, match=words):
        optimized_graphs(tmp_path / "absent.onnx", timeout=timeout)
