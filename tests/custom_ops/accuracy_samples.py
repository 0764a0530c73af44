"""Operands on which instructions are measured where all of them are too many: special values with their neighbours, and
random numbers of many kinds."""

from __future__ import annotations

import functools
import math
import zlib
from typing import Any

import numpy as np

from onnxfuse.program.dtypes import NUMPY
from onnxfuse.program.instructions import BYTES

Array = np.ndarray[Any, Any]

EDGES = (0.0, 2.0**-13, 2.0**-12, 1e-3, 0.25, 0.34657359028, 0.41421356237, 0.5, 0.70710678119, 0.75, 0.78539816340,
         0.88, 1.0, 1.0986122887, 1.41421356237, 1.5, 2.0, 2.35619449019, 2.41421356237, 2.5, 3.0, 3.14159265359, 4.0,
         5.5, 9.01, 10.0, 17.3, 20.0, 36.7, 87.33655, 88.72284, 89.41599, 103.27893, 103.97208, 104.0, 709.7827128934,
         745.1332191, 1e3, 65504.0, 65520.0, 2147483647.0, 4294967295.0, 1e9, 1e22)  # fmt: skip
"""Where formulas or results change; each is taken with both signs and its neighbours."""
FORMATS = {"f32": (24, -126, 127), "f64": (53, -1022, 1023), "f16": (11, -14, 15), "bf16": (8, -126, 127)}
"""Bits of the significand, exponents of the smallest and of the largest normal number."""
_RANGES = {"exp": (-745, 710), "expm1": (-40, 710), "sigmoid": (-745, 40), "tanh": (-20, 20), "erf": (-6, 6),
           "sinh": (-710, 710), "cosh": (-710, 710), "asin": (-1, 1), "acos": (-1, 1), "atanh": (-1, 1),
           "log": (0, 1e3), "log1p": (-1, 1e3), "acosh": (1, 1e3), "sqrt": (0, 1e3)}  # fmt: skip
"""Where random operands of a function are drawn from, as far as it is not (-1e3, 1e3)."""


def all_of(dtype: str) -> Array:
    """All numbers of a half type."""
    return np.arange(1 << 16, dtype=np.uint16).view(NUMPY[dtype])


def _bits(dtype: str) -> str:
    return f"u{BYTES[dtype]}"


def _around(values: Array, dtype: str, count: int) -> Array:
    """Every value with its `count` neighbours on both sides, and all of them negated."""
    bits = values.astype(NUMPY[dtype]).view(_bits(dtype))
    offsets = np.arange(-count, count + 1).astype(_bits(dtype))
    near = (bits[:, None] + offsets).ravel()
    top = np.array(1, _bits(dtype)) << np.array(8 * BYTES[dtype] - 1, _bits(dtype))
    return np.concatenate([near, near ^ top]).view(NUMPY[dtype])


@functools.cache
def special(dtype: str) -> Array:
    """NaN, infinities, zeros, denormals, powers of two and numbers near whole, half and quarter ones, near ends of
    ranges and multiples of pi/2, with neighbours."""
    precision, lowest, highest = FORMATS[dtype]
    powers = np.ldexp(1.0, np.arange(lowest - precision + 1, highest + 1))
    whole = np.concatenate([np.arange(0, 130) / 4, np.arange(33, 2200, 7) / 2, math.pi / 2 * np.arange(1, 200)])
    with np.errstate(over="ignore"):
        near = np.concatenate([_around(np.array(EDGES), dtype, 24), *(_around(x, dtype, 2) for x in (powers, whole))])
    ends = np.array([math.inf, -math.inf, math.nan], NUMPY[dtype])
    largest = np.array([math.inf], NUMPY[dtype]).view(_bits(dtype)) - np.arange(1, 6).astype(_bits(dtype))
    return np.concatenate([ends, near, largest.view(NUMPY[dtype]), -largest.view(NUMPY[dtype])])


@functools.cache
def few(dtype: str) -> Array:
    """Values of which all pairs are taken."""
    precision, lowest, highest = FORMATS[dtype]
    tiny = [2.0 ** (lowest - precision + 1), 2.0 ** (lowest - 1), 2.0**lowest]
    near = [1 - 2.0**-precision, 1 + 2.0 ** (1 - precision), 2.0**precision - 1, 2.0**precision, 2.0**highest]
    common = [0.0, 0.1, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 10.0, 31.0, 64.0, 88.7, 127.0, 128.0]
    positive = np.array([*tiny, *near, *common, math.inf, math.nan]).astype(NUMPY[dtype])
    return np.concatenate([positive, -positive])


