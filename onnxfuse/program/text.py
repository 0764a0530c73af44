"""Reading and writing the text of a program (grammar: docs/format.md). Strict: what is not canonical is refused."""

from __future__ import annotations

import re
from collections.abc import Sequence

from onnxfuse.program.instructions import BYTES, DTYPES, INSTRUCTIONS, MAX_TEXT
from onnxfuse.program.parts import Input, ProgramError, Statement

HEADER = "onnxfuse 1"

_INPUT = re.compile(r"[xc](0|[1-9][0-9]{0,4})")
_TEMP = re.compile(r"t(0|[1-9][0-9]{0,4})")
_VALUE = re.compile(r"[xct](0|[1-9][0-9]{0,4})")
_PAD = re.compile(r"0|[1-9][0-9]{0,4}")
_TYPE_WORDS = {"same": 1, "compare": 2, "select": 2, "cast": 2, "const": 1}

Parts = tuple[tuple[Input, ...], tuple[Statement, ...], tuple[str, ...]]


def write(inputs: Sequence[Input], statements: Sequence[Statement], outputs: Sequence[str]) -> str:
    """The text of a program."""
    lines = [HEADER]
    lines += [f"in {i.name} {i.dtype}" + (f" pad {i.pad}" if i.pad else "") for i in inputs]
    for s in statements:
        if s.name == "const":
            lines.append(f"{s.result} = {s.opcode} 0x{s.bits or 0:0{2 * BYTES.get(s.dtype, 1)}x}")
        else:
            lines.append(" ".join((s.result, "=", s.opcode, *s.operands)))
    lines += [f"out {name}" for name in outputs]
    return "\n".join(lines) + "\n"


def read(source: str) -> Parts:
    """Inputs, statements and outputs of a text, grammar checked (the rest is `verify`'s).

    Raises ProgramError naming the line.
    """
    if len(source) > MAX_TEXT:
        raise ProgramError(f"text of {len(source)} characters; at most {MAX_TEXT} are allowed")
    if not source.endswith("\n"):
        raise ProgramError("the last line does not end with a newline")
    lines = source[:-1].split("\n")
    if lines[0] != HEADER:
        raise ProgramError(f"line 1: expected {HEADER!r}, found {lines[0][:40]!r}")
    inputs: list[Input] = []
    statements: list[Statement] = []
    outputs: list[str] = []
    for number, line in enumerate(lines[1:], 2):
        try:
            _read_line(line, inputs, statements, outputs)
        except ProgramError as error:
            raise ProgramError(f"line {number}: {error}: {line[:80]!r}") from None
    return tuple(inputs), tuple(statements), tuple(outputs)


def _read_line(line: str, inputs: list[Input], statements: list[Statement], outputs: list[str]) -> None:
    words = line.split(" ")
    if words[0] == "in":
        if statements or outputs:
            raise ProgramError("an input behind a statement or an output")
        inputs.append(_input(words))
    elif words[0] == "out":
        if len(words) != 2 or not _VALUE.fullmatch(words[1]):
            raise ProgramError("expected 'out VALUE'")
        outputs.append(words[1])
    else:
        if outputs:
            raise ProgramError("a statement behind an output")
        statements.append(_statement(words))


def _input(words: list[str]) -> Input:
    if len(words) not in (3, 5) or not _INPUT.fullmatch(words[1]) or words[2] not in DTYPES:
        raise ProgramError("expected 'in xK|cK TYPE' or 'in xK TYPE pad NUMBER'")
    if len(words) == 3:
        return Input(words[1], words[2])
    if words[3] != "pad" or not _PAD.fullmatch(words[4]):
        raise ProgramError("expected 'pad NUMBER'")
    if int(words[4]) == 0:
        raise ProgramError("pad 0 is written as no pad")
    return Input(words[1], words[2], int(words[4]))


def _statement(words: list[str]) -> Statement:
    if len(words) < 4 or words[1] != "=" or not _TEMP.fullmatch(words[0]):
        raise ProgramError("expected 'tK = OPCODE ...'")
    name, *types = words[2].split(".")
    row = INSTRUCTIONS.get(name)
    if row is None:
        raise ProgramError(f"unknown instruction {name!r}")
    if len(types) != _TYPE_WORDS[row.form] or any(t not in DTYPES for t in types):
        raise ProgramError(f"unknown opcode {words[2]!r}")
    if row.form == "const":
        return Statement(words[0], name, tuple(types), (), _bits(words[3:], types[0]))
    operands = words[3:]
    if len(operands) != row.arity:
        raise ProgramError(f"{name} takes {row.arity} operands, found {len(operands)}")
    if not all(_VALUE.fullmatch(word) for word in operands):
        raise ProgramError("an operand is not a value")
    return Statement(words[0], name, tuple(types), tuple(operands))


def _bits(words: list[str], dtype: str) -> int:
    if len(words) != 1 or not re.fullmatch(rf"0x[0-9a-f]{{{2 * BYTES[dtype]}}}", words[0]):
        raise ProgramError(f"expected 0x and {2 * BYTES[dtype]} lower-case hex digits")
    return int(words[0], 16)
