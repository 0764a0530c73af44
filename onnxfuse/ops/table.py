"""Op: one row of the op table, and the views of a node that its functions work on.

A row says which types an op takes (`signature` and `types`), what the program reads of it (`reads`), when it must be
left alone (`check`) and which instructions it becomes (`lower`). Most rows are one line; see docs/adding-an-op.md.

float16 and bfloat16 values are float32 while they are inside a program (design: half types can only be cast), so
`lower` sees the four compute kinds f32, f64, integers and bool only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import onnx

from onnxfuse.ops.context import NodeContext
from onnxfuse.ops.reason import Reason
from onnxfuse.program.builder import Builder
from onnxfuse.program.dtypes import NUMPY
from onnxfuse.program.instructions import FLOATS, HALVES, INTS, SIGNED

__all__ = ["ALL", "ANY_FLOAT", "ANY_NUMBER", "ANY_SIGNED", "INTS", "Call", "Lowering", "Op", "kind"]

ANY_FLOAT = FLOATS + HALVES
ANY_SIGNED = ANY_FLOAT + SIGNED
ANY_NUMBER = ANY_FLOAT + INTS
ALL = ANY_NUMBER + ("bool",)

_ONNX_WORDS: dict[int, str] = {
    onnx.TensorProto.FLOAT: "f32", onnx.TensorProto.DOUBLE: "f64", onnx.TensorProto.FLOAT16: "f16",
    onnx.TensorProto.BFLOAT16: "bf16", onnx.TensorProto.INT8: "i8", onnx.TensorProto.INT16: "i16",
    onnx.TensorProto.INT32: "i32", onnx.TensorProto.INT64: "i64", onnx.TensorProto.UINT8: "u8",
    onnx.TensorProto.UINT16: "u16", onnx.TensorProto.UINT32: "u32", onnx.TensorProto.UINT64: "u64",
    onnx.TensorProto.BOOL: "bool", onnx.TensorProto.STRING: "string",
}


def kind(dtype: str) -> str:
    """The type in which values of `dtype` are computed."""
    return "f32" if dtype in HALVES else dtype


def word_of(number: int) -> str:
    """The format's word for an onnx.TensorProto.DataType, or onnx's own name in lower case for other types."""
    if number in _ONNX_WORDS:
        return _ONNX_WORDS[number]
    try:
        return str(onnx.TensorProto.DataType.Name(number)).lower()
    except ValueError:
        return f"type {number}"


class Call:
    """One node and its surroundings: inputs, attributes, types."""

    def __init__(self, op: Op, node: onnx.NodeProto, ctx: NodeContext) -> None:
        self.op = op
        self.node = node
        self.ctx = ctx
        self.inputs = tuple(node.input)
        self._reads: dict[int, int] | None = None

    @property
    def reads(self) -> dict[int, int]:
        """The inputs that the program of the node reads, each with the dims of size 1 that are added behind."""
        if self._reads is None:  # cached_property takes a lock, and there is a call for every node
            self._reads = self.op.reads(self)
        return self._reads

    @cached_property
    def _attributes(self) -> dict[str, onnx.AttributeProto]:
        return {a.name: a for a in self.node.attribute}

    @property
    def opset(self) -> int:
        return self.ctx.opset(self.op.domain)

    def given(self, index: int) -> bool:
        """Whether input `index` is there (an empty name is a missing input)."""
        return index < len(self.inputs) and self.inputs[index] != ""

    def inputs_given(self) -> dict[int, int]:
        """Every input that is there, unpadded: the `reads` of most ops."""
        return {index: 0 for index, name in enumerate(self.inputs) if name}

    def dtype(self, index: int) -> str | None:
        return self.ctx.dtype(self.inputs[index])

    def has(self, attribute: str) -> bool:
        return attribute in self._attributes

    def number(self, attribute: str, default: float) -> float:
        """A float attribute; float32 attributes are exact as Python floats."""
        found = self._attributes.get(attribute)
        return float(found.f) if found is not None else default

    def integer(self, attribute: str, default: int) -> int:
        found = self._attributes.get(attribute)
        return int(found.i) if found is not None else default

    def word(self, attribute: str, default: str) -> str:
        found = self._attributes.get(attribute)
        return found.s.decode("utf-8", "replace") if found is not None else default

    @property
    def result(self) -> str:
        """Element type of the first output; only for calls that were examined."""
        return self.op.result(self)


class Lowering:
    """Emits the instructions of one node."""

    def __init__(self, call: Call, builder: Builder, values: Mapping[tuple[str, int], str]) -> None:
        self.call = call
        self.builder = builder
        self._values = values
        self._pads = call.reads

    def x(self, index: int = 0) -> str:
        """Program value of input `index`."""
        return self._values[self.call.inputs[index], self._pads[index]]

    def operands(self) -> list[str]:
        """Program values of all inputs that are read, in order."""
        return [self.x(index) for index in self._pads]

    def kind(self, value: str) -> str:
        """Program type of a value."""
        return self.builder.dtype_of(value)

    def const(self, dtype: str, value: float | int | bool) -> str:
        return self.builder.const(dtype, value)

    def do(self, name: str, *operands: str | float) -> str:
        """Emits an instruction; a number among the operands is a constant of the type of the last value operand."""
        values = [o for o in operands if isinstance(o, str)]
        dtype = self.kind(values[-1])
        return self.builder.emit(name, *(o if isinstance(o, str) else self.const(dtype, o) for o in operands))

    def cast(self, value: str, to: str) -> str:
        return self.builder.emit("cast", value, to=to)

    def at_least(self, x: str, low: str | float) -> str:
        """x, or `low` where x < low. A NaN stays, and so does a zero beside a zero: what ORT's Relu and Clip do.

        The `max` instruction orders zeros and lets a NaN bound through. Where that could show, this is a compare and a
        select, which a back end can run as the one instruction that x86 has for just this.
        """
        if self._plain_bound(x, low):
            return self.do("max", x, low)
        low = low if isinstance(low, str) else self.const(self.kind(x), low)
        return self.do("select", self.do("lt", x, low), low, x)

    def at_most(self, x: str, high: str | float) -> str:
        """x, or `high` where high < x; see at_least."""
        if self._plain_bound(x, high):
            return self.do("min", x, high)
        high = high if isinstance(high, str) else self.const(self.kind(x), high)
        return self.do("select", self.do("lt", high, x), high, x)

    def _plain_bound(self, x: str, bound: str | float) -> bool:
        """Whether no operand can be a zero beside the other sign's zero, and the bound is not NaN."""
        return self.kind(x) not in FLOATS or not (isinstance(bound, str) or bound == 0 or bound != bound)

    def rounded(self, value: str, dtype: str) -> str:
        """A float32 value rounded to the half type `dtype`, as float32 again; other types unchanged."""
        return self.cast(self.cast(value, dtype), "f32") if dtype in HALVES else value


