"""Arrays at the very edge of their pages: the bytes beside them cannot be touched."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np

_PROT_NONE = 0
_PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)


def guarded(shape: Sequence[int], dtype: Any, *, at_end: bool = True) -> np.ndarray:
    """A new array whose last (`at_end`) or first byte lies beside a page without access. Needs mprotect."""
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    pages = -(-size // _PAGE) * _PAGE
    memory = mmap.mmap(-1, pages + 2 * _PAGE)
    raw = np.frombuffer(memory, np.uint8)  # keeps the mapping alive
    for edge in (0, _PAGE + pages):
        if _libc.mprotect(ctypes.c_void_p(raw.ctypes.data + edge), ctypes.c_size_t(_PAGE), _PROT_NONE) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
    begin = _PAGE + (pages - size if at_end else 0)
    array: np.ndarray = raw[begin : begin + size].view(dtype).reshape(shape)
    return array


def guarded_copy(array: np.ndarray, *, at_end: bool = True) -> np.ndarray:
    """A copy of `array` in such a place."""
    copy = guarded(array.shape, array.dtype, at_end=at_end)
    copy[...] = array
    return copy
