"""What the lowering does in fewer stages than statements, and stores past the caches: the bits of the plain way."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from onnxfuse.program import Builder, Program
from onnxfuse.program.dtypes import NUMPY
from tests.custom_ops.library import TestLibrary
from tests.custom_ops.machine import MachineLibrary, equal_bits
from tests.custom_ops.test_machine import specials

KINDS = {"f32": np.float32, "f64": np.float64}


def same_bits(got: np.ndarray, want: np.ndarray) -> None:
    """Equal bits, but for the payload and sign of NaN."""
    equal = equal_bits(got, want)
    assert equal.all(), np.nonzero(~equal)


@pytest.mark.parametrize("limit", [0.0, -0.0, 1.5, -2.0, np.nan, np.inf, None])
@pytest.mark.parametrize("is_max", [True, False])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_relu_and_clip(machine: MachineLibrary, isa: str, dtype: str, is_max: bool, limit: float | None) -> None:
    """Compare and select with a bound that is a constant, or (None) a tensor with every special value beside x."""
    values = specials(dtype).astype(KINDS[dtype])
    x, other = (np.ascontiguousarray(a.ravel()) for a in np.meshgrid(values, values))
    builder = Builder()
    a = builder.input(dtype)
    bound = builder.input(dtype) if limit is None else builder.const(dtype, limit)
    mask = builder.emit("lt", a, bound) if is_max else builder.emit("lt", bound, a)
    builder.output(builder.emit("select", mask, bound, a))
    program = builder.build()
    inputs = [x, other] if limit is None else [x]
    same_bits(machine.run(program.text, inputs, x.size, isa=isa)[0], program.evaluate(inputs, [])[0])


STEPS = ("add", "sub", "mul", "max", "min")


def two_steps(first: str, second: str, forms: tuple[str, str, str]) -> Program:
    """second(first(a, b), c) and second(c, first(a, b)), each operand a tensor (x) or a constant (k)."""
    builder = Builder()
    made = [builder.input("f32") if form == "x" else builder.const("f32", -1.75) for form in forms]
    value = builder.emit(first, made[0], made[1])
    builder.output(builder.emit(second, value, made[2]))
    builder.output(builder.emit(second, made[2], value))
    return builder.build()


@pytest.mark.parametrize("forms", [f for f in itertools.product("xk", repeat=3) if "x" in f])
def test_two_stages_as_one(machine: MachineLibrary, isa: str, forms: tuple[str, str, str]) -> None:
    """All pairs of cheap instructions, with operands in every place, a value used twice among them."""
    rng = np.random.default_rng(3)
    count = sum(form == "x" for form in forms)
    inputs = [np.concatenate([specials("f32").astype(np.float32), rng.normal(0, 3, 300).astype(np.float32)])
              for _ in range(count)]
    for array in inputs:
        rng.shuffle(array)
    for first, second in itertools.product(STEPS, STEPS):
        program = two_steps(first, second, forms)
        want = program.evaluate(inputs, [])
        for got, right in zip(machine.run(program.text, inputs, inputs[0].size, isa=isa), want, strict=True):
            same_bits(got, right)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("op", ["and", "or", "xor"])
def test_bool_tensors_as_operands(machine: MachineLibrary, isa: str, op: str, wide: bool) -> None:
    dtype = "f64" if wide else "f32"
    builder = Builder()
    x, y, p, q, r = (builder.input(t) for t in (dtype, dtype, "bool", "bool", "bool"))
    less = builder.emit("lt", x, y)
    one, two = builder.emit(op, less, p), builder.emit(op, q, p)
    three = builder.emit(op, r, less)
    for value in (one, two, three, builder.emit(op, builder.emit(op, one, two), three)):
        builder.output(value)
    builder.output(builder.emit("select", one, x, y))
    program = builder.build()
    rng = np.random.default_rng(5)
    inputs = [rng.normal(size=333).astype(KINDS[dtype]) for _ in range(2)]
    inputs += [rng.integers(0, 2, 333).astype(bool) for _ in range(3)]
    for got, want in zip(machine.run(program.text, inputs, 333, isa=isa), program.evaluate(inputs, []), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("operands", ["xx", "xk", "kx"])
@pytest.mark.parametrize("masked", [None, "left", "right"])
@pytest.mark.parametrize("op", ["lt", "le", "eq"])
def test_compare_and_choose(
    machine: MachineLibrary, isa: str, op: str, masked: str | None, operands: str, more: bool
) -> None:
    """Where(condition, y, z) with the comparison, and a bool tensor beside it, read by nothing else; choices that are
    computed, that are what is compared, and constants. The choice is the end of the program, or there is `more`."""
    values = specials("f32").astype(np.float32)
    x, other = (np.ascontiguousarray(a.ravel()) for a in np.meshgrid(values, values))
    rng = np.random.default_rng(11)
    flags = rng.integers(0, 2, x.size).astype(bool)
    for y, z in itertools.product(("x", "w", "double", "k"), repeat=2):
        builder = Builder()
        a, w = builder.input("f32"), builder.input("f32")
        bound = builder.const("f32", 1.5) if "k" in operands else w
        condition = builder.emit(op, *((bound, a) if operands == "kx" else (a, bound)))
        if masked is not None:
            mask = builder.input("bool")
            condition = builder.emit("and", *((condition, mask) if masked == "right" else (mask, condition)))
        made = {"x": a, "w": w, "double": builder.emit("add", a, w), "k": builder.const("f32", -4.0)}
        chosen = builder.emit("select", condition, made[y], made[z])
        builder.output(chosen)
        if more:
            builder.output(builder.emit("abs", chosen))
        program = builder.build()
        inputs = [x, other, flags][: len(program.inputs)]
        for got, want in zip(machine.run(program.text, inputs, x.size, isa=isa), program.evaluate(inputs, []),
                             strict=True):
            same_bits(got, want)


@pytest.mark.parametrize("name", ["exp", "log", "erf", "tanh", "sigmoid", "expm1", "log1p", "sin"])
def test_functions_of_a_tensor(machine: MachineLibrary, isa: str, name: str) -> None:
    """A function that takes its operand from memory gives the bits of the one that finds it in registers."""
    x = np.concatenate([specials("f32").astype(np.float32), np.linspace(-20, 20, 999, dtype=np.float32)])
    builder = Builder()
    value = builder.input("f32")
    builder.output(builder.emit(name, value))
    builder.output(builder.emit(name, builder.emit("add", value, builder.const("f32", -0.0))))
    builder.output(builder.emit("mul", value, builder.emit(name, value)))
    one, two, three = machine.run(builder.build().text, [x], x.size, isa=isa)
    same_bits(one, two)
    with np.errstate(all="ignore"):
        same_bits(three, x * two)


@pytest.fixture
def streaming(library: TestLibrary) -> Iterator[TestLibrary]:
    """The library with a threshold of one byte for stores past the caches."""
    library.stream_from(1)
    yield library
    library.stream_from(0)


def placed(shape: tuple[int, ...], dtype: str, offset: int) -> tuple[np.ndarray, np.ndarray]:
    """An array that begins `offset` elements behind a multiple of 64 bytes, and the memory around it."""
    kind = np.dtype(NUMPY[dtype])
    count = int(np.prod(shape))
    memory = np.full(count * kind.itemsize + 512, 0xA5, np.uint8)
    begin = -memory.ctypes.data % 64 + 128 + offset * kind.itemsize
    return memory[begin : begin + count * kind.itemsize].view(kind).reshape(shape), memory


@pytest.mark.parametrize("types", [("f32",), ("f64",), ("f32", "f32"), ("f32", "u8"), ("i32", "i64"), ("f16",)])
@pytest.mark.parametrize("shape", [(4096,), (100003,), (40, 300), (7, 5, 64, 33)])
def test_stores_past_the_caches(
    streaming: TestLibrary, isa: str, types: tuple[str, ...], shape: tuple[int, ...]
) -> None:
    """Outputs of all kinds, aligned or not, along rows and in chunks, on one thread and on two."""
    builder = Builder()
    value = builder.emit("add", builder.input("f32"), builder.input("f32"))
    for dtype in types:
        builder.output(value if dtype == "f32" else builder.emit("cast", value, to=dtype))
    program = builder.build()
    rng = np.random.default_rng(9)
    row = (shape[0],) + (1,) * (len(shape) - 1) if len(shape) > 1 else (1,)
    inputs = [rng.integers(0, 100, s).astype(np.float32) for s in (shape, row)]
    want = program.evaluate(inputs, [])
    for threads, offset in itertools.product((1, 2), (0, 1)):
        outputs = [placed(shape, dtype, offset) for dtype in types]
        streaming.run(program.text, inputs, isa=isa, threads=threads, out=[array for array, _ in outputs])
        for (got, memory), right in zip(outputs, want, strict=True):
            np.testing.assert_array_equal(got, right)
            assert (memory == 0xA5).sum() >= 512, "written beside an output"
