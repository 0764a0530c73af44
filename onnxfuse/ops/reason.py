"""A refusal as a value: why a node stays as it is."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Reason"]


@dataclass(frozen=True)
class Reason:
    """``code`` is stable kebab-case, for machines; ``text`` is one line for a person."""

    code: str
    text: str
