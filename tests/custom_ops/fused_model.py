"""Small models with fused nodes, written by hand in onnx's text form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser

DOMAIN = "onnxfuse"
HEAD = '<ir_version: 8, opset_import: ["": 17, "onnxfuse": 1]>\n'
FUNCTION_HEAD = '\n<domain: "onnxfuse", opset_import: ["": 17]>\n'


def nodes_of(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Every node of a graph and of the bodies within it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from nodes_of(attribute.g)


def fused_model(
    graph: str,
    bodies: Mapping[str, str],
    programs: Mapping[str, str],
    scalars: Mapping[str, Sequence[np.ndarray]] | None = None,
    initializers: Mapping[str, np.ndarray] | None = None,
    checked: bool = True,
) -> onnx.ModelProto:
    """A model of a graph and functions in onnx's text form, neither with attributes of ours.

    Each fused node gets the program and the scalars (`c0`, ...) of its op type, and the functions declare them; the
    uint8 initializer `kernels` of one byte is added to the graph. `checked=False`: for outputs declared without a shape
    (`float[] y`), which the runtime takes and onnx.checker does not.
    """
    model = parser.parse_model(HEAD + graph + "".join(FUNCTION_HEAD + body for body in bodies.values()))
    values = {"kernels": np.zeros(1, np.uint8), **(initializers or {})}
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in values.items())
    for function in model.functions:
        count = len((scalars or {}).get(function.name, ()))
        function.attribute.extend(["program", *(f"c{k}" for k in range(count))])
    for node in nodes_of(model.graph):
        if node.domain == DOMAIN:
            node.attribute.append(helper.make_attribute("program", programs[node.op_type]))
            for k, value in enumerate((scalars or {}).get(node.op_type, ())):
                node.attribute.append(helper.make_attribute(f"c{k}", numpy_helper.from_array(value)))
    if checked:
        onnx.checker.check_model(model, full_check=True)
    return model
