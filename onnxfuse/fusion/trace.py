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
from collections.abc import Iterable
from dataclasses import dataclass, field

from onnx import NodeProto, TensorProto

from onnxfuse.fusion.ort_child import OptGraph, OptNode, digest
from onnxfuse.model.graphs import GraphView

__all__ = ["Block", "Trace", "domain_of"]

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


@dataclass
class Trace:
    """Comparison of one graph as read (``view``) with its optimized form."""

    view: GraphView
    optimized: OptGraph
    classes: dict[str, str] = field(default_factory=dict)
    """Value -> a name that stands for its class (of the first value in it)."""
    roots: dict[str, int] = field(default_factory=dict)
    """Class -> place of the node that makes it; none for inputs, initializers and values from outside."""
    makers: dict[str, list[int]] = field(default_factory=dict)
    """Class -> places of all nodes that make a value of it: the root, its twins, and what hands it on unchanged."""

    passing: set[int] = field(default_factory=set)
    """Places of nodes that hand their input on unchanged."""

    def __post_init__(self) -> None:
        self._number_values()
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
        return self.classes.get(name, name)

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

    def _number_values(self) -> None:
        keys: dict[object, str] = {}
        for name, tensor in self.view.constants.items():
            self.classes[name] = keys.setdefault(_tensor_key(name, tensor), name)
        for index in self.view.order:
            node = self.view.graph.node[index]
            if node.op_type == "Constant" and domain_of(node) == "" and node.output[0] in self.classes:
                continue
            source = self._passes(node)
            if source is not None:
                kind = self.class_of(source)
                self.classes[node.output[0]] = kind
                self.makers.setdefault(kind, []).append(index)
                self.passing.add(index)
                continue
            for place, name in enumerate(node.output):
                if not name:
                    continue
                key = self._node_key(index, node, place)
                kind = keys.setdefault(key, name)
                self.classes[name] = kind
                self.makers.setdefault(kind, []).append(index)
                if kind == name:
                    self.roots[name] = index

    def _node_key(self, index: int, node: NodeProto, place: int) -> object:
        """Equal for nodes that must make equal values."""
        if index in self.view.children or node.op_type in _RANDOM:
            return index, place
        inputs = tuple(self.class_of(name) if name else "" for name in node.input)
        attributes = tuple(sorted((a.name, digest(a)) for a in node.attribute))
        return domain_of(node), node.op_type, inputs, attributes, place

    def _passes(self, node: NodeProto) -> str | None:
        """The input that the node hands on unchanged; None if it does something."""
        if domain_of(node) or not node.input or not node.input[0]:
            return None
        first = str(node.input[0])
        if node.op_type == "Identity":
            return first
        if node.op_type == "Dropout" and not (len(node.input) > 2 and node.input[2]):
            return first if not (len(node.output) > 1 and node.output[1]) else None
        if node.op_type == "Cast":
            target = next((a.i for a in node.attribute if a.name == "to"), 0)
            return first if self.optimized.types.get(first) == target else None
        return None

    # -------------------------------------------------------------------------------- blocks

    def blocks(self) -> list[Block]:
        """All pairs of region and cluster that are more than one unchanged node, in order of the regions' ends."""
        joined: dict[int, list[int]] = {}  # smallest optimized place of a cluster -> originals whose values it makes
        clusters: dict[int, set[int]] = {}
        home: dict[int, int] = {}
        for index in self.view.order:
            made = [self.class_of(o) for o in self.view.graph.node[index].output if o]
            made = [key for key in made if self.roots.get(key) == index and key in self._made]
            if not made:
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
                if name and name not in self.classes and name not in self.view.inputs and name in self._made:
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
