"""What the op table may ask about the model around a node, and a plain implementation for docs and tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

__all__ = ["NodeContext", "Operand", "PlainContext"]


@dataclass(frozen=True)
class Operand:
    """A value that a node's program reads, with ``pad`` dims of size 1 added behind its own."""

    value: str
    pad: int = 0


class NodeContext(Protocol):
    """The model as one node sees it. Everything but the opset may be unknown."""

    @property
    def half_math(self) -> str:
        """``float32`` (a group computes in float32 and rounds where values leave) or ``strict`` (each op rounds)."""

    def opset(self, domain: str) -> int:
        """Version of the domain that the model imports."""

    def dtype(self, value: str) -> str | None:
        """The format's word (``f32``, ...), ``string``, any other word for other types; None if not known."""

    def rank(self, value: str) -> int | None:
        """Number of dims, None if not known."""

    def dims(self, value: str) -> tuple[int | str, ...] | None:
        """Every dim as a number or a symbol, None if not known."""

    def constant(self, value: str) -> np.ndarray | None:
        """The value if it is a small constant that no caller can override, else None."""


@dataclass(frozen=True)
class PlainContext:
    """A context made of dictionaries; ``ranks`` defaults to the number of dims."""

    dtypes: Mapping[str, str] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    ranks: Mapping[str, int] = field(default_factory=dict)
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    opsets: Mapping[str, int] = field(default_factory=dict)
    half_math: str = "float32"

    def opset(self, domain: str) -> int:
        return self.opsets.get(domain, 1)

    def dtype(self, value: str) -> str | None:
        return self.dtypes.get(value)

    def rank(self, value: str) -> int | None:
        return self.ranks.get(value, len(self.shapes[value]) if value in self.shapes else None)

    def dims(self, value: str) -> tuple[int | str, ...] | None:
        return self.shapes.get(value)

    def constant(self, value: str) -> np.ndarray | None:
        return self.constants.get(value)
