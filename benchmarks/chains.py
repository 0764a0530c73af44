"""The twelve chains of the bench: the model, the data and the reference of each.

A chain's ONNX text is what exporters write; its operands that are no graph inputs (biases, channel scales, scalars) are
initializers. The hand-written loop of a chain (benchmarks/native) has the chain's name and takes `Case.operands` in
their order; what torch and numexpr compute stands in opponents.py.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper, parser

from benchmarks.native import aligned

__all__ = ["CHAINS", "SIZES", "Case", "Chain", "chain"]

Array = np.ndarray[Any, np.dtype[Any]]
Shape = tuple[int, ...]

SIZES = (256, 65536, 1048576, 16777216)
TRANSCENDENTAL = "transcendental"
ARITHMETIC = "arithmetic"  # broadcasts and masks too


@dataclass(frozen=True)
class Chain:
    """One chain.

    `body` is ONNX text with the names of `inputs`, `vectors`, `scalars` and `outputs`. `inputs` maps the names of full
    tensors to their dtypes, "" for the dtype of the case. `vectors` gives initializers, by name, from the shape of the
    full tensors. `reference` computes the outputs in numpy, from the inputs and vectors by name, in their precision.
    `kind` says what bounds it. `order` are the operands of the hand-written loop where they are not inputs, then
    vectors. `cheap`: it should reach the speed of a copy at sizes beyond the caches; `half`: it is measured in float16
    too.
    """

    name: str
    about: str
    kind: str
    inputs: Mapping[str, str]
    body: str
    reference: Callable[..., Any]
    outputs: tuple[str, ...] = ("out",)
    scalars: Mapping[str, float] = field(default_factory=dict)
    vectors: Callable[[Shape], dict[str, Array]] = lambda shape: {}
    shape: Callable[[int], Shape] = lambda size: (size,)
    order: tuple[str, ...] = ()
    cheap: bool = False
    half: bool = False

    def case(self, size: int, dtype: str = "float32", seed: int = 0) -> Case:
        """The chain at about `size` elements, with data from `seed`."""
        return Case(self, size, self.shape(size), np.dtype(dtype), seed)


@dataclass(frozen=True)
class Case:
    """A chain at one size and dtype, with its model and its data. `size` is nominal, `shape` that of the data."""

    chain: Chain
    size: int
    shape: Shape
    dtype: np.dtype[Any]
    seed: int

    @functools.cached_property
    def vectors(self) -> dict[str, Array]:
        """The initializers that are no scalars, aligned."""
        return {name: _aligned(value.astype(self.dtype)) for name, value in self.chain.vectors(self.shape).items()}

    @functools.cached_property
    def scalars(self) -> dict[str, Array]:
        """The scalar initializers: arrays of rank 0."""
        return {name: np.array(value, self.dtype) for name, value in self.chain.scalars.items()}

    @functools.cached_property
    def feed(self) -> dict[str, Array]:
        """The graph inputs, aligned: normal floats with deviation 2, bytes of all values, masks that are half true."""
        generator = np.random.default_rng(self.seed)
        return {name: _aligned(_draw(generator, self.shape, np.dtype(kind or self.dtype)))
                for name, kind in self.chain.inputs.items()}

    @property
    def operands(self) -> dict[str, Array]:
        """Graph inputs and vectors, in the order of the hand-written loop."""
        known = {**self.feed, **self.vectors}
        return {name: known[name] for name in self.chain.order or known}

    @functools.cached_property
    def model(self) -> onnx.ModelProto:
        """The unfused model, with the shape of the data in it."""
        dims = ",".join(map(str, self.shape))
        takes = ", ".join(f"{_word(kind or self.dtype)}[{dims}] {name}" for name, kind in self.chain.inputs.items())
        gives = ", ".join(f"{_word(self.dtype)}[{dims}] {name}" for name in self.chain.outputs)
        model = parser.parse_model(
            f'<ir_version: 8, opset_import: ["" : 17]> {self.chain.name} ({takes}) => ({gives}) {{ {self.chain.body} }}'
        )
        for number, node in enumerate(model.graph.node):
            node.name = f"{node.op_type}_{number}"
        constants = {**self.vectors, **self.scalars}
        model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
        onnx.checker.check_model(model)
        return model

    def outputs(self) -> dict[str, Array]:
        """Memory for the outputs, every page of it touched."""
        made = {name: aligned(self.shape, self.dtype) for name in self.chain.outputs}
        for array in made.values():
            array.fill(1)
        return made

    def expected(self) -> dict[str, Array]:
        """The outputs, computed in float64."""
        given = {
            name: value if value.dtype.kind == "b" else value.astype(np.float64)
            for name, value in self.operands.items()
        }
        made = self.chain.reference(**given)
        return dict(zip(self.chain.outputs, made if isinstance(made, tuple) else (made,), strict=True))

    @property
    def elements(self) -> int:
        """Elements of one full tensor."""
        return math.prod(self.shape)

    @property
    def traffic(self) -> int:
        """Bytes that must move: every operand read once, every output written once."""
        read = sum(np.dtype(kind or self.dtype).itemsize for kind in self.chain.inputs.values()) * self.elements
        read += sum(value.nbytes for value in self.vectors.values())
        return read + self.dtype.itemsize * self.elements * len(self.chain.outputs)


def _aligned(value: Array) -> Array:
    """A copy whose memory begins where ONNX Runtime's own would."""
    made = aligned(value.shape, value.dtype)
    made[...] = value
    return made


