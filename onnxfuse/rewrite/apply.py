"""From plan to model: fused nodes in place of their groups, everything else as it was.

    apply(model, plan) -> ModelProto

The original is not changed. What is not fused keeps its bytes: nothing inferred is written but the element types of the
outputs of fused nodes. Where nothing is fused (and nothing has to be sorted), the original itself comes back.
"""

from __future__ import annotations

import heapq
import importlib.metadata
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from onnxfuse.fusion.plan import Group, Plan
from onnxfuse.model import GraphView, Model, Term
from onnxfuse.model.graphs import bodies as bodies_of
from onnxfuse.rewrite.bodies import DOMAIN, inline_tensor, make_body, name_bodies
from onnxfuse.rewrite.kernels import NO_CODE, WISH, attach, graphs_of, has_code, lacks, programs_of
from onnxfuse.rewrite.names import Names
from onnxfuse.version import __version__

__all__ = ["apply", "changes"]

_LOWEST_IR = 8  # functions
_CONSTANT_INPUTS_IR = 3  # up to here every initializer is listed as an input and is a constant all the same


def changes(model: Model, plan: Plan) -> bool:
    """Whether the plan changes the model at all; if not, its file is to be copied as it is."""
    return bool(plan.groups) or any(view.order != list(range(len(view.order))) for view in model.graphs.values())


Compile = Callable[[Sequence[str]], Mapping[str, bytes]]
"""Programs -> GPU code, by the text of each."""


def apply(
    model: Model, plan: Plan, targets: Sequence[str] = ("cpu",), compile_programs: Compile | None = None,
    compiler: str = "",
) -> ModelProto:
    """The fused model; ``model.proto`` itself if there is nothing to change. With ``compile_programs`` all fused nodes
    get GPU code, those that the model has already, too; ``compiler`` says what makes it."""
    result = model.proto
    names, stamped = None, bool(plan.groups)
    if changes(model, plan):
        result = ModelProto()
        result.CopyFrom(model.proto)
        rewriter = _Rewriter(model, plan, result)
        rewriter.run()
        names = rewriter.names
    if compile_programs is not None:
        code = compile_programs(programs_of(result))
        if lacks(result, code):
            if result is model.proto:
                result = ModelProto()
                result.CopyFrom(model.proto)
            attach(result, code, (names or Names(model.proto, model.main)).new)
            stamped = True
    if stamped:
        if "cuda" not in targets and has_code(result):
            targets = (*targets, "cuda")
        _stamp(result, plan, targets, compiler)
    return result


