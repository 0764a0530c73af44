"""What an output depends on, as far as it decides how it is compared.

Flags flow forward from the ops that cause them: random numbers, decisions (an index or a truth value made from
floats, which a rounding error may turn), roundings to integers, sizes that depend on data, quantization.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import onnx

from onnxfuse.check.compare import EXACT, REPORTED, STEPS, TOLERANT, Tolerance
from onnxfuse.check.walk import bodies, nodes_of, reads

__all__ = ["Profile", "decision_inputs", "profile", "tolerance_for"]

RANDOM = 1
DECISION = 2
ROUNDING = 4
FREE_SIZE = 8
QUANTIZED = 16

_RANDOM_OPS = frozenset("RandomNormal RandomNormalLike RandomUniform RandomUniformLike Multinomial Bernoulli".split())
_COMPARISONS = frozenset("Less LessOrEqual Greater GreaterOrEqual Equal".split())
_DECISIONS = frozenset("ArgMax ArgMin TopK NonMaxSuppression Hardmax TfIdfVectorizer TreeEnsemble".split())
_FREE_SIZES = frozenset("NonMaxSuppression NonZero Unique Compress".split())
_QUANTIZED = frozenset(
    "QuantizeLinear DequantizeLinear DynamicQuantizeLinear ConvInteger MatMulInteger QLinearConv QLinearMatMul".split()
)
_HALVES = frozenset((onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16))
_FLOATS = _HALVES | {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE}
_MAX_PASSES = 50
_MAX_DEPTH = 8


@dataclasses.dataclass(frozen=True)
class Profile:
    """How the outputs of a model are to be compared.

    `random`: the op type that makes an output random, by output name. `rules`: how each output is compared.
    `free_size`: outputs whose shape may depend on a near tie. `half` and `quantized` say which tolerance fits.
    """

    random: Mapping[str, str]
    rules: Mapping[str, str]
    free_size: frozenset[str]
    half: bool
    quantized: bool


def profile(model: onnx.ModelProto) -> Profile:
    """Flags of all values of the main graph, folded to what the outputs need."""
    types = _types(model)
    flags, causes = _flow(model, types)
    random, rules, free = {}, {}, set()
    for value in model.graph.output:
        bits = flags.get(value.name, 0)
        if bits & RANDOM:
            random[value.name] = causes.get(value.name, "a random op")
        if bits & FREE_SIZE:
            free.add(value.name)
        rules[value.name] = _rule(bits, types.get(value.name, value.type.tensor_type.elem_type))
    half = any(elem in _HALVES for elem in types.values())
    quantized = any(
        node.op_type in _QUANTIZED or node.op_type.startswith(("QLinear", "DynamicQuantize"))
        for node in _all_nodes(model)
    )
    return Profile(random, rules, frozenset(free), half, quantized)


def tolerance_for(found: Profile, rtol: float | None, atol: float | None) -> Tolerance:
    """The given tolerances, else the defaults: rtol 1e-4, with half-precision values 4e-3; atol 1e-6."""
    default = 4e-3 if found.half else 1e-4
    return Tolerance(default if rtol is None else rtol, 1e-6 if atol is None else atol)


def decision_inputs(model: onnx.ModelProto) -> list[str]:
    """Values of the main graph from which decisions are made: what ArgMax and TopK read, both sides of comparisons."""
    found: dict[str, None] = {}
    for node in model.graph.node:
        if node.op_type in _COMPARISONS:
            found.update(dict.fromkeys(node.input))
        elif node.op_type in _DECISIONS:
            found.update(dict.fromkeys(node.input[: 2 if node.op_type == "NonMaxSuppression" else 1]))
    return [name for name in found if name]


def _rule(bits: int, elem: int) -> str:
    if elem in _FLOATS:
        return TOLERANT
    if bits & DECISION:
        return REPORTED
    return STEPS if bits & (ROUNDING | QUANTIZED) else EXACT


def _all_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    found = list(nodes_of(model.graph))
    for function in model.functions:
        for node in function.node:
            found.append(node)
            for body in bodies(node):
                found += nodes_of(body)
    return found


def _types(model: onnx.ModelProto) -> dict[str, int]:
    """Element types by value name, as far as declared or inferred without reading weights."""
    proto = model
    try:
        proto = onnx.shape_inference.infer_shapes(_without_data(model))
    except Exception:  # a model that inference cannot read keeps what it declares
        proto = model
    types = {}
    graphs = [proto.graph] + [body for node in nodes_of(proto.graph) for body in bodies(node)]
    for graph in graphs:
        for value in [*graph.input, *graph.value_info, *graph.output]:
            if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type:
                types[value.name] = value.type.tensor_type.elem_type
        types.update((tensor.name, tensor.data_type) for tensor in graph.initializer)
    return types


def _without_data(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which large initializers of the main graph are only declared, so that inference stays cheap."""
    slim = onnx.ModelProto()
    slim.ir_version = model.ir_version
    slim.opset_import.extend(model.opset_import)
    slim.functions.extend(model.functions)
    graph = slim.graph
    graph.name = model.graph.name
    graph.node.extend(model.graph.node)
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    graph.value_info.extend(model.graph.value_info)
    declared = {value.name for value in model.graph.input}
    for tensor in model.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL and tensor.ByteSize() < 4096:
            graph.initializer.append(tensor)
        elif tensor.name not in declared:
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    return slim


