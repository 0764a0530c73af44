"""Which original nodes stand behind each node that ONNX Runtime's optimizer wrote.

The optimizer keeps most value names: a fused node takes over the name of the last value that it replaces. So the
values that both graphs have are fixed points, and between two fixed points the nodes of the one graph stand for the
nodes of the other::

    original   x -> MatMul -> a -> Add -> b        optimized   x -> Gemm -> b
    block      region {MatMul, Add}  stands for   cluster {Gemm}

A *region* is an original node whose value survived plus the nodes above it whose values are gone; a *cluster* is the
optimized node that now makes that value plus those above it that are joined to it by values with new names.
Values are compared by class: equal expressions are one class (the optimizer merges them), and an Identity, inference
Dropout or Cast that changes nothing has the class of its input (the optimizer drops it).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from onnx import NodeProto, TensorProto

from onnxfuse.fusion.ort_child import OptGraph, OptNode, digest
from onnxfuse.model.graphs import GraphView

__all__ = ["Block", "Classes", "Trace", "domain_of"]

_SMALL_BYTES = 1024  # constants up to this size are compared by content
_RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)
# optimized attributes that change a node without a change of its op: name -> text of the default
_SCALING = {"alpha": "1.0"}


def domain_of(node: NodeProto) -> str:
    """The domain with "ai.onnx" written as "" (they are the same)."""
    return "" if node.domain == "ai.onnx" else node.domain


@dataclass
class Block:
    """Original nodes (places in the graph, ascending) that stand for optimized nodes (places, ascending)."""

    region: tuple[int, ...]
    cluster: tuple[int, ...]
    kept: bool
    """The cluster is one node, the same op with equally many inputs and the same attributes as the region's last:
    what is gone above it was dropped by the optimizer, not fused."""


class Classes:
    """The values of a graph by class. What can be known before the runtime has answered is known from the start: all
    classes, where no Cast stands in the way."""

    def __init__(self, view: GraphView) -> None:
        self.view = view
        self.of: dict[str, str] = {}
        """Value -> a name that stands for its class (of the first value in it)."""
        self.roots: dict[str, int] = {}
        """Class -> place of the node that makes it; none for inputs, initializers and values from outside."""
        self.makers: dict[str, list[int]] = {}
        """Class -> places of all nodes that make a value of it: the root, its twins, and what hands it on unchanged."""
        self.passing: set[int] = set()
        """Places of nodes that hand their input on unchanged."""
        self._keys: dict[object, str] = {}
        self._done = 0  # nodes, in the order of execution
        for name, tensor in view.constants.items():
            self.of[name] = self._keys.setdefault(_tensor_key(name, tensor), name)
        self.number(None)

    def number(self, types: Mapping[str, int] | None) -> None:
        """Number the values of the nodes that are left; without the types of the optimized graph, up to a Cast."""
        nodes, order = self.view.graph.node, self.view.order
        while self._done < len(order):
            node = nodes[order[self._done]]
            if node.op_type == "Cast" and types is None:
                return
            self._number(order[self._done], node, types or {})
            self._done += 1

    def _number(self, index: int, node: NodeProto, types: Mapping[str, int]) -> None:
        if node.op_type == "Constant" and domain_of(node) == "" and node.output and node.output[0] in self.of:
            return
        source = _passes(node, types)
        if source is not None:
            kind = self.of.get(source, source)
            self.of[node.output[0]] = kind
            self.makers.setdefault(kind, []).append(index)
            self.passing.add(index)
            return
        key = self._node_key(index, node)
        for place, name in enumerate(node.output):
            if not name:
                continue
            kind = self._keys.setdefault((*key, place), name)
            self.of[name] = kind
            self.makers.setdefault(kind, []).append(index)
            if kind == name:
                self.roots[name] = index

    def _node_key(self, index: int, node: NodeProto) -> tuple[object, ...]:
        """Equal for nodes that must make equal values."""
        if index in self.view.children or node.op_type in _RANDOM:
            return (index,)
        inputs = tuple([self.of.get(name, name) if name else "" for name in node.input])
        attributes = tuple(sorted((a.name, digest(a)) for a in node.attribute))
        return domain_of(node), node.op_type, inputs, attributes


def _passes(node: NodeProto, types: Mapping[str, int]) -> str | None:
    """The input that the node hands on unchanged; None if it does something."""
    kind = node.op_type
    if kind not in ("Identity", "Dropout", "Cast") or domain_of(node):
        return None
    if not (node.input and node.input[0] and node.output and node.output[0]):
        return None
    first = str(node.input[0])
    if kind == "Dropout":
        trains, masked = len(node.input) > 2 and node.input[2], len(node.output) > 1 and node.output[1]
        return None if trains or masked else first
    if kind == "Cast":
        target = next((a.i for a in node.attribute if a.name == "to"), 0)
        return first if types.get(first) == target else None
    return first


@dataclass
class Trace:
    """Comparison of one graph as read with its optimized form."""

    classes: Classes
    optimized: OptGraph

    def __post_init__(self) -> None:
        self.classes.number(self.optimized.types)
        self.view, self.roots, self.makers = self.classes.view, self.classes.roots, self.classes.makers
        self.passing, self._of = self.classes.passing, self.classes.of
        self._made: dict[str, int] = {}  # class or new name -> place of the optimized node
        self._constant: set[str] = set()
        names = self.optimized.initializers
        self._constant.update(self.class_of(name) for name in names)
        for place, node in enumerate(self.optimized.nodes):
            for name in node.outputs:
                if name:
                    self._made.setdefault(self.class_of(name), place)
                    if node.op_type == "Constant" and node.domain == "":
                        self._constant.add(self.class_of(name))
        self._kept_inputs = {self.class_of(name) for name in self.optimized.inputs}

    # -------------------------------------------------------------------------------- classes

    def class_of(self, name: str) -> str:
        """The class of a value; a name that the original graph does not know stands for itself."""
        return self._of.get(name, name)

    def survives(self, name: str) -> bool:
        """Whether a value of the same class exists in the optimized graph."""
        key = self.class_of(name)
        return key in self._made or key in self._constant or key in self._kept_inputs

    def is_constant(self, name: str) -> bool:
        """Whether the optimizer knows the value as a constant."""
        return self.class_of(name) in self._constant

    def maker(self, name: str) -> OptNode | None:
        """The optimized node that makes a value of the same class."""
        place = self._made.get(self.class_of(name))
        return None if place is None else self.optimized.nodes[place]

    # -------------------------------------------------------------------------------- blocks

    def blocks(self) -> list[Block]:
        """All pairs of region and cluster that are more than one unchanged node, in order of the regions' ends."""
        joined: dict[int, list[int]] = {}  # smallest optimized place of a cluster -> originals whose values it makes
        clusters: dict[int, set[int]] = {}
        home: dict[int, int] = {}
        for index in self.view.order:
            made = [self.class_of(o) for o in self.view.graph.node[index].output if o]
            made = [key for key in made if self.roots.get(key) == index and key in self._made]
            if not made or self._untouched(index, made):
                continue
            cluster = set().union(*(self._cluster(key) for key in made))
            keys = sorted({home[place] for place in cluster if place in home})
            key = keys[0] if keys else min(cluster)
            for other in keys[1:]:
                joined[key] += joined.pop(other)
                cluster |= clusters.pop(other)
            clusters[key] = clusters.get(key, set()) | cluster
            joined.setdefault(key, []).append(index)
            for place in clusters[key]:
                home[place] = key
        found = []
        for key, landings in joined.items():
            block = self._block(landings, clusters[key])
            if block is not None:
                found.append(block)
        return sorted(found, key=lambda b: b.region)

    def _untouched(self, index: int, made: list[str]) -> bool:
        """Whether a node stands there as it was, with the same operands: most of them do, and none is part of a block.
        (Its one value has an old name, so no cluster reaches up to it.)"""
        place = self._made[made[0]]
        node, now = self.view.graph.node[index], self.optimized.nodes[place]
        return (len(made) == len(node.output) == len(now.outputs) == 1 and tuple(node.input) == now.inputs
                and self._same(index, place))

    def _block(self, landings: list[int], cluster: set[int]) -> Block | None:
        region: set[int] = set()
        for index in landings:
            region |= self._region(index)
        kept = len(cluster) == 1 and len(landings) == 1 and self._same(landings[0], min(cluster))
        if kept and len(region) == 1:
            return None
        return Block(tuple(sorted(region)), tuple(sorted(cluster)), kept)

    def _cluster(self, key: str) -> set[int]:
        """The optimized node that makes ``key`` and those above it that hand it values with new names."""
        found: set[int] = set()
        stack = [self._made[key]]
        while stack:
            place = stack.pop()
            if place in found:
                continue
            found.add(place)
            for name in self.optimized.nodes[place].inputs:
                if name and name not in self._of and name not in self.view.inputs and name in self._made:
                    stack.append(self._made[name])
        return found

    def _region(self, index: int) -> set[int]:
        """The original node and the nodes above it whose values are gone."""
        found: set[int] = set()
        stack = [index]
        while stack:
            place = stack.pop()
            if place in found:
                continue
            found.add(place)
            for name in self.view.graph.node[place].input:
                key = self.class_of(name)
                root = self.roots.get(key)
                if root is not None and not self.survives(key):
                    stack.append(root)
        return found

    def _same(self, index: int, place: int) -> bool:
        """Whether an optimized node is the original one with, at most, other inputs."""
        node, now = self.view.graph.node[index], self.optimized.nodes[place]
        if (domain_of(node), node.op_type) != (now.domain, now.op_type) or _arity(node.input) != _arity(now.inputs):
            return False
        before = {a.name: digest(a) for a in node.attribute if not a.HasField("g") and not a.graphs}
        if not before and not now.attributes:
            return True
        changed = any(now.attributes.get(name, value) != value for name, value in before.items())
        scaled = any(now.attributes.get(name, value) != value for name, value in _SCALING.items() if name not in before)
        return not changed and not (scaled and now.domain)

    def ops_of(self, block: Block) -> tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]:
        """(domain, op) counted in the region and in the cluster."""
        nodes = self.view.graph.node
        return (
            Counter((domain_of(nodes[i]), nodes[i].op_type) for i in block.region),
            Counter((self.optimized.nodes[i].domain, self.optimized.nodes[i].op_type) for i in block.cluster),
        )


def _arity(inputs: Iterable[str]) -> int:
    names = list(inputs)
    while names and not names[-1]:
        names.pop()
    return len(names)


def _tensor_key(name: str, tensor: TensorProto) -> object:
    """Equal for constants of equal content where that is cheap to know."""
    if tensor.data_location == TensorProto.EXTERNAL or tensor.ByteSize() > _SMALL_BYTES:
        return name
    copy = TensorProto()
    copy.CopyFrom(tensor)
    copy.ClearField("name")
    copy.ClearField("doc_string")
    return hashlib.sha1(copy.SerializeToString(deterministic=True)).hexdigest()