class _Rewriter:
    """Edits a copy of the model in place."""

    def __init__(self, model: Model, plan: Plan, result: ModelProto) -> None:
        self.model, self.plan, self.result = model, plan, result
        self.names = Names(model.proto, model.main)
        self.copies = {view.path: graph for view, graph in _pairs(model.main, result.graph)}
        self.bodies: dict[int, FunctionProto] = {}
        self.node_names: dict[int, str] = {}

    def run(self) -> None:
        groups = self.plan.groups
        bodies = [make_body(self.model, group) for group in groups]
        fresh = name_bodies(self.model.proto, bodies, groups)
        self.result.functions.extend(fresh)
        by_path: dict[str, list[tuple[Group, NodeProto]]] = {}
        for group, body in zip(groups, bodies, strict=True):
            by_path.setdefault(group.path, []).append((group, self._node(group, body)))
        # bodies before the graphs that hold them: replacing a node list copies what is in it
        for view in reversed(list(self.model.graphs.values())):
            self._graph(view, self.copies[view.path], by_path.get(view.path, []))
        if groups and self.model.proto.ir_version <= _CONSTANT_INPUTS_IR:
            for graph in graphs_of(self.result.graph):
                _drop_listed(graph)
        self._drop_unread()

    def _node(self, group: Group, body: FunctionProto) -> NodeProto:
        """The fused node, its first input still open."""
        view = self.model.graphs[group.path]
        sources = [view.graph.node[i].name or next(o for o in view.graph.node[i].output if o) for i in group.nodes]
        node = NodeProto(op_type=body.name, domain=DOMAIN, name=self.names.for_group(sources))
        node.input.append("")
        node.input.extend(read.value for read in group.reads if not read.is_scalar)
        node.output.extend(group.outputs)
        node.attribute.add(name="program", type=AttributeProto.STRING, s=group.program.text.encode())
        if len(group.outputs) > 1:
            node.attribute.add(name="outputs", type=AttributeProto.INT, i=len(group.outputs))
        for read in group.reads:
            if read.is_scalar:
                tensor = view.constant(read.value)
                assert tensor is not None
                node.attribute.add(name=read.name, type=AttributeProto.TENSOR, t=inline_tensor(self.model, tensor))
        node.metadata_props.add(key="onnxfuse.source", value=json.dumps(sources, ensure_ascii=False))
        return node

    def _graph(self, view: GraphView, graph: GraphProto, fused: list[tuple[Group, NodeProto]]) -> None:
        if not fused and view.order == list(range(len(view.order))):
            return
        nodes = list(graph.node)
        if fused:
            kernels = self._kernels(graph)
            for _, node in fused:
                node.input[0] = kernels
        ordered = [nodes[item] if isinstance(item, int) else item for item in _ordered(view, fused)]
        kept = GraphProto(node=ordered)
        del graph.node[:]
        graph.node.MergeFrom(kept.node)
        self._types(view, graph, fused)

    def _kernels(self, graph: GraphProto) -> str:
        """The shared byte of this graph: the one that is there, or a new one."""
        used = {node.input[0] for node in graph.node if node.domain == DOMAIN and node.input}
        for tensor in graph.initializer:
            if tensor.name in used and tensor.data_type == TensorProto.UINT8 and tensor.raw_data == NO_CODE:
                return str(tensor.name)
        name = self.names.new(WISH)
        graph.initializer.add(name=name, data_type=TensorProto.UINT8, dims=[1], raw_data=NO_CODE)
        return name

    def _types(self, view: GraphView, graph: GraphProto, fused: list[tuple[Group, NodeProto]]) -> None:
        """Element types of what fused nodes make; inner values disappear from value_info. A shape is stated where
        an operand is a scalar: to custom operators runtimes show it like one of unknown rank, and infer nothing."""
        outputs = {name for group, _ in fused for name in group.outputs}
        inner = {o for group, _ in fused for i in group.nodes for o in view.graph.node[i].output} - outputs
        _remove(graph.value_info, lambda value: value.name in inner)
        stated = {value.name: value for value in graph.value_info} | {value.name: value for value in graph.output}
        for group, _ in fused:
            tensors = [self.model.term_of(view, read.value) for read in group.reads if not read.is_scalar]
            scalars = any(term.rank == 0 for term in tensors)
            for name in group.outputs:
                value = stated.get(name)
                if value is None:
                    value = graph.value_info.add(name=name)
                _set_type(value, self.model.type_of(view, name) or 0)
                if scalars and (view.path or name not in view.kept):  # what callers see stays as it was
                    _set_shape(value, self.model.term_of(view, name))

    def _drop_unread(self) -> None:
        """Takes out constants that only fused nodes read and now hold themselves."""
        candidates: dict[str, set[str]] = {}
        for group in self.plan.groups:
            view = self.model.graphs[group.path]
            for name in {n for i in group.nodes for n in view.graph.node[i].input if n}:
                owner = view.owner(name)
                if owner is not None and name in owner.constants and name not in owner.kept:
                    candidates.setdefault(owner.path, set()).add(name)
        for path, names in candidates.items():
            graph = self.copies_now()[path]
            names -= _read_below(graph)
            if names:
                _remove_constants(graph, names)

    def copies_now(self) -> dict[str, GraphProto]:
        """The graphs of the result by path, after node lists were replaced."""
        found: dict[str, GraphProto] = {}
        stack = [(self.model.main, self.result.graph)]
        while stack:
            view, graph = stack.pop()
            found[view.path] = graph
            holders = {next(o for o in node.output if o): node for node in graph.node if any(bodies_of(node))}
            for index, children in view.children.items():
                holder = holders[next(o for o in view.graph.node[index].output if o)]
                stack += [(child, body) for child, (_, body) in zip(children, bodies_of(holder), strict=True)]
        return found


def _pairs(view: GraphView, graph: GraphProto) -> Iterator[tuple[GraphView, GraphProto]]:
    """Each view with its graph in a copy of the model."""
    yield view, graph
    for index, children in view.children.items():
        for child, (_, body) in zip(children, bodies_of(graph.node[index]), strict=True):
            yield from _pairs(child, body)


