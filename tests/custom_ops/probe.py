"""The vector functions of the CPU library, compiled for one instruction set and called from Python."""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "custom_ops" / "tools" / "vmath_probe.cc"
FLAGS = ("-std=c++17", "-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")

EMULATION = ROOT / "custom_ops" / "tools" / "avx512_emulation.h"

_AVX2 = frozenset({"avx2", "fma", "f16c", "bmi2"})
if platform.machine() == "aarch64":
    ARCHITECTURES: dict[str, tuple[tuple[str, ...], frozenset[str]]] = {"neon": (("-march=armv8-a",), frozenset())}
else:
    ARCHITECTURES = {
        "baseline": (("-march=x86-64",), frozenset()),
        "avx2": (("-march=x86-64-v3",), _AVX2),
        "avx512": (("-march=x86-64-v4",), frozenset({"avx512f", "avx512dq", "avx512bw", "avx512vl"})),
        "avx512_emulated": (("-march=x86-64-v3", "-O1", "-Wno-psabi", "-include", str(EMULATION)), _AVX2),
    }
"""By instruction set: the compiler's flags and what /proc/cpuinfo must list for the result to run. The last one takes
the code of AVX-512 with its instructions emulated."""


def compiler() -> str | None:
    """The C++ compiler to use, or None."""
    return os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")


def runs_here(isa: str) -> bool:
    """Whether this machine has the instruction set."""
    needed = ARCHITECTURES[isa][1]
    if not needed:
        return True
    try:
        return needed <= set(Path("/proc/cpuinfo").read_text(encoding="ascii").split())
    except OSError:
        return False


RUNNABLE = tuple(isa for isa in ARCHITECTURES if runs_here(isa) and isa != "avx512_emulated")
"""Without the emulation, which is slow."""
AVX512 = next((isa for isa in ("avx512", "avx512_emulated") if isa in ARCHITECTURES and runs_here(isa)), None)
"""How this machine can run the code of AVX-512."""


@functools.cache
def build(isa: str) -> Path:
    """Compiles the probe, once in a process; returns the shared object."""
    out = _folder() / f"vmath_{isa}.so"
    command = [compiler() or "c++", *FLAGS, *ARCHITECTURES[isa][0], "-o", str(out), str(SOURCE)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return out


@functools.cache
def load(isa: str) -> Probe:
    """The functions of an instruction set that this machine runs."""
    return Probe(build(isa))


@functools.cache
def _folder() -> Path:
    folder = tempfile.mkdtemp(prefix="onnxfuse-vmath-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


class Probe:
    """The compiled functions of one instruction set."""

    def __init__(self, path: Path) -> None:
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
