"""Element types and shapes of every value, bodies included: for planning only, never written into a model.

ONNX's own inference runs on a copy without weights; simple rules of ours fill what it leaves open (operators of other
domains, values of unknown rank, models it gives up on).
"""

from __future__ import annotations

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto

from onnxfuse.model import schemas
from onnxfuse.model.graphs import GraphView, bodies
from onnxfuse.model.shapes import Term, fresh, join, known, unnamed

__all__ = ["Values", "infer", "stripped"]

_KEEP_BYTES = 4096  # tensors up to this size keep their values: shapes are computed from them
_NO_NAME = frozenset({"?", "-1", "None", "none", "unk", "unknown", "null"})  # exporters' words for "some dim"


class Values:
    """Types and shapes of the values of one graph (those it defines itself)."""

    def __init__(self) -> None:
        self.types: dict[str, int] = {}
        """Value -> number of its element type; only tensors whose type is known."""
        self.terms: dict[str, Term] = {}
        self.other: set[str] = set()
        """Values that are no tensors: sequences, optionals, maps, sparse tensors."""


def stripped(model: ModelProto, view: GraphView) -> ModelProto:
    """A copy of the model for inference: no large tensors, no claims about the shapes of inner values that inference
    can make itself, dims of Loop and Scan bodies told apart from those outside."""
    copy = ModelProto()
    for field, value in model.ListFields():
        if field.name == "graph":
            _strip_graph(model.graph, copy.graph, view, rename="")
        elif field.name in ("functions", "opset_import"):
            getattr(copy, field.name).extend(value)
        elif field.name == "ir_version":
            copy.ir_version = value
    return copy


def _strip_graph(graph: GraphProto, copy: GraphProto, view: GraphView, rename: str) -> None:
    copy.name = graph.name
    for tensor in graph.initializer:
        _strip_tensor(tensor, copy.initializer.add())
    # older inference looks for the types of sparse initializers among the inputs only
    for value in graph.input:
        own = copy.input.add()
        own.CopyFrom(value)
        _rename_dims(own.type, rename, f"{view.path}:{value.name}")
    for value in graph.output:
        copy.output.append(_without_shape(value))
    foreign = {o for node in graph.node if node.domain not in ("", "ai.onnx", "ai.onnx.ml") for o in node.output}
    for value in graph.value_info:
        copy.value_info.append(value if value.name in foreign else _without_shape(value))
    for index in view.order:
        _strip_node(graph.node[index], copy.node.add(), view.children.get(index, []))


def _strip_node(node: NodeProto, copy: NodeProto, children: list[GraphView]) -> None:
    if not children and not (node.op_type == "Constant" and node.ByteSize() > _KEEP_BYTES):
        copy.CopyFrom(node)
        return
    copy.op_type, copy.domain, copy.name = node.op_type, node.domain, node.name
    copy.input.extend(node.input)
    copy.output.extend(node.output)
    left = iter(children)
    for attribute in node.attribute:
        own = copy.attribute.add()
        own.name, own.type = attribute.name, attribute.type
        if attribute.type == AttributeProto.GRAPH:
            child = next(left)
            _strip_graph(attribute.g, own.g, child, child.path + ":" if node.op_type in ("Loop", "Scan") else "")
        elif attribute.type == AttributeProto.GRAPHS:
            for body in attribute.graphs:
                _strip_graph(body, own.graphs.add(), next(left), "")
        elif attribute.type == AttributeProto.TENSOR:
            _strip_tensor(attribute.t, own.t)
        else:
            own.CopyFrom(attribute)


def _strip_tensor(tensor: TensorProto, copy: TensorProto) -> None:
    if tensor.ByteSize() <= _KEEP_BYTES:
        copy.CopyFrom(tensor)
        return
    copy.name, copy.data_type = tensor.name, tensor.data_type
    copy.dims.extend(tensor.dims)
    copy.data_location = TensorProto.EXTERNAL
    copy.external_data.add(key="location", value="none")


def _without_shape(value: ValueInfoProto) -> ValueInfoProto:
    copy = ValueInfoProto()
    copy.CopyFrom(value)
    if copy.type.WhichOneof("value") == "tensor_type":
        copy.type.tensor_type.ClearField("shape")
    return copy


def _rename_dims(type_proto: TypeProto, prefix: str, where: str) -> None:
    """Tells dims of bodies apart, and names those without a name as our own terms do (inference would invent names)."""
    if type_proto.WhichOneof("value") != "tensor_type":
        return
    for axis, dim in enumerate(type_proto.tensor_type.shape.dim):
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            continue
        if not dim.dim_param or dim.dim_param in _NO_NAME:
            dim.dim_param = unnamed(where, axis)
        elif prefix:
            dim.dim_param = prefix + dim.dim_param


def infer(model: ModelProto, view: GraphView) -> dict[str, Values]:
    """Types and shape terms by the path of the graph."""
    copy = stripped(model, view)
    try:
        copy = onnx.shape_inference.infer_shapes(copy, check_type=False, strict_mode=False, data_prop=True)
    except Exception:  # inference gives up in many ways (unknown imports, damaged functions): our rules then work alone
        pass
    found: dict[str, Values] = {}
    versions = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import}
    _Walk(versions, found, {(f.domain, f.name) for f in model.functions}).graph(view, copy.graph, None)
    return found


