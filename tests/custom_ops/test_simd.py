"""Arithmetic, rounding and conversions of the vector layer against numpy, on every instruction set that this machine
runs. All of them are exact or rounded once, so results are compared bit for bit (a NaN with a NaN)."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.custom_ops.probe import AVX512, NATIVE, Probe, floats

Array = np.ndarray[Any, Any]


@pytest.fixture(params=sorted({*NATIVE, AVX512 or NATIVE[0]}))
def probe(request: pytest.FixtureRequest, test_library: Path) -> Probe:
    """The compiled functions of one instruction set; those of AVX-512 in any case, if need be emulated."""
    return Probe(test_library, request.param)


def same(got: Array, want: Array) -> bool:
    """Equal bits, or both NaN."""
    bits = f"u{want.dtype.itemsize}"
    equal = got.view(bits) == want.view(bits)
    if want.dtype.kind not in "iub":
        equal |= np.isnan(got) & np.isnan(want)
    return bool(equal.all())


def any_floats(dtype: Any, count: int = 200_000) -> Array:
    """Random bit patterns, then numbers near whole ones and halves, then special values, of both signs."""
    random = np.random.default_rng(7)
    info = np.finfo(dtype)
    anything = random.integers(0, 2 ** (8 * np.dtype(dtype).itemsize), count, dtype=np.uint64)
    anything = anything.astype(f"u{np.dtype(dtype).itemsize}").view(dtype)
    halves = random.integers(-2000, 2000, count // 4) / 2
    near = np.nextafter(halves.astype(dtype), dtype(np.inf))
    powers = 2.0 ** np.arange(-10, 70)
    special = np.array([0.0, 0.25, 0.5, 0.75, 1.0, info.tiny, info.smallest_subnormal, info.max, np.inf, np.nan], dtype)
    values = np.concatenate([halves.astype(dtype), near, powers.astype(dtype), (powers - 1).astype(dtype),
                             (powers + 0.5).astype(dtype), special])
    return np.concatenate([anything, values, -values])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["rint", "floor", "ceil", "trunc", "sqrt", "abs", "neg"])
def test_one_operand(name: str, dtype: Any, probe: Probe) -> None:
    x = any_floats(dtype)
    with np.errstate(all="ignore"):
        want = {"neg": np.negative}.get(name, getattr(np, name, None))(x)  # type: ignore[misc]
    assert same(probe.run(name, x), want)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["minimum", "maximum", "copysign"])
def test_two_operands(name: str, dtype: Any, probe: Probe) -> None:
    x = np.array([0.0, -0.0, 1.0, -1.0, 1e-40, -1e-40, np.inf, -np.inf, np.nan, -np.nan, 3.5], dtype)
    pairs = np.array(list(itertools.product(x, x)), dtype)
    random = any_floats(dtype, 20_000)
    a = np.concatenate([pairs[:, 0], random])
    b = np.concatenate([pairs[:, 1], random[::-1]])
    with np.errstate(all="ignore"):
        want = getattr(np, name)(a, b)
    if name != "copysign":  # numpy does not promise an order of the zeros
        zeros = (a == 0) & (b == 0)
        negative = np.signbit(a) | np.signbit(b) if name == "minimum" else np.signbit(a) & np.signbit(b)
        want = np.where(zeros, np.where(negative, dtype(-0.0), dtype(0.0)), want)
    assert same(probe.run(name, a, b), want)


# ---- half precision

def test_halves_to_float(probe: Probe) -> None:
    """All 65536 values of both types."""
    bits = np.arange(65536, dtype=np.uint16)
    assert same(probe.convert("f16_f32", bits, np.float32), bits.view(np.float16).astype(np.float32))
    assert same(probe.convert("u32_f16_f32", bits.astype(np.uint32), np.float32),
                bits.view(np.float16).astype(np.float32))
    assert same(probe.convert("bf16_f32", bits, np.float32), (bits.astype(np.uint32) << 16).view(np.float32))


def near_halves(kind: Any) -> Array:
    """Every finite value of the half type, the middle to its neighbour, and the floats beside both."""
    values = np.arange(0x8000, dtype=np.uint16).view(kind).astype(np.float32)
    values = values[np.isfinite(values)]
    with np.errstate(over="ignore"):
        middle = np.append((values[:-1].astype(np.float64) + values[1:]) / 2, values[-1] * 1.0019).astype(np.float32)
    exact = np.concatenate([values, middle, any_floats(np.float32)])
    with np.errstate(all="ignore"):
        x = np.concatenate([exact, np.nextafter(exact, np.float32(np.inf)), np.nextafter(exact, np.float32(-np.inf))])
    return np.concatenate([x, -x])


def test_float_to_f16(probe: Probe) -> None:
    x = near_halves(np.float16)
    with np.errstate(all="ignore"):
        want = x.astype(np.float16)
    assert same(probe.convert("f32_f16", x, np.uint16).view(np.float16), want)
    assert same(probe.convert("f32_f16_u32", x, np.uint32).astype(np.uint16).view(np.float16), want)


def test_float_to_bf16(probe: Probe) -> None:
    x = near_halves(ml_dtypes.bfloat16)
    got = probe.convert("f32_bf16", x, np.uint16)
    with np.errstate(all="ignore"):
        want = x.astype(ml_dtypes.bfloat16)
    nan = np.isnan(x)
    assert (got[~nan] == want[~nan].view(np.uint16)).all()
    assert np.isnan(got[nan].view(ml_dtypes.bfloat16).astype(np.float32)).all()


def test_nan_with_a_small_payload_stays_nan(probe: Probe) -> None:
    """The payload lies in bits that the half types do not have."""
    x = floats([0x7F800001, 0xFF800001, 0x7F80FFFF, 0x7FFFFFFF, 0xFFFFFFFF])
    assert ((probe.convert("f32_f16", x, np.uint16) & 0x7FFF) > 0x7C00).all()
    assert ((probe.convert("f32_bf16", x, np.uint16) & 0x7FFF) > 0x7F80).all()


def test_odd_rounding_makes_one_rounding(probe: Probe) -> None:
    """A double by way of narrow_odd to float16 and bfloat16 is as if rounded once, where two roundings differ."""
    half = near_halves(np.float16)[::7]
    half = half[np.isfinite(half)].astype(np.float64)
    x = np.concatenate([half, half * (1 + 2.0**-40), half * (1 - 2.0**-40), any_floats(np.float64)])
    odd = probe.convert("f64_f32_odd", x, np.float32)
    with np.errstate(all="ignore"):
        assert same(odd.astype(np.float16), x.astype(np.float16))
        assert not same(x.astype(np.float32).astype(np.float16), x.astype(np.float16))
    with np.errstate(all="ignore"):
        exact = x.astype(np.float32)
    fits = exact.astype(np.float64) == x
    assert same(odd[fits], exact[fits])
    assert (odd[~fits & ~np.isnan(x)].view(np.uint32) & 1).all()


# ---- integers

def any_ints(dtype: Any) -> Array:
    random = np.random.default_rng(9)
    info = np.iinfo(dtype)
    edges = [info.min, info.min + 1, info.max, info.max - 1, 0, 1, info.max // 2, info.max // 2 + 1]
    ends = np.array([2**k + d for k in range(8 * np.dtype(dtype).itemsize - 2) for d in (-1, 0, 1)], dtype)
    anything = random.integers(info.min, info.max, 100_000, dtype, endpoint=True)
    shifted = anything >> random.integers(0, 8 * anything.itemsize, anything.size).astype(dtype)
    return np.concatenate([np.array(edges, dtype), ends, anything, shifted])


@pytest.mark.parametrize(("name", "source", "target"), [
    ("i8_i32", np.int8, np.int32), ("u8_u32", np.uint8, np.uint32), ("i16_i32", np.int16, np.int32),
    ("u16_u32", np.uint16, np.uint32), ("i32_i8", np.int32, np.int8), ("i32_i16", np.int32, np.int16),
    ("i32_i64", np.int32, np.int64), ("u32_u64", np.uint32, np.uint64), ("i64_i32", np.int64, np.int32),
    ("i32_f32", np.int32, np.float32), ("u32_f32", np.uint32, np.float32), ("i64_f32", np.int64, np.float32),
    ("u64_f32", np.uint64, np.float32), ("i64_f64", np.int64, np.float64), ("u64_f64", np.uint64, np.float64)])
def test_integers(name: str, source: Any, target: Any, probe: Probe) -> None:
    x = any_ints(source)
    assert same(probe.convert(name, x, target), x.astype(target))


@pytest.mark.parametrize(("name", "source", "target"), [("f32_f64", np.float32, np.float64),
                                                        ("f64_f32", np.float64, np.float32)])
def test_float_widths(name: str, source: Any, target: Any, probe: Probe) -> None:
    x = any_floats(source)
    with np.errstate(all="ignore"):
        assert same(probe.convert(name, x, target), x.astype(target))


@pytest.mark.parametrize(("name", "source", "target"), [
    ("f32_i32", np.float32, np.int32), ("f32_u32", np.float32, np.uint32), ("f64_i64", np.float64, np.int64),
    ("f64_u64", np.float64, np.uint64)])
def test_float_to_integer(name: str, source: Any, target: Any, probe: Probe) -> None:
    """Cut toward zero in range; NaN and what is far out of range give the lowest signed integer or something fixed."""
    x = any_floats(source)
    info = np.iinfo(target)
    inside = (x > info.min - 1.0) & (x < float(info.max) + 1.0) & ~((info.min < 0) & (x < info.min))
    got = probe.convert(name, x, target)
    assert same(got[inside], x[inside].astype(target))
    assert same(probe.convert(name, x, target), got)
    if info.min < 0:
        assert (got[~inside] == info.min).all()


def test_nearest_integer(probe: Probe) -> None:
    x = any_floats(np.float32)
    x = x[np.abs(x) < 2147483648.0]
    assert same(probe.convert("f32_near_i32", x, np.int32), np.rint(x).astype(np.int32))
