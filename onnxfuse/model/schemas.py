"""What ONNX's operator schemas say about types, plus the few rules for operators outside ONNX."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import onnx
from onnx import NodeProto, TensorProto

from onnxfuse.errors import ModelError
from onnxfuse.model.graphs import label

__all__ = ["check_node", "output_types", "shape_rule", "type_word"]

_JOIN = frozenset("""Add Sub Mul Div Pow Mod Max Min Sum Mean And Or Xor Equal Less LessOrEqual Greater GreaterOrEqual
    BitwiseAnd BitwiseOr BitwiseXor BitShift Where""".split())
_FIRST = frozenset("""Abs Acos Acosh Asin Asinh Atan Atanh BatchNormalization BitwiseNot Cast CastLike Ceil Celu
    Clip Cos Cosh DequantizeLinear Dropout Elu Erf Exp Floor Gelu HardSigmoid HardSwish Hardmax Identity IsInf IsNaN
    LeakyRelu Log LogSoftmax LpNormalization Mish Neg Not PRelu QuantizeLinear Reciprocal Relu Round Selu Shrink
    Sigmoid Sign Sin Sinh Softmax Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu Trilu CumSum
    LayerNormalization InstanceNormalization GroupNormalization RMSNormalization""".split())
_CONTRIB_FIRST = frozenset("""BiasGelu FastGelu Gelu QuickGelu SkipLayerNormalization SkipSimplifiedLayerNormalization
    EmbedLayerNormalization""".split())
_CONTRIB_TYPE = _CONTRIB_FIRST | frozenset("""Attention MultiHeadAttention GroupQueryAttention FusedConv FusedMatMul
    FusedGemm BiasAdd BiasSplitGelu BiasDropout GroupNorm SkipGroupNorm RotaryEmbedding GatedRelativePositionBias
    NhwcConv MatMulNBits PackedAttention TransposeMatMul FusedMatMulActivation NGramRepeatBlock""".split())


def shape_rule(node: NodeProto) -> str | None:
    """``join``: every output has the broadcast shape of all inputs; ``first``: the first output (of Dropout: each) has
    the shape of the first input; None: neither is certain."""
    if node.domain in ("", "ai.onnx"):
        if node.op_type in _JOIN:
            return "join"
        return "first" if node.op_type in _FIRST else None
    if node.domain == "com.microsoft":
        return "first" if node.op_type in _CONTRIB_FIRST - {"EmbedLayerNormalization"} else None
    return None


def type_word(number: int | None) -> str:
    """The name of an element type in messages."""
    if number is None or number not in TensorProto.DataType.values():
        return "unknown"
    return str(TensorProto.DataType.Name(number)).lower()


@functools.lru_cache(maxsize=4096)
def _schema(op_type: str, domain: str, version: int) -> _Schema | None:
    try:
        return _Schema(onnx.defs.get_schema(op_type, version, domain))
    except onnx.defs.SchemaError:
        return None


class _Schema:
    """The parts of an operator schema that the checks need, read once."""

    def __init__(self, schema: onnx.defs.OpSchema) -> None:
        optional, variadic = onnx.defs.OpSchema.FormalParameterOption.Optional, \
            onnx.defs.OpSchema.FormalParameterOption.Variadic
        allowed = {c.type_param_str: frozenset(c.allowed_type_strs) for c in schema.type_constraints}
        self.inputs = [(p.name, p.type_str, p.option == variadic, p.is_homogeneous) for p in schema.inputs]
        self.outputs = [(p.type_str, p.option == variadic, p.is_homogeneous) for p in schema.outputs]
        self.required = sum(p.option not in (optional, variadic) for p in schema.inputs)
        self.most = schema.max_input
        self.least = schema.min_input
        self.allowed = allowed

    def kinds(self, type_str: str) -> frozenset[str]:
        """The types that a parameter takes."""
        return self.allowed.get(type_str, frozenset((type_str,)))

    def formal_input(self, place: int) -> tuple[str, str, bool, bool] | None:
        """Name, type, variadic, homogeneous of the parameter that the operand at this place belongs to."""
        if place < len(self.inputs):
            return self.inputs[place]
        return self.inputs[-1] if self.inputs and self.inputs[-1][2] else None


_TENSOR = {number: f"tensor({type_word(number)})" for number in TensorProto.DataType.values()}
_NUMBER = {word: number for number, word in _TENSOR.items()}


def output_types(node: NodeProto, types: Sequence[int | None], versions: Mapping[str, int]) -> list[int | None]:
    """Element types of the outputs, as far as the types of the inputs decide them."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    first = types[0] if types else None
    if domain == "com.microsoft":
        if node.op_type == "EmbedLayerNormalization" and len(types) > 2:
            first = types[2]
        return [first if node.op_type in _CONTRIB_TYPE else None, *[None] * (len(node.output) - 1)]
    schema = _schema(node.op_type, domain, versions.get(domain, 1))
    if schema is None:
        return [None] * len(node.output)
    if domain == "" and node.op_type == "Cast":
        return [next((a.i for a in node.attribute if a.name == "to"), None)]
    bound: dict[str, int] = {}
    for place, kind in enumerate(types):
        formal = schema.formal_input(place)
        if formal is not None and kind is not None and formal[3]:
            bound.setdefault(formal[1], kind)
    found: list[int | None] = []
    for place in range(len(node.output)):
        formal_out = schema.outputs[min(place, len(schema.outputs) - 1)] if schema.outputs else ("", False, False)
        kinds = schema.kinds(formal_out[0])
        if formal_out[0] in bound and formal_out[2]:
            found.append(bound[formal_out[0]])
        else:
            found.append(_NUMBER.get(next(iter(kinds))) if len(kinds) == 1 else None)
    return found


def check_node(node: NodeProto, types: Sequence[int | None], versions: Mapping[str, int]) -> None:
    """Raises ModelError if the operands are too few, too many, or of types that the operator does not take. Operators
    that ONNX does not know, and operands of unknown type, are not judged."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    schema = _schema(node.op_type, domain, versions.get(domain, 1)) if domain in versions else None
    if schema is None:
        return
    count = len(node.input)
    if count > schema.most or count < schema.least:
        raise ModelError(f"{label(node)} has {count} inputs, {node.op_type} takes "
                         + (f"{schema.least}" if schema.least == schema.most else f"{schema.least} to {schema.most}"))
    bound: dict[str, tuple[str, int]] = {}
    for place, kind in enumerate(types):
        formal = schema.formal_input(place)
        if formal is None or kind is None:
            continue
        name, type_str, _, homogeneous = formal
        if _TENSOR.get(kind) not in schema.kinds(type_str):
            raise ModelError(f"{label(node)}: {name} cannot be of type {type_word(kind)} in opset {versions[domain]}")
        if homogeneous and type_str in schema.allowed:
            other, stated = bound.setdefault(type_str, (name, kind))
            if stated != kind:
                raise ModelError(f"{label(node)}: types do not fit, {other} is {type_word(stated)} and {name} is "
                                 f"{type_word(kind)}")
