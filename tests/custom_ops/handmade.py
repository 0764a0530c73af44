"""Hand-made models with fused nodes, which several tests share."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import helper, inliner

from tests.custom_ops.fused_model import fused_model, nodes_of

# x * c0 + b, then times its sigmoid
GATE = """onnxfuse 1
in x0 f32
in x1 f32
in c0 f32
t0 = mul.f32 x0 c0
t1 = add.f32 t0 x1
t2 = sigmoid.f32 t1
t3 = mul.f32 t1 t2
out t3
"""
GATE_BODY = """FusedElementwise1 (kernels, x0, x1) => (y0)
{ c = Constant<value: tensor = @c0>() p = Mul(x0, c) q = Add(p, x1) s = Sigmoid(q) y0 = Mul(q, s) }"""
SCALE = np.array(1.5, np.float32)

# (x0 - x1) * x1; the body that betrays itself adds
SUB = "onnxfuse 1\nin x0 f32\nin x1 f32\nt0 = sub.f32 x0 x1\nt1 = mul.f32 t0 x1\nout t1\n"
SUB_BODY = "FusedElementwise1 (kernels, x0, x1) => (y0) { d = Sub(x0, x1) y0 = Mul(d, x1) }"
OTHER_BODY = "FusedElementwise1 (kernels, x0, x1) => (y0) { y0 = Add(x0, x1) }"


def one(inputs: str, output: str) -> str:
    """A graph of one fused node."""
    return f"g ({inputs}) => ({output} y) {{ y = onnxfuse.FusedElementwise1(kernels, x, b) }}"


def gate_model(graph: str) -> onnx.ModelProto:
    op = "FusedElementwise1"
    return fused_model(graph, {op: GATE_BODY}, {op: GATE}, {op: [SCALE]})


def sub_model(graph: str, body: str = SUB_BODY, checked: bool = True, **initializers: np.ndarray) -> onnx.ModelProto:
    op = "FusedElementwise1"
    return fused_model(graph, {op: body}, {op: SUB}, initializers=initializers, checked=checked)


IF_GRAPH = """g (bool c, float[N, 4] a, float[4] b) => (float[N, 4] y) {
    m = onnxfuse.FusedElementwise1(kernels, a, b)
    y = If (c) <
        then_branch = t () => (float[N, 4] u) { u = onnxfuse.FusedElementwise1(kernels, m, b) },
        else_branch = e () => (float[N, 4] v) { v = Identity(m) }
    >
}"""


HALF = """onnxfuse 1
in x0 f16
in c0 f16
t0 = cast.f16.f32 x0
t1 = cast.f16.f32 c0
t2 = mul.f32 t0 t1
t3 = tanh.f32 t2
t4 = add.f32 t3 t0
t5 = abs.f32 t4
t6 = cast.f32.f16 t5
out t6
"""
HALF_BODY = """FusedElementwise1 (kernels, x0) => (y0)
    { c = Constant<value: tensor = @c0>() q = Mul(x0, c) r = Tanh(q) s = Add(r, x0) y0 = Abs(s) }"""


CHAIN = """g (float[N, M] x, float[M] b) => (float[N, M] z) {
    a = Relu(x)
    y = onnxfuse.FusedElementwise1(kernels, a, b)
    w = onnxfuse.FusedElementwise1(kernels, y, b)
    v = onnxfuse.FusedElementwise1(kernels, w, w)
    u = onnxfuse.FusedElementwise1(kernels, b, w)
    z = Sub(u, v)
}"""



MIXED = """onnxfuse 1
in x0 f32
in x1 i64
in x2 bool
t0 = cast.i64.f32 x1
t1 = add.f32 x0 t0
t2 = select.bool.f32 x2 t1 x0
t3 = lt.f32.bool t2 x0
t4 = cast.f32.i64 t2
out t2
out t3
out t4
"""
MIXED_BODY = """FusedElementwise1 (kernels, x0, x1, x2) => (y0, y1, y2)
    { f = Cast<to = 1>(x1) a = Add(x0, f) y0 = Where(x2, a, x0) y1 = Less(y0, x0) y2 = Cast<to = 7>(y0) }"""


def mixed_model() -> onnx.ModelProto:
    """Three outputs of three types; inputs x, i, m."""
    return fused_model(
        """g (float[N, 4] x, int64[4] i, bool[N, 1] m) => (float[N, 4] a, bool[N, 4] b, int64[N, 4] c)
        { a, b, c = onnxfuse.FusedElementwise1(kernels, x, i, m) }""",
        {"FusedElementwise1": MIXED_BODY}, {"FusedElementwise1": MIXED},
    )  # fmt: skip


def half_model(known: bool) -> onnx.ModelProto:
    """A float16 chain between two products, of known rank or not; inputs x [N, 16] and s, its shape."""
    op = "FusedElementwise1"
    first, second = (np.random.default_rng(k).standard_normal((16, 16)).astype(np.float16) / 4 for k in (1, 2))
    reshape = "x1 = Identity(x)" if known else "x1 = Reshape(x, s)"
    model = fused_model(
        f"""g (float16[N, 16] x, int64[R] s) => (float16[N, 16] y) {{ {reshape}
            p = MatMul(x1, A) t = onnxfuse.FusedElementwise1(kernels, p) y = MatMul(t, B) }}""",
        {op: HALF_BODY}, {op: HALF}, {op: [np.array(1.25, np.float16)]}, {"A": first, "B": second},
    )  # fmt: skip
    return typed(model, onnx.TensorProto.FLOAT16)


def rankless_model() -> onnx.ModelProto:
    """Values of unknown rank; inputs x, s (a shape of x) and b."""
    return typed(sub_model(
        """g (float[N] x, int64[R] s, float[4] b) => (float[K] z) {
            r = Reshape(x, s)
            y = onnxfuse.FusedElementwise1(kernels, r, b)
            w = onnxfuse.FusedElementwise1(kernels, y, y)
            v = Relu(w)
            flat = Constant<value = int64[1] {-1}>()
            z = Reshape(v, flat)
        }"""
    ))  # fmt: skip


def typed(model: onnx.ModelProto, element: int = onnx.TensorProto.FLOAT) -> onnx.ModelProto:
    """The model with the element type of every inner fused value in its value_info: ORT before 1.22 needs it."""
    known = {value.name for value in [*model.graph.output, *model.graph.value_info]}
    for node in nodes_of(model.graph):
        if node.domain == "onnxfuse":
            for name in node.output:
                if name not in known:
                    model.graph.value_info.append(helper.make_tensor_value_info(name, element, None))
    return model


def models() -> Iterator[tuple[str, onnx.ModelProto, onnx.ModelProto, list[dict[str, np.ndarray]]]]:
    """Name, the model of plain operators, the same with fused nodes, feeds."""
    random = np.random.default_rng(3)

    def floats(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32)

    x, b = floats(5, 4), floats(4)
    half = {"x": floats(5, 16).astype(np.float16), "s": np.array([5, 16])}
    shapes = ((5, 4), (20, 1), (5, 1, 4), (1, 5, 4), (1, 1, 1, 20, 1))
    found = {
        "handmade-gate": (gate_model(one("float[N, 4] x, float[4] b", "float[N, 4]")), [{"x": x, "b": b}]),
        "handmade-if": (typed(sub_model(IF_GRAPH)), [{"c": np.array(c), "a": x, "b": b} for c in (True, False)]),
        "handmade-chain": (typed(sub_model(CHAIN)), [{"x": floats(n, 300), "b": floats(300)} for n in (1, 7, 400)]),
        "handmade-mixed": (
            mixed_model(), [{"x": x, "i": np.array([-3, 0, 1, 5]), "m": np.array([[True], [False]] * 2 + [[True]])}],
        ),
        "handmade-rankless": (
            rankless_model(), [{"x": x.reshape(-1), "s": np.array(s), "b": b} for s in shapes if s[-1] != 20],
        ),
        "handmade-half": (half_model(True), [half]),
        "handmade-half-rankless": (half_model(False), [half]),
    }  # fmt: skip
    for name, (fused, feeds) in found.items():
        yield name, inliner.inline_local_functions(fused), fused, feeds
