"""com.microsoft activations, as ORT's optimizer and its transformer tools write them."""

from __future__ import annotations

from onnxfuse.ops.activations import gelu_erf, gelu_tanh, swish
from onnxfuse.ops.table import ANY_FLOAT, Lowering, Op

FAMILY = "com.microsoft"


def _with_bias(c: Lowering) -> str:
    return c.do("add", c.x(0), c.x(1)) if c.call.given(1) else c.x(0)


_FLOAT = {"T": ANY_FLOAT}

OPS = (
    Op("Gelu", FAMILY, "0.5 * x * (1 + erf(x / sqrt(2)))", "T->T", _FLOAT, (1,), lambda c: gelu_erf(c, c.x()),
       domain="com.microsoft"),
    Op("BiasGelu", FAMILY, "Gelu of x + bias", "TT->T", _FLOAT, (1,), lambda c: gelu_erf(c, _with_bias(c)),
       domain="com.microsoft"),
    Op("FastGelu", FAMILY, "Gelu by tanh of x, or of x + bias", "TT->T", _FLOAT, (1,),
       lambda c: gelu_tanh(c, _with_bias(c)), domain="com.microsoft", least=1),
    Op("QuickGelu", FAMILY, "x * sigmoid(alpha * x)", "T->T", _FLOAT, (1,),
       lambda c: swish(c, c.x(), c.call.number("alpha", 1.7020000219345093)), domain="com.microsoft"),
)
