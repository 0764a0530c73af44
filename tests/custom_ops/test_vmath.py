"""Accuracy of the vector functions against true values, on every instruction set that this machine runs.

The bounds are those of the instruction table. All 2^32 floats take a minute a function (`make exhaustive`); here it is
every 1009th bit pattern, the neighbourhoods of the places where a function changes its formula, and all special values.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest

from onnxfuse.program.instructions import INSTRUCTIONS
from tests.custom_ops.probe import AVX512, NATIVE, Probe, floats

UNARY = ("exp", "log", "expm1", "log1p", "erf", "tanh", "sigmoid", "sin", "cos", "tan", "asin", "acos", "atan",
         "sinh", "cosh", "asinh", "acosh", "atanh")
EDGES = (0.0, 1e-45, 2.0**-126, 2.0**-24, 2.0**-13, 2.0**-12, 0.25, 0.34657359, 0.41421356, 0.5, 0.70710678, 0.75,
         0.78539816, 0.88, 1.0, 1.41421356, 1.5, 2.35619449, 2.41421356, 3.14159265, 4.0, 9.01, 10.0, 17.3, 87.33655,
         88.72284, 89.0, 89.41599, 103.27893, 103.97208, 104.0, 2.0**17, 2.0**20, 2.0**24, 2.0**31, 1e9, 1e22,
         3.4028235e38, math.inf, math.nan)
"""Where formulas or results change; each is taken with both signs and its neighbours."""


@pytest.fixture(params=NATIVE)
def probe(request: pytest.FixtureRequest, test_library: Path) -> Probe:
    """The compiled functions of one instruction set."""
    return Probe(test_library, request.param)


@pytest.mark.parametrize("name", UNARY)
def test_float32(name: str, probe: Probe) -> None:
    bound = INSTRUCTIONS[name].ulp
    step = 1009
    assert _check(probe, name, 7, step, 2**32 // step) <= bound
    for edge in np.array(EDGES, np.float32):
        for sign in (0, 0x80000000):
            middle = int(edge.view(np.uint32)) | sign
            assert _check(probe, name, middle - 600, 1, 1200) <= bound


def _check(probe: Probe, name: str, first: int, step: int, count: int) -> float:
    error, where = probe.sweep(name, first & 0xFFFFFFFF, step, count)
    value = floats([where])[0]
    assert error < 1e6, f"{name}({value!r} = 0x{where:08x}) is {probe.run(name, floats([where]))[0]!r}"
    print(f"{name}: {error:.4f} ULP at {value!r}")  # shown when the caller's assertion fails
    return error


def test_the_measure_sees_errors(probe: Probe) -> None:
    """exp is known to be wrong by nearly 1 ULP around 5.2, and is exact at 0."""
    assert probe.sweep("exp", int(np.float32(5.2).view(np.uint32)), 1, 100000)[0] > 0.8
    assert probe.sweep("exp", 0, 1, 1)[0] == 0


@pytest.mark.skipif(AVX512 is None, reason="this machine has no AVX2")
def test_fma_builds_agree(test_library: Path) -> None:
    """AVX2 and AVX-512 (emulated, if need be) give the same bits for every function."""
    assert AVX512 is not None
    both = [Probe(test_library, isa) for isa in ("avx2", AVX512)]
    edges = np.array(EDGES, np.float32)
    x = np.concatenate([edges, -edges, floats(np.arange(0, 2**32, 40009, dtype=np.uint64).astype(np.uint32))])
    for name in UNARY:
        a, b = (p.run(name, x) for p in both)
        same = (a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))
        assert same.all(), (name, x[~same][:5], a[~same][:5], b[~same][:5])


_POSITIVE = (0.0, 5e-324, 1e-45, 1e-38, 1e-3, 0.3, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.5, 1e3, 16777215.0, 16777216.0,
             2147483647.0, 3e38, math.inf, math.nan)
SPECIALS = (*_POSITIVE, *(-x for x in _POSITIVE))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_pow_specials(dtype: Any, probe: Probe) -> None:
    """All pairs of special values, as C pow has them."""
    pairs = np.array(list(itertools.product(SPECIALS, SPECIALS)), np.float64).astype(dtype)
    a, b = np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])
    with np.errstate(all="ignore"):
        want = np.power(a.astype(np.float64), b.astype(np.float64))
        rounded = want.astype(dtype)
    got = probe.run("pow", a, b)
    exact = (rounded == 0) | np.isinf(rounded) | (rounded == 1) | np.isnan(rounded)
    same = (got == rounded) & (np.signbit(got) == np.signbit(rounded)) | (np.isnan(got) & np.isnan(rounded))
    assert same[exact].all(), [(a[k], b[k], got[k], rounded[k]) for k in np.flatnonzero(exact & ~same)[:5]]
    np.testing.assert_allclose(got[~exact], rounded[~exact], rtol=2.5 * np.finfo(dtype).eps)


def test_pow_float32(probe: Probe) -> None:
    """Random pairs with finite results, denormal ones included."""
    random = np.random.default_rng(11)
    a = np.exp(random.uniform(-87, 88, 400_000)).astype(np.float32)
    with np.errstate(all="ignore"):
        b = (random.uniform(-104, 89, a.size) / np.log(a.astype(np.float64))).astype(np.float32)
        a[::3] *= np.float32(-1)
        b[::3] = np.rint(b[::3])
        want = np.power(a.astype(np.float64), b.astype(np.float64))
    assert _ulp32(probe.run("pow", a, b), want).max() <= INSTRUCTIONS["pow"].ulp


def _ulp32(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """|got - want| in units of the last place of a float of the size of `want`; infinities count as 2^128."""
    top = 2.0**128
    g, w = (np.clip(x.astype(np.float64), -top, top) for x in (got, want))
    exponent = np.clip(np.frexp(w)[1] - 1, -126, 127)
    error: np.ndarray[Any, Any] = np.abs(g - w) / np.ldexp(1.0, exponent - 23)
    return np.where(np.isnan(g) | np.isnan(w), np.where(np.isnan(g) & np.isnan(w), 0, np.inf), error)


# ---- float64

TRUE: dict[str, Callable[[Any], Any]] = {
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    **{name: getattr(mpmath, name) for name in UNARY if name != "sigmoid"},
}
RANGES = {"exp": (-744, 709), "expm1": (-40, 709), "sigmoid": (-744, 40), "tanh": (-20, 20), "erf": (-6, 6),
          "sinh": (-709, 709), "cosh": (-709, 709), "asin": (-1, 1), "acos": (-1, 1), "atanh": (-0.999, 0.999),
          "log": (1e-320, 1e3), "log1p": (-0.999, 1e3), "acosh": (1, 1e3)}
"""Where the sample of a function is drawn from, as far as it is not (-1e3, 1e3)."""


@functools.cache
def _sample(name: str) -> tuple[np.ndarray[Any, Any], list[Any]]:
    """Doubles and the true values of the function there, with 100 bits."""
    random = np.random.default_rng(3)
    low, high = RANGES.get(name, (-1e3, 1e3))
    x = np.concatenate([random.uniform(low, high, 120), random.uniform(max(low, -1), min(high, 2), 120),
                        random.uniform(-1, 1, 60) * 2.0 ** random.integers(-60, 0, 60),
                        2.0 ** random.integers(-1070, -900, 10)])
    x = x[(x >= low) & (x <= high)]
    with mpmath.workprec(150):
        return x, [TRUE[name](mpmath.mpf(v)) for v in x.tolist()]


@pytest.mark.parametrize("name", UNARY)
def test_float64(name: str, probe: Probe) -> None:
    x, true = _sample(name)
    got = probe.run(name, x).tolist()
    with mpmath.workprec(150):
        errors = [float(abs(mpmath.mpf(g) - t) / math.ulp(float(t))) for g, t in zip(got, true, strict=True)]
    worst = max(range(len(errors)), key=errors.__getitem__)
    assert errors[worst] <= INSTRUCTIONS[name].ulp64, (float(x[worst]), got[worst])


@pytest.mark.parametrize("name", UNARY)
def test_float64_specials(name: str, probe: Probe) -> None:
    """Infinities, zeros, NaN and where a function ends: as the float32 function has them in the C library."""
    x = np.array([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 1.5, -1.5, 1e308, -1e308, 5e-324, -5e-324, 800.0,
                  -800.0])
    got = probe.run(name, x)
    for value, result in zip(x.tolist(), got.tolist(), strict=True):
        want = _by_python(name, value)
        if math.isnan(want) or math.isinf(want) or want == 0:
            assert str(result).lstrip("-" if math.isnan(want) else "") == str(want), (name, value)
        else:
            assert abs(result - want) <= 2 * math.ulp(want), (name, value)


def _by_python(name: str, x: float) -> float:
    """numpy's function; what numpy lacks by formula."""
    if name == "sigmoid":
        small = math.exp(max(-abs(x), -800.0))
        return (small if x < 0 else 1.0) / (1.0 + small)
    if name == "erf":
        return math.erf(x)
    numpy_name = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "asinh": "arcsinh", "acosh": "arccosh",
                  "atanh": "arctanh"}.get(name, name)
    with np.errstate(all="ignore"):
        return float(getattr(np, numpy_name)(np.float64(x)))
