"""Errors of the machine's instructions, through accuracy_probe.so of a build folder (`make build`), and of what the
library joins from several of them, through its libonnxfuse_test."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from onnxfuse.program import Builder
from onnxfuse.program.dtypes import NUMPY
from onnxfuse.program.instructions import BYTES, DTYPES
from tests.custom_ops.machine import MachineLibrary

Array = np.ndarray[Any, Any]

WRONG = 1e30
"""The error of a result that no number of ULP describes: NaN where there is a value, a zero of the wrong sign, other
bits than the right ones where an instruction has one right result."""
_ISAS = {"avx2": 2, "avx512": 3, "neon": 4, "baseline": 1}
_MESSAGE = 512
_CHUNK = 1 << 18


def _tanh_softplus(x: Array) -> Array:
    """n / (n + 2) with n = e^x (e^x + 2); from 40 on it is 1."""
    e = np.exp(np.minimum(x, 40.0))
    n = e * (e + 2)
    return np.asarray(n / (n + 2))


JOINED: dict[str, Callable[[Array], Array]] = {
    "silu": lambda x: x / (1 + np.exp(-x)), "tanh_softplus": _tanh_softplus, "mish": lambda x: x * _tanh_softplus(x),
}  # fmt: skip
"""What the library joins into one function of float32, with the true values of doubles."""


def softplus(builder: Builder, x: str) -> str:
    """log(1 + e^x) as exporters write it."""
    tail = builder.emit("log1p", builder.emit("exp", builder.emit("neg", builder.emit("abs", x))))
    return builder.emit("add", builder.emit("max", x, builder.const(builder.dtype_of(x), 0.0)), tail)


@cache
def program_of(name: str) -> str:
    """The instructions that are joined."""
    builder = Builder()
    x = builder.input("f32")
    factor = builder.emit("sigmoid", x) if name == "silu" else builder.emit("tanh", softplus(builder, x))
    builder.output(factor if name == "tanh_softplus" else builder.emit("mul", x, factor))
    return builder.build().text


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
        self._folder = folder
        path = folder / "accuracy_probe.so"
        assert path.is_file(), f"{path} is missing: make build"
        self._library = ctypes.CDLL(str(path.resolve()))
        for name in ("accuracy_has_isa", "accuracy_emulates_avx512"):
            getattr(self._library, name).restype = ctypes.c_bool
        self.isas = [name for name, number in _ISAS.items() if self._library.accuracy_has_isa(number)]
        self.emulated = "avx512" in self.isas and bool(self._library.accuracy_emulates_avx512())
        """Whether the code of AVX-512 runs with emulated intrinsics."""

    @cached_property
    def _machine(self) -> MachineLibrary:
        path = next(self._folder.glob("libonnxfuse_test.*"), None)
        assert path, f"{self._folder} has no test library: cmake --build {self._folder} --target onnxfuse_test"
        return MachineLibrary(path.resolve())

    def measure(self, instruction: str, operands: tuple[Array, ...], dtype: str, *, to: str | None = None,
                isas: list[str] | None = None) -> dict[str, Error]:  # fmt: skip
        """`instruction` of one or two arrays of one length, of the format's type `dtype`; `to` is the type of the
        result where it is another; a name of JOINED takes one array of float32. Releases the interpreter lock. Raises
        ValueError for an instruction that the machine or the reference does not know."""
        operands = tuple(np.ascontiguousarray(x, NUMPY[dtype]) for x in operands)
        names = self.isas if isas is None else isas
        if instruction in JOINED:
            result = dict.fromkeys(names, Error())
            for k in range(0, operands[0].size, _CHUNK):
                found = self._joined(instruction, operands[0][k : k + _CHUNK], names)
                result = {isa: result[isa].joined(error) for isa, error in found.items()}
            return result
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

    def _joined(self, name: str, x: Array, isas: list[str]) -> dict[str, Error]:
        times = None if name == "tanh_softplus" else x
        result: dict[str, Error] = {}
        with np.errstate(all="ignore"):
            want = JOINED[name](x.astype(np.float64))
            first = self._machine.run(program_of(name), [x], x.size, isa=isas[0])[0]
            errors = _errors(first, want, times)
            for isa in isas:
                got = first if isa == isas[0] else self._machine.run(program_of(name), [x], x.size, isa=isa)[0]
                other = np.flatnonzero(got.view(np.uint32) != first.view(np.uint32))
                own = errors.copy() if other.size else errors
                own[other] = _errors(got[other], want[other], None if times is None else x[other])
                other = other[~(np.isnan(got[other]) & np.isnan(first[other]))]
                worst, bits = int(own.argmax()), x.view(np.uint32)
                result[isa] = Error(float(own[worst]), (int(bits[worst]),) if own[worst] else (), other.size,
                                    (int(bits[other[0]]),) if other.size else ())  # fmt: skip
        return result

    def reference(self, function: str, operands: tuple[Array, ...], dtype: str) -> list[tuple[float, float]]:
        """What `function` of the operands is measured against: sums of two doubles."""
        operands = tuple(np.ascontiguousarray(x, NUMPY[dtype]) for x in operands)
        if function in JOINED:
            with np.errstate(all="ignore"):
                return [(float(v), 0.0) for v in JOINED[function](operands[0].astype(np.float64))]
        out = np.empty((operands[0].size, 2))
        code = self._library.accuracy_reference(function.encode(), DTYPES.index(dtype), *_addresses(operands),
                                                ctypes.c_size_t(operands[0].size), ctypes.c_void_p(out.ctypes.data))
        if code:
            raise ValueError(f"no reference for {function}")
        return [(float(high), float(low)) for high, low in out]


def _errors(got: Array, want: Array, times: Array | None) -> Array:
    """The errors of float32 results as custom_ops/tools/accuracy_reference.h counts them. For products with `times`
    whose other factor is denormal, the unit is what 2^-149, the last place of that factor, makes of the product."""
    size = np.abs(want)
    unit = np.clip(size, 2.0**-126, 2.0**127)
    bits = unit.view(np.int64)
    bits &= 2047 << 52
    unit *= 2.0**-23
    if times is not None:
        far = np.flatnonzero((times < -80) & (times > -200))  # below, all is zero
        other = np.abs(times[far].astype(np.float64))
        unit[far] = np.where(size[far] < other * 2.0**-126, other * 2.0**-149, unit[far])
    errors = np.abs(got - want)
    errors /= unit
    odd = np.flatnonzero(np.isnan(errors))
    errors[odd] = np.where((got[odd] == want[odd]) | np.isnan(got[odd]) & np.isnan(want[odd]), 0, WRONG)
    errors[(got == 0) & (np.signbit(got) != np.signbit(want))] = WRONG
    return np.asarray(errors)


def _addresses(operands: tuple[Array, ...]) -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
    first, second = operands[0], operands[1] if len(operands) == 2 else None
    assert second is None or second.shape == first.shape
    return (ctypes.c_void_p(first.ctypes.data),
            ctypes.c_void_p(None) if second is None else ctypes.c_void_p(second.ctypes.data))  # fmt: skip