def _random_bits(rng: np.random.Generator, n: int, dtype: str) -> Array:
    return rng.integers(0, 1 << 8 * BYTES[dtype], n, np.uint64).astype(_bits(dtype)).view(NUMPY[dtype])


def _random_sizes(rng: np.random.Generator, n: int) -> Array:
    """Numbers of both signs whose logarithms are spread evenly around 1."""
    return np.asarray(rng.choice([-1.0, 1.0], n) * 10.0 ** rng.uniform(-6, 4, n))


def unary(name: str, dtype: str, n: int, seed: int) -> Array:
    """About `n` operands; the special ones where `seed` is 0."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    low, high = _RANGES.get(name, (-1e3, 1e3))
    part = n // 4
    numbers = np.concatenate([rng.uniform(low, high, part), rng.uniform(max(low, -1.5), min(high, 3), part),
                              _random_sizes(rng, part)])  # fmt: skip
    parts = [_random_bits(rng, part, dtype), numbers.astype(NUMPY[dtype])]
    return np.concatenate(parts if seed else [special(dtype), *parts])


def binary(name: str, dtype: str, n: int, seed: int) -> tuple[Array, Array]:
    """About `n` pairs of operands; those of special ones where `seed` is 0."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    part = n // 4
    with np.errstate(all="ignore"):
        a, b = _tied(rng, part, dtype) if name != "pow" else _powers(rng, part, dtype)
        parts = [(_random_bits(rng, part, dtype), _random_bits(rng, part, dtype)), (a, b),
                 (_random_sizes(rng, part), _random_sizes(rng, part)),
                 (_random_sizes(rng, part), rng.integers(-40, 40, part) / 2)]  # fmt: skip
    if not seed:
        grid = np.meshgrid(few(dtype), few(dtype))
        edges = special(dtype)
        parts += [(grid[0].ravel(), grid[1].ravel()), (edges, rng.permutation(edges))]
    first, second = (np.concatenate([np.asarray(p[k]).astype(NUMPY[dtype]) for p in parts]) for k in (0, 1))
    return first, second


def ties(target: str, n: int, seed: int) -> Array:
    """About `n` doubles for a cast to `target`: random ones, numbers of the target type, the middles between two of
    them, and what lies beside these; the special ones where `seed` is 0."""
    rng = np.random.default_rng([seed, zlib.crc32(target.encode())])
    bits = _random_bits(rng, n // 5, target).view(_bits(target))
    with np.errstate(all="ignore"):
        low, high = (b.view(NUMPY[target]).astype(np.float64) for b in (bits, bits + np.array(1, _bits(target))))
        middle = low / 2 + high / 2
        beside = [np.nextafter(middle, end) for end in (-np.inf, np.inf)]
    parts = [_random_bits(rng, n // 5, "f64"), low, middle, *beside]
    return np.concatenate(parts if seed else [special("f64"), special(target).astype(np.float64), *parts])


def _tied(rng: np.random.Generator, n: int, dtype: str) -> tuple[Array, Array]:
    """Numbers of similar size, half of them such that their sum lies in the middle of two numbers or beside it."""
    precision = FORMATS[dtype][0]
    a = np.ldexp(rng.integers(2 ** (precision - 1), 2**precision, n).astype(np.float64), rng.integers(-9, 9, n))
    a = a.astype(NUMPY[dtype])
    half = np.ldexp(1.0, np.frexp(a.astype(np.float64))[1] - precision - 1)
    tie = (half * rng.choice([1.0, 3.0, 1 - 2.0**-precision, 1 + 2.0 ** (1 - precision)], n)).astype(NUMPY[dtype])
    return a, np.where(rng.integers(0, 2, n) == 1, tie, rng.permutation(a)).astype(NUMPY[dtype])


def _powers(rng: np.random.Generator, n: int, dtype: str) -> tuple[Array, Array]:
    """Bases and exponents whose power is a number, also a denormal one; a third of the bases negative, with whole
    exponents; some bases next to 1."""
    precision, lowest, highest = FORMATS[dtype]
    low, high = (lowest - precision) * math.log(2), (highest + 1) * math.log(2)
    size = np.exp(rng.uniform(max(low, -700), high, n))
    size[::5] = 1 + rng.uniform(-1, 1, size[::5].size) * 2.0 ** rng.integers(-precision, 0, size[::5].size)
    base = size.astype(NUMPY[dtype])
    exponent = (rng.uniform(low, high, n) / np.log(base.astype(np.float64))).astype(NUMPY[dtype])
    base[::3] *= np.array(-1, NUMPY[dtype])
    exponent[::3] = np.rint(exponent[::3].astype(np.float64)).astype(NUMPY[dtype])
    return base, exponent
