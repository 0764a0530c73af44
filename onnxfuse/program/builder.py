"""Builder: makes verified programs; merges equal statements and drops those that nothing needs."""

from __future__ import annotations

from typing import Any

from onnxfuse.program.dtypes import to_bits
from onnxfuse.program.instructions import BYTES, DTYPES, HALVES, INSTRUCTIONS, Instruction
from onnxfuse.program.parts import Input, ProgramError, Statement
from onnxfuse.program.program import Program

_SIGNIFICANT = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}


def _holds(wide: str, narrow: str) -> bool:
    """Whether every value of `narrow` is a value of `wide`, so that a cast there and back changes nothing."""
    if narrow == "bool":
        return True
    if wide in _SIGNIFICANT and narrow in _SIGNIFICANT:
        return _SIGNIFICANT[wide] > _SIGNIFICANT[narrow] and BYTES[wide] > BYTES[narrow]
    if wide == "bool" or wide in HALVES or narrow in _SIGNIFICANT:
        return False
    bits = _SIGNIFICANT.get(wide, 8 * BYTES[wide])
    # An unsigned number fits into a signed type that is wider, and into a float as its bits; -1 fits into no unsigned.
    return 8 * BYTES[narrow] < bits and (wide[0] != "u" or narrow[0] == "u")


class Builder:
    """Builds one program. Values are names that hold only while building: `build` renumbers them.

    Inputs are kept even if nothing reads them: they take part in the iteration shape, and the caller has counted
    them. The order of declaration within `x` and within `c` is their order in the program.
    """

    def __init__(self) -> None:
        self._tensors: list[Input] = []
        self._scalars: list[Input] = []
        self._statements: list[Statement] = []
        self._outputs: list[str] = []
        self._types: dict[str, str] = {}
        self._casts: dict[str, str] = {}
        self._known: dict[tuple[str, tuple[str, ...], tuple[str, ...], int | None], str] = {}

    def input(self, dtype: str, pad: int = 0) -> str:
        """Declares the next `x` input, with `pad` dims of size 1 added behind its own."""
        value = Input(f"x{len(self._tensors)}", dtype, pad)
        self._tensors.append(value)
        return self._define(value.name, dtype)

    def scalar(self, dtype: str) -> str:
        """Declares the next `c` input: one element."""
        value = Input(f"c{len(self._scalars)}", dtype)
        self._scalars.append(value)
        return self._define(value.name, dtype)

    def const(self, dtype: str, value: Any) -> str:
        """The constant `value`, rounded to `dtype`. Raises OverflowError for an integer that does not fit."""
        if dtype not in DTYPES:
            raise ProgramError(f"unknown type {dtype!r}")
        return self._add("const", (dtype,), (), to_bits(dtype, value))

    def emit(self, name: str, *operands: str, to: str | None = None) -> str:
        """Appends an instruction and returns its value; types follow from the operands, `to` is a cast's target.

        A cast to the type that the operand already has is the operand itself, and a cast back from a type that holds
        every value of the first is the first operand. Raises ProgramError for an unknown instruction, a wrong number
        of operands, an undefined operand or types that do not fit.
        """
        row = INSTRUCTIONS.get(name)
        if row is None or row.form == "const":
            raise ProgramError(f"no such instruction to emit: {name!r}")
        if len(operands) != row.arity:
            raise ProgramError(f"{name} takes {row.arity} operands, found {len(operands)}")
        if (row.form == "cast") != (to is not None):
            raise ProgramError(f"{name}: a target type belongs to cast alone")
        types = self._opcode_types(row, [self.dtype_of(o) for o in operands], to)
        if row.form == "cast":
            if types[0] == types[1]:
                return operands[0]
            source = self._casts.get(operands[0])
            if source is not None and self.dtype_of(source) == types[1] and _holds(types[0], types[1]):
                return source
        return self._add(name, types, operands, None)

    def dtype_of(self, value: str) -> str:
        """Element type of a value. Raises ProgramError if it is not defined."""
        if value not in self._types:
            raise ProgramError(f"{value!r} is not defined")
        return self._types[value]

    def output(self, value: str) -> None:
        """Makes a value the next output."""
        self.dtype_of(value)
        self._outputs.append(value)

    def build(self) -> Program:
        """The verified program. Raises ProgramError if there is no `x` input, no output, or a limit is passed."""
        needed = set(self._outputs)
        kept: list[Statement] = []
        for statement in reversed(self._statements):
            if statement.result in needed:
                needed.update(statement.operands)
                kept.append(statement)
        names = {s.result: f"t{number}" for number, s in enumerate(reversed(kept))}
        statements = tuple([
            Statement(names[s.result], s.name, s.types, tuple([names.get(o, o) for o in s.operands]), s.bits)
            for s in reversed(kept)
        ])
        program = Program(tuple(self._tensors + self._scalars), statements,
                          tuple(names.get(o, o) for o in self._outputs))
        program.verify()
        return program

    def _define(self, name: str, dtype: str) -> str:
        if dtype not in DTYPES:
            raise ProgramError(f"unknown type {dtype!r}")
        self._types[name] = dtype
        return name

    def _opcode_types(self, row: Instruction, operands: list[str], to: str | None) -> tuple[str, ...]:
        own = operands[1:] if row.form == "select" else operands
        if len(set(own)) != 1 or own[0] not in row.types or (row.form == "select" and operands[0] != "bool"):
            raise ProgramError(f"{row.name} does not take ({', '.join(operands)})")
        if row.form == "select":
            return ("bool", own[0])
        if row.form == "compare":
            return (own[0], "bool")
        if to is None:
            return (own[0],)
        if to not in row.types:
            raise ProgramError(f"cast to unknown type {to!r}")
        return (own[0], to)

    def _add(self, name: str, types: tuple[str, ...], operands: tuple[str, ...], bits: int | None) -> str:
        same = tuple(sorted(operands)) if INSTRUCTIONS[name].commutative else operands
        key = (name, types, same, bits)
        if key not in self._known:
            statement = Statement(f"t{len(self._statements)}", name, types, operands, bits)
            self._statements.append(statement)
            if name == "cast":
                self._casts[statement.result] = operands[0]
            self._known[key] = self._define(statement.result, statement.dtype)
        return self._known[key]