def _ordered(view: GraphView, fused: list[tuple[Group, NodeProto]]) -> list[int | NodeProto]:
    """Nodes that stay (by place) and fused nodes, topologically sorted, as near to the old order as that allows: a
    fused node stands where its last node stood."""
    place = {index: at for at, index in enumerate(view.order)}
    unit: dict[int, int] = {index: at for at, index in enumerate(view.order)}
    items: dict[int, int | NodeProto] = dict(enumerate(view.order))
    for group, node in fused:
        last = max(place[index] for index in group.nodes)
        for index in group.nodes:
            del items[place[index]]
            unit[index] = last
        items[last] = node
    followers: dict[int, set[int]] = {at: set() for at in items}
    for name, readers in view.readers.items():
        maker = view.producer.get(name)
        if maker is not None:
            followers[unit[maker]].update(unit[r] for r in readers if unit[r] != unit[maker])
    missing = dict.fromkeys(items, 0)
    for after in followers.values():
        for at in after:
            missing[at] += 1
    ready = [at for at, count in missing.items() if count == 0]
    heapq.heapify(ready)
    ordered: list[int | NodeProto] = []
    while ready:
        at = heapq.heappop(ready)
        ordered.append(items[at])
        for after_at in followers[at]:
            missing[after_at] -= 1
            if missing[after_at] == 0:
                heapq.heappush(ready, after_at)
    if len(ordered) < len(items):
        raise AssertionError("the plan closes a cycle")
    return ordered


def _set_type(value: ValueInfoProto, kind: int) -> None:
    """The element type, where the value does not have one."""
    if value.type.WhichOneof("value") in (None, "tensor_type") and not value.type.tensor_type.elem_type:
        value.type.tensor_type.elem_type = kind


def _set_shape(value: ValueInfoProto, term: Term) -> None:
    """The rank and the dims that are numbers, where the value has no shape."""
    if value.type.WhichOneof("value") == "tensor_type" and not value.type.tensor_type.HasField("shape") \
            and term.rank is not None:
        value.type.tensor_type.shape.SetInParent()
        for dim in term.dims:
            own = value.type.tensor_type.shape.dim.add()
            if isinstance(dim, int):
                own.dim_value = dim


def _drop_listed(graph: GraphProto) -> None:
    """Initializers leave the inputs."""
    names = {t.name for t in graph.initializer}
    _remove(graph.input, lambda value: value.name in names)


def _read_below(graph: GraphProto) -> set[str]:
    """Every name that a node or an output of the graph or of a body below reads."""
    found: set[str] = set()
    for inner in graphs_of(graph):
        found.update(value.name for value in inner.output)
        for node in inner.node:
            found.update(node.input)
    return found


def _remove_constants(graph: GraphProto, names: set[str]) -> None:
    _remove(graph.initializer, lambda tensor: tensor.name in names)
    _remove(graph.node, lambda node: node.op_type == "Constant" and node.output[0] in names)
    _remove(graph.value_info, lambda value: value.name in names)


def _remove(field: Any, unwanted: Callable[[Any], bool]) -> None:
    """Takes entries out of a repeated field."""
    for place in reversed([place for place, item in enumerate(field) if unwanted(item)]):
        del field[place]


def _stamp(result: ModelProto, plan: Plan, targets: Sequence[str], compiler: str) -> None:
    """Versions and provenance."""
    result.ir_version = max(result.ir_version, _LOWEST_IR)
    if not any(o.domain == DOMAIN for o in result.opset_import):
        result.opset_import.add(domain=DOMAIN, version=1)
    stamps = {"version": __version__, "targets": ",".join(targets), "onnx": onnx.__version__,
              "onnxruntime": plan.runtime or _version("onnxruntime-gpu", "onnxruntime"),
              **({"cuda": compiler} if compiler else {})}
    entries = {entry.key: entry for entry in result.metadata_props}
    for key, value in stamps.items():
        entry = entries.get(f"onnxfuse.{key}")
        if entry is None:
            entry = result.metadata_props.add(key=f"onnxfuse.{key}")
        entry.value = value


def _version(*packages: str) -> str:
    """Version of the first of these packages that is installed."""
    for package in packages:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "none"
