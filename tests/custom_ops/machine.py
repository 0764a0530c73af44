"""The machine alone, through ctypes: stretches of any length, unaligned memory, outputs over inputs."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onnxfuse.program import Program
from onnxfuse.program.dtypes import NUMPY
from onnxfuse.program.instructions import BYTES, DTYPES
from tests.custom_ops.library import ISAS

Array = np.ndarray

_MARGIN = 64
_MESSAGE = 1024
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class MachineError(Exception):
    """What the machine refuses, or leaves in disorder."""


class MachineLibrary:
    """The functions of libonnxfuse_test that reach the machine."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.onnxfuse_test_machine.restype = ctypes.c_long
        self._library.onnxfuse_test_places.restype = ctypes.c_long
        self.isas = [name for name, number in ISAS.items() if number and self.has(name)]
        """Those that this processor has, worst first."""

    def has(self, isa: str) -> bool:
        """Whether the processor has this instruction set."""
        return bool(self._library.onnxfuse_test_has_isa(ISAS[isa]))

    def tile(self, text: str, isa: str) -> int:
        """Elements of a tile of this program."""
        program = Program.parse(text)
        return self._call(program, text, [np.zeros((), NUMPY[i.dtype]) for i in program.inputs], isa, 0)[1]

    def run(
        self,
        text: str,
        inputs: Sequence[Array],
        n: int,
        *,
        isa: str,
        scalars: bool = False,
        offset: int = 0,
        in_place: dict[int, int] | None = None,
        in_storage: Sequence[str] = (),
        out_storage: Sequence[str] = (),
    ) -> list[Array]:
        """Runs `n` elements. Inputs (x, then c) of rank 0 are one element for all, the others have `n` elements.

        Every operand lies `offset` elements behind aligned memory, with guards around it that are checked. `in_place`
        maps outputs to the inputs whose memory they take. `scalars`: the c inputs are built into the machine. Raises
        MachineError.
        """
        program = Program.parse(text)
        return self._call(program, text, inputs, isa, n, scalars, offset, in_place or {}, in_storage, out_storage)[0]

    def everywhere(
        self,
        text: str,
        inputs: Sequence[Array],
        want: Sequence[Array],
        most: int,
        *,
        isa: str,
        over: dict[int, int] | None = None,
        traffic: int = 0,
    ) -> int:
        """Runs 0 to `most` elements in every place: 64 byte offsets behind a page that nothing may touch, and before
        one.

        Outputs must have the bits of `want`, whose arrays have at least `most` elements, as have those inputs that are
        not of rank 0 (one element for all). `over` maps outputs to the inputs whose memory they take. `traffic`: 1 asks
        for inputs ahead, 2 also stores past the caches. Returns the number of runs. Raises MachineError with the place
        where something is wrong.
        """
        program = Program.parse(text)
        arrays = [np.ascontiguousarray(a, NUMPY[i.dtype]) for a, i in zip(inputs, program.inputs, strict=True)]
        steps = [int(np.ndim(a) > 0) for a in inputs]
        outputs = [np.ascontiguousarray(w) for w in want]
        assert all(a.size >= most for a, step in zip(arrays, steps, strict=True) if step)
        assert [w.dtype for w in outputs] == [NUMPY[program.dtype_of(o)] for o in program.outputs]
        assert all(w.size >= most for w in outputs)
        message = ctypes.create_string_buffer(_MESSAGE)
        data = text.encode()
        runs = int(self._library.onnxfuse_test_places(
            data, ctypes.c_size_t(len(data)), ISAS[isa],
            (ctypes.c_int * len(arrays))(*[DTYPES.index(i.dtype) for i in program.inputs]),
            (ctypes.c_int * len(outputs))(*[DTYPES.index(program.dtype_of(o)) for o in program.outputs]),
            (ctypes.c_void_p * len(arrays))(*[a.ctypes.data for a in arrays]),
            (ctypes.c_uint8 * len(steps))(*steps),
            (ctypes.c_void_p * len(outputs))(*[w.ctypes.data for w in outputs]),
            (ctypes.c_int * len(outputs))(*[(over or {}).get(k, -1) for k in range(len(outputs))]),
            ctypes.c_size_t(most), traffic, message, ctypes.c_size_t(_MESSAGE),
        ))  # fmt: skip
        if runs < 0:
            raise MachineError(message.value.decode())
        return runs

    def _call(
        self,
        program: Program,
        text: str,
        inputs: Sequence[Array],
        isa: str,
        n: int,
        scalars: bool = False,
        offset: int = 0,
        in_place: dict[int, int] | None = None,
        in_storage: Sequence[str] = (),
        out_storage: Sequence[str] = (),
    ) -> tuple[list[Array], int]:
        in_types = list(in_storage) or [i.dtype for i in program.inputs]
        out_types = list(out_storage) or [program.dtype_of(o) for o in program.outputs]
        memory = [_Memory.of(np.asarray(a), t, offset) for a, t in zip(inputs, in_types, strict=True)]
        shared = in_place or {}
        places = [memory[shared[k]] if k in shared else _Memory(n, t, offset) for k, t in enumerate(out_types)]
        bits = [int(m.array.view(_UNSIGNED[BYTES[t]])[0])
                for m, t, i in zip(memory, in_types, program.inputs, strict=True) if i.name[0] == "c"]  # fmt: skip
        message = ctypes.create_string_buffer(_MESSAGE)
        data = text.encode()
        steps = [int(np.ndim(a) > 0) for a in inputs]
        tile = self._library.onnxfuse_test_machine(
            data, ctypes.c_size_t(len(data)), ISAS[isa],
            (ctypes.c_int * len(in_types))(*[DTYPES.index(t) for t in in_types]),
            (ctypes.c_int * len(out_types))(*[DTYPES.index(t) for t in out_types]),
            (ctypes.c_uint64 * max(len(bits), 1))(*bits) if scalars else None,
            (ctypes.c_void_p * len(memory))(*[m.address for m in memory]),
            (ctypes.c_uint8 * len(steps))(*steps),
            (ctypes.c_void_p * len(places))(*[p.address for p in places]),
            ctypes.c_size_t(n), message, ctypes.c_size_t(_MESSAGE),
        )  # fmt: skip
        if tile == -2:
            raise MachineError("the upper halves of vector registers are left in use")
        if tile < 0:
            raise MachineError(message.value.decode())
        for m in [*memory, *places]:
            m.check()
        return [p.array for p in places], tile


