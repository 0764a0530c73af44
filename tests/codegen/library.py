"""The library's side of GPU code through ctypes: containers, and launches of kernels that were built for the host."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onnxfuse.codegen.kernels import KERNELS, Shape
from onnxfuse.program import Program
from onnxfuse.program.dtypes import NUMPY
from tests.codegen.host import HostModules

Array = np.ndarray[Any, Any]

_MESSAGE = 1024
_RANK = 64
_ROOM = 1 << 22


class Refused(Exception):
    """What the library refuses."""


@dataclasses.dataclass(frozen=True)
class Unpacked:
    """The image that the library takes for a device."""

    architecture: int
    ptx: bool
    code: bytes
    form: tuple[int, int, int]


class CudaLibrary:
    """The functions of libonnxfuse_test for GPU code."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self.launches: dict[str, int] = {}
        """Of the last call of `run`, by kernel."""

    def unpack(self, data: bytes, program: str, major: int, minor: int) -> Unpacked:
        """Raises Refused."""
        text, error = program.encode(), ctypes.create_string_buffer(_MESSAGE)
        code, size = ctypes.create_string_buffer(_ROOM), ctypes.c_size_t(_ROOM)
        form, architecture, ptx = (ctypes.c_uint * 3)(), ctypes.c_int(), ctypes.c_int()
        # behind the end nothing may be read: the buffer has no zero there
        given = (ctypes.c_uint8 * len(data)).from_buffer_copy(data) if data else (ctypes.c_uint8 * 1)()
        failed = self._library.onnxfuse_test_cuda_unpack(
            given, ctypes.c_size_t(len(data)), text, ctypes.c_size_t(len(text)), major, minor, code, ctypes.byref(size),
            form, ctypes.byref(architecture), ctypes.byref(ptx), error, ctypes.c_size_t(_MESSAGE),
        )  # fmt: skip
        if failed:
            raise Refused(error.value.decode())
        return Unpacked(architecture.value, bool(ptx.value), code.raw[: size.value], (form[0], form[1], form[2]))

    def run(
        self, modules: HostModules, number: int, inputs: Sequence[Array], *, most: int = 1 << 30, processors: int = 1,
        offset: int = 0, over: dict[int, int] | None = None,
    ) -> list[Array]:  # fmt: skip
        """All launches for these inputs (x, then c), on the host. Tensors lie `offset` elements behind aligned memory;
        `over` maps outputs to the inputs whose memory they take. Raises Refused."""
        program, shape = modules.programs[number], modules.shapes[number]
        xs = [_placed(x, offset) for x in inputs]
        padded = [np.reshape(x, np.shape(x) + (1,) * i.pad) for x, i in zip(inputs, program.tensors, strict=False)]
        try:
            result = np.broadcast_shapes(*(x.shape for x in padded))
        except ValueError:
            result = ()  # the library says so itself
        ys = [_placed(np.zeros(result, NUMPY[program.dtype_of(name)]), offset) for name in program.outputs]
        for output, place in (over or {}).items():
            ys[output] = xs[place][: ys[output].nbytes] if xs[place].nbytes >= ys[output].nbytes else xs[place]
        made = self._call(modules.library, program, shape, inputs, xs, ys, most, processors, number)
        assert made == result
        return [
            y[: np.dtype(t).itemsize * int(np.prod(result))].view(t).reshape(result).copy()
            for y, t in zip(ys, (NUMPY[program.dtype_of(name)] for name in program.outputs), strict=True)
        ]

    def _call(
        self, host: ctypes.CDLL, program: Program, shape: Shape, inputs: Sequence[Array], xs: Sequence[Array],
        ys: Sequence[Array], most: int, processors: int, number: int,
    ) -> tuple[int, ...]:  # fmt: skip
        text, error = program.text.encode(), ctypes.create_string_buffer(_MESSAGE)
        dims = [(ctypes.c_int64 * max(np.ndim(x), 1))(*np.shape(x)) for x in inputs]
        written = {k: ctypes.cast(getattr(host, f"p{number}_{k}"), ctypes.c_void_p).value for k in shape.kernels}
        kernels = (ctypes.c_void_p * len(KERNELS))(*(written.get(kernel) for kernel in KERNELS))
        counts, made, rank = (ctypes.c_int * len(KERNELS))(), (ctypes.c_int64 * _RANK)(), ctypes.c_int()
        failed = self._library.onnxfuse_test_cuda_run(
            text, ctypes.c_size_t(len(text)), (ctypes.c_uint * 3)(shape.vector, shape.unroll, shape.resident),
            processors, ctypes.c_int64(most), (ctypes.c_void_p * len(xs))(*(x.ctypes.data for x in xs)),
            (ctypes.c_void_p * len(dims))(*map(ctypes.addressof, dims)),
            (ctypes.c_int * len(xs))(*map(np.ndim, inputs)),
            (ctypes.c_void_p * len(ys))(*(y.ctypes.data for y in ys)), made, ctypes.byref(rank), kernels, counts, error,
            ctypes.c_size_t(_MESSAGE),
        )  # fmt: skip
        self.launches = dict(zip(KERNELS, counts, strict=True))
        if failed:
            raise Refused(error.value.decode())
        return tuple(made[: rank.value])


def _placed(array: Array, offset: int) -> Array:
    """The bytes of an array, `offset` elements behind a multiple of 64."""
    array = np.ascontiguousarray(array)
    memory = np.empty(array.nbytes + 128 + offset * array.itemsize, np.uint8)
    begin = -memory.ctypes.data % 64 + offset * array.itemsize
    place = memory[begin : begin + array.nbytes]
    place[...] = array.reshape(-1).view(np.uint8)
    return place
