"""Fused nodes in real ONNX Runtime sessions, with the library and without it.

Where a test must know which of the two ran, the body of the function says something else than the program.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.fusion.plan import make_plan
from onnxfuse.model import from_proto
from onnxfuse.rewrite import apply
from tests.custom_ops.fused_model import fused_model
from tests.custom_ops.handmade import (
    CHAIN,
    GATE,
    IF_GRAPH,
    OTHER_BODY,
    SUB,
    gate_model,
    half_model,
    mixed_model,
    one,
    sub_model,
)  # fmt: skip


def sub(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.asarray((x - y) * y)


def session(
    model: onnx.ModelProto,
    library: str | None = None,
    *,
    level: onnxruntime.GraphOptimizationLevel | None = None,
    threads: int = 1,
    config: Mapping[str, str] | None = None,
) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    if level is not None:
        options.graph_optimization_level = level
    for key, value in (config or {}).items():
        options.add_session_config_entry(key, value)
    if library is not None:
        options.register_custom_ops_library(library)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(s: onnxruntime.InferenceSession, /, **feed: Any) -> list[np.ndarray]:
    return list(s.run(None, {name: np.asarray(value) for name, value in feed.items()}))


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


LEVELS = [onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL]


@pytest.mark.parametrize("level", LEVELS, ids=["disabled", "all"])
@pytest.mark.parametrize("shape", [(3, 4), (1, 4), (0, 4), (70000, 4)], ids=str)
def test_with_and_without_library(ort_library: str, shape: tuple[int, int], level: Any) -> None:
    model = gate_model(one("float[N, 4] x, float[4] b", "float[N, 4]"))
    x, b = floats(*shape), floats(4, seed=1)
    results = [run(session(model, lib, level=level, threads=2), x=x, b=b)[0] for lib in (None, ort_library)]
    q = x.astype(np.float64) * 1.5 + b
    for result in results:
        np.testing.assert_allclose(result, q / (1 + np.exp(-q)), rtol=2e-6, atol=1e-6)


def test_the_kernel_wins_over_the_body(ort_library: str) -> None:
    model = sub_model(
        one("float[N] x, float[N] b", "float[N]"), OTHER_BODY
    )
    x, b = floats(5), floats(5, seed=1)
    np.testing.assert_array_equal(run(session(model), x=x, b=b)[0], x + b)
    np.testing.assert_array_equal(run(session(model, ort_library), x=x, b=b)[0], sub(x, b))


def test_if_body(ort_library: str) -> None:
    model = sub_model(IF_GRAPH, OTHER_BODY)
    a, b = floats(3, 4), floats(4, seed=1)
    s = session(model, ort_library)
    m = sub(a, b)
    np.testing.assert_array_equal(run(s, c=True, a=a, b=b)[0], sub(m, b))
    np.testing.assert_array_equal(run(s, c=False, a=a, b=b)[0], m)
    np.testing.assert_array_equal(run(session(model), c=True, a=a, b=b)[0], a + b + b)


def test_loop_body(ort_library: str) -> None:
    model = sub_model(
        """g (int64 n, float[4] a, float[4] b) => (float[4] y, float[K, 4] z) {
            yes = Constant<value = bool {1}>()
            y, z = Loop (n, yes, a) <
                body = l (int64 i, bool in, float[4] h) => (bool on, float[4] o, float[4] s) {
                    on = Identity(in)
                    o = onnxfuse.FusedElementwise1(kernels, h, b)
                    s = Identity(o)
                }
            >
        }""", OTHER_BODY
    )  # fmt: skip
    a, b = floats(4), np.full(4, 0.5, np.float32)
    y, z = run(session(model, ort_library), n=np.int64(3), a=a, b=b)
    want = sub(sub(sub(a, b), b), b)
    np.testing.assert_array_equal(y, want)
    np.testing.assert_array_equal(z[2], want)


# Declared inputs -> what the session says of the inner value `y`, an output that the model declares without a shape.
INFERRED: dict[str, tuple[str, list[int | str] | None]] = {
    "static": ("float[3, 4] x, float[4] b", [3, 4]),
    "symbols": ("float[N, M] x, float[M] b", ["N", "M"]),
    "symbols-and-one": ("float[N, M] x, float[1] b", ["N", "M"]),
    "symbol-against-static": ("float[N, M] x, float[4] b", ["N", 4]),
    "one-against-symbol": ("float[3, 1] x, float[M] b", [3, "M"]),
    "rank-grows": ("float[M] x, float[2, 1, 1] b", [2, 1, "M"]),
    "two-symbols": ("float[N, 4] x, float[M, 1] b", ["*", 4]),
    "unnamed": ("float[?, 4] x, float[4] b", ["*", 4]),
    "unnamed-against-static": ("float[?, 4] x, float[3, 1] b", [3, 4]),
    "zero": ("float[0, N] x, float[1, N] b", [0, "N"]),
    "scalar": ("float[N, 4] x, float b", None),
    "both-scalars": ("float x, float b", None),
}


def inferred_model(inputs: str) -> onnx.ModelProto:
    return sub_model(one(inputs, "float[]"), checked=False)


@pytest.mark.parametrize("name", INFERRED)
def test_inferred_shapes(ort_library: str, name: str) -> None:
    """Known dims and symbols arrive; an unknown dim ("*") gets a name that nothing else has."""
    inputs, want = INFERRED[name]
    shape = session(inferred_model(inputs), ort_library).get_outputs()[0].shape
    if want is None:  # the runtime shows scalars and unknown ranks alike: nothing may be inferred
        assert shape == []
        return
    assert len(shape) == len(want)
    for have, dim in zip(shape, want, strict=True):
        if dim == "*":
            assert isinstance(have, str)
            assert have not in ("N", "M")
        else:
            assert have == dim


def test_pad_is_part_of_the_inferred_shape(ort_library: str) -> None:
    op = "FusedElementwise1"
    model = fused_model(
        one("float[N, C, H, W] x, float[C] b", "float[]"),
        {op: """FusedElementwise1 (kernels, x0, x1) => (y0)
            { axes = Constant<value = int64[2] {1, 2}>() p = Unsqueeze(x1, axes) d = Sub(x0, p) y0 = Mul(d, p) }"""},
        {op: SUB.replace("in x1 f32", "in x1 f32 pad 2")}, checked=False,
    )  # fmt: skip
    s = session(model, ort_library)
    assert s.get_outputs()[0].shape == ["N", "C", "H", "W"]
    x, b = floats(2, 3, 4, 5), floats(3, seed=1)
    np.testing.assert_array_equal(run(s, x=x, b=b)[0], sub(x, b[:, None, None]))


def test_shapes_of_several_outputs_are_inferred_as_far_as_the_node_says(ort_library: str) -> None:
    """The attribute `outputs` is believed, but no more than the program; without it the first output is inferred."""
    op = "FusedElementwise1"
    model = fused_model(
        """g (float[N, 4] x, float[4] b) => (float[] d, float[] p) {
            d, p = onnxfuse.FusedElementwise1(kernels, x, b)
        }""",
        {op: "FusedElementwise1 (kernels, x0, x1) => (y0, y1) { y0 = Sub(x0, x1) y1 = Mul(y0, x1) }"},
        {op: "onnxfuse 1\nin x0 f32\nin x1 f32\nt0 = sub.f32 x0 x1\nt1 = mul.f32 t0 x1\nout t0\nout t1\n"},
        checked=False,
    )  # fmt: skip
    assert [o.shape for o in session(model, ort_library).get_outputs()] == [["N", 4], []]
    model.functions[0].attribute.append("outputs")
    model.graph.node[0].attribute.append(helper.make_attribute("outputs", 2))
    s = session(model, ort_library)
    assert [o.shape for o in s.get_outputs()] == [["N", 4], ["N", 4]]
    x, b = floats(3, 4), floats(4, seed=1)
    for got, want in zip(run(s, x=x, b=b), (x - b, (x - b) * b), strict=True):
        np.testing.assert_array_equal(got, want)
    model.graph.node[0].attribute[-1].i = 3
    assert [o.shape for o in session(model, ort_library).get_outputs()] == [[], []]


def test_unknown_rank(ort_library: str) -> None:
    """No shape is inferred from a value without a rank, next to one with a rank; any rank runs."""
    model = sub_model(
        """g (float[N] x, int64[R] s, float[4] b) => (float[] y, float[] z) {
            r = Reshape(x, s)
            y = onnxfuse.FusedElementwise1(kernels, r, b)
            w = onnxfuse.FusedElementwise1(kernels, y, y)
            z = Relu(w)
        }""", OTHER_BODY, checked=False
    )  # fmt: skip
    model.graph.value_info.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, None))
    s = session(model, ort_library)
    assert [o.shape for o in s.get_outputs()] == [[], []]
    b = floats(4, seed=1)
    for shape in ((3, 4), (2, 1, 4), (12, 1), (3, 1, 1, 4), (4,), (1,), ()):
        x = floats(*shape)
        y, z = run(s, x=x.reshape(-1), s=np.array(shape, np.int64), b=b)
        want = sub(x, b)
        np.testing.assert_array_equal(y, want)
        np.testing.assert_array_equal(z, np.maximum(sub(want, want), 0))


def test_scalars_in_a_scan(ort_library: str) -> None:
    """Scan wants the shapes of what its body gives, and the runtime infers none where a scalar enters a fused node."""
    body = helper.make_graph(
        [helper.make_node("Neg", ["v"], ["a"]), helper.make_node("Mul", ["a", "s"], ["w"])], "body",
        [helper.make_tensor_value_info("v", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info("w", TensorProto.FLOAT, None)],
    )
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[5] x, float f) => (float[5] y) { b = Neg(x)  c = Mul(b, f)  s = ReduceSum<keepdims = 0>(c) }""")
    model.graph.node.append(helper.make_node("Scan", ["c"], ["y"], body=body, num_scan_inputs=1))
    original = from_proto(model)
    fused = apply(original, make_plan(original))
    assert len(fused.functions) == 1
    feed = {"x": floats(5), "f": np.array(2, np.float32)}
    np.testing.assert_array_equal(run(session(fused, ort_library), **feed)[0], run(session(model), **feed)[0])


