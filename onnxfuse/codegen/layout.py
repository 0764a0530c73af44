"""The arguments of the kernels: one description of the structs from which the CUDA text and whoever launches them take
names, order and offsets. The build runs this file for the library's side: ``layout.py --cpp OUT``.

A kernel takes one struct by value. Pointers and scalars come first, so that nothing needs padding. Every field is a
count of numbers of one width; how many depends on the program's tensor inputs (x), scalar inputs (c) and outputs (y).
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the build has none of what the package needs
    from onnxfuse.program import Program

OUTER = 7
"""Dims of the iteration space that a row does not lie along."""
RANK = 8


@dataclasses.dataclass(frozen=True)
class Field:
    """`each` is what there is one of ("x", "c", "y", "" for one in all); each has `times` numbers of `bytes` bytes."""

    name: str
    bytes: int
    each: str
    times: int
    text: str

    def count(self, x: int, c: int, y: int) -> int:
        return {"x": x, "c": c, "y": y, "": 1}[self.each] * self.times


_TENSORS = (
    Field("inputs", 8, "x", 1, "address of each tensor input"),
    Field("outputs", 8, "y", 1, "address of each output"),
    Field("scalars", 8, "c", 1, "bits of each scalar input, zero-extended"),
)
STRUCTS: dict[str, tuple[Field, ...]] = {
    "Rows": (
        *_TENSORS,
        Field("rows", 4, "", 1, "rows of the iteration space"),
        Field("columns", 4, "", 1, "elements of a row"),
        Field("vectors", 4, "", 1, "whole vectors of a row; 0 where a row of some tensor begins at no multiple of 16"),
        Field("outer", 4, "", 1, "dims that the rows are numbered by"),
        Field("size", 4, "", OUTER, "of each of these dims, the last first"),
        Field("multiplier", 4, "", OUTER, "of the division by it"),
        Field("shift", 4, "", OUTER, "of the division by it"),
        Field("moves", 4, "x", 1, "elements that a tensor moves on along a row: 1 or 0"),
        Field("stride", 4, "x", OUTER, "the same along each of the dims"),
    ),
    "Strided": (
        *_TENSORS,
        Field("elements", 4, "", 1, "elements of the iteration space, fewer than 2^31"),
        Field("rank", 4, "", 1, "dims"),
        Field("size", 4, "", RANK, "of each dim, the last first"),
        Field("multiplier", 4, "", RANK, "of the division by it"),
        Field("shift", 4, "", RANK, "of the division by it"),
        Field("stride", 4, "x", RANK, "elements that a tensor moves on along each dim"),
    ),
}
"""The struct of each kernel, in the order of its fields."""

TYPES = {"inputs": "const u8*", "outputs": "u8*", "scalars": "u64"}
"""The C++ types of the fields, where they are not u32. Pointers, so that the compiler knows that they lead to global
memory."""


def counts(program: Program) -> tuple[int, int, int]:
    """How many tensor inputs, scalar inputs and outputs it has."""
    return len(program.tensors), len(program.scalars), len(program.outputs)


def declaration(struct: str, x: int, c: int, y: int) -> str:
    """The struct as CUDA C++. Arrays of no elements are left out."""
    lines = [f"struct {struct} {{"]
    for field in STRUCTS[struct]:
        count = field.count(x, c, y)
        if count:
            each = f"[{count // field.times}]" if field.each else ""
            times = f"[{field.times}]" if field.times > 1 else ""
            lines.append(f"  {TYPES.get(field.name, 'u32')} {field.name}{each}{times};  // {field.text}")
    return "\n".join([*lines, "};"])


def offsets(struct: str, x: int, c: int, y: int) -> dict[str, int]:
    """Byte offset of each field, and the size of the struct as `""`."""
    at, found = 0, {}
    for field in STRUCTS[struct]:
        found[field.name] = at
        at += field.bytes * field.count(x, c, y)
    found[""] = -(-at // 8) * 8
    return found


def cpp_header() -> str:
    """The structs for the library: for each the byte offsets of its fields, and the bytes of all."""
    lines = ["// The arguments of the kernels, written by onnxfuse/codegen/layout.py.", "#pragma once", "",
             "#include <cstddef>", "", "namespace onnxfuse::cuda {", "",
             f"constexpr size_t kOuter = {OUTER}, kRank = {RANK};"]  # fmt: skip
    for name, fields in STRUCTS.items():
        lines += ["", "// Byte offsets for x tensor inputs, c scalar inputs and y outputs.", f"struct {name}Layout {{",
                  f"  constexpr {name}Layout(size_t x, size_t c, size_t y) {{"]  # fmt: skip
        before, length = "0", "0"
        for field in fields:
            lines.append(f"    {field.name} = {before} + {length};")
            before, length = field.name, f"{field.bytes * field.times} * {field.each or 1}"
        lines += [f"    bytes = ({before} + {length} + 7) / 8 * 8;", "  }"]
        lines += [f"  size_t {field.name} = 0;  // {field.text}" for field in fields]
        lines += ["  size_t bytes = 0;  // of all", "};"]
    return "\n".join([*lines, "", "}  // namespace onnxfuse::cuda", ""])


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "--cpp":
        sys.exit("usage: layout.py --cpp OUT")
    Path(sys.argv[2]).write_text(cpp_header(), encoding="utf-8")
