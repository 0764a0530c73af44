"""A refusal as a value: why a node stays as it is. The codes of the op table stand here, all in one place."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["OP_REASONS", "Reason", "op_reason"]


@dataclass(frozen=True)
class Reason:
    """``code`` is stable kebab-case, for machines; ``text`` is one line for a person."""

    code: str
    text: str


OP_REASONS: dict[str, str] = {
    "not-in-table": "{op} is no elementwise op that is known here",
    "old-opset": "{op} of opset {opset}: opsets from {since} are handled",
    "new-opset": "{op} of opset {opset}: this version knows the operators up to opset {newest}",
    "attribute-reference": "attribute {name} of {op} is a parameter of the enclosing function",
    "missing-input": "input {index} of {op} is missing",
    "unknown-dtype": "the element type of {value} is not known",
    "string": "{value} holds strings",
    "unsupported-dtype": "{op} on {dtype} ({value}) is not supported",
    "type-mismatch": "{value} is {dtype}, {op} needs {wanted} there",
    "unknown-rank": "{op} works along an axis of {value}, whose rank is not known",
    "bad-axis": "axis {axis} of {op} does not exist in a tensor of rank {rank}",
    "bad-attribute": "attribute {name} of {op} is {value}",
    "float-modulo": "Mod on floats with fmod = 0 exists from opset 28 only",
    "training-mode": "{op} in training mode, or with a mode that is not a constant",
    "mask-output": "the mask output of Dropout is used",
    "not-per-channel": "BatchNormalization with spatial = 0 has statistics for each element",
    "blocked-quantization": "{op} with blocks along an axis",
    "precision": "{op} with a division precision other than float32",
}
"""Every code that the op table gives, with its words. Codes are never renamed."""


def op_reason(code: str, **details: object) -> Reason:
    """The reason with this code; ``details`` fill the words."""
    return Reason(code, OP_REASONS[code].format(**details))
