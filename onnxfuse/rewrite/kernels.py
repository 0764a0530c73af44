"""GPU code of fused nodes: their first input, one initializer for each distinct program in each graph that needs it.

It stands in the graph of the node: runtimes up to 1.23 do not take one from further out for a constant. But for nodes
in a branch of an If it stands around the If: a runtime that finds the condition constant moves the branch outwards, and
1.27 then loses initializers of 128 bytes and more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping

from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from onnxfuse.model.graphs import bodies
from onnxfuse.rewrite.bodies import is_fused

__all__ = ["NO_CODE", "WISH", "attach", "graphs_of", "has_code", "lacks", "program_of", "programs_of"]

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
    return next((a.s.decode(errors="replace") for a in node.attribute if a.name == "program"), None)


def programs_of(model: ModelProto) -> list[str]:
    """The distinct programs of all fused nodes, in order."""
    texts = (program_of(node) for graph in graphs_of(model.graph) for node in graph.node)
    return list(dict.fromkeys(text for text in texts if text is not None))


@dataclasses.dataclass(frozen=True)
class _Place:
    """A graph, the one that holds the code of its nodes, and the bytes of all initializers that its nodes see."""

    graph: GraphProto
    home: GraphProto
    seen: dict[str, bytes]


def _places(graph: GraphProto, home: GraphProto | None, seen: Mapping[str, bytes]) -> Iterator[_Place]:
    own = {t.name: t.raw_data for t in graph.initializer if t.data_type == TensorProto.UINT8}
    place = _Place(graph, graph if home is None else home, {**seen, **own})
    yield place
    for node in graph.node:
        for _, body in bodies(node):
            yield from _places(body, place.home if node.op_type == "If" else None, place.seen)


def _wrong(place: _Place, code: Mapping[str, bytes]) -> list[tuple[NodeProto, bytes]]:
    """The nodes of one graph that need other code, with that code."""
    found = []
    for node in place.graph.node:
        text = program_of(node)
        wanted = code.get(text) if text is not None else None
        if wanted is not None and place.seen.get(node.input[0]) != wanted:
            found.append((node, wanted))
    return found


def has_code(model: ModelProto) -> bool:
    """Whether a fused node has GPU code."""
    return any(
        program_of(node) is not None and len(place.seen.get(node.input[0], b"")) > len(NO_CODE)
        for place in _places(model.graph, None, {}) for node in place.graph.node
    )  # fmt: skip


def lacks(model: ModelProto, code: Mapping[str, bytes]) -> bool:
    """Whether a fused node has other code than this, by the text of its program."""
    return any(_wrong(place, code) for place in _places(model.graph, None, {}))


def attach(model: ModelProto, code: Mapping[str, bytes], new_name: Callable[[str], str]) -> None:
    """Gives fused nodes their code, by the text of their program; others keep what they have. What no node reads any
    more is taken out."""
    before: set[str] = set()
    for place in list(_places(model.graph, None, {})):
        held = {t.raw_data: t.name for t in place.home.initializer if t.name.startswith(WISH)}
        for node, wanted in _wrong(place, code):
            if wanted not in held:
                held[wanted] = new_name(WISH)
                place.home.initializer.add(name=held[wanted], data_type=TensorProto.UINT8, dims=[len(wanted)],
                                           raw_data=wanted)  # fmt: skip
            before.add(node.input[0])
            node.input[0] = held[wanted]
    read = {name for graph in graphs_of(model.graph) for node in graph.node for name in node.input}
    read |= {value.name for graph in graphs_of(model.graph) for value in (*graph.output, *graph.input)}
    for graph in graphs_of(model.graph):
        for number in reversed(range(len(graph.initializer))):
            name = graph.initializer[number].name
            if name.startswith(WISH) and name in before and name not in read:
                del graph.initializer[number]