def test_constant_and_overridable_inputs(ort_library: str) -> None:
    graph = "g ({}) => (float[3, 4] y) {{ y = onnxfuse.FusedElementwise1(kernels, x, w) }}"
    w, other = floats(4, seed=1), floats(4, seed=2)
    x = floats(3, 4)
    constant = sub_model(graph.format("float[3, 4] x"), OTHER_BODY, w=w)
    np.testing.assert_array_equal(run(session(constant, ort_library), x=x)[0], sub(x, w))
    overridable = sub_model(graph.format("float[3, 4] x, float[4] w"), OTHER_BODY, w=w)
    s = session(overridable, ort_library)
    np.testing.assert_array_equal(run(s, x=x)[0], sub(x, w))
    np.testing.assert_array_equal(run(s, x=x, w=other)[0], sub(x, other))


def test_mixed_types_and_several_outputs(ort_library: str) -> None:
    model = mixed_model()
    x, i, m = floats(3, 4) * 9, np.array([-3, 0, 1, 5]), np.array([[True], [False], [True]])
    results = [run(session(model, lib), x=x, i=i, m=m) for lib in (None, ort_library)]
    for have, want in zip(*results, strict=True):
        assert have.dtype == want.dtype
        np.testing.assert_array_equal(have, want)


@pytest.mark.parametrize("level", LEVELS, ids=["disabled", "all"])
@pytest.mark.parametrize("known", [True, False], ids=["rank", "no-rank"])
def test_half_between_products(ort_library: str, known: bool, level: Any) -> None:
    """The runtime may turn the edges of the node into float32."""
    model = half_model(known)
    first, second = (numpy_helper.to_array(model.graph.initializer[k]).astype(np.float64) for k in (1, 2))
    x = floats(5, 16).astype(np.float16)
    p = x.astype(np.float64) @ first
    want = np.abs(np.tanh(1.25 * p) + p) @ second
    for lib in (None, ort_library):
        have = run(session(model, lib, level=level), x=x, s=np.array([5, 16]))[0]
        assert have.dtype == np.float16
        np.testing.assert_allclose(have.astype(np.float64), want, rtol=4e-3, atol=4e-3)


