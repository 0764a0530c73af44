"""GPU code of fused nodes: their first input, one initializer in each graph for each distinct program.

It has to stand in the same graph as the node: runtimes up to 1.23 do not take one from further out for a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from onnxfuse.model.graphs import bodies
from onnxfuse.rewrite.bodies import DOMAIN, is_fused

__all__ = ["NO_CODE", "WISH", "attach", "lacks", "programs_of"]

NO_CODE = b"\0"
"""What the input holds where there is no GPU code."""
WISH = "onnxfuse_kernels"
"""The name of these initializers, with a number behind it where it is taken."""


def graphs_of(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph and all that its nodes hold."""
    yield graph
    for node in graph.node:
        for _, body in bodies(node):
            yield from graphs_of(body)


def program_of(node: NodeProto) -> str | None:
    """The program of a fused node; None for other nodes."""
    if not is_fused(node) or not node.input:
        return None
    return next((a.s.decode() for a in node.attribute if a.name == "program"), None)


def programs_of(model: ModelProto) -> list[str]:
    """The distinct programs of all fused nodes, in order."""
    texts = (program_of(node) for graph in graphs_of(model.graph) for node in graph.node if node.domain == DOMAIN)
    return list(dict.fromkeys(text for text in texts if text is not None))


def lacks(model: ModelProto, code: Mapping[str, bytes]) -> bool:
    """Whether a fused node has other code than this, by the text of its program."""
    return any(_wrong(graph, code) for graph in graphs_of(model.graph))


def _wrong(graph: GraphProto, code: Mapping[str, bytes]) -> list[tuple[NodeProto, bytes]]:
    """The nodes of one graph that need other code, with that code."""
    held = {tensor.name: tensor.raw_data for tensor in graph.initializer if tensor.data_type == TensorProto.UINT8}
    found = []
    for node in graph.node:
        text = program_of(node) if node.domain == DOMAIN else None
        wanted = code.get(text) if text is not None else None
        if wanted is not None and held.get(node.input[0]) != wanted:
            found.append((node, wanted))
    return found


def attach(model: ModelProto, code: Mapping[str, bytes], new_name: Callable[[str], str]) -> None:
    """Gives fused nodes their code, by the text of their program; others keep what they have. What no node reads any
    more is taken out."""
    for graph in graphs_of(model.graph):
        nodes = _wrong(graph, code)
        if not nodes:
            continue
        names = {t.raw_data: t.name for t in graph.initializer if t.name.startswith(WISH) and t.raw_data}
        before = {node.input[0] for node, _ in nodes}
        for node, wanted in nodes:
            if wanted not in names:
                names[wanted] = new_name(WISH)
                graph.initializer.add(name=names[wanted], data_type=TensorProto.UINT8, dims=[len(wanted)],
                                      raw_data=wanted)  # fmt: skip
            node.input[0] = names[wanted]
        unread = before - {name for inner in graphs_of(graph) for node in inner.node for name in node.input}
        unread -= {value.name for value in (*graph.output, *graph.input)}
        for place in reversed(range(len(graph.initializer))):
            name = graph.initializer[place].name
            if name in unread and name.startswith(WISH):
                del graph.initializer[place]
