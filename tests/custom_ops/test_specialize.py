"""Powers of exponents that are known when the machine is built: cheaper statements, the same values."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.program import Builder, Program
from onnxfuse.program.dtypes import NUMPY
from onnxfuse.program.instructions import INSTRUCTIONS
from tests.custom_ops.accuracy import softplus
from tests.custom_ops.machine import MachineLibrary
from tests.custom_ops.test_machine import specials


def power_by_scalar(dtype: str, exponent_dtype: str) -> Program:
    builder = Builder()
    base, exponent = builder.input(dtype), builder.scalar(exponent_dtype)
    if exponent_dtype != dtype:
        exponent = builder.emit("cast", exponent, to=dtype)
    builder.output(builder.emit("pow", base, exponent))
    return builder.build()


@pytest.mark.parametrize("exponent", [1.0, 2.0, 3.0, -1.0, 0.5, -0.5, 4.0, 0.0, -2.0])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_float_power_of_a_known_exponent(machine: MachineLibrary, isa: str, dtype: str, exponent: float) -> None:
    kind = np.float32 if dtype == "f32" else np.float64
    rng = np.random.default_rng(7)
    x = np.concatenate([specials(dtype).astype(kind), np.exp(rng.uniform(-30, 30, 500)).astype(kind),
                        -np.exp(rng.uniform(-30, 30, 500)).astype(kind)])
    program = power_by_scalar(dtype, dtype)
    got = machine.run(program.text, [x, np.array(exponent, kind)], x.size, isa=isa, scalars=True)[0]
    with np.errstate(all="ignore"):
        true = np.power(x.astype(np.longdouble), np.longdouble(exponent)).astype(kind)
    same = (got == true) & (np.signbit(got) == np.signbit(true)) | np.isnan(got) & np.isnan(true)
    with np.errstate(all="ignore"):
        steps = np.abs(got.astype(np.longdouble) - true) / np.spacing(np.abs(true))
    bound = INSTRUCTIONS["pow"].ulp + 1
    assert (same | (steps <= bound)).all(), x[~(same | (steps <= bound))]


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, -1, 5])
@pytest.mark.parametrize("dtype", ["i32", "i64"])
def test_integer_power_of_a_known_exponent(machine: MachineLibrary, isa: str, dtype: str, exponent: int) -> None:
    kind = np.int32 if dtype == "i32" else np.int64
    x = np.concatenate([specials(dtype).astype(kind), np.arange(-40, 40, dtype=kind)])
    e = np.array(exponent, kind)
    program = power_by_scalar(dtype, dtype)
    got = machine.run(program.text, [x, e], x.size, isa=isa, scalars=True)[0]
    np.testing.assert_array_equal(got, program.evaluate([x], [e])[0])


def test_an_integer_exponent_of_a_float(machine: MachineLibrary, isa: str) -> None:
    x = np.linspace(-3, 3, 201)
    got = machine.run(power_by_scalar("f64", "i64").text, [x, np.array(3)], x.size, isa=isa, scalars=True)[0]
    np.testing.assert_allclose(got, x**3, rtol=5e-16)


@pytest.mark.parametrize("storage", ["f16", "f32"])
def test_a_half_exponent(machine: MachineLibrary, isa: str, storage: str) -> None:
    """The exponent of a float16 model arrives as float16, or as float32 where the runtime has widened it."""
    builder = Builder()
    base, exponent = builder.input("f32"), builder.scalar("f16")
    builder.output(builder.emit("pow", base, builder.emit("cast", exponent, to="f32")))
    x = np.random.default_rng(3).standard_normal(200).astype(np.float32)
    for value in (2, 2.328306e-41):  # the bits of this float32 are those of 2 as float16
        e = np.array(value, np.float16 if storage == "f16" else np.float32)
        got = machine.run(builder.build().text, [np.abs(x), e], x.size, isa=isa, scalars=True,
                          in_storage=["f32", storage])[0]
        np.testing.assert_allclose(got, np.abs(x) ** np.float64(e), rtol=3e-7)


def test_a_known_square_is_a_product(machine: MachineLibrary, isa: str) -> None:
    """Bit for bit; an exponent that is not known goes through pow."""
    x = np.random.default_rng(1).standard_normal(300).astype(np.float32)
    text = power_by_scalar("f32", "f32").text
    two = np.array(2, np.float32)
    for known in (True, False):
        got = machine.run(text, [x, two], x.size, isa=isa, scalars=known)[0]
        np.testing.assert_allclose(got, x * x, rtol=3e-7)
    known_square = machine.run(text, [x, two], x.size, isa=isa, scalars=True)[0]
    np.testing.assert_array_equal(known_square, x * x)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_tanh_of_softplus(machine: MachineLibrary, isa: str, dtype: str) -> None:
    """Mish as exporters write it; the softplus is an output too in the second program."""
    kind = np.float32 if dtype == "f32" else np.float64
    x = np.concatenate([specials(dtype).astype(kind), np.linspace(-110, 110, 5001, dtype=kind)])
    for keep in (False, True):
        builder = Builder()
        value = builder.input(dtype)
        plus = softplus(builder, value)
        builder.output(builder.emit("tanh", plus))
        if keep:
            builder.output(plus)
        got = machine.run(builder.build().text, [x], x.size, isa=isa)
        with np.errstate(all="ignore"):
            wide = x.astype(np.longdouble)
            true = np.where(wide > 0, wide, 0) + np.log1p(np.exp(-np.abs(wide)))
            steps = np.abs(got[0] - np.tanh(true)) / np.spacing(np.tanh(true).astype(kind))
        assert ((steps <= 6) | np.isnan(x)).all(), x[~((steps <= 6) | np.isnan(x))]
        assert np.isnan(got[0][np.isnan(x)]).all()
        if keep:
            np.testing.assert_allclose(got[1], true.astype(kind), rtol=1e-6 if dtype == "f32" else 1e-14,
                                       atol=2 * float(np.finfo(kind).smallest_subnormal))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("computed", [False, True])
def test_x_times_the_tanh_of_its_softplus(
    machine: MachineLibrary, isa: str, computed: bool, keep: bool, reverse: bool
) -> None:
    """Mish as one stage, of a tensor and of what a stage before has computed, has the bits of tanh and product one
    after the other; `keep`: the tanh is an output, so that it is not."""
    x = np.concatenate([specials("f32").astype(np.float32), np.linspace(-110, 110, 5001, dtype=np.float32)])

    def outputs(*what: str) -> list[np.ndarray]:
        builder = Builder()
        value = builder.input("f32")
        if computed:
            value = builder.emit("add", value, builder.const("f32", 0.5))
        tanh = builder.emit("tanh", softplus(builder, value))
        if "product" in what:
            builder.output(builder.emit("mul", *((tanh, value) if reverse else (value, tanh))))
        if "tanh" in what:
            builder.output(tanh)
        return machine.run(builder.build().text, [x], x.size, isa=isa)

    with np.errstate(all="ignore"):
        want = (x + np.float32(0.5) if computed else x) * outputs("tanh")[0]
    np.testing.assert_array_equal(outputs("product", *(["tanh"] if keep else []))[0], want)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_x_times_its_sigmoid(machine: MachineLibrary, isa: str, dtype: str, keep: bool) -> None:
    """Both orders give the bits of sigmoid and product one after the other; `keep`: the sigmoid is an output."""
    kind = NUMPY[dtype]
    x = np.concatenate([specials(dtype).astype(kind), np.linspace(-110, 110, 501).astype(kind)])
    for reverse in (False, True):
        builder = Builder()
        value = builder.input(dtype)
        sigmoid = builder.emit("sigmoid", value)
        product = builder.emit("mul", *((sigmoid, value) if reverse else (value, sigmoid)))
        builder.output(product)
        if keep:
            builder.output(sigmoid)
        got = machine.run(builder.build().text, [x], x.size, isa=isa)
        alone = Builder()
        alone.output(alone.emit("sigmoid", alone.input(dtype)))
        with np.errstate(all="ignore"):
            want = x * machine.run(alone.build().text, [x], x.size, isa=isa)[0]
        np.testing.assert_array_equal(got[0], want)