def _flow(model: onnx.ModelProto, types: Mapping[str, int]) -> tuple[dict[str, int], dict[str, str]]:
    """Flags by value name of the main graph, and the op that is the cause of each random value."""
    causes_of = _Causes(model)
    steps = [(node, reads(node), causes_of.flags(node, types)) for node in model.graph.node]
    flags: dict[str, int] = {}
    causes: dict[str, str] = {}
    for _ in range(_MAX_PASSES):  # nodes may be out of order: until nothing changes
        changed = False
        for node, names, (own, cause) in steps:
            bits = own
            for name in names:
                bits |= flags.get(name, 0)
            if bits & RANDOM:
                cause = cause or next((causes[name] for name in names if name in causes), "")
            for output in node.output:
                if output and flags.get(output, 0) != bits:
                    flags[output] = bits
                    changed = True
                if output and bits & RANDOM:
                    causes.setdefault(output, cause)
        if not changed:
            break
    return flags, causes


class _Causes:
    """Flags that a node causes by itself, what its bodies and the function that it calls do included."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._functions = {(f.domain, f.name): f for f in model.functions}
        self._false = {t.name for t in model.graph.initializer if _is_false(t)}
        for node in _all_nodes(model):
            if node.op_type == "Constant" and any(a.name == "value" and _is_false(a.t) for a in node.attribute):
                self._false.add(node.output[0])

    def flags(self, node: onnx.NodeProto, types: Mapping[str, int], depth: int = 0) -> tuple[int, str]:
        """(flags, the random op if there is one)."""
        bits, cause = self._of_op(node, types)
        if depth == _MAX_DEPTH:
            return bits, cause
        inner: list[onnx.NodeProto] = [child for body in bodies(node) for child in nodes_of(body)]
        function = self._functions.get((node.domain, node.op_type))
        scope = types
        if function is not None:
            inner += function.node
            scope = {name: types[arg] for name, arg in zip(function.input, node.input, strict=False) if arg in types}
        for child in inner:
            own, why = self.flags(child, scope, depth + 1)
            bits |= own
            cause = cause or why
        return bits, cause

    def _of_op(self, node: onnx.NodeProto, types: Mapping[str, int]) -> tuple[int, str]:
        op = node.op_type
        if op in _RANDOM_OPS:
            return RANDOM, op
        if op == "Dropout" and self._is_training(node):
            return RANDOM, "Dropout (training)"
        bits = FREE_SIZE if op in _FREE_SIZES else 0
        if op in _DECISIONS or op.startswith("TreeEnsemble"):
            return bits | DECISION, ""
        if op in _QUANTIZED or op.startswith(("QLinear", "DynamicQuantize")):
            return bits | QUANTIZED, ""
        if op in _COMPARISONS and _may_be_float(node, types):
            return bits | DECISION, ""
        if op in ("Cast", "CastLike") and _may_be_float(node, types):
            to = next((a.i for a in node.attribute if a.name == "to"), 0)
            if to == onnx.TensorProto.BOOL:
                return bits | DECISION, ""
            return bits | (0 if to in _FLOATS else ROUNDING), ""
        return bits, ""

    def _is_training(self, node: onnx.NodeProto) -> bool:
        """training_mode is there and not false (opset 12 and later), or is_test is 0 (before opset 7)."""
        if len(node.input) > 2 and node.input[2]:
            return node.input[2] not in self._false
        return any(a.name == "is_test" and a.i == 0 for a in node.attribute)


def _is_false(tensor: onnx.TensorProto) -> bool:
    one = tensor.data_type == onnx.TensorProto.BOOL and all(size == 1 for size in tensor.dims)
    return one and not any(tensor.raw_data) and not any(tensor.int32_data)


def _may_be_float(node: onnx.NodeProto, types: Mapping[str, int]) -> bool:
    elem = types.get(node.input[0]) if node.input else None
    return elem is None or elem in _FLOATS