def _bound(call: Call) -> str:
    """Type of the result as the signature says."""
    result = call.op.signature.partition("->")[2]
    if result == "B":
        return "bool"
    return call.dtype(call.op.letters.index(result)) or ""


@dataclass(frozen=True)
class Op:
    """One row.

    `signature` names the type of each input by a letter and of the result, e.g. ``TT->T``, ``BTT->T``, ``T*->T`` (any
    number); inputs of one letter have one type, which `types` lists; B is bool. `least` is the number of inputs that
    must be there (default: all of the signature). `versions` are the opset versions of the op, from the lowest that is
    handled, whose text has been read. `example` holds the attributes of a node for the docs.
    """

    name: str
    family: str
    text: str
    signature: str
    types: Mapping[str, tuple[str, ...]]
    versions: tuple[int, ...]
    lower: Callable[[Lowering], str]
    domain: str = ""
    least: int | None = None
    notes: str = ""
    check: Callable[[Call], Reason | None] = lambda call: None
    reads: Callable[[Call], dict[int, int]] = Call.inputs_given
    counts: Callable[[Call], bool] = lambda call: True
    result: Callable[[Call], str] = _bound
    example: Mapping[str, Any] = field(default_factory=dict)

    @property
    def doc(self) -> str:
        return self.text

    @cached_property
    def since(self) -> int:
        """Lowest opset that is handled."""
        return max(self.versions[0], 7) if self.domain == "" else self.versions[0]

    @cached_property
    def letters(self) -> str:
        """Letter of every input of the signature."""
        return self.signature.split("->")[0].replace("*", "")

    @cached_property
    def required(self) -> int:
        """Number of inputs that must be there."""
        return self.least if self.least is not None else len(self.letters)

    def letter(self, index: int) -> str:
        """Letter of input `index`; a starred letter repeats."""
        letters = self.letters
        return letters[index] if index < len(letters) else letters[-1]

    def allowed(self, index: int) -> tuple[str, ...]:
        """Types that input `index` may have."""
        letter = self.letter(index)
        return ("bool",) if letter == "B" else self.types[letter]


def lowest(dtype: str) -> float:
    """The lowest finite number of a float type."""
    if dtype == "bf16":
        return -float.fromhex("0x1.fep127")
    return float(np.finfo(NUMPY[dtype]).min)


def unary(instruction: str) -> Callable[[Lowering], str]:
    """Lowering of an op that is one instruction."""
    return lambda c: c.do(instruction, c.x())


def binary(instruction: str) -> Callable[[Lowering], str]:
    """Lowering of an op of two operands that is one instruction."""
    return lambda c: c.do(instruction, c.x(0), c.x(1))
