"""Element types of the program format as numpy types, and constants as bit patterns."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from onnxfuse.program.instructions import BYTES, INTS

NUMPY: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "i8": np.dtype(np.int8),
    "i16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "u8": np.dtype(np.uint8),
    "u16": np.dtype(np.uint16),
    "u32": np.dtype(np.uint32),
    "u64": np.dtype(np.uint64),
    "bool": np.dtype(np.bool_),
}
"""The numpy type of every element type of the format."""

_NAMES = {dtype: name for name, dtype in NUMPY.items()}
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def name_of(dtype: np.dtype[Any]) -> str | None:
    """The format's word for a numpy type; None if the format has none (strings, float8, 4-bit, complex)."""
    return _NAMES.get(np.dtype(dtype))


def to_bits(dtype: str, value: Any) -> int:
    """The bit pattern of `value` rounded to `dtype`; integers must fit (OverflowError)."""
    if dtype in INTS:
        limits = np.iinfo(NUMPY[dtype])
        if not limits.min <= int(value) <= limits.max:
            raise OverflowError(f"{value} does not fit into {dtype}")
        return int(value) % (1 << (8 * BYTES[dtype]))
    with np.errstate(all="ignore"):
        array = np.asarray(value).astype(NUMPY[dtype]) if dtype == "bf16" else np.array(value, NUMPY[dtype])
    return int(array.reshape(()).view(_UNSIGNED[BYTES[dtype]]))


def from_bits(dtype: str, bits: int) -> np.ndarray:
    """The constant with these bits, as an array of rank 0."""
    raw = np.array(bits, _UNSIGNED[BYTES[dtype]])
    return raw != 0 if dtype == "bool" else raw.view(NUMPY[dtype])
