"""Arithmetic with rules of its own: Pow with two types, Mod, BitShift, Clip, Where."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from onnxfuse import ops
from onnxfuse.program.dtypes import NUMPY
from tests.ops.harness import BF16, Case, assert_close, assert_same, current_runtime, pairs, schema_takes, values

pytestmark = current_runtime

F32 = np.float32
NAN, INF = math.nan, math.inf


# --- Pow ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exponent", ["f32", "f64", "i32", "i64"])
@pytest.mark.parametrize("base", ["f32", "f64", "i32", "i64"])
def test_pow_against_the_runtime(base: str, exponent: str) -> None:
    a = np.array([0, 1, 2, 3, 7, -1, -2, -3, 10], NUMPY[base]).reshape(-1, 1)
    b = np.array([0, 1, 2, 3, 4, 5, 9], NUMPY[exponent])
    if NUMPY[base].kind == "f":
        a = np.concatenate([a.ravel(), [0.5, -0.5, 1.25, NAN, INF, -INF, -0.0]]).astype(a.dtype).reshape(-1, 1)
        b = np.concatenate([b, np.array([-1, -2, -3], b.dtype)])
        if NUMPY[exponent].kind == "f":
            b = np.concatenate([b, [0.5, 1 / 3, -0.1, NAN, INF, -INF, 2.5]]).astype(b.dtype)
    case = Case("Pow", [a, b], 15)
    wanted = case.runtime()
    assert wanted is not None
    assert_close(case.ours(), wanted, (base, exponent), {"f32": 3e-7, "f64": 1e-15}.get(base, 0.0), 0.0)


def test_pow_takes_every_exponent_type() -> None:
    for exponent in NUMPY:
        if exponent == "bool":
            continue
        b = np.array([3, 0, 2], np.float32).astype(NUMPY[exponent])
        for base in ("f32", "f64", "f16", "bf16", "i32", "i64"):
            got = Case("Pow", [np.array([2, 5, 9], np.float32).astype(NUMPY[base]), b], 15).ours()
            np.testing.assert_array_equal(got.astype(np.float64), [8, 1, 81], err_msg=f"{base} {exponent}")


def test_pow_of_integers_is_exact_and_wraps() -> None:
    """Where ORT goes through double and loses the low bits."""
    i64 = np.array([3, -3, 3, 2, -1, -1, 5], np.int64)
    e64 = np.array([39, 39, 41, 63, 2**40 + 1, 2**40, -1], np.int64)
    exact = np.array([3**39, -(3**39), pow(3, 41, 2**64) - 2**64, -(2**63), -1, 1, 0], np.int64)
    assert_same(Case("Pow", [i64, e64], 15).ours(), exact, "i64")
    huge = np.array([2**63 + 1, 2**63, 2**63 + 1, 2**62, 3], np.uint64)
    got = Case("Pow", [np.array([-1, -1, 2, 2, 2], np.int64), huge], 15).ours()
    assert_same(got, np.array([-1, 1, 0, 0, 8], np.int64), "u64 exponents")
    odd = Case("Pow", [np.array([3], np.int64), np.array([2**63 + 5], np.uint64)], 15).ours()
    assert_same(odd, np.array([pow(3, 2**63 + 5, 2**64)], np.uint64).astype(np.int64), "3 to a huge power")
    narrow = Case("Pow", [np.array([-1, 7], np.int32), np.array([2**32 + 1, 40], np.int64)], 15).ours()
    assert_same(narrow, np.array([-1, pow(7, 40, 2**32)], np.int64).astype(np.int32), "i32 to an i64")


def test_pow_keeps_the_parity_of_large_exponents() -> None:
    got = Case("Pow", [np.array([-1, -1], F32), np.array([2**24 + 1, 2**24], np.int32)], 15).ours()
    assert_same(got, np.array([-1, 1], F32), "odd beyond float32")


# --- Mod, BitShift ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmod", [0, 1])
def test_mod(fmod: int) -> None:
    for dtype in ops.find("", "Mod").allowed(0):  # type: ignore[union-attr]
        integer = NUMPY[dtype].kind in "iu"
        a, b = pairs(dtype)
        if integer:
            b = b[(b != 0) & ((b.astype(np.int64) != -1) | (dtype[0] == "u"))]
        for opset in (10, 13, 28):
            if not schema_takes("Mod", opset, 0, dtype) or (not integer and not fmod and opset < 28):
                continue
            case = Case("Mod", [a, b], opset, fmod=fmod)
            # ORT computes fmod of integers in double, where those of 64 bits lose their last bits.
            wanted = None if fmod and dtype in ("i64", "u64") else case.runtime()
            with np.errstate(all="ignore"):
                wide = (a.astype(F32), b.astype(F32)) if dtype in ("f16", "bf16") else (a, b)
                formula = (np.fmod if fmod else np.mod)(*wide).astype(NUMPY[dtype])
            assert_same(case.ours(), formula if wanted is None else wanted, (dtype, opset, fmod))


def test_float_modulo_waits_for_opset_28() -> None:
    a = np.ones(2, F32)
    assert Case("Mod", [a, a], 13).examine() == ops.op_reason("float-modulo")
    assert Case("Mod", [a, a], 13, fmod=1).examine() is None
    assert Case("Mod", [a, a], 28).examine() is None
    assert Case("Mod", [a, a], 28, fmod=2).examine().code == "bad-attribute"  # type: ignore[union-attr]


def _shifted(x: int, amount: int, bits: int, left: bool) -> int:
    """By Python's unbounded integers, as the text of opset 28 says."""
    if not 0 <= amount < bits:
        return -1 if x < 0 and not left else 0
    return x << amount if left else x >> amount


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_bit_shift(direction: str) -> None:
    for dtype in ("u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64"):
        bits = 8 * NUMPY[dtype].itemsize
        x = values(dtype).reshape(-1, 1)
        amount = np.array([0, 1, 3, bits - 1, bits, bits + 1, 100] + ([-1] if dtype[0] == "i" else []), NUMPY[dtype])
        case = Case("BitShift", [x, amount], 28 if dtype[0] == "i" else 11, direction=direction)
        wanted = [[_shifted(int(v), int(n), bits, direction == "LEFT") % 2**bits for n in amount] for v in x.ravel()]
        assert_same(case.ours(), np.array(wanted, f"u{bits // 8}").view(NUMPY[dtype]), dtype)
        inside = Case("BitShift", [x, amount[:4]], case.opset, direction=direction)
        found = inside.runtime()
        if found is not None:
            assert_same(inside.ours(), found, f"{dtype} as ORT")


