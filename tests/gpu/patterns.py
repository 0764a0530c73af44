"""Small models, each with one pattern that ONNX Runtime may fuse by itself: a convolution or a matrix product with an
activation, a bias or a residual behind it, and activations and normalizations that are written out.

What the runtime makes of them on a provider is read from the nodes that run (tests/gpu/session_child.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper, parser

__all__ = ["DTYPES", "PATTERNS", "pattern"]

DTYPES = ("float32", "float16")
SHAPES: dict[str, tuple[int, ...]] = {"conv": (1, 16, 16, 16), "flat": (8, 16), "rows": (1, 8, 16)}
CONSTANTS: dict[str, tuple[int, ...]] = {
    "kernel": (16, 16, 3, 3), "weight": (16, 16), "bias": (16,), "channels": (1, 16, 1, 1), "c16": (16,),
    "zero": (), "half": (), "one": (), "six": (), "root": (), "cube": (), "slope": (), "quick": (), "two": (),
    "three": (),
}  # fmt: skip
VALUES = {
    "zero": 0.0, "half": 0.5, "one": 1.0, "six": 6.0, "root": 0.7978846, "cube": 0.044715, "slope": 1.4142135,
    "quick": 1.702, "two": 2.0, "three": 3.0,
}  # fmt: skip
CONV = "c = Conv <pads = [1, 1, 1, 1]> (x, kernel, bias)"
GEMM = "c = Gemm (x, weight, bias)"
ROWS = "m = MatMul (x, weight) c = Add (m, bias)"
GELU = "d = Div ({0}, slope) e = Erf (d) f = Add (e, one) g = Mul ({0}, f) y = Mul (g, half)"
PATTERNS: dict[str, tuple[str, str]] = {
    "Conv Relu": ("conv", f"{CONV} y = Relu (c)"),
    "Conv LeakyRelu": ("conv", f"{CONV} y = LeakyRelu <alpha = 0.1> (c)"),
    "Conv Clip": ("conv", f"{CONV} y = Clip (c, zero, six)"),
    "Conv Sigmoid": ("conv", f"{CONV} y = Sigmoid (c)"),
    "Conv Tanh": ("conv", f"{CONV} y = Tanh (c)"),
    "Conv HardSwish": ("conv", f"{CONV} y = HardSwish (c)"),
    "Conv SiLU": ("conv", f"{CONV} s = Sigmoid (c) y = Mul (c, s)"),
    "Conv Add": ("conv", f"{CONV} y = Add (c, r)"),
    "Conv Add Relu": ("conv", f"{CONV} a = Add (c, r) y = Relu (a)"),
    "Conv Mul Add (channels)": ("conv", f"{CONV} m = Mul (c, channels) y = Add (m, channels)"),
    "Conv BatchNormalization Relu": ("conv", f"{CONV} n = BatchNormalization (c, c16, c16, c16, c16) y = Relu (n)"),
    "Gemm Relu": ("flat", f"{GEMM} y = Relu (c)"),
    "Gemm LeakyRelu": ("flat", f"{GEMM} y = LeakyRelu <alpha = 0.1> (c)"),
    "Gemm Sigmoid": ("flat", f"{GEMM} y = Sigmoid (c)"),
    "Gemm Tanh": ("flat", f"{GEMM} y = Tanh (c)"),
    "Gemm Gelu": ("flat", f"{GEMM} y = Gelu (c)"),
    "Gemm Add": ("flat", f"{GEMM} y = Add (c, r)"),
    "MatMul Mul": ("rows", "m = MatMul (x, weight) y = Mul (m, half)"),
    "MatMul Add Relu": ("rows", f"{ROWS} y = Relu (c)"),
    "MatMul Add Gelu (erf)": ("rows", ROWS + " " + GELU.format("c")),
    "Gelu (erf)": ("rows", GELU.format("x")),
    "Gelu (tanh)": ("rows", "a = Pow (x, three) b = Mul (a, cube) c = Add (x, b) d = Mul (c, root) e = Tanh (d) "
                            "f = Add (e, one) g = Mul (x, f) y = Mul (g, half)"),
    "x sigmoid(x)": ("rows", "s = Sigmoid (x) y = Mul (x, s)"),
    "x sigmoid(1.702 x)": ("rows", "k = Mul (x, quick) s = Sigmoid (k) y = Mul (x, s)"),
    "LayerNormalization written out": (
        "rows", "m = ReduceMean <axes = [-1]> (x) d = Sub (x, m) q = Pow (d, two) v = ReduceMean <axes = [-1]> (q) "
                "e = Add (v, half) s = Sqrt (e) n = Div (d, s) w = Mul (n, bias) y = Add (w, bias)"),
    "Add LayerNormalization": ("rows", "a = Add (x, r) y = LayerNormalization <axis = -1> (a, bias, bias)"),
}  # fmt: skip


def pattern(name: str, dtype: str) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """The model, and the shapes of its inputs."""
    kind, body = PATTERNS[name]
    words = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
    inputs: dict[str, Any] = {value: SHAPES[kind] for value in ("x", "r") if value in words}
    element = {"float32": "float", "float16": "float16"}[dtype]
    dims = ",".join(map(str, SHAPES[kind]))
    given = ", ".join(f"{element}[{dims}] {value}" for value in inputs)
    opset = 20 if "Gelu" in words else 17
    text = f'<ir_version: 9, opset_import: ["" : {opset}]> pattern ({given}) => ({element}[{dims}] y) {{ {body} }}'
    model = parser.parse_model(text)
    random = np.random.default_rng(0)
    for value, shape in CONSTANTS.items():
        if value in words:
            array = np.full(shape, VALUES[value]) if value in VALUES else random.uniform(0.1, 0.2, shape)
            model.graph.initializer.append(numpy_helper.from_array(array.astype(dtype), value))
    onnx.checker.check_model(model)
    return model, inputs
