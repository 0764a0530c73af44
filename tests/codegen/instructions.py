"""Programs that hold every instruction of the table for every type that it takes, several in one program."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from onnxfuse.program import Builder, Program
from onnxfuse.program.instructions import DTYPES, INSTRUCTIONS

MOST = 16
"""Instructions of a program: a module with more takes long to compile."""


@dataclasses.dataclass(frozen=True)
class Group:
    """`names[k]` is what output k of the program shows: the instruction with its types."""

    label: str
    program: Program
    names: tuple[str, ...]


def groups() -> Iterator[Group]:
    """Every instruction but const, by the types of its operands."""
    for dtype in DTYPES:
        for arity in (1, 2, 3):
            names = [n for n, row in INSTRUCTIONS.items() if row.arity == arity and dtype in row.types and n != "cast"]
            for part, some in enumerate(_parts(names)):
                yield _group(f"{dtype}-{arity}-{part}", dtype, some)
        yield _group(f"cast-{dtype}", dtype, [f"cast.{to}" for to in DTYPES if to != dtype])


def _parts(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for begin in range(0, len(names), MOST):
        yield names[begin : begin + MOST]


def _group(label: str, dtype: str, names: Sequence[str]) -> Group:
    builder = Builder()
    x = builder.input(dtype)
    others: dict[str, str] = {}

    def operand(wanted: str, number: int) -> str:
        key = f"{wanted}{number}"
        if key not in others:
            others[key] = builder.input(wanted)
        return others[key]

    for name in names:
        if name.startswith("cast"):
            made = builder.emit("cast", x, to=name.split(".")[1])
        elif INSTRUCTIONS[name].form == "select":
            made = builder.emit(name, operand("bool", 0), x, operand(dtype, 1))
        elif INSTRUCTIONS[name].arity == 2:
            made = builder.emit(name, x, operand(dtype, 1))
        else:
            made = builder.emit(name, x)
        builder.output(made)
    return Group(label, builder.build(), tuple(f"{dtype}.{n}" for n in names))


