"""Reserved nodes: elementwise nodes that ONNX Runtime itself puts to better use than a fused group would.

The runtime optimizes the model twice in a child process (:mod:`onnxfuse.fusion.ort_child`); what its optimizer wrote
is traced back to the original nodes (:mod:`onnxfuse.fusion.trace`). An elementwise node is reserved if

- the extended level made it part of a node that is not elementwise (Conv with its activation, FusedMatMul with its
  scale, LayerNormalization, …) or of one of the runtime's own elementwise nodes (Gelu, BiasGelu, FastGelu, …);
- it or the node that it became exists at the extended level and is gone, or made by another op, at the full level:
  it runs in the blocked NCHWc layout, and a fused node would need reorders on both sides;
- the runtime moves a Transpose past it to drop it, and a fused node would hold the Transpose up;
- it is a QuantizeLinear or DequantizeLinear beside an op that the runtime runs on integers;
- its values vanish and nothing tells where they went.

What vanishes because it is constant, does nothing or repeats another node is not reserved.

On CUDA the runtime has fewer fusions than on the CPU, where it is asked: no blocked layout, and no activation becomes
part of a Conv or Gemm (its source registers these for the CPU). Such nodes are reserved on the CPU alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

from onnxfuse.fusion.ort_child import (
    MANY_SCALARS,
    Child,
    OptGraph,
    OptNode,
    RuntimeRefused,
    idle_passes,
    optimizing,
    scalars,
    started,
)
from onnxfuse.fusion.trace import Block, Classes, Trace, domain_of
from onnxfuse.model import GraphView, Model
from onnxfuse.model.external import external_tensors
from onnxfuse.model.graphs import all_nodes, bodies
from onnxfuse.ops import elementwise_like
from onnxfuse.ops.reason import Reason

__all__ = ["Pattern", "Reserved", "asked", "reserved_nodes", "started"]

Elementwise = Callable[[str, str], bool]
_HALF = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
_MICROSOFT = "com.microsoft"
_NCHWC = "com.microsoft.nchwc"
_BLOCKED = frozenset({"Conv", "MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"})
# Ops that only rearrange, name or measure; seeing one tells nothing about where a computation went.
_MOVES = frozenset(
    "Reshape Transpose Squeeze Unsqueeze Flatten Identity Cast Expand Shape Size Slice Concat Split Gather Tile "
    "Constant ConstantOfShape Range Dropout Pad".split()
)
# The runtime's fused elementwise nodes that a fused group may take over when it is larger.
_YIELDS = frozenset({"QuickGelu"})
_QUANTIZE = frozenset({"QuantizeLinear", "DequantizeLinear"})
_FOLDS = frozenset({"Conv", "FusedConv", "ConvTranspose"})
_FOLDED = frozenset({"Add", "Sub", "Mul", "Div", "BatchNormalization"})
# What the runtime makes on its CPU provider and not on CUDA.
_CPU_ALONE = frozenset({"FusedConv", "FusedGemm"})

_QUANTIZED = Reason("quantized-operator", "ONNX Runtime runs the operator beside it on the quantized values")
_TRANSPOSED = Reason(
    "transposed-by-runtime", "ONNX Runtime moves a Transpose past it, which a fused node would hold up"
)
_HANDS_ON = Reason("fused-by-runtime", "hands its input on to a node that is left to ONNX Runtime")
_PAIRED = Reason("quantized-operator", "the other half of the pair stands beside an operator that runs on integers")


@dataclass(frozen=True)
class Pattern:
    """Original nodes that the runtime makes one elementwise node ``op``: a group of no more than these gains nothing.

    ``outputs`` are the first outputs of the original nodes in the graph ``path`` ("" for the main graph), in order."""

    op: str
    outputs: tuple[str, ...]
    path: str = ""


@dataclass(frozen=True)
class Reserved:
    """Nodes that are left to the runtime. A graph has the path that GraphView gives it, a node its first output."""

    graphs: Mapping[str, Mapping[str, Reason]] = field(default_factory=dict)
    gpu: Mapping[str, Mapping[str, Reason]] = field(default_factory=dict)
    """The same for the runtime's CUDA provider."""
    patterns: tuple[Pattern, ...] = ()
    note: str | None = None
    """Why nothing is known (the runtime is absent or cannot load the model); else None."""
    runtime: str | None = None
    """Version of the runtime that was asked."""

    @property
    def by_output(self) -> Mapping[str, Reason]:
        """The reserved nodes of the main graph."""
        return self.graphs.get("", {})

    @property
    def untraceable(self) -> int:
        """Nodes left alone because nothing tells where they went, over all graphs."""
        return sum(reason.code == "untraceable" for graph in self.graphs.values() for reason in graph.values())


