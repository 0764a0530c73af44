"""Activations. Each function below is the formula of the operator; NaN and infinities come out as in ORT.

`gelu_erf` and `gelu_tanh` serve the com.microsoft ops too.
"""

from __future__ import annotations

import math

from onnxfuse.ops.reason import Reason, op_reason
from onnxfuse.ops.table import ANY_FLOAT, ANY_NUMBER, ANY_SIGNED, Call, Lowering, Op, lowest
from onnxfuse.program.instructions import FLOATS, INTS

FAMILY = "activations"

SELU_ALPHA = 1.67326319217681884765625
SELU_GAMMA = 1.05070102214813232421875


def scaled(c: Lowering, x: str, factor: float) -> str:
    """x * factor; nothing to do for 1."""
    return x if factor == 1.0 else c.do("mul", x, factor)


def _relu(c: Lowering) -> str:
    return c.at_least(c.x(), 0)


def _leaky_relu(c: Lowering) -> str:
    x = c.x()
    return c.do("select", c.do("lt", x, 0.0), c.do("mul", x, c.call.number("alpha", 0.009999999776482582)), x)


def _prelu(c: Lowering) -> str:
    x, slope = c.x(0), c.x(1)
    return c.do("select", c.do("lt", x, 0), c.do("mul", x, slope), x)


def _thresholded_relu(c: Lowering) -> str:
    x = c.x()
    return c.do("select", c.do("lt", c.call.number("alpha", 1.0), x), x, 0.0)


def _elu(c: Lowering) -> str:
    """expm1 where the text says exp(x) - 1: the same function without its cancellation near zero."""
    x = c.x()
    return c.do("select", c.do("lt", x, 0.0), scaled(c, c.do("expm1", x), c.call.number("alpha", 1.0)), x)


def _selu(c: Lowering) -> str:
    """max(x, 0) + alpha * expm1(min(x, 0)), times gamma: +0 for both zeros, as the text and ORT have it."""
    x = c.x()
    low = scaled(c, c.do("expm1", c.do("min", x, 0.0)), c.call.number("alpha", SELU_ALPHA))
    return scaled(c, c.do("add", c.do("max", x, 0.0), low), c.call.number("gamma", SELU_GAMMA))


def _celu(c: Lowering) -> str:
    x, alpha = c.x(), c.call.number("alpha", 1.0)
    inner = x if alpha == 1.0 else c.do("div", x, alpha)
    low = c.do("min", scaled(c, c.do("expm1", inner), alpha), 0.0)
    return c.do("add", c.do("max", x, 0.0), low)


def _hard_sigmoid(c: Lowering, x: str, alpha: float, beta: float) -> str:
    return c.do("max", c.do("min", c.do("add", c.do("mul", x, alpha), beta), 1.0), 0.0)


def _hard_swish(c: Lowering) -> str:
    x = c.x()
    return c.do("mul", x, _hard_sigmoid(c, x, 1.0 / 6.0, 0.5))


def swish(c: Lowering, x: str, alpha: float) -> str:
    return c.do("mul", x, c.do("sigmoid", scaled(c, x, alpha)))


def _softplus(c: Lowering) -> str:
    """max(x, 0) + log1p(e^-|x|): no overflow, and not zero before the true result is."""
    x = c.x()
    tail = c.do("log1p", c.do("exp", c.do("neg", c.do("abs", x))))
    return c.do("add", c.do("max", x, 0.0), tail)


def _softsign(c: Lowering) -> str:
    x = c.x()
    return c.do("div", x, c.do("add", c.do("abs", x), 1.0))


def _mish(c: Lowering) -> str:
    """x * tanh(softplus(x)) = x * n / (n + 2) with n = e^x * (e^x + 2): one exp instead of three functions.

    From 40 on the quotient is 1 in float64 too, and e^40 squared does not overflow in float32.
    """
    x = c.x()
    e = c.do("exp", c.at_most(x, 40.0))
    n = c.do("mul", e, c.do("add", e, 2.0))
    return c.do("mul", x, c.do("div", n, c.do("add", n, 2.0)))


def gelu_erf(c: Lowering, x: str) -> str:
    """0.5 * x * (1 + erf(x / sqrt(2)))."""
    inner = c.do("add", c.do("erf", c.do("mul", x, math.sqrt(0.5))), 1.0)
    return c.do("mul", c.do("mul", x, 0.5), inner)


def gelu_tanh(c: Lowering, x: str) -> str:
    """0.5 * x * (1 + tanh(u)) with u = sqrt(2 / pi) * (x + 0.044715 * x^3), written as x * sigmoid(2 u), which is the
    same function and keeps its precision for negative x, where 1 + tanh cancels."""
    factor = 2.0 * math.sqrt(2.0 / math.pi)
    square = c.do("mul", x, x)
    inner = c.do("mul", x, c.do("add", c.do("mul", square, factor * 0.044715), factor))
    return c.do("mul", x, c.do("sigmoid", inner))