def one_node(**changes: Any) -> onnx.ModelProto:
    """A node named `the node`, with one thing wrong with it."""
    model = gate_model(one("float[N, 4] x, float[4] b", "float[N, 4]"))
    node = model.graph.node[0]
    node.name = "the node"
    for name, value in changes.items():
        kept = [a for a in node.attribute if a.name != name]
        del node.attribute[:]
        node.attribute.extend(kept)
        if value is not None:
            node.attribute.append(helper.make_attribute(name, value))
    return model


def scalar(value: Any, dtype: int, dims: Sequence[int] = ()) -> onnx.TensorProto:
    return helper.make_tensor("c", dtype, dims, value)


TAMPERED: dict[str, tuple[dict[str, Any], str]] = {
    "junk": ({"program": "junk"}, "line 1: the line does not end with a newline: 'junk'"),
    "instruction": ({"program": GATE.replace("sigmoid", "sigmund")}, "line 7: unknown instruction 'sigmund'"),
    "operand": ({"program": GATE.replace("x0 c0", "x0 x7")}, "line 5: 'x7' is used before it is defined"),
    "arity": ({"program": GATE.replace("x0 c0", "x0")}, "line 5: expected an operand"),
    "type": ({"program": GATE.replace("mul.f32 x0", "mul.f64 x0")},
             "line 5: operand 'x0' of 'mul.f64' is f32, not f64"),
    "huge": ({"program": GATE + "out t3\n" * 1_500_000}, "the limit is 1048576"),
    "bytes": ({"program": b"\xff\x00\xfe\n"}, "line 1: "),
    "no-program": ({"program": None}, "the string attribute 'program' is missing"),
    "program-is-a-number": ({"program": 7}, "the string attribute 'program' is missing"),
    "no-scalar": ({"c0": None}, "tensor attribute c0 is missing or cannot be read"),
    "scalar-is-a-number": ({"c0": 1.5}, "tensor attribute c0 is missing or cannot be read"),
    "scalar-type": ({"c0": scalar([1.5], TensorProto.DOUBLE)}, "attribute c0 is f64, but f32 in the program"),
    "scalar-string": ({"c0": scalar(["x"], TensorProto.STRING)}, "attribute c0 is element type 8, but f32"),
    "scalar-size": ({"c0": scalar([1.0, 2.0], TensorProto.FLOAT, [2])}, "attribute c0 has shape [2] instead of one"),
    "input-type": ({"program": GATE.replace("x1 f32", "x1 f64").replace("t0 x1", "t0 t0")},
                   "input 2 (x1) is f32 here, but f64 in the program"),
    "integer": ({"program": GATE.replace("x1 f32", "x1 i32").replace("t0 x1", "t0 t0")}, "but i32 in the program"),
    "too-many-inputs": ({"program": GATE.replace("in c0", "in x2 f32\nin c0")},
                        "the node has 3 inputs, the program needs 4"),
    "too-many-outputs": ({"program": GATE + "out t2\n"}, "the node has 1 outputs, the program needs 2"),
}  # fmt: skip


