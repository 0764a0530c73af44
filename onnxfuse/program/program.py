"""Program: a typed list of statements in single-assignment form, as docs/format.md describes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from onnxfuse.program import evaluate, text, verify
from onnxfuse.program.parts import Input, ProgramError, Statement


@dataclasses.dataclass(frozen=True)
class Program:
    """A program; `verify` says whether it obeys the rules (`parse` and the builder return verified ones)."""

    inputs: tuple[Input, ...]
    statements: tuple[Statement, ...]
    outputs: tuple[str, ...]

    @property
    def text(self) -> str:
        """The canonical text; `Program.parse(p.text) == p` for every verified program."""
        return text.write(self.inputs, self.statements, self.outputs)

    @staticmethod
    def parse(source: str) -> Program:
        """The verified program with this text. Raises ProgramError naming the line at fault."""
        program = Program(*text.read(source))
        program.verify()
        return program

    @property
    def tensors(self) -> list[Input]:
        """The `x` inputs, in order."""
        return [value for value in self.inputs if value.name.startswith("x")]

    @property
    def scalars(self) -> list[Input]:
        """The `c` inputs, in order."""
        return [value for value in self.inputs if value.name.startswith("c")]

    def verify(self) -> None:
        """Raises ProgramError if a rule of docs/format.md is broken."""
        verify.verify(self.inputs, self.statements, self.outputs)

    def dtype_of(self, name: str) -> str:
        """Element type of the value `name`. Raises ProgramError if there is none."""
        for value in self.inputs:
            if value.name == name:
                return value.dtype
        for statement in self.statements:
            if statement.result == name:
                return statement.dtype
        raise ProgramError(f"no value {name!r} in the program")

    def evaluate(self, xs: Sequence[np.ndarray], cs: Sequence[np.ndarray] = ()) -> list[np.ndarray]:
        """Reference results: one new array per output, each of the iteration shape.

        `xs` and `cs` are the tensors of the `x` and `c` inputs in order, with exactly the declared element types
        (bf16 as ml_dtypes.bfloat16); each of `cs` has one element. Raises ProgramError if they do not fit.
        """
        return evaluate.evaluate(self.inputs, self.statements, self.outputs, xs, cs)
