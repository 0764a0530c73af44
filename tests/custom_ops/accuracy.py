"""Errors of the machine's instructions, through accuracy_probe.so of a build folder (`make build`)."""

from __future__ import annotations

import ctypes
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from onnxfuse.program.dtypes import NUMPY
from onnxfuse.program.instructions import BYTES, DTYPES

Array = np.ndarray[Any, Any]

WRONG = 1e30
"""The error of a result that no number of ULP describes: NaN where there is a value, a zero of the wrong sign, other
bits than the right ones where an instruction has one right result."""
_ISAS = {"avx2": 2, "avx512": 3, "neon": 4, "baseline": 1}
_MESSAGE = 512


@dataclasses.dataclass(frozen=True)
class Error:
    """What came out on one instruction set. `ulp` is the largest error and `at` the bits of the operands that have it;
    `differences` counts the elements whose bits are not those of the first instruction set (NaN apart), `difference`
    the operands of the first of them."""

    ulp: float = 0.0
    at: tuple[int, ...] = ()
    differences: int = 0
    difference: tuple[int, ...] = ()

    def joined(self, other: Error) -> Error:
        """Both together."""
        worse = self if self.ulp >= other.ulp else other
        return Error(worse.ulp, worse.at, self.differences + other.differences, self.difference or other.difference)


class _Row(ctypes.Structure):
    _fields_ = (("ulp", ctypes.c_double), ("where", ctypes.c_uint64), ("differences", ctypes.c_uint64),
                ("difference", ctypes.c_uint64))  # fmt: skip


class Accuracy:
    """The probe of one build folder. `isas` are the instruction sets that run here, the first of them the one that the
    others are compared with."""

    def __init__(self, folder: Path) -> None:
        path = folder / "accuracy_probe.so"
        assert path.is_file(), f"{path} is missing: make build"
        self._library = ctypes.CDLL(str(path.resolve()))
        for name in ("accuracy_has_isa", "accuracy_emulates_avx512"):
            getattr(self._library, name).restype = ctypes.c_bool
        self.isas = [name for name, number in _ISAS.items() if self._library.accuracy_has_isa(number)]
        self.emulated = "avx512" in self.isas and bool(self._library.accuracy_emulates_avx512())
        """Whether the code of AVX-512 runs with emulated intrinsics."""

    def measure(self, instruction: str, operands: tuple[Array, ...], dtype: str, *, to: str | None = None,
                isas: list[str] | None = None) -> dict[str, Error]:  # fmt: skip
        """`instruction` of one or two arrays of one length, of the format's type `dtype`; `to` is the type of the
        result where it is another. Releases the interpreter lock. Raises ValueError for an instruction that the
        machine or the reference does not know."""
        operands = tuple(np.ascontiguousarray(x, NUMPY[dtype]) for x in operands)
        names = self.isas if isas is None else isas
        rows, message = (_Row * len(names))(), ctypes.create_string_buffer(_MESSAGE)
        code = self._library.accuracy_measure(
            instruction.encode(), DTYPES.index(dtype), DTYPES.index(to or dtype),
            (ctypes.c_int * len(names))(*[_ISAS[name] for name in names]), ctypes.c_size_t(len(names)),
            *_addresses(operands), ctypes.c_size_t(operands[0].size), rows, message, ctypes.c_size_t(_MESSAGE),
        )  # fmt: skip
        if code:
            raise ValueError(f"{instruction}.{dtype}: {message.value.decode()}")

        def bits(index: int) -> tuple[int, ...]:
            return tuple(int(x[index : index + 1].view(f"u{BYTES[dtype]}")[0]) for x in operands)

        return {
            name: Error(row.ulp, bits(row.where) if row.ulp else (), row.differences,
                        bits(row.difference) if row.differences else ())
            for name, row in zip(names, rows, strict=True)
        }  # fmt: skip

    def reference(self, function: str, operands: tuple[Array, ...], dtype: str) -> list[tuple[float, float]]:
        """What `function` of the operands is measured against: sums of two doubles."""
        operands = tuple(np.ascontiguousarray(x, NUMPY[dtype]) for x in operands)
        out = np.empty((operands[0].size, 2))
        code = self._library.accuracy_reference(function.encode(), DTYPES.index(dtype), *_addresses(operands),
                                                ctypes.c_size_t(operands[0].size), ctypes.c_void_p(out.ctypes.data))
        if code:
            raise ValueError(f"no reference for {function}")
        return [(float(high), float(low)) for high, low in out]


def _addresses(operands: tuple[Array, ...]) -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
    first, second = operands[0], operands[1] if len(operands) == 2 else None
    assert second is None or second.shape == first.shape
    return (ctypes.c_void_p(first.ctypes.data),
            ctypes.c_void_p(None) if second is None else ctypes.c_void_p(second.ctypes.data))  # fmt: skip