def reserved_nodes(model: Model, *, timeout: float = 900.0, elementwise: Elementwise = elementwise_like) -> Reserved:
    """What `asked` gives, waited for."""
    with started() as child, asked(model, child, timeout=timeout, elementwise=elementwise) as answer:
        return answer()


@contextlib.contextmanager
def asked(
    model: Model, child: Child, *, timeout: float = 900.0, elementwise: Elementwise = elementwise_like
) -> Iterator[Callable[[], Reserved]]:
    """Ask the runtime, in the process ``child``, which nodes of ``model`` it fuses itself. It works while the block
    runs; a call of what the block gets waits for the answer.

    ``timeout`` in seconds. Never raises for what the runtime does: where it cannot say (not installed, cannot load the
    model, crashed, took too long), nothing is reserved and ``note`` tells why.
    """
    with contextlib.ExitStack() as stack:
        try:
            wait = stack.enter_context(
                optimizing(
                    model.path or model.proto,
                    child,
                    folder=model.folder if any(True for _ in external_tensors(model.proto)) else None,
                    float32_copy=has_half(model.proto),
                    left_out=_idle_passes(model.proto),
                    merge_scalars=sum(1 for _ in scalars(model.proto.graph)) >= MANY_SCALARS,
                    timeout=timeout,
                )
            )
        except RuntimeRefused as error:
            refusal = _refused(error)
            yield lambda: refusal
            return

        classes = {view.path: Classes(view) for view in model.graphs.values()}  # while the runtime works

        def answer() -> Reserved:
            try:
                graphs = wait()
            except RuntimeRefused as error:
                return _refused(error)
            return compare(model.main, graphs.extended, graphs.full, graphs.version, elementwise, classes)

        yield answer


def _idle_passes(model: ModelProto) -> set[str]:
    ops = [node.op_type for graph in (model.graph, *model.functions) for node in all_nodes(graph)]
    return idle_passes(set(ops), len(ops))


def _refused(error: RuntimeRefused) -> Reserved:
    return Reserved(note=f"ONNX Runtime cannot optimize this model, so no node is reserved for it: {error}")


def compare(
    view: GraphView,
    extended: OptGraph,
    full: OptGraph,
    version: str | None = None,
    elementwise: Elementwise = elementwise_like,
    classes: Mapping[str, Classes] | None = None,
) -> Reserved:
    """Reserved nodes of a graph and its bodies, from what the two levels made of it. ``classes`` are those of the
    graphs by path, where they are at hand; they are used up."""
    known = classes or {}
    graphs: dict[str, Mapping[str, Reason]] = {}
    gpu: dict[str, Mapping[str, Reason]] = {}
    patterns: list[Pattern] = []
    left: list[tuple[GraphView, OptGraph, OptGraph | None]] = [(view, extended, full)]
    while left:
        view, now, then = left.pop()
        trace = Trace(known.get(view.path) or Classes(view), now)
        finder = _Finder(trace, then, elementwise)
        graphs[view.path], gpu[view.path] = finder.run()
        patterns.extend(finder.patterns)
        left += reversed(list(_bodies(trace, then)))
    return Reserved(graphs, gpu, tuple(patterns), None, version)


