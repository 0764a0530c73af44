"""The cast instruction in numpy, with one rounding and with defined results out of range.

numpy alone does not do: float to integer out of range depends on the vector unit it happens to use, and wide types
reach bfloat16 through float32, which rounds twice.
"""

from __future__ import annotations

import numpy as np

from onnxfuse.program.dtypes import NUMPY
from onnxfuse.program.instructions import FLOATS, HALVES, INTS

Array = np.ndarray

_TWO_63 = 2.0**63


def cast(a: Array, source: str, target: str) -> Array:
    """`a` of type `source` as `target`, as the instruction table says.

    Out of range and NaN: to i32 and i64 the lowest number; to 8 and 16 bits the low bits of the i32 result, to u32
    those of the i64 result; to u64 as a signed number below 2^63, modulo 2^64 from there on. That is what x86
    compilers make of a C cast, and so what ORT gives there.
    """
    if target == source:
        return a
    if target == "bool":
        return np.asarray(a != 0)
    if source in FLOATS + HALVES and target in INTS:
        return _float_to_int(np.asarray(a, np.float64), target)
    if target == "bf16":
        return _to_bf16(a, source)
    # Integers above 65,520 are infinite as f16 and those below are exact as float32: no second rounding.
    return np.asarray(a).astype(NUMPY[target])


def _float_to_int(a: Array, target: str) -> Array:
    if target == "u64":
        high = (a >= _TWO_63) & (a < 2 * _TWO_63)
        low = _cut(a, np.int64).astype(np.uint64)
        above = np.where(high, a - _TWO_63, 0.0).astype(np.uint64) + np.uint64(1 << 63)
        return np.where(high, above, low)
    if target in ("i64", "u32"):
        return _cut(a, np.int64).astype(NUMPY[target])
    return _cut(a, np.int32).astype(NUMPY[target])


def _cut(a: Array, dtype: type[np.signedinteger]) -> Array:
    """`a` cut toward zero; the lowest number where it does not fit or is NaN."""
    info = np.iinfo(dtype)
    whole = np.trunc(a)
    inside = (whole >= float(info.min)) & (whole < -float(info.min))
    return np.where(inside, np.where(inside, whole, 0.0).astype(dtype), dtype(info.min))


def _to_bf16(a: Array, source: str) -> Array:
    if source in ("f32", "f16", "bool") or source in ("i8", "i16", "u8", "u16"):
        return np.asarray(a, np.float32).astype(NUMPY["bf16"])
    wide = a if source == "f64" else _integer_to_f64(a)
    return _odd_f32(wide).astype(NUMPY["bf16"])


def _integer_to_f64(a: Array) -> Array:
    """Exact below 2^40; above, the low 16 bits become one sticky bit, which rounding to 8 bits does not notice."""
    negative = a < 0
    magnitude = np.where(negative, -a.astype(np.int64), a.astype(np.int64)).astype(np.uint64)
    if a.dtype == np.uint64:
        magnitude = a
    low = np.uint64(0xFFFF)
    sticky = (magnitude & ~low) | np.where((magnitude & low) != 0, np.uint64(1 << 16), np.uint64(0))
    exact = np.where(magnitude < np.uint64(1 << 40), magnitude, sticky).astype(np.float64)
    return np.where(negative, -exact, exact)


def _odd_f32(a: Array) -> Array:
    """float64 rounded to float32 such that a second rounding to fewer bits is as if there were only one."""
    near = np.asarray(a).astype(np.float32)
    wide = near.astype(np.float64)
    bits = np.asarray(near).view(np.uint32)
    inexact = (wide != a) & np.isfinite(a)
    # Toward zero first (one step back where rounding went outward), then the last bit set.
    outward = inexact & (np.abs(wide) > np.abs(a))
    truncated = np.where(outward, bits - np.uint32(1), bits)
    odd = np.where(inexact, truncated | np.uint32(1), truncated)
    return np.asarray(odd).astype(np.uint32).view(np.float32)
