"""The oracle: every instruction on values whose result is known, every cast, broadcasting and padding."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import mpmath
import numpy as np
import pytest

from onnxfuse.program import INSTRUCTIONS, Builder, ProgramError
from onnxfuse.program.dtypes import NUMPY

NAN, INF = math.nan, math.inf
BF16 = np.dtype(ml_dtypes.bfloat16)


def run(name: str, dtype: str, *operands: Any, to: str | None = None) -> np.ndarray:
    b = Builder()
    arrays = [np.asarray(o) if isinstance(o, np.ndarray) else np.array(o, NUMPY[dtype]) for o in operands]
    names = [b.input("bool" if a.dtype == bool and dtype != "bool" else dtype) for a in arrays]
    b.output(b.emit(name, *names, to=to))
    return b.build().evaluate(arrays)[0]


def same(got: np.ndarray, wanted: Any) -> None:
    """Equal bit by bit, any NaN for NaN."""
    wanted = np.array(wanted, got.dtype)
    assert got.shape == wanted.shape
    if got.dtype.kind == "f":
        np.testing.assert_array_equal(np.signbit(got[~np.isnan(got)]), np.signbit(wanted[~np.isnan(wanted)]))
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_min_and_max_order_zeros_and_keep_nan(dtype: str) -> None:
    a, b = [0.0, -0.0, NAN, 1.0, -INF, 2.0], [-0.0, 0.0, 1.0, NAN, INF, 2.0]
    same(run("min", dtype, a, b), [-0.0, -0.0, NAN, NAN, -INF, 2.0])
    same(run("max", dtype, a, b), [0.0, 0.0, NAN, NAN, INF, 2.0])


@pytest.mark.parametrize("dtype", ["i8", "i16", "i32", "i64"])
def test_signed_integers_wrap_and_truncate(dtype: str) -> None:
    low, high = np.iinfo(NUMPY[dtype]).min, np.iinfo(NUMPY[dtype]).max
    same(run("add", dtype, [high, low], [1, -1]), [low, high])
    same(run("mul", dtype, [high], [2]), [-2])
    same(run("neg", dtype, [low, 3]), [low, -3])
    same(run("abs", dtype, [low, -3]), [low, 3])
    same(run("div", dtype, [7, -7, 7, -7, 5, low, low, high], [2, 2, -2, -2, 0, -1, 1, -1]),
         [3, -3, -3, 3, 0, low, low, -high])
    same(run("fmod", dtype, [7, -7, 7, -7, 5, low], [3, 3, -3, -3, 0, -1]), [1, -1, 1, -1, 0, 0])
    same(run("mod", dtype, [7, -7, 7, -7, 5, low], [3, 3, -3, -3, 0, -1]), [1, 2, -2, -1, 0, 0])
    same(run("sign", dtype, [low, 0, 9]), [-1, 0, 1])
    same(run("bitnot", dtype, [0, -1]), [-1, 0])


@pytest.mark.parametrize("dtype", ["u8", "u16", "u32", "u64"])
def test_unsigned_integers(dtype: str) -> None:
    top = np.iinfo(NUMPY[dtype]).max
    bits = NUMPY[dtype].itemsize * 8
    same(run("sub", dtype, [0], [1]), [top])
    same(run("neg", dtype, [1]), [top])
    same(run("div", dtype, [top, top, 5], [2, 7, 0]), [top // 2, top // 7, 0])
    same(run("shl", dtype, [1, 1, 3], [bits - 1, bits, top]), [1 << (bits - 1), 0, 0])
    same(run("shr", dtype, [top, top, top], [bits - 1, bits, top]), [1, 0, 0])
    same(run("lt", dtype, [top, 0], [0, top]), [False, True])


def test_integer_power() -> None:
    same(run("pow", "i32", [3, -2, 2, 0, 2, -1, -1, 1, 0, 7], [4, 3, 31, 0, -1, -3, -4, -9, -2, 40]),
         [81, -8, -(2**31), 1, 0, -1, 1, 1, 0, np.int64(pow(7, 40, 2**32)).astype(np.int32)])
    same(run("pow", "i64", [3, 2**32, 10], [39, 2, 18]), [3**39, 0, 10**18])


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_exact_float_instructions(dtype: str) -> None:
    same(run("sign", dtype, [-2, -0.0, 0.0, 3, NAN, -INF]), [-1, 0.0, 0.0, 1, NAN, -1])
    same(run("round", dtype, [0.5, 1.5, 2.5, -0.4, -2.5]), [0, 2, 2, -0.0, -2])
    same(run("neg", dtype, [0.0, -0.0, INF]), [-0.0, 0.0, -INF])
    same(run("abs", dtype, [-0.0, -INF]), [0.0, INF])
    same(run("fmod", dtype, [5.5, -5.5, 1, INF, 3, -4], [2, 2, 0, 2, INF, 2]), [1.5, -1.5, NAN, NAN, 3, -0.0])
    same(run("div", dtype, [1, -1, 0], [0, 0, 0]), [INF, -INF, NAN])
    same(run("eq", dtype, [NAN, 0.0], [NAN, -0.0]), [False, True])
    same(run("ne", dtype, [NAN, 0.0], [NAN, -0.0]), [True, False])
    same(run("le", dtype, [NAN, 0.0, 1], [0, -0.0, INF]), [False, True, True])
    same(run("pow", dtype, [-2, 0, NAN, 1, -8, 0.0], [3, 0, 0, NAN, 1 / 3, -1]), [-8, 1, 1, 1, NAN, INF])


def test_denormals_are_not_flushed() -> None:
    tiny = np.float32(1e-45)
    same(run("mul", "f32", [tiny], [1.0]), [tiny])
    assert run("exp", "f32", [-100.0])[0] == np.float32(np.exp(-100.0)) > 0
    assert run("sigmoid", "f32", [-100.0])[0] == np.float32(np.exp(-100.0))


_SAMPLES = {
    "exp": (-90, 88), "log": (1e-30, 1e30), "expm1": (-20, 80), "log1p": (-0.99, 1e10), "erf": (-4, 4), "tanh": (-9, 9),
    "sigmoid": (-90, 90), "sin": (-1e4, 1e4), "cos": (-1e4, 1e4), "tan": (-100, 100), "asin": (-1, 1), "acos": (-1, 1),
    "atan": (-1e3, 1e3), "sinh": (-80, 80), "cosh": (-80, 80), "asinh": (-1e5, 1e5), "acosh": (1, 1e5),
    "atanh": (-0.999, 0.999),
}


def _true(name: str, x: Any) -> Any:
    if name == "sigmoid":
        return 1 / (1 + mpmath.exp(-x))
    return mpmath.log(1 + x) if name == "log1p" else getattr(mpmath, name)(x)


@pytest.mark.parametrize("name", sorted(_SAMPLES))
def test_functions_against_many_digits(name: str) -> None:
    """float32 correctly rounded but for ties; float64 within the bound of the table."""
    x64 = np.random.default_rng(7).uniform(*_SAMPLES[name], 60)
    x32 = x64.astype(np.float32)
    with mpmath.workdps(40):
        true32, true64 = ([_true(name, mpmath.mpf(float(v))) for v in xs] for xs in (x32, x64))
        for dtype, xs, true, bound in (("f32", x32, true32, 0.501), ("f64", x64, true64, INSTRUCTIONS[name].ulp64)):
            got = run(name, dtype, xs)
            for value, t in zip(got, true, strict=True):
                unit = float(np.spacing(np.abs(NUMPY[dtype].type(float(t)))))
                assert abs(mpmath.mpf(float(value)) - t) <= bound * unit, (name, dtype)


def test_casts_round_once() -> None:
    just_above = 1 + 2.0**-8 + 2.0**-40  # float32 in between would fall on a tie and go down
    same(run("cast", "f64", [just_above, -just_above, 3.4e38, 1e-46, NAN], to="bf16").astype(np.float32),
         [_bf16_nearest(v) for v in (just_above, -just_above, 3.4e38, 1e-46, NAN)])
    same(run("cast", "f64", [65519.99, 65520.0, 1e-8], to="f16"), [65504.0, INF, 0.0])
    same(run("cast", "i64", [2**24 + 1, 2**53 + 1], to="f32"), [2.0**24, 2.0**53])
    tie = (1 << 55) + (1 << 47)
    same(run("cast", "i64", [tie, tie + 1, -tie - 1], to="bf16").astype(np.float64),
         [2.0**55, 2.0**55 + 2.0**48, -(2.0**55) - 2.0**48])
    same(run("cast", "u64", [2**64 - 1], to="bf16").astype(np.float64), [2.0**64])


def _bf16_nearest(value: float) -> float:
    """By exact arithmetic: of the bfloat16 numbers around, the nearest, ties to even."""
    if math.isnan(value):
        return value
    near = np.array(value, np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    around = [np.array((int(near) + d) & 0xFFFFFFFF, np.uint32).view(np.float32) for d in (-0x10000, 0, 0x10000)
              if int(near) + d >= 0]
    # Infinity stands where the next number, 2^128, would.
    exact = [mpmath.mpf(2) ** 128 * np.sign(float(v)) if np.isinf(v) else mpmath.mpf(float(v)) for v in around]
    finite = [k for k, e in enumerate(exact) if mpmath.isfinite(e)]
    best = min(finite, key=lambda k: (abs(exact[k] - mpmath.mpf(value)), int(around[k].view(np.uint32)) >> 16 & 1))
    return float(around[best])


def test_casts_to_integers() -> None:
    same(run("cast", "f32", [-1.9, 1.9, -0.5, 127.0], to="i8"), [-1, 1, 0, 127])
    same(run("cast", "f64", [2.0**63, 2.0**64 - 2048, 255.0], to="u64"), [2**63, 2**64 - 2048, 255])
    same(run("cast", "f32", [NAN, INF, -INF, 3e9], to="i32"), [-(2**31)] * 4)
    same(run("cast", "f32", [-1.0, 4294967040.0], to="u32"), [2**32 - 1, 4294967040])
    same(run("cast", "i32", [-1, 300, -129], to="u8"), [255, 44, 127])
    same(run("cast", "i32", [-1], to="u64"), [2**64 - 1])
    same(run("cast", "u64", [2**63 + 5], to="i64"), [-(2**63) + 5])


def test_casts_of_bool() -> None:
    same(run("cast", "f32", [NAN, -0.0, 0.1], to="bool"), [True, False, True])
    same(run("cast", "i64", [0, 2**40], to="bool"), [False, True])
    same(run("cast", "bool", [True, False], to="bf16").astype(np.float32), [1.0, 0.0])
    same(run("cast", "bool", [True, False], to="i8"), [1, 0])


@pytest.mark.parametrize("source", sorted(NUMPY))
@pytest.mark.parametrize("target", sorted(NUMPY))
def test_every_cast_keeps_small_whole_numbers(source: str, target: str) -> None:
    values = [0, 1] if "bool" in (source, target) else [0, 1, 2, 5, 100]
    b = Builder()
    b.output(b.emit("cast", b.input(source), to=target))
    (got,) = b.build().evaluate([np.array(values).astype(NUMPY[source])])
    assert got.dtype == NUMPY[target]
    np.testing.assert_array_equal(got.astype(np.int64), values)


def test_every_instruction_is_evaluated_for_every_type() -> None:
    for row in INSTRUCTIONS.values():
        for dtype in row.types:
            if row.form in ("const", "cast"):
                continue
            b = Builder()
            operands = [b.input("bool" if row.form == "select" and k == 0 else dtype) for k in range(row.arity)]
            b.output(b.emit(row.name, *operands))
            program = b.build()
            (got,) = program.evaluate([np.ones(3, NUMPY[i.dtype]) for i in program.inputs])
            assert got.shape == (3,)
            assert got.dtype == NUMPY["bool" if row.form == "compare" else dtype]


def test_outputs_take_the_iteration_shape() -> None:
    b = Builder()
    x, scale, unread = b.input("f32"), b.input("f32", pad=2), b.input("f32")
    c = b.scalar("f32")
    b.output(b.emit("mul", x, scale))
    b.output(b.emit("neg", scale))
    b.output(x)
    b.output(c)
    program = b.build()
    assert unread == "x2"
    xs = [np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4), np.array([1, 10], np.float32),
          np.zeros((5, 1, 1, 1), np.float32)]
    got = program.evaluate(xs, [np.array([[7]], np.float32)])
    assert [g.shape for g in got] == [(5, 2, 3, 4)] * 4
    np.testing.assert_array_equal(got[0][4], xs[0][0] * np.array([1, 10], np.float32).reshape(2, 1, 1))
    np.testing.assert_array_equal(got[1][0, :, 0, 0], [-1, -10])
    np.testing.assert_array_equal(got[3], np.full((5, 2, 3, 4), 7, np.float32))
    got[2][:] = 0  # results are the caller's own
    assert xs[0][0, 1, 2, 3] == 23


def test_empty_and_rank_zero() -> None:
    b = Builder()
    b.output(b.emit("erf", b.input("f32")))
    program = b.build()
    assert program.evaluate([np.zeros((0, 4), np.float32)])[0].shape == (0, 4)
    assert program.evaluate([np.float32(0)])[0].shape == ()


def test_operands_that_do_not_fit_are_refused() -> None:
    b = Builder()
    b.output(b.emit("add", b.input("f32"), b.scalar("f32")))
    program = b.build()
    x, c = np.zeros(2, np.float32), np.zeros(1, np.float32)
    for xs, cs, words in (([x], [], "takes"), ([x.astype(np.float64)], [c], "float64"), ([x], [x], "one element"),
                          ([x, x], [c], "takes")):
        with pytest.raises(ProgramError, match=words):
            program.evaluate(xs, cs)