def _bodies(trace: Trace, full: OptGraph | None) -> Iterator[tuple[GraphView, OptGraph, OptGraph | None]]:
    """The bodies of a graph's nodes that are left, with what the two levels made of each."""
    later = full.produced if full else {}
    for index, children in trace.view.children.items():
        first = next((o for o in trace.view.graph.node[index].output if o), "")
        now, then = trace.maker(first), later.get(first)
        for child in children:
            attribute = child.path.rsplit(".", 1)[-1]
            if now and attribute in now.bodies:
                yield child, now.bodies[attribute], then.bodies.get(attribute) if then else None


class _Finder:
    """Reserved nodes of one graph."""

    def __init__(self, trace: Trace, full: OptGraph | None, elementwise: Elementwise) -> None:
        self.trace = trace
        self.view = trace.view
        self.nodes = trace.view.graph.node
        self.elementwise = elementwise
        self.full = full
        self.later = full.produced if full is not None else {}
        self.found: dict[int, Reason] = {}
        self.cpu_alone: set[int] = set()  # those of the found that no reason reserves on CUDA
        self.patterns: list[Pattern] = []

    def run(self) -> tuple[dict[str, Reason], dict[str, Reason]]:
        """What is reserved on the CPU, and on CUDA."""
        blocks = self.trace.blocks()
        for block in blocks:
            self._from_block(block)
        self._quantized()
        if self.full is not None and self.full is not self.trace.optimized:
            self._blocked(blocks, self.full)
        gpu = {index: reason for index, reason in self.found.items() if index not in self.cpu_alone}
        self._past_transposes(self._dropped(blocks, self._free_transpose), self.found)
        self._past_transposes(self._dropped(blocks, lambda index: False), gpu)
        for found in (self.found, gpu):
            self._no_ops(found)
        return self._named(self.found), self._named(gpu)

    def _named(self, found: Mapping[int, Reason]) -> dict[str, Reason]:
        return {self._name(index): found[index] for index in sorted(found)}

    def _name(self, index: int) -> str:
        return next((o for o in self.nodes[index].output if o), "")

    def _is_elementwise(self, index: int) -> bool:
        return self.elementwise(domain_of(self.nodes[index]), self.nodes[index].op_type)

    def _reserve(self, index: int, reason: Reason, *, cpu_alone: bool = False) -> None:
        """Reserve a node if it is elementwise, and its twins: the runtime merges them."""
        if not self._is_elementwise(index):
            return
        twins = [
            twin for name in self.nodes[index].output for twin in self.trace.makers.get(self.trace.class_of(name), ())
            if self.nodes[twin].op_type == self.nodes[index].op_type
        ]  # fmt: skip
        for own in (index, *twins):
            if not cpu_alone:
                self.cpu_alone.discard(own)
            elif own not in self.found:
                self.cpu_alone.add(own)
            self.found.setdefault(own, reason)

    def _no_ops(self, found: dict[int, Reason]) -> None:
        """Reserve what only hands a value on to a reserved node: as part of a group it would stand in between."""
        for index in reversed(self.view.order):
            if index in self.trace.passing and any(reader in found for reader in self._readers(self.nodes[index])):
                found.setdefault(index, _HANDS_ON)

    # -------------------------------------------------------------------------------- fused by the runtime

    def _from_block(self, block: Block) -> None:
        cluster = [self.trace.optimized.nodes[place] for place in block.cluster]
        work = [node for node in cluster if node.op_type not in _MOVES]
        anchors = [node for node in work if not self._merely_elementwise(node)]
        if anchors:
            if not block.kept:
                self._absorbed(block, anchors)
        elif len(work) == 1:
            self._one_elementwise(block, work[0])

    def _merely_elementwise(self, node: OptNode) -> bool:
        return self.elementwise(node.domain, node.op_type)

    def _absorbed(self, block: Block, anchors: list[OptNode]) -> None:
        """Reserve the elementwise nodes that a cluster with other ops does not show any more."""
        before, now = self.trace.ops_of(block)
        anchor = anchors[-1]
        cpu_alone = anchor.op_type in _CPU_ALONE and all(
            node.op_type in _CPU_ALONE or node.domain != _MICROSOFT for node in anchors
        )
        for index in block.region:
            node = self.nodes[index]
            key = domain_of(node), node.op_type
            if node.op_type in _QUANTIZE or now[key] >= before[key] or self._constant(node):
                continue
            if now[key]:
                words = f"ONNX Runtime fuses some of the {node.op_type} nodes here; it is unclear which"
                self._reserve(index, Reason("untraceable", words))
            elif anchor.op_type in _FOLDS and node.op_type in _FOLDED:
                words = f"ONNX Runtime folds it into the weights or bias of a {anchor.op_type}"
                self._reserve(index, Reason("folded-into-conv", words))
            else:
                words = f"ONNX Runtime makes it part of {anchor.op_type}"
                activation = node.op_type not in _FOLDED  # a bias becomes part of a Gemm everywhere
                self._reserve(index, Reason("fused-by-runtime", words), cpu_alone=cpu_alone and activation)

    def _constant(self, node: NodeProto) -> bool:
        return all(self.trace.is_constant(name) for name in node.output if name)

    def _one_elementwise(self, block: Block, made: OptNode) -> None:
        region = [i for i in block.region if self.nodes[i].op_type not in _MOVES and not self._constant(self.nodes[i])]
        if len(region) < 2 or not all(map(self._is_elementwise, region)):
            return
        if made.domain == _MICROSOFT and made.op_type not in _YIELDS:
            reason = Reason("fused-by-runtime", f"ONNX Runtime makes one {made.op_type} of it and its neighbours")
            for index in block.region:
                self._reserve(index, reason)
            return
        names = tuple(self._name(i) for i in region)
        self.patterns.append(Pattern(made.op_type, names, self.view.path))

    # -------------------------------------------------------------------------------- quantized operators

    def _quantized(self) -> None:
        """Quantize and Dequantize beside an op that the runtime runs on integers.

        QLinear nodes carry new names, so this goes by rule: beside anything that is not elementwise, and beside what
        the trace found inside a QLinear node; a Relu or Clip between such an op and its QuantizeLinear goes with it;
        and a pair of Quantize and Dequantize stays together: the runtime changes the type of whole pairs (int8 to
        uint8), and an operator between an int8 and a uint8 pair does not become a QLinear node."""
        absorbed = {i for i, r in self.found.items() if "QLinear" in r.text}
        for index, node in enumerate(self.nodes):
            if node.op_type == "DequantizeLinear":
                if any(self._anchors(i) or i in absorbed for i in self._readers(node)):
                    self._reserve(index, _QUANTIZED)
            elif node.op_type == "QuantizeLinear":
                maker = self.view.producer.get(node.input[0])
                if maker is not None and self._clamps(maker):
                    before = self.view.producer.get(self.nodes[maker].input[0])
                    if before is not None and self._anchors(before) and self._readers(self.nodes[maker]) == [index]:
                        self._reserve(maker, _QUANTIZED)
                        maker = before
                if maker is not None and (self._anchors(maker) or maker in absorbed):
                    self._reserve(index, _QUANTIZED)
        pairs = self._pairs()
        for first, second in pairs:
            if second in self.found:
                self._reserve(first, _PAIRED)
        for first, second in pairs:
            if first in self.found:
                self._reserve(second, _PAIRED)

    def _pairs(self) -> list[tuple[int, int]]:
        """Each QuantizeLinear with each DequantizeLinear that reads it."""
        found = []
        for index, node in enumerate(self.nodes):
            maker = self.view.producer.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
            if maker is not None and self.nodes[maker].op_type == "QuantizeLinear":
                found.append((maker, index))
        return found

    def _readers(self, node: NodeProto) -> list[int]:
        return self.view.readers.get(node.output[0], [])

    def _anchors(self, index: int) -> bool:
        return not self._is_elementwise(index)

    def _clamps(self, index: int) -> bool:
        return self.nodes[index].op_type in ("Relu", "Clip") and domain_of(self.nodes[index]) == ""

    # -------------------------------------------------------------------------------- blocked layout

    def _blocked(self, blocks: list[Block], full: OptGraph) -> None:
        """Reserve what exists at the extended level and is gone, or made by another op, at the full level."""
        later = self.later
        known = frozenset(later) | full.initializers | frozenset(full.inputs)
        reason = Reason("blocked-layout", "ONNX Runtime runs it in the blocked layout of the convolutions around it")
        moved: set[int] = set()  # places of optimized nodes
        for place, node in enumerate(self.trace.optimized.nodes):
            if not self._merely_elementwise(node):
                continue
            for name in node.outputs:
                then = later.get(name)
                if name and (name not in known if then is None else then.op_type != node.op_type):
                    moved.add(place)
        if not moved:
            return
        names = {name for place in moved for name in self.trace.optimized.nodes[place].outputs if name}
        classes = {self.trace.class_of(name) for name in names}
        for key in classes:
            root = self.trace.roots.get(key)
            if root is not None:
                self._reserve(root, reason, cpu_alone=True)
        for block in blocks:
            if moved.intersection(block.cluster):
                for index in block.region:
                    self._reserve(index, reason, cpu_alone=True)

    # -------------------------------------------------------------------------------- moved transposes

    def _dropped(self, blocks: list[Block], free: Callable[[int], bool]) -> list[int]:
        """The nodes of blocks where a Transpose vanished that is not ``free``: beside a blocked convolution or pooling
        it costs nothing, as the reorder does it."""
        found: list[int] = []
        for block in blocks:
            before, now = self.trace.ops_of(block)
            gone = [i for i in block.region if self.nodes[i].op_type == "Transpose" and not free(i)]
            if gone and now["", "Transpose"] < before["", "Transpose"]:
                found += block.region
        return found

    def _past_transposes(self, stack: list[int], found: dict[int, Reason]) -> None:
        """Reserve elementwise nodes that the runtime moves a Transpose past, to drop it: a fused node would hold it up.

        Values keep their names although their layout changes, so all elementwise nodes that are joined to those where
        a Transpose vanished (the ``stack``) go with them.
        """
        while stack:
            index = stack.pop()
            if index in found or not self._is_elementwise(index):
                continue
            found[index] = _TRANSPOSED
            node = self.nodes[index]
            stack += [self.view.producer[name] for name in node.input if name in self.view.producer]
            stack += [reader for name in node.output for reader in self.view.readers.get(name, ())]

    def _free_transpose(self, index: int) -> bool:
        """Whether a Transpose stands beside an op that runs in the blocked layout."""
        maker = self.view.producer.get(self.nodes[index].input[0])
        beside = self._readers(self.nodes[index]) + ([] if maker is None else [maker])
        return any(self.nodes[i].op_type in _BLOCKED and self._runs_blocked(i) for i in beside)

    def _runs_blocked(self, index: int) -> bool:
        then = self.later.get(self._name(index))
        return then is None or then.domain == _NCHWC


def has_half(model: ModelProto) -> bool:
    """Whether float16 or bfloat16 values occur: weights, typed values, Casts, in functions and bodies too."""
    return _half_graph(model.graph) or any(_half_nodes(f.node) for f in model.functions)


def _half_graph(graph: GraphProto) -> bool:
    if any(t.data_type in _HALF for t in graph.initializer):
        return True
    if any(_half_type(v.type) for v in (*graph.input, *graph.output, *graph.value_info)):
        return True
    return _half_nodes(graph.node)


def _half_type(proto: TypeProto) -> bool:
    kind = proto.WhichOneof("value")
    if kind in ("sequence_type", "optional_type"):
        return _half_type(getattr(proto, kind).elem_type)
    return kind == "tensor_type" and proto.tensor_type.elem_type in _HALF


def _half_nodes(nodes: Iterable[NodeProto]) -> bool:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype") and attribute.i in _HALF:
                return True
            if attribute.HasField("t") and attribute.t.data_type in _HALF:
                return True
        if node.attribute and any(_half_graph(body) for _, body in bodies(node)):
            return True
    return False
