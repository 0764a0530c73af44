"""Generated modules on the host: their text, compiled by g++ against shim.h, many in one library."""

from __future__ import annotations

import ctypes
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onnxfuse.codegen import Shape, emit, layout, shape_of
from onnxfuse.codegen.kernels import KERNELS, THREADS
from onnxfuse.program import Program
from onnxfuse.program.dtypes import NUMPY, to_bits

Array = np.ndarray[Any, Any]

SHIM = Path(__file__).with_name("shim.h")
FLAGS = ("-std=c++17", "-fPIC", "-shared", "-march=native", "-ffp-contract=off", "-fno-strict-aliasing", "-Wno-psabi")
_MARGIN = 64
_FILL = 0xA5


def divisor(size: int) -> tuple[int, int]:
    """Multiplier and shift with which `quotient` of device.cuh divides numbers below 2^31 by `size`."""
    shift = (size - 1).bit_length()
    return ((1 << 32) * ((1 << shift) - size)) // size + 1, shift


class HostModules:
    """The modules of some programs."""

    def __init__(
        self, programs: Sequence[Program], folder: Path, *, shapes: Sequence[Shape] | None = None,
        flags: Sequence[str] = ("-O1",),
    ) -> None:  # fmt: skip
        self.programs = list(programs)
        self.shapes = list(shapes) if shapes else [shape_of(p) for p in self.programs]
        lines = [f'#include "{SHIM}"']
        for number, (program, shape) in enumerate(zip(self.programs, self.shapes, strict=True)):
            # As many modules have kernels of the same names, they cannot keep their C names here.
            text = emit(program, shape).replace('extern "C" __global__', "static")
            lines.append(f"namespace p{number} {{\n{text}\n}}")
            lines += [
                f'extern "C" void p{number}_{kernel}(const unsigned* grid, const unsigned* block, const void* bytes) '
                f"{{ launch(p{number}::{kernel}, grid, block, bytes); }}"
                for kernel in shape.kernels
            ]
        source, library = folder / "modules.cpp", folder / "modules.so"
        source.write_text("\n".join(lines), encoding="utf-8")
        done = subprocess.run(["g++", *FLAGS, *flags, "-o", str(library), str(source)], capture_output=True, text=True,
                              check=False)  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        self.library = ctypes.CDLL(str(library))

    def run(
        self, number: int, kernel: str, inputs: Sequence[Array], *, offset: int = 0, grid: int = 3,
    ) -> list[Array]:  # fmt: skip
        """One launch on copies of the inputs (x, then c) that lie `offset` elements behind aligned memory. Checks that
        nothing around the outputs was written. `rows` takes the last dim of the iteration space as the row."""
        program = self.programs[number]
        tensors = program.tensors
        xs = [
            np.asarray(x).reshape(np.shape(x) + (1,) * i.pad) for x, i in zip(inputs, tensors, strict=False)
        ]  # fmt: skip
        shape = np.broadcast_shapes(*(x.shape for x in xs))
        placed = [_place(x, offset) for x in xs]
        outputs = [_place(np.zeros(shape, NUMPY[program.dtype_of(name)]), offset) for name in program.outputs]
        values = _arguments(program, kernel, shape, [p[0] for p in placed], [p[0] for p in outputs],
                            inputs[len(tensors):], self.shapes[number])  # fmt: skip
        if np.prod(shape):
            block = (32, THREADS // 32) if kernel == "rows" else (THREADS, 1)
            sizes = (ctypes.c_uint * 2)(grid, 2 if kernel == "rows" else 1), (ctypes.c_uint * 2)(*block)
            getattr(self.library, f"p{number}_{kernel}")(*sizes, values)
        for array, memory in outputs:
            begin = array.ctypes.data - memory.ctypes.data
            outside = np.concatenate([memory[:begin], memory[begin + array.nbytes :]])
            assert (outside == _FILL).all(), f"{kernel} wrote beyond an output"
        return [array.copy() for array, _ in outputs]


def _place(array: Array, offset: int) -> tuple[Array, Array]:
    """A copy `offset` elements behind a multiple of 64 bytes, and the memory around it."""
    memory = np.full(array.nbytes + 3 * _MARGIN + offset * array.itemsize + 64, _FILL, np.uint8)
    begin = -memory.ctypes.data % 64 + _MARGIN + offset * array.itemsize
    copy = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy, memory


def _strides(x: Array, shape: tuple[int, ...]) -> list[int]:
    """Elements that a contiguous tensor moves on along each dim of the iteration space, the last first."""
    dims = (1,) * (len(shape) - x.ndim) + x.shape
    strides, step = [], 1
    for dim, size in zip(reversed(dims), reversed(shape), strict=True):
        strides.append(step if dim == size and size != 1 else 0)
        step *= dim
    return strides


def _arguments(
    program: Program, kernel: str, shape: tuple[int, ...], xs: Sequence[Array], ys: Sequence[Array],
    cs: Sequence[Array], form: Shape,
) -> bytes:  # fmt: skip
    """The struct of a kernel."""
    name = KERNELS[kernel]
    elements = int(np.prod(shape, dtype=np.int64))
    scalars = program.scalars
    strides = [_strides(x, shape) or [0] for x in xs]
    dims = list(reversed(shape)) or [1]
    aligned = all(a.ctypes.data % 16 == 0 for a in (*xs, *ys))
    values: dict[str, list[int]] = {
        "inputs": [x.ctypes.data for x in xs], "outputs": [y.ctypes.data for y in ys],
        "scalars": [to_bits(i.dtype, c) for i, c in zip(scalars, cs, strict=True)],
    }  # fmt: skip
    if kernel == "rows":
        columns, outer = dims[0], dims[1:]
        assert len(outer) <= layout.OUTER
        whole = aligned and columns % form.vector == 0
        whole &= all(s % form.vector == 0 for row in strides if row[0] for s in row[1:])
        values |= {"rows": [elements // max(columns, 1)], "columns": [columns], "outer": [len(outer)],
                   "vectors": [columns // form.vector if whole else 0], "moves": [s[0] for s in strides],
                   **_divisions(outer, layout.OUTER)}  # fmt: skip
        values["stride"] = [v for s in strides for v in _padded(s[1:], layout.OUTER)]
    else:
        values |= {"elements": [elements], "rank": [len(dims)], **_divisions(dims, layout.RANK)}
        values["stride"] = [v for s in strides for v in _padded(s, layout.RANK)]
    counts = layout.counts(program)
    offsets = layout.offsets(name, *counts)
    packed = bytearray(offsets[""])
    for field in layout.STRUCTS[name]:
        numbers = values[field.name]
        assert len(numbers) == field.count(*counts), field.name
        struct.pack_into(f"<{len(numbers)}{'Q' if field.bytes == 8 else 'I'}", packed, offsets[field.name], *numbers)
    return bytes(packed)


def _padded(numbers: Sequence[int], length: int) -> list[int]:
    return [*numbers, *[0] * (length - len(numbers))]


def _divisions(dims: Sequence[int], length: int) -> dict[str, list[int]]:
    pairs = [divisor(max(d, 1)) for d in dims]
    return {
        "size": _padded(dims, length), "multiplier": _padded([p[0] for p in pairs], length),
        "shift": _padded([p[1] for p in pairs], length),
    }  # fmt: skip
