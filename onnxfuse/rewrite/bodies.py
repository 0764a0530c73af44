"""Function bodies of fused nodes: copies of the original nodes under canonical names, equal bodies shared."""

from __future__ import annotations

import re
from collections.abc import Sequence

from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto, TensorProto

from onnxfuse.fusion.plan import Group
from onnxfuse.model import GraphView, Model
from onnxfuse.model.external import is_external

__all__ = ["DOMAIN", "FAMILY", "GPU_FAMILY", "inline_tensor", "is_fused", "make_body", "name_bodies"]

DOMAIN = "onnxfuse"
FAMILY = "FusedElementwise"
GPU_FAMILY = "FusedDevice"
"""Names that the library registers for sessions on a GPU alone: elsewhere such a node becomes its body."""
_NUMBERED = re.compile(rf"({FAMILY}|{GPU_FAMILY})([1-9][0-9]*)")


def is_fused(node: NodeProto) -> bool:
    """Whether a node is one that we wrote."""
    return node.domain == DOMAIN and _NUMBERED.fullmatch(node.op_type) is not None


def make_body(model: Model, group: Group) -> FunctionProto:
    """The function of a group, without a name: inputs ``kernels, x0, …``, attributes ``program, c0, …``
    and, where several values leave, ``outputs``."""
    view = model.graphs[group.path]
    body = FunctionProto(domain=DOMAIN)
    body.input.append("kernels")
    body.attribute.append("program")
    if len(group.outputs) > 1:
        body.attribute.append("outputs")
    names: dict[str, str] = {}
    for read in group.reads:
        names.setdefault(read.value, read.name)
        (body.attribute if read.is_scalar else body.input).append(read.name)
        if read.is_scalar:
            body.node.append(_constant_of(read.name))
    for number, value in enumerate(group.baked):
        names[value] = f"k{number}"
        body.node.append(_constant(names[value], _tensor(model, view, value)))
    outputs = {value: f"y{number}" for number, value in enumerate(group.outputs)}
    inner = 0
    for index in group.nodes:
        node = view.graph.node[index]
        for name in node.output:
            if name in outputs:
                names[name] = outputs[name]
            elif name:
                names[name] = f"t{inner}"
                inner += 1
        _copy(node, names, view, model, body.node.add())
    body.output.extend(outputs.values())
    used = {_domain(node.domain) for node in body.node}
    body.opset_import.extend(o for o in model.proto.opset_import if _domain(o.domain) in used)
    return body


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _constant_of(attribute: str) -> NodeProto:
    """A Constant whose value is an attribute of the call."""
    node = NodeProto(op_type="Constant", output=[attribute])
    node.attribute.add(name="value", type=AttributeProto.TENSOR, ref_attr_name=attribute)
    return node


def _constant(name: str, tensor: TensorProto) -> NodeProto:
    node = NodeProto(op_type="Constant", output=[name])
    node.attribute.add(name="value", type=AttributeProto.TENSOR, t=tensor)
    return node


def _tensor(model: Model, view: GraphView, value: str) -> TensorProto:
    tensor = view.constant(value)
    if tensor is None:
        raise AssertionError(f"{value!r} is no constant")
    return inline_tensor(model, tensor)


def inline_tensor(model: Model, tensor: TensorProto) -> TensorProto:
    """A copy of a tensor without its name, with its data inside."""
    copy = TensorProto(data_type=tensor.data_type, dims=tensor.dims)
    if is_external(tensor):
        copy.raw_data = model.raw_bytes(tensor)
        return copy
    copy.CopyFrom(tensor)
    for field in ("name", "doc_string", "metadata_props"):
        copy.ClearField(field)
    return copy


def _copy(node: NodeProto, names: dict[str, str], view: GraphView, model: Model, copy: NodeProto) -> None:
    """Makes an empty node a copy under canonical names. Where its program reads no more than the first operand and
    another one changes at run time, an operator with the same result that does without takes its place."""
    inputs = [names.get(name, "") for name in node.input]
    copy.op_type, copy.domain = node.op_type, node.domain
    copy.input.extend(inputs)
    copy.output.extend([names.get(name, "") for name in node.output])
    if node.attribute:
        copy.attribute.extend(node.attribute)
    if "" in inputs and any(name and name not in names for name in node.input):
        del copy.input[1:]
        if node.op_type == "CastLike":
            copy.op_type = "Cast"
            copy.attribute.add(name="to", type=AttributeProto.INT, i=model.type_of(view, node.output[0]))
        elif node.op_type == "Dropout":
            copy.op_type = "Identity"
            del copy.attribute[:]
        else:
            raise AssertionError(f"{node.op_type} reads a value that its group does not have")
    while copy.output and not copy.output[-1]:
        del copy.output[-1]


def name_bodies(proto: ModelProto, bodies: Sequence[FunctionProto], groups: Sequence[Group]) -> list[FunctionProto]:
    """Names bodies in place, equal ones of a family alike, and returns the new functions: those that the model does not
    have yet.

    In each family numbers go to the bodies that replace most nodes in the whole model first (ties by first use) and
    continue after those that the model has.
    """
    names: dict[tuple[str, bytes], str] = {}
    last = {FAMILY: 0, GPU_FAMILY: 0}
    for function in proto.functions:
        match = _NUMBERED.fullmatch(function.name)
        if function.domain == DOMAIN and match:
            last[match[1]] = max(last[match[1]], int(match[2]))
            names.setdefault((match[1], _key(function)), function.name)
    keys = [(GPU_FAMILY if group.on_gpu_alone else FAMILY, _key(body))
            for group, body in zip(groups, bodies, strict=True)]
    totals: dict[tuple[str, bytes], int] = {}
    for key, group in zip(keys, groups, strict=True):
        totals[key] = totals.get(key, 0) + len(group.nodes)
    fresh: list[FunctionProto] = []
    for key in sorted((k for k in totals if k not in names), key=lambda k: -totals[k]):
        family, content = key
        last[family] += 1
        names[key] = f"{family}{last[family]}"
        function = FunctionProto()
        function.ParseFromString(content)
        function.name = names[key]
        fresh.append(function)
    for body, key in zip(bodies, keys, strict=True):
        body.name = names[key]
    return fresh


def _key(function: FunctionProto) -> bytes:
    """What makes two functions equal: everything but the name."""
    copy = FunctionProto()
    copy.CopyFrom(function)
    copy.ClearField("name")
    return bytes(copy.SerializeToString(deterministic=True))
