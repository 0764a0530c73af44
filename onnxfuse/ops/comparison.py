"""Comparisons, tests for NaN and infinity, and Where."""

from __future__ import annotations

import math

from onnxfuse.ops.table import ALL, ANY_FLOAT, ANY_NUMBER, Lowering, Op, binary

FAMILY = "comparison"


def _is_inf(c: Lowering) -> str:
    x = c.x()
    below, above = c.call.integer("detect_negative", 1), c.call.integer("detect_positive", 1)
    if below and above:
        return c.do("eq", c.do("abs", x), math.inf)
    if below or above:
        return c.do("eq", x, -math.inf if below else math.inf)
    return c.const("bool", False)


def _is_nan(c: Lowering) -> str:
    return c.do("ne", c.x(), c.x())


_NUMBER = {"T": ANY_NUMBER}

OPS = (
    Op("Equal", FAMILY, "a == b", "TT->B", {"T": ALL}, (7, 11, 13, 19), binary("eq")),
    Op("Less", FAMILY, "a < b", "TT->B", _NUMBER, (7, 9, 13), binary("lt")),
    Op("LessOrEqual", FAMILY, "a <= b", "TT->B", _NUMBER, (12, 16), binary("le")),
    Op("Greater", FAMILY, "a > b", "TT->B", _NUMBER, (7, 9, 13), lambda c: c.do("lt", c.x(1), c.x(0))),
    Op("GreaterOrEqual", FAMILY, "a >= b", "TT->B", _NUMBER, (12, 16), lambda c: c.do("le", c.x(1), c.x(0))),
    Op("IsNaN", FAMILY, "whether x is NaN", "T->B", {"T": ANY_FLOAT}, (9, 13, 20), _is_nan),
    Op("IsInf", FAMILY, "whether x is an infinity of a sign that is asked for", "T->B", {"T": ANY_FLOAT}, (10, 20),
       _is_inf),
    Op("Where", FAMILY, "a where the condition is true, else b", "BTT->T", {"T": ALL}, (9, 16),
       lambda c: c.do("select", c.x(0), c.x(1), c.x(2))),
)
