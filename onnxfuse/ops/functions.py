"""Transcendental functions: one instruction each."""

from __future__ import annotations

from onnxfuse.ops.table import ANY_FLOAT, Op, unary

FAMILY = "functions"

_ROWS = (
    ("Exp", "e^a", (6, 13), "exp"),
    ("Log", "natural logarithm", (6, 13), "log"),
    ("Erf", "error function", (9, 13), "erf"),
    ("Sigmoid", "1 / (1 + e^-a)", (6, 13), "sigmoid"),
    ("Tanh", "hyperbolic tangent", (6, 13), "tanh"),
    ("Sin", "sine", (7, 22), "sin"),
    ("Cos", "cosine", (7, 22), "cos"),
    ("Tan", "tangent", (7, 22), "tan"),
    ("Asin", "arc sine", (7, 22), "asin"),
    ("Acos", "arc cosine", (7, 22), "acos"),
    ("Atan", "arc tangent", (7, 22), "atan"),
    ("Sinh", "hyperbolic sine", (9, 22), "sinh"),
    ("Cosh", "hyperbolic cosine", (9, 22), "cosh"),
    ("Asinh", "inverse hyperbolic sine", (9, 22), "asinh"),
    ("Acosh", "inverse hyperbolic cosine", (9, 22), "acosh"),
    ("Atanh", "inverse hyperbolic tangent", (9, 22), "atanh"),
)

OPS = tuple(Op(name, FAMILY, text, "T->T", {"T": ANY_FLOAT}, versions, unary(instruction))
            for name, text, versions, instruction in _ROWS)
