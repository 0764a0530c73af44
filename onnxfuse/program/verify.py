"""The rules of docs/format.md that grammar alone does not give: order, definitions, types, limits."""

from __future__ import annotations

from collections.abc import Sequence

from onnxfuse.program import text
from onnxfuse.program.instructions import (
    BYTES,
    DTYPES,
    INSTRUCTIONS,
    MAX_INPUTS,
    MAX_OUTPUTS,
    MAX_RANK,
    MAX_STATEMENTS,
    MAX_TEXT,
)
from onnxfuse.program.parts import Input, ProgramError, Statement


def verify(inputs: Sequence[Input], statements: Sequence[Statement], outputs: Sequence[str]) -> None:
    """Raises ProgramError, naming the line of the text, at the first rule that is broken."""
    _limits(inputs, statements, outputs)
    types = _inputs(inputs)
    line = 2 + len(inputs)
    for number, statement in enumerate(statements):
        if statement.result != f"t{number}":
            raise ProgramError(f"line {line + number}: expected t{number}, found {statement.result}")
        try:
            types[statement.result] = _statement(statement, types)
        except ProgramError as error:
            raise ProgramError(f"line {line + number}: {error}") from None
    line += len(statements)
    for number, name in enumerate(outputs):
        if name not in types:
            raise ProgramError(f"line {line + number}: {name} is not defined")
    # Short of the limits above, only long operand names can reach this one.
    if len(text.write(inputs, statements, outputs)) > MAX_TEXT:
        raise ProgramError(f"the text is longer than {MAX_TEXT} characters")


def _limits(inputs: Sequence[Input], statements: Sequence[Statement], outputs: Sequence[str]) -> None:
    for what, number, limit in (("inputs", len(inputs), MAX_INPUTS), ("statements", len(statements), MAX_STATEMENTS),
                                ("outputs", len(outputs), MAX_OUTPUTS)):
        if number > limit:
            raise ProgramError(f"{number} {what}; at most {limit} are allowed")
    if not outputs:
        raise ProgramError("the program has no output")


def _inputs(inputs: Sequence[Input]) -> dict[str, str]:
    tensors = sum(i.name.startswith("x") for i in inputs)
    if tensors == 0:
        raise ProgramError("the program has no x input")
    types: dict[str, str] = {}
    for number, value in enumerate(inputs):
        expected = f"x{number}" if number < tensors else f"c{number - tensors}"
        line = f"line {2 + number}"
        if value.name != expected:
            raise ProgramError(f"{line}: expected {expected}, found {value.name}")
        if value.dtype not in DTYPES:
            raise ProgramError(f"{line}: unknown type {value.dtype!r}")
        if not 0 <= value.pad <= (MAX_RANK if number < tensors else 0):
            raise ProgramError(f"{line}: pad {value.pad} of {value.name}")
        types[value.name] = value.dtype
    return types


def _statement(statement: Statement, types: dict[str, str]) -> str:
    """The type of the result, once everything about the statement is checked."""
    row = INSTRUCTIONS.get(statement.name)
    if row is None:
        raise ProgramError(f"unknown instruction {statement.name!r}")
    if not _opcode_exists(row.form, row.types, statement.types):
        raise ProgramError(f"unknown opcode {statement.opcode!r}")
    if len(statement.operands) != row.arity:
        raise ProgramError(f"{statement.name} takes {row.arity} operands, found {len(statement.operands)}")
    for operand, wanted in zip(statement.operands, statement.operand_types, strict=True):
        if operand not in types:
            raise ProgramError(f"{operand} is used before it is defined")
        if types[operand] != wanted:
            raise ProgramError(f"{operand} is {types[operand]}, {statement.opcode} takes {wanted}")
    _check_bits(statement, row.form)
    return statement.dtype


def _opcode_exists(form: str, allowed: tuple[str, ...], types: tuple[str, ...]) -> bool:
    if form in ("same", "const"):
        return len(types) == 1 and types[0] in allowed
    if len(types) != 2:
        return False
    if form == "compare":
        return types[0] in allowed and types[1] == "bool"
    if form == "select":
        return types[0] == "bool" and types[1] in allowed
    return types[0] in allowed and types[1] in allowed


def _check_bits(statement: Statement, form: str) -> None:
    if form != "const":
        if statement.bits is not None:
            raise ProgramError(f"{statement.name} has no bits")
        return
    limit = 2 if statement.dtype == "bool" else 1 << (8 * BYTES[statement.dtype])
    if statement.bits is None or not 0 <= statement.bits < limit:
        raise ProgramError(f"{statement.bits} is no bit pattern of {statement.dtype}")
