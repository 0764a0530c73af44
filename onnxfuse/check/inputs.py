"""What is known of each model input before values are made for it: type, dims, and how the model uses it."""

from __future__ import annotations

import dataclasses
import re

import ml_dtypes
import numpy as np
import onnx

from onnxfuse.check.walk import Uses, free_inputs

__all__ = ["InputSpec", "describe_inputs"]

Dim = int | str

_PASS = frozenset(
    "Identity Cast Reshape Squeeze Unsqueeze Transpose Flatten Expand Tile Slice Concat Split Gather Dropout Pad "
    "CastLike Where Min Max Clip".split()
)
_SHIFTS = frozenset(("Add", "Sub", "Mul"))
_WEIGHTED = frozenset("MatMul Gemm Conv LSTM GRU RNN".split())
_SAME_DIMS = frozenset("Identity Cast Add Sub Mul Div Relu Tanh Sigmoid Clip Dropout Unsqueeze Where".split())
_SHAPED = frozenset(("Reshape", "Expand", "Tile"))
_ROOTS = frozenset(("Log", "Sqrt"))
_MAX_STEPS = 400


@dataclasses.dataclass(frozen=True)
class InputSpec:
    """One input that a caller gives.

    `kind` is tensor, sequence, optional, optional_sequence, sparse or map; `elem` the element type
    (onnx.TensorProto number); `dims` None for unknown rank, symbols and "?k" (nameless) as text.
    `bound`: integers below it are safe as an index or token, None if nothing says so; `choices`: values that
    the model compares it with; `positive`: it goes into a logarithm or root; `shape_of`: the op whose result has
    this input as its shape (Reshape, Expand, …); `hints`: (axis, size) that the weights it meets first ask for.
    """

    name: str
    kind: str
    elem: int
    dims: tuple[Dim, ...] | None
    bound: int | None = None
    choices: tuple[float, ...] = ()
    positive: bool = False
    shape_of: str = ""
    hints: tuple[tuple[int, int], ...] = ()

    @property
    def words(self) -> frozenset[str]:
        """Lower-case words of the name: `attentionMask_1` has attention, mask."""
        spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", self.name)
        return frozenset(re.findall(r"[a-z]+", spaced.lower()))


def describe_inputs(model: onnx.ModelProto) -> list[InputSpec]:
    """One InputSpec for each input without initializer, in order."""
    uses = Uses(model)
    shapes = _known_dims(model)
    specs = []
    for value in free_inputs(model):
        kind, tensor_type = _unwrap(value.type)
        dims = _dims(value.name, tensor_type)
        elem = tensor_type.elem_type if tensor_type is not None else 0
        spec = InputSpec(value.name, kind, elem, dims)
        if kind == "tensor":
            bound, choices, positive = _follow(value.name, uses, shapes)
            shape_of = _shape_of(value.name, uses) if len(dims or ()) == 1 else ""
            spec = dataclasses.replace(spec, bound=bound, choices=choices, positive=positive, shape_of=shape_of)
            spec = dataclasses.replace(spec, hints=_weight_hints(value.name, uses))
        specs.append(spec)
    return specs


def _unwrap(type_proto: onnx.TypeProto) -> tuple[str, onnx.TypeProto.Tensor | None]:
    which = type_proto.WhichOneof("value")
    if which == "tensor_type":
        return "tensor", type_proto.tensor_type
    if which == "sequence_type":
        return "sequence", _unwrap(type_proto.sequence_type.elem_type)[1]
    if which == "optional_type":
        kind, tensor_type = _unwrap(type_proto.optional_type.elem_type)
        return ("optional_sequence" if kind == "sequence" else "optional"), tensor_type
    return {"map_type": "map", "sparse_tensor_type": "sparse"}.get(which or "", "unknown"), None


def _dims(name: str, tensor_type: onnx.TypeProto.Tensor | None) -> tuple[Dim, ...] | None:
    if tensor_type is None or not tensor_type.HasField("shape"):
        return None
    dims: list[Dim] = []
    for axis, dim in enumerate(tensor_type.shape.dim):
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            dims.append(int(dim.dim_value))
        else:
            # exporters write -1 for a free dim, as a number or as a symbol
            free = dim.dim_param in ("", "-1", "?", "None") or dim.HasField("dim_value")
            dims.append(f"?{name}.{axis}" if free else dim.dim_param)
    return tuple(dims)


def _known_dims(model: onnx.ModelProto) -> dict[str, tuple[Dim, ...]]:
    """Dims of values that the model itself declares (inputs and value_info)."""
    known = {}
    for value in [*model.graph.input, *model.graph.value_info]:
        dims = _dims("", value.type.tensor_type) if value.type.WhichOneof("value") == "tensor_type" else None
        if dims is not None:
            known[value.name] = dims
    return known


