"""Models of tests from ONNX's text form, with names of nodes also where an older onnx cannot read them."""

from __future__ import annotations

import re

import onnx
from onnx import parser

from onnxfuse.check.walk import nodes_of

_NAMED = re.compile(r"(?<!\w)\[(\w+)\]\s*(\w+)(?=\s*=)")


def parse(text: str) -> onnx.ModelProto:
    """The model of a text in which `[name] y = Op(x)` names a node (onnx reads that from 1.18 on)."""
    names = {output: name for name, output in _NAMED.findall(text)}
    model = parser.parse_model(_NAMED.sub(r"\2", text))
    for node in nodes_of(model.graph):
        node.name = names.get(node.output[0], node.name)
    return model
