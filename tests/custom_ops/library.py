"""The test library through ctypes: the parser and the driver without ONNX Runtime."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onnxfuse.program import Program
from onnxfuse.program.dtypes import NUMPY
from onnxfuse.program.instructions import DTYPES

ISAS = {"best": 0, "baseline": 1, "avx2": 2, "avx512": 3}
_MESSAGE = 2048


class LibraryError(Exception):
    """What the library says is wrong; `code` is 1 for a program that it refuses, 2 for everything else."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class TestLibrary:
    """libonnxfuse_test, loaded."""

    __test__ = False  # no test class, in spite of its name

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))

    def parse(self, text: str | bytes) -> None:
        """Parses a program; raises LibraryError if it is refused."""
        data = text.encode() if isinstance(text, str) else text
        message = ctypes.create_string_buffer(_MESSAGE)
        code = self._library.onnxfuse_test_parse(data, ctypes.c_size_t(len(data)), message, ctypes.c_size_t(_MESSAGE))
        if code:
            raise LibraryError(code, message.value.decode())

    def stream_from(self, size: int) -> None:
        """Outputs of more than `size` bytes in all are stored past the caches from now on; 0: the usual size."""
        self._library.onnxfuse_test_stream_from(ctypes.c_size_t(size))

    def run(
        self,
        text: str,
        xs: Sequence[np.ndarray],
        cs: Sequence[np.ndarray] = (),
        *,
        out: Sequence[np.ndarray] | None = None,
        isa: str = "best",
        threads: int = 1,
        in_storage: Sequence[str | None] = (),
        out_storage: Sequence[str | None] = (),
        contiguous: bool = True,
    ) -> list[np.ndarray]:
        """Runs a program on C-contiguous arrays and returns its outputs.

        `in_storage`, `out_storage`: element types in memory where they differ from the program's. `out`: buffers to
        write to, which may be arrays of `xs`; else new ones of the iteration shape, each surrounded by a guard that is
        checked afterwards. `contiguous=False` skips a check, for calls that are refused before any element is read.
        Raises LibraryError.
        """
        program = Program.parse(text)
        arrays = [*xs, *cs]
        assert not contiguous or all(a.flags.c_contiguous for a in arrays)
        shape = _broadcast([x.shape + (1,) * value.pad for x, value in zip(xs, program.inputs, strict=False)])
        names = list(out_storage) or [None] * len(program.outputs)
        dtypes = [NUMPY[name or program.dtype_of(value)] for name, value in zip(names, program.outputs, strict=True)]
        guarded = [_Guarded(shape, dtype) for dtype in dtypes] if out is None else []
        outputs = [g.array for g in guarded] if out is None else list(out)

        def storage(types: Sequence[str | None], count: int) -> ctypes.Array[ctypes.c_int]:
            numbers = [-1 if t is None else DTYPES.index(t) for t in types] or [-1] * count
            return (ctypes.c_int * max(count, 1))(*numbers)

        n = len(arrays)
        dims = [(ctypes.c_int64 * max(a.ndim, 1))(*a.shape) for a in arrays]
        message = ctypes.create_string_buffer(_MESSAGE)
        data = text.encode()
        code = self._library.onnxfuse_test_run(
            data, ctypes.c_size_t(len(data)), ISAS[isa],
            (ctypes.c_void_p * n)(*[a.ctypes.data for a in arrays]),
            (ctypes.c_void_p * n)(*[ctypes.addressof(d) for d in dims]),
            (ctypes.c_int * n)(*[a.ndim for a in arrays]), storage(in_storage, n), n,
            (ctypes.c_void_p * len(outputs))(*[o.ctypes.data for o in outputs]),
            storage(out_storage, len(outputs)), message, ctypes.c_size_t(_MESSAGE), threads,
        )  # fmt: skip
        if code:
            raise LibraryError(code, message.value.decode())
        for g in guarded:
            g.check()
        return outputs


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """numpy's rule for any rank; shapes that do not broadcast give what the first of them needs."""
    rank = max(len(s) for s in shapes)
    rows = [(1,) * (rank - len(s)) + s for s in shapes]
    return tuple(next((dim for dim in column if dim != 1), 1) for column in zip(*rows, strict=True))


class _Guarded:
    """An output buffer between two stretches of a pattern; filled with garbage, so that unwritten elements show."""

    MARGIN = 128

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self._memory = np.full(size + 2 * self.MARGIN, 0xA5, np.uint8)
        self.array = self._memory[self.MARGIN : self.MARGIN + size].view(dtype).reshape(shape)

    def check(self) -> None:
        assert (self._memory[: self.MARGIN] == 0xA5).all(), "written before an output"
        assert (self._memory[-self.MARGIN :] == 0xA5).all(), "written behind an output"