@pytest.mark.parametrize("name", TAMPERED)
def test_tampered_node_is_refused(ort_library: str, name: str) -> None:
    changes, words = TAMPERED[name]
    with pytest.raises(Exception, match="onnxfuse: node 'the node' \\(FusedElementwise1\\): ") as caught:
        session(one_node(**changes), ort_library)
    assert words in str(caught.value)


def test_wrong_output_type_is_refused(ort_library: str) -> None:
    """By the runtime where the library has inferred the type, else (a scalar: nothing is inferred) by the kernel."""
    text = SUB.replace("out t1", "t2 = cast.f32.f64 t1\nout t2")
    kernel = "output 0 is f32 here, but f64 in the program"
    for b, words in (("float[4] b", "does not match expected type"), ("float b", kernel)):
        model = sub_model(one(f"float[N, 4] x, {b}", "float[N, 4]"))
        model.graph.node[0].name = "the node"
        model.graph.node[0].attribute[0].s = text.encode()
        with pytest.raises(Exception, match="the node") as caught:
            session(model, ort_library)
        assert words in str(caught.value)


def test_shapes_that_do_not_fit_name_the_node(ort_library: str) -> None:
    model = sub_model(one("float[N] x, float[M] b", "float[K]"))
    model.graph.node[0].name = "the node"
    s = session(model, ort_library)
    with pytest.raises(Exception, match="the node") as caught:
        run(s, x=floats(3), b=floats(4))
    assert (
        "node 'the node' (FusedElementwise1): input 1 (x0) of shape [3] and input 2 (x1) of shape [4] do not broadcast"
        in str(caught.value)
    )
    np.testing.assert_array_equal(run(s, x=floats(3), b=floats(1))[0], sub(floats(3), floats(1)))