def _gelu(c: Lowering) -> str:
    return gelu_tanh(c, c.x()) if c.call.word("approximate", "none") == "tanh" else gelu_erf(c, c.x())


def _check_gelu(call: Call) -> Reason | None:
    word = call.word("approximate", "none")
    return None if word in ("none", "tanh") else op_reason("bad-attribute", name="approximate", op="Gelu", value=word)


def _shrink(c: Lowering) -> str:
    """Integers are compared and moved as float32 and cut again, as ORT does."""
    x, lambd, bias = c.x(), c.call.number("lambd", 0.5), c.call.number("bias", 0.0)
    result = c.kind(x)
    value = x if result in FLOATS else c.cast(x, "f32")
    low, high = c.do("add", value, bias), c.do("sub", value, bias)
    kept = c.do("select", c.do("lt", lambd, value), high, 0.0)
    return c.cast(c.do("select", c.do("lt", value, -lambd), low, kept), result)


def _clip(c: Lowering) -> str:
    """min(max(x, low), high). A bound that is not there is the end of the type, which shows on infinities only."""
    x = c.x()
    dtype = c.call.dtype(0) or ""
    bounds = _clip_bounds(c, dtype) if c.call.opset >= 11 else _clip_attributes(c, dtype)
    for limit, bound in zip((c.at_least, c.at_most), bounds, strict=True):
        x = x if bound is None else limit(x, bound)
    return x


def _clip_bounds(c: Lowering, dtype: str) -> list[str | float | None]:
    ends = (lowest(dtype), -lowest(dtype)) if dtype in ANY_FLOAT else (None, None)
    return [c.x(index) if c.call.given(index) else end for index, end in zip((1, 2), ends, strict=True)]


def _clip_attributes(c: Lowering, dtype: str) -> list[str | float | None]:
    end = lowest("f32")
    return [c.call.number("min", end), c.call.number("max", -end)]


def _bounded(call: Call) -> bool:
    return any(call.given(k) for k in (1, 2)) or call.has("min") or call.has("max")


_FLOAT = {"T": ANY_FLOAT}

OPS = (
    Op("Relu", FAMILY, "0 where x < 0, else x", "T->T", {"T": ANY_SIGNED}, (6, 13, 14), _relu),
    Op("LeakyRelu", FAMILY, "alpha * x where x < 0, else x", "T->T", _FLOAT, (6, 16), _leaky_relu),
    Op("PRelu", FAMILY, "slope * x where x < 0, else x", "TT->T", {"T": (*ANY_FLOAT, "i32", "i64", "u32", "u64")},
       (7, 9, 16), _prelu),
    Op("ThresholdedRelu", FAMILY, "x where x > alpha, else 0", "T->T", _FLOAT, (10, 22), _thresholded_relu),
    Op("Elu", FAMILY, "alpha * (e^x - 1) where x < 0, else x", "T->T", _FLOAT, (6, 22), _elu),
    Op("Selu", FAMILY, "gamma * (alpha * (e^x - 1) where x <= 0, else x)", "T->T", _FLOAT, (6, 22), _selu),
    Op("Celu", FAMILY, "max(0, x) + min(0, alpha * (e^(x / alpha) - 1))", "T->T", _FLOAT, (12, 28), _celu),
    Op("HardSigmoid", FAMILY, "max(0, min(1, alpha * x + beta))", "T->T", _FLOAT, (6, 22),
       lambda c: _hard_sigmoid(c, c.x(), c.call.number("alpha", 0.20000000298023224), c.call.number("beta", 0.5))),
    Op("HardSwish", FAMILY, "x * max(0, min(1, x / 6 + 0.5))", "T->T", _FLOAT, (14, 22), _hard_swish),
    Op("Swish", FAMILY, "x * sigmoid(alpha * x)", "T->T", _FLOAT, (24,),
       lambda c: swish(c, c.x(), c.call.number("alpha", 1.0))),
    Op("Softplus", FAMILY, "log(1 + e^x)", "T->T", _FLOAT, (1, 22), _softplus),
    Op("Softsign", FAMILY, "x / (1 + |x|)", "T->T", _FLOAT, (1, 22), _softsign),
    Op("Mish", FAMILY, "x * tanh(log(1 + e^x))", "T->T", _FLOAT, (18, 22), _mish),
    Op("Gelu", FAMILY, "0.5 * x * (1 + erf(x / sqrt(2))), or its approximation by tanh", "T->T", _FLOAT, (20,), _gelu,
       check=_check_gelu),
    Op("Shrink", FAMILY, "x + bias where x < -lambd, x - bias where x > lambd, else 0", "T->T",
       {"T": (*FLOATS, "f16", *INTS)}, (9,), _shrink),
    Op("Clip", FAMILY, "min(max(x, low), high)", "TTT->T", {"T": ANY_NUMBER}, (6, 11, 12, 13), _clip, least=1,
       counts=_bounded, notes="bounds are attributes before opset 11"),
)