class _Memory:
    """`n` elements of a type, `offset` elements behind 64-byte aligned memory, between guards."""

    def __init__(self, n: int, dtype: str, offset: int) -> None:
        size = n * BYTES[dtype]
        raw = np.full(size + 3 * _MARGIN + 8 * offset, 0xA5, np.uint8)
        begin = -raw.ctypes.data % _MARGIN + _MARGIN + offset * BYTES[dtype]
        self._before, self._behind = raw[:begin], raw[begin + size :]
        self.array: Array = raw[begin : begin + size].view(NUMPY[dtype])
        self.address = int(raw.ctypes.data) + begin

    @staticmethod
    def of(values: Array, dtype: str, offset: int) -> _Memory:
        memory = _Memory(values.size, dtype, offset)
        memory.array[:] = values.ravel()
        return memory

    def check(self) -> None:
        assert (self._before == 0xA5).all(), "written before an operand"
        assert (self._behind == 0xA5).all(), "written behind an operand"


def same_bits(a: Array, b: Array) -> bool:
    """Equal in every bit, but for the payload and sign of NaN."""
    return bool(np.all(equal_bits(a, b)))


def equal_bits(a: Array, b: Array) -> Array:
    """Where the bits are equal, but for the payload and sign of NaN."""
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    bits = _UNSIGNED[a.dtype.itemsize]
    equal = np.asarray(a.view(bits) == b.view(bits))
    if a.dtype.kind in "fV":
        equal |= np.isnan(a) & np.isnan(b)
    return equal


def assert_same(got: Array, want: Array, what: str, *operands: Any) -> None:
    """Fails with the first element that differs, and the operands there."""
    equal = equal_bits(got, want)
    if not equal.all():
        k = int(np.flatnonzero(~equal)[0])
        at = [f"{np.asarray(o).ravel()[min(k, np.size(o) - 1)]!r}" for o in operands]
        raise AssertionError(f"{what}({', '.join(at)}): {got[k]!r}, expected {want[k]!r}; "
                             f"{int((~equal).sum())} of {got.size} differ")  # fmt: skip


def assert_close(got: Array, want: Array, ulp: float, what: str, *operands: Any) -> None:
    """As assert_same, but for a distance of at most `ulp` in the last place; `want` itself may be off by one."""
    if ulp <= 0.5:
        return assert_same(got, want, what, *operands)
    bits = {4: np.int32, 8: np.int64}[got.dtype.itemsize]

    def ordered(a: Array) -> Array:
        b = a.view(bits)
        return np.asarray(np.where(b < 0, np.iinfo(bits).min - b, b))

    with np.errstate(over="ignore"):
        distance = np.abs(ordered(got) - ordered(want))
    # Infinity is next to the largest number.
    near = (distance >= 0) & (distance <= int(np.ceil(ulp)) + 1) & ~np.isnan(got) & ~np.isnan(want)
    replaced = np.where(near, want, got)
    assert_same(replaced, want, what, *operands)