class _Walk:
    """One pass over a graph and its bodies in the order of execution."""

    def __init__(self, versions: dict[str, int], found: dict[str, Values], functions: set[tuple[str, str]]) -> None:
        self.versions, self.found, self.functions = versions, found, functions

    def graph(self, view: GraphView, inferred: GraphProto, inputs: list[tuple[int | None, Term | None]] | None) -> None:
        """``inputs``: what the holder knows of a body's inputs, by place (type, shape; None where unknown)."""
        values = self.found[view.path] = Values()
        stated = {v.name: v for v in (*inferred.value_info, *inferred.output)}
        declared = {v.name: v for v in (*view.graph.value_info, *view.graph.output)}
        for place, value in enumerate(inferred.input):
            kind, term = (inputs[place] if inputs and place < len(inputs) else (None, None))
            self._take(values, value.name, value, view.path)
            if value.name not in values.types and kind and value.name not in values.other:
                values.types[value.name] = kind
            if value.name not in values.terms:
                values.terms[value.name] = term or fresh(f"{view.path}:{value.name}")
        for name, tensor in view.initializers.items():
            values.types[name] = tensor.data_type
            if name in view.constants:
                values.terms[name] = known(tensor.dims, name)
        for tensor in view.graph.sparse_initializer:
            values.other.add(tensor.values.name)
        for place, index in enumerate(view.order):
            self._node(view, index, inferred.node[place], stated, declared)

    def _node(self, view: GraphView, index: int, copy: NodeProto, stated: dict[str, ValueInfoProto],
              declared: dict[str, ValueInfoProto]) -> None:
        node, values = view.graph.node[index], self.found[view.path]
        for child, (_, graph) in zip(view.children.get(index, ()), bodies(copy), strict=True):
            self.graph(child, graph, self._body_inputs(view, node))
        in_terms = [self._term(view, name) for name in node.input if name]
        rule = schemas.shape_rule(node) if in_terms else None
        for place, name in enumerate(node.output):
            if not name:
                continue
            ruled = rule == "join" or (rule == "first" and (place == 0 or node.op_type == "Dropout"))
            for known_value in (stated.get(name), declared.get(name)):
                if known_value is not None:
                    self._take(values, name, known_value, view.path, shape=not ruled)
            if ruled:
                values.terms[name] = join(in_terms) if rule == "join" else in_terms[0]
            elif name not in values.terms:
                values.terms[name] = fresh(f"{view.path}:{name}")
        if any(o and o not in values.types and o not in values.other for o in node.output):
            self._types_by_rule(view, node)
        for name in node.output:
            tensor = view.constants.get(name)
            if tensor is not None:
                values.types[name], values.terms[name] = tensor.data_type, known(tensor.dims, name)

    def _take(self, values: Values, name: str, value: ValueInfoProto, path: str, shape: bool = True) -> None:
        """What a ValueInfoProto says of a value, where nothing is known yet; without ``shape``, of its type alone."""
        kind = value.type.WhichOneof("value")
        if kind is None:
            return
        if kind != "tensor_type":
            values.other.add(name)
            return
        tensor = value.type.tensor_type
        if tensor.elem_type and name not in values.types:
            values.types[name] = tensor.elem_type
        if shape and name not in values.terms and tensor.HasField("shape"):
            values.terms[name] = known(map(_dim, tensor.shape.dim), f"{path}:{name}")

    def _types_by_rule(self, view: GraphView, node: NodeProto) -> None:
        values = self.found[view.path]
        types = [self._type(view, name) if name else None for name in node.input]
        for name, kind in zip(node.output, schemas.output_types(node, types, self.versions), strict=False):
            if name and kind and name not in values.types and name not in values.other:
                values.types[name] = kind

    def _body_inputs(self, view: GraphView, node: NodeProto) -> list[tuple[int | None, Term | None]]:
        """What the inputs of a Loop or Scan body get, as far as it is certain."""
        known_inputs = [(self._type(view, name), self._term(view, name)) if name else (None, None)
                        for name in node.input]
        if node.op_type == "Loop":
            first = [(int(TensorProto.INT64), Term()), (int(TensorProto.BOOL), Term())]
            return [*first, *((kind, None) for kind, _ in known_inputs[2:])]  # a carried value may change its shape
        if node.op_type == "Scan" and self.versions.get("", 9) >= 9:
            return [(kind, _slice(term, axis)) for (kind, term), axis in zip(known_inputs, _scan_axes(node),
                                                                             strict=True)]
        return []

    def _type(self, view: GraphView, name: str) -> int | None:
        own = self.found[view.path].types.get(name)  # mostly it is a value of this very graph
        if own is not None or view.parent is None or view.defines(name):
            return own
        return self._type(view.parent, name)

    def _term(self, view: GraphView, name: str) -> Term:
        term = self.found[view.path].terms.get(name)
        if term is not None:
            return term
        owner = view.owner(name)
        term = None if owner is None else self.found[owner.path].terms.get(name)
        return term if term is not None else fresh(f"{view.path}:{name}")


def _scan_axes(node: NodeProto) -> list[int | None]:
    """The axis along which a Scan cuts each of its inputs; None for state, which keeps its shape."""
    integers = {attribute.name: attribute for attribute in node.attribute}
    sliced = min(integers["num_scan_inputs"].i if "num_scan_inputs" in integers else 0, len(node.input))
    axes = list(integers["scan_input_axes"].ints) if "scan_input_axes" in integers else []
    return [*[None] * (len(node.input) - sliced), *(axes if len(axes) == sliced else [0] * sliced)]


def _slice(term: Term | None, axis: int | None) -> Term | None:
    """The shape without one axis; None where that is not known."""
    if term is None or axis is None:
        return term
    rank = term.rank
    if rank is None or not -rank <= axis < rank:
        return None
    dims = list(term.dims)
    del dims[axis]
    return Term(tuple(dims))


def _dim(dim: onnx.TensorShapeProto.Dimension) -> int | str:
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return int(dim.dim_value)
    return "" if dim.dim_param in _NO_NAME else str(dim.dim_param)
