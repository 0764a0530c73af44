"""Unary float instructions of float16 and bfloat16 values on all 65,536 numbers, on every instruction set at hand.

Such an instruction computes in float32 and rounds once. What the table allows the float32 result, its bound times one
unit in the last place of a float32 around the true value, is therefore rounded to the half type at both ends: the
result must not lie outside. Instructions that have one right result in float32 must give the bits of the oracle.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from onnxfuse.program import Program
from onnxfuse.program.convert import cast
from onnxfuse.program.dtypes import NUMPY
from onnxfuse.program.instructions import HALVES, INSTRUCTIONS
from tests.custom_ops.accuracy_samples import all_of
from tests.custom_ops.machine import MachineLibrary, assert_same, same_bits

Array = np.ndarray[Any, Any]

NAMES = [r.name for r in INSTRUCTIONS.values() if r.arity == 1 and r.form == "same" and "f32" in r.types]
STORAGE = [(a, b) for a in ("own", "f32") for b in ("own", "f32")]
"""Element types in memory of the operand and of the result: its own, or float32, as ONNX Runtime may hand it over."""


def text_of(name: str, dtype: str) -> str:
    return (f"onnxfuse 1\nin x0 {dtype}\nt0 = cast.{dtype}.f32 x0\nt1 = {name}.f32 t0\nt2 = cast.f32.{dtype} t1\n"
            "out t2\n")  # fmt: skip


@functools.cache
def limits(name: str, dtype: str) -> tuple[Array, Array, Array]:
    """The least and the largest right result for every number of the half type, and the true value."""
    program = Program.parse(f"onnxfuse 1\nin x0 f64\nt0 = {name}.f64 x0\nout t0\n")
    with np.errstate(all="ignore"):
        true = program.evaluate([all_of(dtype).astype(np.float64)])[0]
        exponent = np.where(true == 0, -126, np.maximum(np.frexp(true)[1] - 1, -126))
        slack = np.where(np.isfinite(true), INSTRUCTIONS[name].ulp * np.ldexp(1.0, exponent - 23), 0)
        return cast(true - slack, "f64", dtype), cast(true + slack, "f64", dtype), true


@functools.cache
def oracle(name: str, dtype: str) -> Array:
    """The bits that an instruction with one right result gives."""
    return Program.parse(text_of(name, dtype)).evaluate([all_of(dtype)])[0]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", NAMES)
def test_all_numbers(machine: MachineLibrary, isa: str, name: str, dtype: str) -> None:
    results = [run(machine, isa, name, dtype, *storage) for storage in STORAGE]
    for storage, result in zip(STORAGE, results, strict=True):
        assert same_bits(result, results[0]), f"{storage} gives other results"
    if INSTRUCTIONS[name].ulp <= 0.5:
        assert_same(results[0], oracle(name, dtype), f"{name} of {dtype}", all_of(dtype))
    else:
        check(results[0], name, dtype)


def run(machine: MachineLibrary, isa: str, name: str, dtype: str, source: str, target: str) -> Array:
    """The results in their own type; those stored as float32 must be numbers of it."""
    x = all_of(dtype)
    operand = x.astype(np.float32) if source == "f32" else x
    types = [dtype if word == "own" else word for word in (source, target)]
    result = machine.run(text_of(name, dtype), [operand], x.size, isa=isa, in_storage=types[:1], out_storage=types[1:])
    if target == "f32":
        own = cast(result[0], "f32", dtype)
        assert_same(own.astype(np.float32), result[0], f"{name} of {dtype} stored as f32", x)
        return own
    return result[0]


def check(got: Array, name: str, dtype: str) -> None:
    low, high, true = limits(name, dtype)
    value = got.astype(np.float64)
    inside = (value >= low.astype(np.float64)) & (value <= high.astype(np.float64))
    right = np.where(np.isnan(true), np.isnan(value), inside & (np.signbit(value) == np.signbit(true)))
    if not right.all():
        k = int(np.flatnonzero(~right)[0])
        raise AssertionError(f"{name}({all_of(dtype)[k]!r}) of {dtype} is {got[k]!r}, not from {low[k]!r} to "
                             f"{high[k]!r}; {int((~right).sum())} of {right.size} are wrong")  # fmt: skip


@pytest.mark.parametrize("dtype", HALVES)
def test_limits_are_narrow(dtype: str) -> None:
    """For nearly all numbers there is one right result only, so that the check above is no formality."""
    for name in NAMES:
        low, high, true = limits(name, dtype)
        assert NUMPY[dtype] == low.dtype == high.dtype
        assert (low.astype(np.float32) != high.astype(np.float32))[~np.isnan(true)].mean() < 1e-3, name