def test_bit_shift_refusals() -> None:
    x = np.ones(2, np.int32)
    assert Case("BitShift", [x, x], 11, direction="LEFT").examine().code == "unsupported-dtype"  # type: ignore[union-attr]
    u = x.astype(np.uint8)
    assert Case("BitShift", [u, u], 11, direction="UP").examine().code == "bad-attribute"  # type: ignore[union-attr]
    assert Case("BitShift", [u, u], 11).examine().code == "bad-attribute"  # type: ignore[union-attr]


# --- Clip ---------------------------------------------------------------------------------------------------------

BOUNDS = [(-1, 1), (2, 1), (0, 6), (-0.0, 0.0), (0.0, -0.0), (None, 1), (-1, None), (None, None), (NAN, 1), (0, NAN)]


@pytest.mark.parametrize("opset", [11, 12, 13])
def test_clip_bounds(opset: int) -> None:
    """Also the lower bound above the upper one, zeros, NaN as a bound, and infinities where a bound is missing."""
    for dtype in ops.find("", "Clip").allowed(0):  # type: ignore[union-attr]
        if not schema_takes("Clip", opset, 0, dtype):
            continue
        for low, high in BOUNDS:
            kind = NUMPY[dtype]
            if kind.kind in "iu" and any(v is not None and (math.isnan(v) or v < 0 > -(kind.kind == "i")) for v in
                                         (low, high)):
                continue
            bounds = [None if v is None else np.array(v, np.float64).astype(kind) for v in (low, high)]
            case = Case("Clip", [values(dtype), *bounds], opset)
            # ORT's float16 at opset 11 is its float32 kernel, with the end of float32 for a missing bound.
            wanted = None if (dtype, opset) == ("f16", 11) else case.runtime()
            note = (dtype, low, high)
            if wanted is not None:
                assert_same(case.ours(), wanted, note)
            else:
                assert dtype in ("bf16", "i16", "u16") or opset == 11, note
                ends = [b.astype(np.float64) if b is not None else None for b in bounds]
                x = values(dtype).astype(np.float64)
                if ends[0] is not None:
                    x = np.where(x < ends[0], ends[0], x)
                if ends[1] is not None:
                    x = np.where(ends[1] < x, ends[1], x)
                finite = np.isfinite(x)
                got = case.ours().astype(np.float64)
                np.testing.assert_array_equal(got[finite], x[finite].astype(kind).astype(np.float64), err_msg=str(note))


@pytest.mark.parametrize("opset", [7, 10])
def test_clip_attributes(opset: int) -> None:
    variants: tuple[dict[str, Any], ...] = ({}, {"min": -1.0}, {"max": 2.5}, {"min": -2.0, "max": 1.0})
    for attributes in variants:
        for dtype in ("f32", "f64", "f16"):
            case = Case("Clip", [values(dtype)], opset, **attributes)
            wanted = case.runtime()
            if wanted is not None:
                assert_same(case.ours(), wanted, (dtype, attributes))
            assert ops.counts(case.node, case.context) == bool(attributes)


def test_clip_without_bounds_does_not_count() -> None:
    x = values("f32")
    bare = Case("Clip", [x], 13)
    assert not ops.counts(bare.node, bare.context)
    assert ops.counts((one := Case("Clip", [x, None, np.float32(1)], 13)).node, one.context)
    assert [o.value for o in ops.operands(one.node, one.context)] == ["x0", "x2"]
    k = values("i64")
    assert_same(Case("Clip", [k], 13).ours(), k, "integers unchanged")


# --- Where --------------------------------------------------------------------------------------------------------


def test_where_picks_bits() -> None:
    """Every type; where ORT's kernel exists it agrees but for the sign of zero, which it loses."""
    for dtype in NUMPY:
        a, b = values(dtype), values(dtype, seed=4)[::-1].copy()
        condition = values("bool", a.size, seed=8).reshape(-1, 1)
        case = Case("Where", [condition, a, b], 16)
        assert_same(case.ours(), np.where(condition, a, b), dtype)
        found = case.runtime()
        if found is not None:
            assert_same(case.ours(), found, dtype, zero_signs=False)


def test_bfloat16_rounds_to_nearest_even() -> None:
    a = np.array([1.0, 1.0, 256.0, 3.0e38], np.float32).astype(BF16)
    b = np.array([2.0**-8, 2.0**-7 + 2.0**-8, 1.0, 3.0e38], np.float32).astype(BF16)
    got = Case("Add", [a, b], 14).ours().astype(np.float64)
    np.testing.assert_array_equal(got, [1.0, 1.015625, 256.0, INF])
