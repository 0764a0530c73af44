"""The vector functions of the CPU library, one compiled module for each instruction set (`make build`)."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

_AVX2 = {"avx2", "fma", "f16c", "bmi2"}
_NEEDS: dict[str, set[str]] = {"neon": set()} if platform.machine() in ("aarch64", "arm64") else {
    "baseline": set(), "avx2": _AVX2, "avx512": _AVX2 | {"avx512f", "avx512dq", "avx512bw", "avx512vl"}}
"""By instruction set, what /proc/cpuinfo must list for it to run."""


def _runs_here(isa: str) -> bool:
    if not _NEEDS[isa]:
        return True
    try:
        return _NEEDS[isa] <= set(Path("/proc/cpuinfo").read_text(encoding="ascii").split())
    except OSError:
        return False


NATIVE = tuple(isa for isa in _NEEDS if _runs_here(isa))
"""The instruction sets of this machine."""
AVX512 = "avx512" if "avx512" in NATIVE else "avx512_emulated" if "avx2" in NATIVE else None
"""How this machine runs the code of AVX-512; the emulation is slow."""


class Probe:
    """The compiled functions of one instruction set, from the folder of the test library."""

    def __init__(self, test_library: Path, isa: str) -> None:
        path = test_library.with_name(f"vmath_{isa}.so").resolve()
        assert path.is_file(), f"{path} is missing: make build"
        self._library = ctypes.CDLL(str(path))
        for name in ("vmath_run_f32", "vmath_run_f64", "vmath_convert"):
            getattr(self._library, name).restype = ctypes.c_bool
        self._library.vmath_sweep.restype = ctypes.c_double

    def run(self, name: str, *operands: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """`name` of one or two arrays of one length, both float32 or both float64."""
        a, b = (np.ascontiguousarray(x) for x in (operands if len(operands) == 2 else (operands[0], operands[0])))
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        out = np.empty_like(a)
        run = self._library.vmath_run_f32 if a.dtype == np.float32 else self._library.vmath_run_f64
        assert run(name.encode(), _address(a), _address(b), _address(out), ctypes.c_size_t(a.size)), name
        return out

    def convert(self, name: str, a: np.ndarray[Any, Any], dtype: Any) -> np.ndarray[Any, Any]:
        """The elements of `a` through the conversion `name`, whose results have `dtype`."""
        a = np.ascontiguousarray(a)
        out = np.empty(a.shape, dtype)
        assert self._library.vmath_convert(name.encode(), _address(a), _address(out), ctypes.c_size_t(a.size)), name
        return out

    def sweep(self, name: str, first: int, step: int, count: int) -> tuple[float, int]:
        """The largest error in ULP over floats with the bits first, first + step, … (modulo 2^32), and its bits."""
        where = ctypes.c_uint32()
        error = self._library.vmath_sweep(name.encode(), ctypes.c_uint32(first), ctypes.c_uint32(step),
                                          ctypes.c_uint64(count), ctypes.byref(where))
        assert error >= 0, name
        return error, where.value


def floats(bits: Sequence[int] | np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """float32 values by their bits."""
    return np.asarray(bits, np.uint32).view(np.float32)


def _address(array: np.ndarray[Any, Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
