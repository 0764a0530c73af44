"""The emitted CUDA text, compiled for the host: every instruction on every type, every kernel on every layout."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from onnxfuse.codegen import Shape, emit, kernels, shape_of
from onnxfuse.codegen.kernels import LONGEST
from onnxfuse.program import Builder, Program
from onnxfuse.program.dtypes import NUMPY
from onnxfuse.program.instructions import FLOATS, HALVES, INSTRUCTIONS, INTS
from tests.codegen.host import HostModules
from tests.codegen.instructions import Group, groups
from tests.codegen.programs import long_program
from tests.custom_ops import accuracy_samples as samples
from tests.custom_ops.machine import MachineLibrary, equal_bits
from tests.custom_ops.test_machine import numbers, specials

Array = np.ndarray[Any, Any]

GROUPS = list(groups())
FUNCTIONS = [name for name, row in INSTRUCTIONS.items() if row.ulp > 0.5]
FAR = {"sin": 2.0**17, "cos": 2.0**17, "tan": 2.0**20}
"""Angles beyond are reduced in another way than on the CPU."""


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> HostModules:
    """All groups, in the shapes that they would have if none were too long for vectors: single instructions are not."""
    programs = [g.program for g in GROUPS]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "LONGEST", 1 << 30)
        shapes = [shape_of(program) for program in programs]
    return HostModules(programs, tmp_path_factory.mktemp("host"), shapes=shapes)


@functools.cache
def values(dtype: str, count: int, seed: int) -> Array:
    """Special values, each beside each other one for two operands of one seed, then random ones."""
    some = specials(dtype).astype(NUMPY[dtype])
    pairs = np.meshgrid(some, some)[seed % 2].ravel()
    return np.concatenate([pairs, numbers(dtype, count, seed)])[:count] if pairs.size < count else pairs[:count]


def same(got: Array, want: Array, where: Array | bool = True, note: str = "") -> None:
    """Equal bits but for NaN, where `where` holds."""
    wrong = np.flatnonzero(~equal_bits(got, want) & where)
    assert not wrong.size, (note, wrong.size, wrong[0], got.ravel()[wrong[0]], want.ravel()[wrong[0]])


def within(got: Array, want: Array, ulp: float) -> None:
    """`got` is at most `ulp` units in the last place from `want`, which is of a wider type."""
    with np.errstate(over="ignore"):
        near = want.astype(got.dtype)
    same(got, near, ~np.isfinite(near))
    unit = np.spacing(np.maximum(np.abs(near), np.finfo(got.dtype).tiny))
    with np.errstate(invalid="ignore"):
        error = np.abs(got.astype(want.dtype) - want) / unit
    finite = np.isfinite(near)
    assert np.isfinite(got[finite]).all()
    worst = error[finite].max()
    assert worst <= ulp, worst


def in_range(x: Array, to: str) -> Array:
    """Where a cast of floats to integers is specified."""
    info = np.iinfo(NUMPY[to])
    wide = x.astype(np.longdouble)
    return np.asarray(np.isfinite(wide) & (np.trunc(wide) >= info.min) & (np.trunc(wide) <= info.max))


def operands(program: Program, count: int) -> list[Array]:
    return [values(i.dtype, count, k) for k, i in enumerate(program.inputs)]


@pytest.mark.parametrize("number", range(len(GROUPS)), ids=[g.label for g in GROUPS])
def test_values(modules: HostModules, machine: MachineLibrary, number: int) -> None:
    """The results of the oracle; of functions of float32 the bits of the CPU machine with FMA."""
    group = GROUPS[number]
    xs = operands(group.program, 4000)
    got = modules.run(number, "rows", xs)
    want = group.program.evaluate(xs)
    isa = next((i for i in ("avx2", "neon") if machine.has(i)), None)
    cpu = machine.run(group.program.text, xs, 4000, isa=isa) if isa else want
    for name, mine, right, other in zip(group.names, got, want, cpu, strict=True):
        dtype, instruction, *to = name.split(".")
        if instruction in FUNCTIONS and dtype in FLOATS:
            function(instruction, dtype, xs, mine, other if isa else None)
        elif to and to[0] in INTS and dtype in (*FLOATS, *HALVES):
            same(mine, right, in_range(xs[0], to[0]))
        else:
            same(mine, right)


def function(name: str, dtype: str, xs: Sequence[Array], got: Array, cpu: Array | None) -> None:
    """A function of floats: the bound of the table, and the bits of the CPU."""
    row = INSTRUCTIONS[name]
    wide = {"f32": np.float64, "f64": np.longdouble}[dtype]
    arguments = [x.astype(wide) for x in xs[: row.arity]]
    if dtype == "f32" and cpu is not None:
        near = np.abs(arguments[0]) <= FAR.get(name, np.inf)
        same(got, cpu, near | ~np.isfinite(arguments[0]))
    if dtype == "f32":
        builder = Builder()
        builder.output(builder.emit(name, *(builder.input("f64") for _ in arguments)))
        within(got, builder.build().evaluate(arguments)[0], row.ulp)
    elif cpu is not None:  # both are the C library's here, but where CUDA has no such function
        within(got, cpu.astype(np.longdouble), 4.0)


ANGLES = ("sin", "cos", "tan")


@pytest.mark.parametrize("name", ANGLES)
def test_far_angles(modules: HostModules, name: str) -> None:
    """Angles of any size: the reduction by whole numbers, and its borders."""
    number, output = next(
        (k, g.names.index(f"f32.{name}")) for k, g in enumerate(GROUPS) if f"f32.{name}" in g.names
    )
    rng = np.random.default_rng(4)
    bits = rng.integers(0x47000000, 0x7F800000, 20000, np.uint32)
    borders = np.array([2**17, 2**20, 16367173 * 2.0**72], np.float32)
    x = np.concatenate([bits.view(np.float32), samples.special("f32"), borders])
    x = np.concatenate([x, -x])
    got = modules.run(number, "rows", [x] * len(GROUPS[number].program.inputs))[output]
    with np.errstate(invalid="ignore"):
        within(got, getattr(np, name)(x.astype(np.float64)), INSTRUCTIONS[name].ulp)


# ---- layouts

SHAPES: dict[str, tuple[tuple[str, ...], list[tuple[int, ...]]]] = {
    "contiguous": (("rows", "strided"), [(2, 3, 40)]),
    "one element": (("rows", "strided"), [(1,), (1, 1)]),
    "no element": (("rows", "strided"), [(0,), (3, 0)]),
    "single": (("rows", "strided"), [(4, 64), (1,)]),
    "row": (("rows", "strided"), [(5, 64), (64,)]),
    "odd row": (("rows", "strided"), [(5, 37), (37,)]),
    "column": (("rows", "strided"), [(5, 64), (5, 1)]),
    "channel": (("rows", "strided"), [(2, 3, 4, 32), (3, 1, 1)]),
    "outer": (("rows", "strided"), [(7, 1), (1, 48)]),
    "rank 5": (("rows", "strided"), [(2, 1, 3, 1, 5), (1, 4, 3, 2, 1)]),
    "rank 8": (("rows", "strided"), [(2, 1, 2, 1, 2, 1, 2, 1), (1, 3, 1, 2, 1, 2, 1, 16)]),
}
"""What each layout is run by, and shapes of its inputs (the last for all further ones)."""


def broadcast(xs: Sequence[Array]) -> list[Array]:
    shape = np.broadcast_shapes(*(x.shape for x in xs))
    return [np.array(np.broadcast_to(x, shape)) for x in xs]


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("layout", SHAPES)
def test_layouts(modules: HostModules, layout: str, offset: int) -> None:
    """Every group on every layout has the bits of the same operands written out."""
    kernels, shapes = SHAPES[layout]
    for number, group in enumerate(GROUPS):
        xs = [
            numbers(i.dtype, int(np.prod(shapes[min(k, len(shapes) - 1)])), k).reshape(shapes[min(k, len(shapes) - 1)])
            for k, i in enumerate(group.program.inputs)
        ]
        want = modules.run(number, "rows", broadcast(xs))
        for kernel in kernels:
            got = modules.run(number, kernel, xs, offset=offset)
            for name, mine, right in zip(group.names, got, want, strict=True):
                same(mine, right, note=f"{name} by {kernel}")


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_tails(modules: HostModules, offset: int) -> None:
    """Every length from 0 to beyond two vectors, on few and on many threads."""
    some = [k for k, g in enumerate(GROUPS) if g.label in ("f32-2-0", "u8-2-0", "f64-1-0", "cast-f16", "bool-2-0")]
    assert len(some) == 5
    for number, n in itertools.product(some, (*range(18), 31, 33, 255, 257, 5000)):
        xs = [numbers(i.dtype, 5000, k)[:n] for k, i in enumerate(GROUPS[number].program.inputs)]
        whole = [numbers(i.dtype, 5000, k) for k, i in enumerate(GROUPS[number].program.inputs)]
        for mine, right in zip(modules.run(number, "rows", xs, offset=offset, grid=1 + n % 3),
                               modules.run(number, "strided", whole), strict=True):  # fmt: skip
            same(mine, right[:n])


def mixed() -> list[Group]:
    """Programs of several types, with scalars, pads, constants, inputs that leave and inputs that nothing reads."""
    one = Builder()
    x, mean, std = one.input("u8"), one.input("f32"), one.input("f32")
    scale, offset = one.scalar("f64"), one.scalar("i8")
    v = one.emit("div", one.emit("sub", one.emit("cast", x, to="f32"), mean), std)
    one.output(one.emit("cast", v, to="f16"))
    one.output(one.emit("cast", one.emit("mul", one.emit("cast", v, to="f64"), scale), to="bf16"))
    one.output(one.emit("add", one.emit("cast", x, to="i64"), one.emit("cast", offset, to="i64")))
    one.output(x)
    two = Builder()
    x, bias, _ = two.input("f32"), two.input("bf16", 2), two.input("f32")
    y = two.emit("add", x, two.emit("cast", bias, to="f32"))
    k = [two.const("f32", c) for c in (np.inf, -0.0, 1e-40, 0.1, -np.float32(2**25 + 4), np.nan)]
    for c in k:
        two.output(two.emit("mul", y, c))
    two.output(two.emit("select", two.emit("lt", y, k[3]), two.const("i32", -(2**31)), two.const("i32", 7)))
    two.output(two.emit("cast", y, to="bool"))
    two.output(two.emit("add", two.emit("cast", y, to="f64"), two.const("f64", 1 / 3)))
    return [Group("one", one.build(), ()), Group("two", two.build(), ())]


def test_mixed_types(tmp_path_factory: pytest.TempPathFactory) -> None:
    programs = [g.program for g in mixed()]
    modules = HostModules(programs, tmp_path_factory.mktemp("mixed"))
    rng = np.random.default_rng(3)
    image = [rng.integers(0, 256, (9, 5, 3)).astype(np.uint8), rng.normal(size=3).astype(np.float32),
             rng.normal(size=3).astype(np.float32), np.array(0.3), np.array(-5, np.int8)]  # fmt: skip
    channels = [rng.normal(size=(2, 3, 5, 16)).astype(np.float32), rng.normal(size=3).astype(NUMPY["bf16"]),
                np.zeros((1, 1), np.float32)]  # fmt: skip
    for (number, inputs), kernel in itertools.product([(0, image), (1, channels)], ("rows", "strided")):
        tensors = len(programs[number].tensors)
        for mine, right in zip(modules.run(number, kernel, inputs),
                               programs[number].evaluate(inputs[:tensors], inputs[tensors:]), strict=True):  # fmt: skip
            same(mine, right)


@pytest.mark.parametrize("shape", [Shape(4, 4), Shape(8, 2), Shape(16, 1), Shape(16, 4)])
def test_shapes_of_loops(tmp_path_factory: pytest.TempPathFactory, shape: Shape) -> None:
    """Vectors longer than a block and any number of them at once: the same results."""
    builder = Builder()
    x, y = builder.input("f32"), builder.input("f32")
    builder.output(builder.emit("mul", builder.emit("sigmoid", x), y))
    builder.output(builder.emit("cast", x, to="f64"))
    modules = HostModules([builder.build()], tmp_path_factory.mktemp("shape"), shapes=[shape])
    for n in (0, 5, 64, 1000, 40000):
        xs = [numbers("f32", n, k) for k in range(2)]
        for grid in (1, 4):
            for mine, right in zip(modules.run(0, "rows", xs, grid=grid), modules.run(0, "strided", xs),
                                   strict=True):  # fmt: skip
                same(mine, right)


@pytest.mark.parametrize(("dtype", "vector"), [("f32", 4), ("f16", 8), ("u8", 16)])
def test_long_programs(tmp_path_factory: pytest.TempPathFactory, dtype: str, vector: int) -> None:
    """A program whose vectors cost more than LONGEST has none, and one kernel for all layouts."""
    assert shape_of(long_program(dtype, LONGEST // vector - 50)).vector == vector
    program = long_program(dtype, LONGEST // vector + 1)
    assert shape_of(program) == Shape(1, 1)
    assert shape_of(program).kernels == ("strided",)
    assert "rows" not in emit(program)
    modules = HostModules([program], tmp_path_factory.mktemp("long"))
    for shapes in ([(0,), (0,)], [(1,), (1,)], [(5, 67), (5, 67)], [(5, 67), (67,)], [(3, 1, 5), (3, 4, 1)]):
        for offset in (0, 1):
            xs = [numbers(dtype, int(np.prod(s)), k).reshape(s) for k, s in enumerate(shapes)]
            if dtype == "u8":
                xs = [x % 100 for x in xs]  # what leaves has to be in range
            with np.errstate(over="ignore", invalid="ignore"):
                (want,) = program.evaluate(xs)
            (got,) = modules.run(0, "strided", xs, offset=offset)
            same(got, want)
