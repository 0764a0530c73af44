"""Models: loading, checking, saving; who makes and reads each value; types and shapes for planning."""

from __future__ import annotations

from onnxfuse.model.graphs import GraphView
from onnxfuse.model.load import Model, from_proto, load
from onnxfuse.model.shapes import Term

__all__ = ["GraphView", "Model", "Term", "from_proto", "load"]
