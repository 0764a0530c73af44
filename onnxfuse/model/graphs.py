"""Graphs of a model with their scopes: who produces a value, who reads it, and in which order nodes can run.

Names resolve as in ONNX: a body of If, Loop or Scan sees its own values first, then those of the graphs around it. A
value that a body reads from outside counts as read by the node that holds the body.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from onnxfuse.errors import ModelError

__all__ = ["GraphView", "all_nodes", "bodies", "label", "view_graphs"]


def bodies(node: NodeProto) -> Iterator[tuple[str, GraphProto]]:
    """The graphs that a node holds, with the name of the attribute (and its place, for a list of graphs)."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.name, attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            for place, graph in enumerate(attribute.graphs):
                yield f"{attribute.name}[{place}]", graph


def label(node: NodeProto) -> str:
    """How messages speak of a node: by its name, else by what it makes."""
    if node.name:
        return f"node {node.name!r} ({node.op_type})"
    made = next((o for o in node.output if o), "nothing")
    return f"the {node.op_type} node that makes {made!r}"


@dataclass(eq=False)
class GraphView:
    """One graph: the main one or a body.

    ``path`` is "" for the main graph and ``<first output of the holding node>.<attribute>`` below the parent's path
    for a body; indices of nodes are places in ``graph.node`` as read; ``order`` lists them topologically sorted.
    """

    graph: GraphProto
    path: str
    parent: GraphView | None
    holder: int | None
    order: list[int] = field(default_factory=list)
    producer: dict[str, int] = field(default_factory=dict)
    readers: dict[str, list[int]] = field(default_factory=dict)
    """Value -> the nodes that read it, each once, in order of place; a body's captures are reads of its holder."""
    captures: dict[int, tuple[str, ...]] = field(default_factory=dict)
    children: dict[int, list[GraphView]] = field(default_factory=dict)
    inputs: frozenset[str] = frozenset()
    outputs: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    """Values that must survive: outputs, and what an annotation or (main graph) training_info names."""
    initializers: dict[str, TensorProto] = field(default_factory=dict)
    sparse: frozenset[str] = frozenset()
    constants: dict[str, TensorProto] = field(default_factory=dict)
    """Tensors that no caller can override: initializers that are no inputs, values of Constant nodes."""
    free: dict[str, int] = field(default_factory=dict)
    """Names read here but defined further out, each with one node that reads it (-1: a graph output)."""

    def defines(self, name: str) -> bool:
        """Whether the value is defined in this very graph."""
        return (name in self.producer or name in self.inputs or name in self.initializers or name in self.sparse)

    def owner(self, name: str) -> GraphView | None:
        """The graph that defines a value which this graph sees under that name."""
        view: GraphView | None = self
        while view is not None and not view.defines(name):
            view = view.parent
        return view

    def constant(self, name: str) -> TensorProto | None:
        """The tensor behind a value that cannot change, in whatever visible graph it stands."""
        tensor = self.constants.get(name)  # mostly it stands right here
        if tensor is not None or self.parent is None or self.defines(name):
            return tensor
        return self.parent.constant(name)

    def walk(self) -> Iterator[GraphView]:
        """This graph, then the bodies below, in the order of their holders."""
        yield self
        for index in self.order:
            for child in self.children.get(index, ()):
                yield from child.walk()


def view_graphs(model: ModelProto) -> GraphView:
    """Views of the main graph and all bodies. Raises ModelError for duplicate definitions, values that nobody makes
    and cycles."""
    view = _view(model.graph, "", None, None, old=model.ir_version < 4)
    view.kept |= _trained(model)
    for info in model.training_info:
        for binding in (*info.initialization_binding, *info.update_binding):
            view.constants.pop(binding.key, None)  # training gives it other values
    for name, index in view.free.items():
        if index < 0:
            raise ModelError(f"graph output {name!r} is made by no node")
        raise ModelError(f"value {name!r}, read by {label(model.graph.node[index])}, is made by no node")
    return view


def _view(graph: GraphProto, path: str, parent: GraphView | None, holder: int | None, old: bool) -> GraphView:
    view = GraphView(graph, path, parent, holder)
    view.inputs = frozenset(v.name for v in graph.input)
    view.outputs = frozenset(v.name for v in graph.output)
    view.kept = view.outputs | _annotated(graph)
    _define_initializers(view, old)
    _define_outputs(view)
    for index, node in enumerate(graph.node):
        names = dict.fromkeys(n for n in node.input if n)
        captured: dict[str, None] = {}
        for attribute, body in bodies(node):
            first = next((o for o in node.output if o), str(index))
            child = _view(body, f"{path}/{first}.{attribute}" if path else f"{first}.{attribute}", view, index, old)
            view.children.setdefault(index, []).append(child)
            captured.update(dict.fromkeys(child.free))
        if captured:
            view.captures[index] = tuple(captured)
        for name in names | captured:
            view.readers.setdefault(name, []).append(index)
            if not view.defines(name):
                view.free.setdefault(name, index)
    for output in graph.output:
        if not view.defines(output.name):
            view.free.setdefault(output.name, -1)
    view.order = _sorted(view)
    return view