def _draw(generator: np.random.Generator, shape: Shape, dtype: np.dtype[Any]) -> Array:
    made: Array
    if dtype.kind == "b":
        made = generator.random(shape, np.float32) < 0.5
    elif dtype.kind == "u":
        made = generator.integers(0, 256, shape, dtype)
    else:
        made = (generator.standard_normal(shape, np.float32) * np.float32(2)).astype(dtype, copy=False)
    return made


def _word(dtype: str | np.dtype[Any]) -> str:
    """A dtype as ONNX text writes it."""
    return {"float32": "float", "float16": "float16"}.get(str(dtype), str(dtype))


def _ramp(count: int, low: float, high: float) -> Array:
    return np.linspace(low, high, count, dtype=np.float32)


# ---------------------------------------------------------------- shapes and vectors


def _rows(size: int) -> Shape:
    return (size // 256, 256)


def _row_vectors(shape: Shape) -> dict[str, Array]:
    return {"bias": _ramp(shape[-1], -1.0, 1.0), "scale": _ramp(shape[-1], 0.5, 1.5)}


def _nchw(size: int) -> Shape:
    """Rows long enough that a channel operand is one value for a while, as in real networks."""
    side = {256: 8, 65536: 32, 1048576: 128, 16777216: 512}.get(size, 8)
    return (1, size // side**2, side, side)


def _channel_vectors(shape: Shape) -> dict[str, Array]:
    def column(low: float, high: float) -> Array:
        return _ramp(shape[1], low, high).reshape(shape[1], 1, 1)

    return {"scale": column(0.5, 1.5), "bias": column(-1.0, 1.0)}


def _hwc(size: int) -> Shape:
    """Height and width so that three channels make one element less than a power of four."""
    known = {256: (5, 17), 65536: (85, 257), 1048576: (451, 775), 16777216: (1785, 3133)}
    return (*known.get(size, (1, size // 3)), 3)


def _pixel_vectors(shape: Shape) -> dict[str, Array]:
    return {"mean": np.array([123.675, 116.28, 103.53]), "std": np.array([58.395, 57.12, 57.375])}


# ---------------------------------------------------------------- numpy


def _sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return 1.0 / (1.0 + np.exp(-x))


def _erf(x: Array) -> Array:
    made: Array = np.vectorize(math.erf, otypes=[np.float64])(x)
    return made


def arith16(x: Any, y: Any, z: Any, larger: Callable[[Any, Any], Any]) -> Any:
    """The chain of this name with the function for the larger of two, of numpy or another library."""
    t = larger(x * y + z, x) * 1.25 - y
    t = larger((t + 0.5) * z, -1.0) + x
    t = (t * 0.75 - z) * y + 0.125
    return (larger(t, y) - x) * 0.5


def _lstm(i: Array, f: Array, g: Array, o: Array, c: Array) -> tuple[Array, Array]:
    cell = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
    return cell, _sigmoid(o) * np.tanh(cell)


# ---------------------------------------------------------------- the table

_F = ""  # the dtype of the case
_GELU_TANH = """
    h = Mul(half, x)  cube = Pow(x, three)  k = Mul(kappa, cube)  s = Add(x, k)  b = Mul(beta, s)  t = Tanh(b)
    u = Add(one, t)  out = Mul(h, u)"""
_ARITH16 = """
    t1 = Mul(x, y)  t2 = Add(t1, z)  t3 = Max(t2, x)  t4 = Mul(t3, k125)  t5 = Sub(t4, y)  t6 = Add(t5, k50)
    t7 = Mul(t6, z)  t8 = Max(t7, low)  t9 = Add(t8, x)  t10 = Mul(t9, k75)  t11 = Sub(t10, z)  t12 = Mul(t11, y)
    t13 = Add(t12, k12)  t14 = Max(t13, y)  t15 = Sub(t14, x)  out = Mul(t15, k50)"""
_GATE = """
    e = Exp(x)  a = Add(e, one)  l = Log(a)  n = Neg(g)  q = Exp(n)  b = Add(q, one)  d = Div(l, b)  out = Tanh(d)"""
_LSTM = """
    sf = Sigmoid(f)  keep = Mul(sf, c)  si = Sigmoid(i)  tg = Tanh(g)  write = Mul(si, tg)  cell = Add(keep, write)
    so = Sigmoid(o)  tc = Tanh(cell)  hidden = Mul(so, tc)"""

CHAINS = (
    Chain(
        "swiglu", "a * sigmoid(a) * b", TRANSCENDENTAL, {"a": _F, "b": _F},
        "s = Sigmoid(a)  t = Mul(a, s)  out = Mul(t, b)",
        lambda a, b: a * _sigmoid(a) * b,
        half=True,
    ),
    Chain(
        "mish", "x * tanh(softplus(x))", TRANSCENDENTAL, {"x": _F},
        "s = Softplus(x)  t = Tanh(s)  out = Mul(x, t)",
        lambda x: x * np.tanh(np.logaddexp(0.0, x)),
    ),
    Chain(
        "gelu_tanh", "GELU by tanh, written out", TRANSCENDENTAL, {"x": _F}, _GELU_TANH,
        lambda x: 0.5 * x * (1.0 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        scalars={"half": 0.5, "three": 3.0, "kappa": 0.044715, "beta": math.sqrt(2 / math.pi), "one": 1.0}, half=True,
    ),
    Chain(
        "gelu_erf", "GELU by erf, written out", TRANSCENDENTAL, {"x": _F},
        "d = Div(x, root)  e = Erf(d)  u = Add(e, one)  m = Mul(x, u)  out = Mul(m, half)",
        lambda x: 0.5 * x * (1.0 + _erf(x / math.sqrt(2))),
        scalars={"root": math.sqrt(2), "one": 1.0, "half": 0.5},
    ),
    Chain(
        "bias_residual", "clip(relu(x + bias) * scale + r, -3, 6), vectors of 256", ARITHMETIC, {"x": _F, "r": _F},
        "a = Add(x, bias)  p = Relu(a)  m = Mul(p, scale)  s = Add(m, r)  out = Clip(s, low, high)",
        lambda x, r, bias, scale: np.clip(np.maximum(x + bias, 0.0) * scale + r, -3.0, 6.0),
        scalars={"low": -3.0, "high": 6.0}, vectors=_row_vectors, shape=_rows, order=("x", "bias", "scale", "r"),
        cheap=True, half=True,
    ),
    Chain(
        "arith16", "16 additions, multiplications and maxima", ARITHMETIC, {"x": _F, "y": _F, "z": _F}, _ARITH16,
        lambda x, y, z: arith16(x, y, z, np.maximum),
        scalars={"k125": 1.25, "k75": 0.75, "k50": 0.5, "k12": 0.125, "low": -1.0}, cheap=True, half=True,
    ),
    Chain(
        "gate", "tanh(log(exp(x) + 1) / (exp(-g) + 1))", TRANSCENDENTAL, {"x": _F, "g": _F}, _GATE,
        lambda x, g: np.tanh(np.log(np.exp(x) + 1.0) / (np.exp(-g) + 1.0)),
        scalars={"one": 1.0},
    ),
    Chain(
        "hardswish", "HardSwish, written out", ARITHMETIC, {"x": _F},
        "a = Add(x, three)  c = Clip(a, zero, six)  m = Mul(x, c)  out = Div(m, six)",
        lambda x: np.clip(x + 3.0, 0.0, 6.0) * x / 6.0,
        scalars={"three": 3.0, "zero": 0.0, "six": 6.0}, cheap=True,
    ),
    Chain(
        "lstm", "cell gates of an LSTM", TRANSCENDENTAL, {"i": _F, "f": _F, "g": _F, "o": _F, "c": _F}, _LSTM,
        _lstm, outputs=("cell", "hidden"),
    ),
    Chain(
        "channel_silu", "SiLU(x * scale + bias) on NCHW, operands by channel", TRANSCENDENTAL, {"x": _F},
        "m = Mul(x, scale)  t = Add(m, bias)  s = Sigmoid(t)  out = Mul(t, s)",
        lambda x, scale, bias: (x * scale + bias) * _sigmoid(x * scale + bias),
        vectors=_channel_vectors, shape=_nchw,
    ),
    Chain(
        "where_mask", "where(x > y and m, 2 x, y - x)", ARITHMETIC, {"x": _F, "y": _F, "m": "bool"},
        "p = Greater(x, y)  c = And(p, m)  d = Mul(x, two)  e = Sub(y, x)  out = Where(c, d, e)",
        lambda x, y, m: np.where((x > y) & m, x * 2.0, y - x),
        scalars={"two": 2.0}, cheap=True,
    ),
    Chain(
        "normalize_u8", "(x - mean) / std of an HWC image of bytes, by channel", ARITHMETIC, {"x": "uint8"},
        "v = Cast <to = 1> (x)  d = Sub(v, mean)  out = Div(d, std)",
        lambda x, mean, std: (x - mean) / std,
        vectors=_pixel_vectors, shape=_hwc, cheap=True,
    ),
)


def chain(name: str) -> Chain:
    """The chain of that name. Raises KeyError."""
    return {one.name: one for one in CHAINS}[name]
