"""The graph as onnx-graphsurgeon sees it: nodes that know their tensors, tensors that know producers and readers.

It is built from the names alone, without attributes and weights, and is for looking only: what is written is the
original model with single nodes exchanged. The verifier of plans takes its edges from here; the planner has its own,
which take a fiftieth of the time.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from onnxfuse.model import GraphView

__all__ = ["followers", "surgeon_graph"]


def surgeon_graph(view: GraphView) -> gs.Graph:
    """The nodes of one graph in topological order. What a node's bodies read from outside is among its inputs."""
    tensors: dict[str, gs.Variable] = {}

    def tensor(name: str) -> gs.Variable:
        if name not in tensors:
            tensors[name] = gs.Variable(name)
        return tensors[name]

    nodes = []
    for index in view.order:
        node = view.graph.node[index]
        read = dict.fromkeys((*(n for n in node.input if n), *view.captures.get(index, ())))
        nodes.append(gs.Node(node.op_type, node.name, domain=node.domain, inputs=[tensor(n) for n in read],
                             outputs=[tensor(o) for o in node.output if o]))
    return gs.Graph(nodes, name=view.graph.name, outputs=[tensor(o.name) for o in view.graph.output])


def followers(graph: gs.Graph) -> list[list[int]]:
    """For each node the places of the nodes that read what it makes."""
    place = {id(node): at for at, node in enumerate(graph.nodes)}
    return [sorted({place[id(reader)] for tensor in node.outputs for reader in tensor.outputs})
            for node in graph.nodes]
