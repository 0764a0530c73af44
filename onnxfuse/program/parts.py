"""What a program is made of: inputs, statements, and the error that every check of a program raises."""

from __future__ import annotations

import dataclasses

from onnxfuse.program.instructions import INSTRUCTIONS


class ProgramError(ValueError):
    """A program (or its text) breaks a rule of docs/format.md; the message names the line or the statement."""


@dataclasses.dataclass(frozen=True)
class Input:
    """One declared input: `xK` (a tensor, an input of the node) or `cK` (one element, an attribute of the node).

    `pad` dims of size 1 are added behind the tensor's own dims; `x` inputs only.
    """

    name: str
    dtype: str
    pad: int = 0


@dataclasses.dataclass(frozen=True)
class Statement:
    """`result = name.TYPES operands`, or for a constant `result = const.T bits`.

    `types` are the type words of the opcode in order: (T,) for form same and const, (T, "bool") for compare,
    ("bool", T) for select, (S, D) for cast. `bits` is the bit pattern of a constant as an unsigned number.
    """

    result: str
    name: str
    types: tuple[str, ...]
    operands: tuple[str, ...] = ()
    bits: int | None = None

    @property
    def opcode(self) -> str:
        return ".".join((self.name, *self.types))

    @property
    def dtype(self) -> str:
        """Type of the result."""
        return self.types[-1]

    @property
    def operand_types(self) -> tuple[str, ...]:
        """Types that the operands must have, as the form of the instruction says."""
        row = INSTRUCTIONS[self.name]
        if row.form == "select":
            return ("bool", self.types[1], self.types[1])
        return (self.types[0],) * row.arity
