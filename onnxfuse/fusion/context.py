"""What the op table may ask about the values that a node reads: types, ranks, small constants."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from onnxfuse.model import GraphView, Model, Term
from onnxfuse.model.shapes import public_dims

__all__ = ["Context", "dtype_word"]

_WORDS: dict[int, str] = {number: name.lower() for name, number in TensorProto.DataType.items() if number} | {
    TensorProto.FLOAT: "f32", TensorProto.DOUBLE: "f64", TensorProto.FLOAT16: "f16", TensorProto.BFLOAT16: "bf16",
    TensorProto.INT8: "i8", TensorProto.INT16: "i16", TensorProto.INT32: "i32", TensorProto.INT64: "i64",
    TensorProto.UINT8: "u8", TensorProto.UINT16: "u16", TensorProto.UINT32: "u32", TensorProto.UINT64: "u64",
    TensorProto.BOOL: "bool",
}
_LARGEST_CONSTANT = 4096


def dtype_word(number: int | None) -> str | None:
    """The program format's word for an ONNX element type; ONNX's own word in lower case where the format has none."""
    return None if number is None else _WORDS.get(number)


class Context:
    """The NodeContext of one graph: names are resolved as nodes of that graph see them."""

    def __init__(self, model: Model, view: GraphView, half_math: str) -> None:
        self.model, self.view, self.half_math = model, view, half_math
        self._arrays: dict[str, np.ndarray | None] = {}
        self._words: dict[str, str | None] = {}
        self._terms: dict[str, Term] = {}

    def opset(self, domain: str) -> int:
        """Version of a domain that the model imports; 0 if it does not."""
        domain = "" if domain == "ai.onnx" else domain
        return self.model.opsets.get(domain, 1 if domain == "" else 0)

    def dtype(self, value: str) -> str | None:
        """Element type of a value; None if unknown or no tensor."""
        if value not in self._words:
            self._words[value] = dtype_word(self.model.type_of(self.view, value))
        return self._words[value]

    def term(self, value: str) -> Term:
        """The shape term of a value."""
        if value not in self._terms:
            self._terms[value] = self.model.term_of(self.view, value)
        return self._terms[value]

    def rank(self, value: str) -> int | None:
        """The rank of a value; None if it is known at run time only."""
        return self.term(value).rank

    def dims(self, value: str) -> tuple[int | str, ...] | None:
        """The dims of a value, each a number or a name; None if the rank is unknown."""
        return public_dims(self.term(value))

    def constant(self, value: str) -> np.ndarray | None:
        """The elements of a value that no caller can change, if there are at most 4096 of them."""
        if value not in self._arrays:
            tensor = self.view.constant(value)
            small = tensor is not None and math.prod(tensor.dims) <= _LARGEST_CONSTANT
            self._arrays[value] = self.model.array(tensor) if tensor is not None and small else None
        return self._arrays[value]