@pytest.mark.parametrize("threads", [1, 2])
def test_chain_in_place(ort_library: str, threads: int) -> None:
    """Values that the runtime may write over, one that enters twice, and one with a later use."""
    model = sub_model(CHAIN, OTHER_BODY)
    s = session(model, ort_library, threads=threads)
    for shape in ((3, 4), (1, 300), (700, 3), (300, 700)):
        x, b = floats(*shape), floats(shape[1], seed=1)
        w = sub(sub(np.maximum(x, 0), b), b)
        np.testing.assert_array_equal(run(s, x=x, b=b)[0], sub(b, w) - sub(w, w))


def test_io_binding(ort_library: str) -> None:
    s = session(sub_model(one("float[N] x, float[N] b", "float[N]")),
                ort_library)  # fmt: skip
    x, b = floats(1000), floats(1000, seed=1)
    value = onnxruntime.OrtValue.ortvalue_from_numpy
    for reuse in ("new", "x", "b"):
        values = {"x": value(x.copy()), "b": value(b.copy()), "new": value(np.zeros_like(x))}
        binding = s.io_binding()
        for name in ("x", "b"):
            binding.bind_ortvalue_input(name, values[name])
        binding.bind_ortvalue_output("y", values[reuse])
        s.run_with_iobinding(binding)
        np.testing.assert_array_equal(values[reuse].numpy(), sub(x, b))


def numbered(k: int) -> onnx.ModelProto:
    """A model of one node FusedElementwise<k> whose body betrays itself."""
    op = f"FusedElementwise{k}"
    return fused_model(
        f"g (float[N] x, float[N] b) => (float[N] y) {{ y = onnxfuse.{op}(kernels, x, b) }}",
        {op: OTHER_BODY.replace("FusedElementwise1", op)}, {op: SUB},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("k", "names", "kernel"),
    [
        (1, None, True), (16, None, True), (17, None, False),
        (200, "FusedElementwise:200", True), (201, "FusedElementwise:200", False),
        (40, "FusedDevice:9,FusedElementwise:40", True), (25, "FusedDevice:99", False),
        (1, "FusedElementwise:0", False),
    ],
)  # fmt: skip
def test_number_of_names(ort_library: str, k: int, names: str | None, kernel: bool) -> None:
    """A body whose number is not registered runs as plain operators; `onnxfuse.names` asks for more."""
    x, b = floats(5), floats(5, seed=1)
    s = session(numbered(k), ort_library, config={"onnxfuse.names": names} if names else None)
    np.testing.assert_array_equal(run(s, x=x, b=b)[0], sub(x, b) if kernel else x + b)