def _follow(
    start: str, uses: Uses, shapes: dict[str, tuple[Dim, ...]]
) -> tuple[int | None, tuple[float, ...], bool]:
    """Follow an input through ops that keep its values: smallest bound as an index, compared values, roots."""
    bounds: list[int] = []
    choices: list[float] = []
    positive = False
    seen, pending = {start}, [start]
    while pending and len(seen) < _MAX_STEPS:
        name = pending.pop(0)
        for node, slot in uses.of(name):
            bound = _index_bound(node, slot, uses, shapes)
            if bound is not None:
                bounds.append(bound)
            elif node.op_type == "Equal":
                other = uses.constant(node.input[1 - slot])
                if other is not None and other.dtype.kind in "iuf":
                    choices += [float(v) for v in other.reshape(-1)[:4]]
            elif node.op_type in _ROOTS:
                positive = True
            passes = node.op_type in _PASS and not (node.op_type in ("Gather", "Reshape", "Expand", "Tile") and slot)
            if passes or _is_shift(node, slot, uses):
                new = [output for output in node.output if output and output not in seen]
                seen.update(new)
                pending += new
    return (min(bounds) if bounds else None), tuple(dict.fromkeys(choices)), positive


def _shape_of(name: str, uses: Uses) -> str:
    """The op that takes this input itself as the shape of its result."""
    for node, slot in uses.of(name):
        if (node.op_type in _SHAPED and slot == 1) or (node.op_type == "ConstantOfShape" and slot == 0):
            return node.op_type
    return ""


def _weight_hints(start: str, uses: Uses) -> tuple[tuple[int, int], ...]:
    """Sizes that a matrix product, a recurrent cell or a convolution demands of an input that reaches it unreshaped."""
    hints: dict[int, int] = {}
    seen, pending = {start}, [start]
    while pending and len(seen) < _MAX_STEPS:
        for node, slot in uses.of(pending.pop(0)):
            weight = uses.constant_shape(node.input[1]) if slot == 0 and len(node.input) > 1 else None
            if weight and node.op_type in _WEIGHTED:
                numbers = {a.name: a.i for a in node.attribute}
                if node.op_type == "Conv":
                    hints.setdefault(1, weight[1] * numbers.get("group", 1))
                elif node.op_type == "Gemm":
                    hints.setdefault(-1, weight[1 if numbers.get("transB") else 0])
                elif len(weight) >= 2:
                    hints.setdefault(-1, weight[-2] if node.op_type == "MatMul" else weight[2])
            elif node.op_type in _SAME_DIMS:
                new = [output for output in node.output if output and output not in seen]
                seen.update(new)
                pending += new
    return tuple(sorted(hints.items()))


def _is_shift(node: onnx.NodeProto, slot: int, uses: Uses) -> bool:
    """An Add, Sub or Mul with one small constant (an offset of positions): still roughly the same number."""
    if node.op_type not in _SHIFTS or len(node.input) != 2:
        return False
    other = uses.constant(node.input[1 - slot])
    return other is not None and other.size == 1


def _index_bound(
    node: onnx.NodeProto, slot: int, uses: Uses, shapes: dict[str, tuple[Dim, ...]]
) -> int | None:
    """How many values an index may have here; 0 if it is an index into something of unknown size."""
    if node.op_type in ("Gather", "GatherElements", "ScatterElements", "Scatter") and slot == 1:
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        dims = uses.constant_shape(node.input[0]) or shapes.get(node.input[0])
        size = dims[axis] if dims and -len(dims) <= axis < len(dims) else 0
        return size if isinstance(size, int) else 0
    if node.op_type in ("GatherND", "ScatterND") and slot == 1:
        dims = uses.constant_shape(node.input[0]) or shapes.get(node.input[0])
        sizes = [d for d in dims or () if isinstance(d, int)]
        return min(sizes) if dims and len(sizes) == len(dims) else 0
    if node.op_type == "OneHot" and slot == 0:
        depth = uses.constant(node.input[1])
        return int(depth.reshape(-1)[0]) if depth is not None and depth.size else 0
    if node.op_type in ("EmbedLayerNormalization",) and slot in (0, 1):
        dims = uses.constant_shape(node.input[2 if slot == 0 else 4])
        return dims[0] if dims else 0
    return None


def is_integer(elem: int) -> bool:
    """True for the integer element types that numpy has."""
    return elem in _INTEGERS


_INTEGERS = frozenset(
    int(getattr(onnx.TensorProto, n)) for n in "INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64".split()
)


def numpy_dtype(elem: int) -> np.dtype[np.generic]:
    """The numpy (or ml_dtypes) dtype of an element type; object for strings."""
    if elem == onnx.TensorProto.STRING:
        return np.dtype(object)
    if elem == onnx.TensorProto.BFLOAT16:  # float32 to older onnx
        half: np.dtype[np.generic] = np.dtype(ml_dtypes.bfloat16)
        return half
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(elem))
