"""From a plan to a model."""

from __future__ import annotations

from onnxfuse.rewrite.apply import apply, changes

__all__ = ["apply", "changes"]