@pytest.mark.parametrize("names", ["", "FusedElementwise", "F:", "F:-1", "F:4097", "F:1,", "F: 7", "F:" + "9" * 20])
def test_wrong_number_of_names(ort_library: str, names: str) -> None:
    with pytest.raises(Exception, match=r"onnxfuse: RegisterCustomOps: session config onnxfuse\.names is "):
        session(numbered(1), ort_library, config={"onnxfuse.names": names})


def test_many_sessions(ort_library: str) -> None:
    """Sessions with different names, alive together; one that failed between them does no harm."""
    x, b = floats(5), floats(5, seed=1)
    sessions = [
        session(numbered(k), ort_library, config={"onnxfuse.names": f"FusedElementwise:{k}"}) for k in (3, 50, 7)
    ]
    with pytest.raises(Exception, match="unknown instruction"):
        session(one_node(program=GATE.replace("sigmoid", "sigmund")), ort_library)
    sessions.append(session(numbered(2), ort_library))
    for s in reversed(sessions):
        np.testing.assert_array_equal(run(s, x=x, b=b)[0], sub(x, b))
    del sessions[0]
    np.testing.assert_array_equal(run(sessions[0], x=x, b=b)[0], sub(x, b))


def test_process_ends_with_a_session_alive(ort_library: str, tmp_path: Path) -> None:
    onnx.save(numbered(1), tmp_path / "m.onnx")
    code = f"""
import numpy, onnxruntime
options = onnxruntime.SessionOptions()
options.register_custom_ops_library({ort_library!r})
keep = onnxruntime.InferenceSession({str(tmp_path / "m.onnx")!r}, options, providers=["CPUExecutionProvider"])
print(keep.run(None, {{"x": numpy.ones(3, "f"), "b": numpy.full(3, 3, "f")}})[0].tolist())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "[-6.0, -6.0, -6.0]", "")


@pytest.mark.parametrize(("k", "config", "kernel"), [
    (1, {}, False), (1, {"onnxfuse.device": "cpu"}, False), (1, {"onnxfuse.device": "cuda"}, True),
    (16, {"onnxfuse.device": "cuda"}, True), (17, {"onnxfuse.device": "cuda"}, False),
    (40, {"onnxfuse.device": "cuda", "onnxfuse.names": "FusedDevice:40,FusedElementwise:1"}, True),
    (1, {"onnxfuse.device": "cuda", "onnxfuse.names": "FusedDevice:0"}, False),
    (1, {"onnxfuse.names": "FusedDevice:40"}, False),
])  # fmt: skip
def test_names_for_a_gpu(ort_library: str, k: int, config: dict[str, str], kernel: bool) -> None:
    """FusedDevice is its body unless the session asks for a GPU; with that, a kernel for the CPU is there, too."""
    model = numbered(k)
    for owner in (*model.graph.node, *model.functions):
        field = "op_type" if isinstance(owner, onnx.NodeProto) else "name"
        setattr(owner, field, getattr(owner, field).replace("FusedElementwise", "FusedDevice"))
    x, b = floats(5), floats(5, seed=1)
    s = session(model, ort_library, config=config)
    np.testing.assert_array_equal(run(s, x=x, b=b)[0], sub(x, b) if kernel else x + b)


def test_wrong_device(ort_library: str) -> None:
    with pytest.raises(Exception, match=r"session config onnxfuse\.device is 'tpu'; expected 'cpu' or 'cuda'"):
        session(numbered(1), ort_library, config={"onnxfuse.device": "tpu"})
