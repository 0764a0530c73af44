"""Models that are optimized for the GPU, and values for their inputs. All are of instructions that are exact, so that
CPU and GPU give the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper, parser

from onnxfuse.codegen.kernels import LONGEST

Array = np.ndarray[Any, Any]
HEAD = '<ir_version: 8, opset_import: ["": 17]>\n'

LAYOUTS: dict[str, tuple[str, tuple[int, ...], str, tuple[int, ...]]] = {
    "contiguous": ("N, M", (40, 64), "N, M", (40, 64)),
    "odd": ("N, M", (37, 61), "N, M", (37, 61)),
    "row": ("N, 64", (50, 64), "64", (64,)),
    "odd row": ("N, 67", (50, 67), "67", (67,)),
    "short row": ("N, 5", (70, 5), "5", (5,)),
    "column": ("N, 96", (9, 96), "N, 1", (9, 1)),
    "channel": ("N, 3, H, W", (2, 3, 16, 20), "3, 1, 1", (3, 1, 1)),
    "outer": ("N, 1", (12, 1), "M", (80,)),
    "rank 5": ("2, 1, 4, 1, 6", (2, 1, 4, 1, 6), "1, 3, 1, 5, 6", (1, 3, 1, 5, 6)),
    "rank 10": ("2, 1, 2, 1, 2, 1, 2, 1, 2, 1", (2, 1) * 5, "1, 3, 1, 2, 1, 2, 1, 2, 1, 3",
                (1, 3, 1, 2, 1, 2, 1, 2, 1, 3)),
    "rank 20": (", ".join(["2, 1"] * 4 + ["1"] * 12), (2, 1) * 4 + (1,) * 12, ", ".join(["1, 2"] * 4 + ["1"] * 12),
                (1, 2) * 4 + (1,) * 12),
    "one element": ("1", (1,), "1, 1", (1, 1)),
    "single": ("N, 64", (6, 64), "1", (1,)),
    "scalars": ("", (), "", ()),
    "scalar": ("N, 64", (6, 64), "", ()),
    "no rows": ("N, 8", (0, 8), "8", (8,)),
    "no columns": ("3, N", (3, 0), "3, 1", (3, 1)),
}  # fmt: skip
"""Shapes of x and b, declared and at run time."""
EMPTY = ("no rows", "no columns")
KERNEL = {
    "contiguous": "rows", "odd": "rows", "row": "rows", "odd row": "rows", "short row": "strided",
    "column": "rows", "channel": "rows", "outer": "rows", "rank 5": "strided", "rank 10": "strided",
    "rank 20": "strided", "one element": "rows", "single": "rows", "scalars": "rows",
    "scalar": "rows",
}  # fmt: skip
"""The kernel that each layout is run by."""
PIECES = {"rank 10": 2 * 3}
"""Launches, where one does not do: ten dims that do not merge are two more than a kernel takes."""


def _model(graph: str, **initializers: Array) -> onnx.ModelProto:
    model = parser.parse_model(HEAD + graph)
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in initializers.items())
    onnx.checker.check_model(model, full_check=True)
    return model


def affine(x: str, b: str, y: str | None = None) -> onnx.ModelProto:
    """(x - b) * 1.5 * b + x"""
    shape = y if y is not None else ", ".join(f"R{k}" for k in range(max(len(x.split(",")), len(b.split(",")))))
    tensor = "float" if not x and not b else f"float[{shape}]"
    inputs = ", ".join(f"float[{s}] {name}" if s else f"float {name}" for s, name in ((x, "x"), (b, "b")))
    return _model(
        f"""g ({inputs}) => ({tensor} y) {{
            c = Constant<value = float {{1.5}}>()
            d = Sub(x, b) p = Mul(d, c) q = Mul(p, b) y = Add(q, x)
        }}"""
    )


def half() -> onnx.ModelProto:
    """float16 with a bias row."""
    return _model(
        """g (float16[N, 72] x, float16[72] b) => (float16[N, 72] y) {
            d = Add(x, b) p = Mul(d, c) q = Max(p, b) y = Sub(q, x)
        }""", c=np.array(1.25, np.float16)
    )  # fmt: skip


def half_products() -> onnx.ModelProto:
    """The same between two products of matrices, which the CPU computes in float32."""
    rng = np.random.default_rng(5)
    weights = [rng.standard_normal((72, 72)).astype(np.float16) / 8 for _ in range(2)]
    return _model(
        """g (float16[N, 72] x, float16[72] b) => (float16[N, 72] y) {
            a = MatMul(x, v) d = Add(a, b) p = Mul(d, c) q = Max(p, b) r = Sub(q, a) y = MatMul(r, w)
        }""", c=np.array(1.25, np.float16), v=weights[0], w=weights[1]
    )  # fmt: skip


def long() -> onnx.ModelProto:
    """A node so long that its code has no vectors."""
    count = LONGEST // 4 + 1
    names = ["x", *(f"t{k}" for k in range(1, count)), "y"]
    steps = [f"{names[k + 1]} = {('Sub', 'Add')[k % 2]}({names[k]}, b)" for k in range(count)]
    return _model(f"g (float[N, 64] x, float[64] b) => (float[N, 64] y) {{ {' '.join(steps)} }}")


def outputs() -> onnx.ModelProto:
    """Two outputs of one node, the first of which the second is made from."""
    return _model(
        """g (float[N, M] x, float[N, M] a, float[M] b) => (float[N, M] u, float[N, M] v) {
            p = Mul(x, a) u = Add(p, b) q = Max(u, x) v = Sub(q, b)
        }"""
    )


def mixed() -> onnx.ModelProto:
    """Elements of one, four and eight bytes: an image, a mask, integers; outputs of three types."""
    return _model(
        """g (uint8[N, 5, 3] i, float[3] m, bool[N, 5, 1] k, int64[N, 5, 3] n) =>
             (float[N, 5, 3] f, bool[N, 5, 3] t, int64[N, 5, 3] z) {
            v = Cast<to = 1>(i) s = Sub(v, m) o = Cast<to = 1>(n) w = Where(k, s, o) f = Mul(w, s)
            t = Less(f, s) h = Cast<to = 7>(i) z = Add(h, n)
        }"""
    )


def branches() -> onnx.ModelProto:
    """Fused nodes in the body of an If, which read values from outside."""
    return _model(
        """g (bool c, float[N, 64] x, float[64] b) => (float[N, 64] y) {
            one = Constant<value = float {1.5}>()
            t = Transpose(x) m = Transpose(t)
            y = If (c) <
                then_branch = yes () => (float[N, 64] u) { d = Sub(m, b) p = Mul(d, one) q = Mul(p, b) u = Add(q, m) },
                else_branch = no () => (float[N, 64] v) { e = Add(m, b) f = Mul(e, m) v = Sub(f, b) }
            >
        }"""
    )


def loop() -> onnx.ModelProto:
    """A fused node in the body of a Loop."""
    return _model(
        """g (int64 n, float[8, 64] x, float[64] b) => (float[8, 64] y) {
            yes = Constant<value = bool {1}>() c = Constant<value = float {1.5}>()
            y = Loop (n, yes, x) <
                body = l (int64 i, bool go, float[8, 64] h) => (bool on, float[8, 64] o) {
                    on = Identity(go) d = Sub(h, b) p = Mul(d, c) q = Mul(p, b) o = Add(q, h)
                }
            >
        }"""
    )


def many() -> onnx.ModelProto:
    """The same program three times, and another one once, with products of matrices between them that only the CPU
    has; b is read by both."""
    rng = np.random.default_rng(6)
    return _model(
        """g (float[N, 64] x) => (float[N, 64] y, float[N, 64] z) {
            c = Constant<value = float {1.5}>()
            d0 = Sub(x, b) p0 = Mul(d0, c) q0 = Mul(p0, b) y0 = Add(q0, x)
            a1 = MatMul(y0, w)
            d1 = Sub(a1, b) p1 = Mul(d1, c) q1 = Mul(p1, b) y1 = Add(q1, a1)
            a2 = MatMul(y1, w)
            d2 = Sub(a2, b) p2 = Mul(d2, c) q2 = Mul(p2, b) y = Add(q2, a2)
            a3 = MatMul(y, w) r = CumSum(b, zero)
            e = Add(a3, r) f = Mul(e, a3) z = Sub(f, r)
        }""",
        w=(rng.standard_normal((64, 64)) / 8).astype(np.float32), b=rng.standard_normal(64).astype(np.float32),
        zero=np.array(0),
    )  # fmt: skip


def normalization() -> onnx.ModelProto:
    """A normalization by channel, which is fused on a GPU only, before a group that is fused everywhere."""
    return _model(
        """g (float[N, 4, 30] x) => (float[N, 4, 30] y)
            <float[4] s = {1, 2, 4, 8}, float[4] v = {4, 0.25, 16, 1}, int64 two = {2}> {
            n = BatchNormalization<epsilon = 0.0>(x, s, s, v, v) r = Relu(n)
            c = CumSum(r, two) a = Sub(c, x) y = Mul(a, c)
        }"""
    )


def floats(*shape: int, seed: int = 0) -> Array:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape), np.float32)