def _define_initializers(view: GraphView, old: bool) -> None:
    graph = view.graph
    names = [v.name for v in graph.input]
    if len(set(names)) < len(names):
        twice = next(n for i, n in enumerate(names) if n in names[:i])
        raise ModelError(f"two inputs of graph {graph.name!r} are called {twice!r}")
    for tensor in graph.initializer:
        if tensor.name in view.initializers:
            raise ModelError(f"two initializers are called {tensor.name!r}")
        view.initializers[tensor.name] = tensor
        # up to IR version 3 every initializer is listed as an input too, and is a constant all the same
        if old or tensor.name not in view.inputs:
            view.constants[tensor.name] = tensor
    view.sparse = frozenset(t.values.name for t in graph.sparse_initializer)


def _define_outputs(view: GraphView) -> None:
    for index, node in enumerate(view.graph.node):
        for name in node.output:
            if not name:
                continue
            if view.defines(name):
                raise ModelError(f"value {name!r} is made twice, the second time by {label(node)}")
            view.producer[name] = index
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx") and len(node.output) == 1:
            tensor = _constant_tensor(node)
            if tensor is not None:
                view.constants[node.output[0]] = tensor


def _constant_tensor(node: NodeProto) -> TensorProto | None:
    """The tensor of a Constant node; None for sparse tensors, strings and references to function attributes."""
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            return None
        if attribute.name == "value":
            tensor: TensorProto = attribute.t
            return tensor
        if attribute.name == "value_float":
            return onnx.helper.make_tensor("", TensorProto.FLOAT, [], [attribute.f])
        if attribute.name == "value_int":
            return onnx.helper.make_tensor("", TensorProto.INT64, [], [attribute.i])
        if attribute.name == "value_floats":
            return onnx.helper.make_tensor("", TensorProto.FLOAT, [len(attribute.floats)], attribute.floats)
        if attribute.name == "value_ints":
            return onnx.helper.make_tensor("", TensorProto.INT64, [len(attribute.ints)], attribute.ints)
    return None


def _sorted(view: GraphView) -> list[int]:
    """Places of the nodes in an order in which they can run: as read where that works, else by earliest place."""
    nodes = view.graph.node
    needs: list[set[int]] = [set() for _ in nodes]
    for name, readers in view.readers.items():
        made = view.producer.get(name)
        if made is not None:
            for reader in readers:
                needs[reader].add(made)
    if all(made < index for index, before in enumerate(needs) for made in before):
        return list(range(len(nodes)))
    followers: list[list[int]] = [[] for _ in nodes]
    missing = [len(before) for before in needs]
    for index, before in enumerate(needs):
        for made in before:
            followers[made].append(index)
    ready = [index for index, count in enumerate(missing) if count == 0]
    order: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for follower in followers[index]:
            missing[follower] -= 1
            if missing[follower] == 0:
                heapq.heappush(ready, follower)
    if len(order) < len(nodes):
        raise ModelError(f"the graph has a cycle through {label(nodes[_on_cycle(needs, missing)])}")
    return order


def _on_cycle(needs: list[set[int]], missing: list[int]) -> int:
    """A node on a cycle: walk back from any unfinished node along unfinished producers until one repeats."""
    index = next(i for i, count in enumerate(missing) if count)
    seen: set[int] = set()
    while index not in seen:
        seen.add(index)
        index = min(made for made in needs[index] if missing[made])
    return index


def _trained(model: ModelProto) -> frozenset[str]:
    """Names that training_info may take from the main graph."""
    names: set[str] = set()
    for info in model.training_info:
        for graph in (info.initialization, info.algorithm):
            names.update(t.name for t in graph.initializer)
            names.update(v.name for v in graph.output)
            for node in all_nodes(graph):
                names.update(node.input)
        for binding in (*info.initialization_binding, *info.update_binding):
            names.update((binding.key, binding.value))
    return frozenset(names - {""})


def _annotated(graph: GraphProto) -> frozenset[str]:
    """Names that quantization annotations of a graph speak of."""
    names: set[str] = set()
    for note in graph.quantization_annotation:
        names.add(note.tensor_name)
        names.update(entry.value for entry in note.quant_parameter_tensor_names)
    return frozenset(names)


def all_nodes(graph: GraphProto | FunctionProto) -> Iterator[NodeProto]:
    """The nodes of a graph or function, those of bodies behind the node that holds them."""
    for node in graph.node:
        yield node
        if node.attribute:
            for _, body in bodies(node):
                yield from all_nodes(body)
