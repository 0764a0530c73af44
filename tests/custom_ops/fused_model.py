"""Small models with fused nodes, written by hand in onnx's text form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx
from onnx import helper, parser

DOMAIN = "onnxfuse"


def nodes_of(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Every node of a graph and of the bodies within it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from nodes_of(attribute.g)


def fused_model(text: str, programs: Mapping[str, str]) -> onnx.ModelProto:
    """Parses a model and gives each fused node the program of its op type; the function declares the attributes.

    In the text, functions are written without `program`; everything else stands there.
    """
    model = parser.parse_model(text)
    for function in model.functions:
        if function.domain == DOMAIN:
            function.attribute.insert(0, "program")
    for node in nodes_of(model.graph):
        if node.domain == DOMAIN:
            node.attribute.append(helper.make_attribute("program", programs[node.op_type]))
    onnx.checker.check_model(model, full_check=True)
    return model
