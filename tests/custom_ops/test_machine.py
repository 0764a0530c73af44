"""The machine against the oracle: every instruction for every type it takes, on every instruction set at hand."""

from __future__ import annotations

import functools
import itertools
import zlib

import numpy as np
import pytest

from onnxfuse.program import Program
from onnxfuse.program.dtypes import NUMPY
from onnxfuse.program.instructions import BYTES, DTYPES, INSTRUCTIONS, INTS, Instruction
from tests.custom_ops.machine import MachineError, MachineLibrary, assert_close, assert_same, same_bits

Array = np.ndarray

FLOAT_SPECIALS = [
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 0.49999997, 3.0, -3.0, 7.25, np.inf, -np.inf, np.nan,
    88.7, -88.7, 104.5, 127.5, -128.7, 255.5, 300.0, -300.0, 65504.0, 65536.0, 8388607.5, -8388608.0, 1e-8,
    2147483520.0, 2147483648.0, -2147483648.0, -2147483904.0, 4294967040.0, 4294967296.0, 1e10, -1e10, 1e20, -1e30,
    9.2233715e18, 9.223372e18, -9.223372e18, 1.8446743e19, 1.8446744e19, 1e38, -3e38, 1e-38, 1e-40, -1e-45, 3.14159,
]  # fmt: skip


@functools.cache
def specials(dtype: str) -> Array:
    """Zeros, ones, extremes, numbers near roundings and limits, infinities, NaN, denormals."""
    if dtype == "bool":
        return np.array([False, True])
    numpy_type = NUMPY[dtype]
    with np.errstate(all="ignore"):
        if dtype in INTS:
            info = np.iinfo(numpy_type)
            near = [info.min, info.min + 1, info.max - 1, info.max, info.max // 2, info.max // 3]
            small = [v for v in (0, 1, -1, 2, -2, 3, 7, -7, 8, 15, 16, 31, 32, 33, 63, 64, 100, -100) if v >= info.min]
            large = [1 << 24, (1 << 24) + 1, (1 << 53) + 1, (1 << 62) + 1, (1 << 40) - 1, 0x10100001, 0x1010 << 48 | 1]
            return np.array(near + small + [v for v in large if v <= info.max], numpy_type)
        array = np.array(FLOAT_SPECIALS)
        if dtype == "f64":
            wide = [1e300, -1e-300, 5e-324, 709.8, -745.2, 2**53 + 1.0, 9.223372036854775e18, 1 + 2**-24]
            wide += [1 + 2**-8 + 2**-40, 1 + 2**-11 + 2**-40, 1 + 3 * 2**-11 - 2**-40]
            return np.concatenate([array, wide])
        return np.asarray(array.astype(np.float32).astype(numpy_type))


@functools.cache
def numbers(dtype: str, n: int, seed: int) -> Array:
    """Random numbers of many sizes."""
    rng = np.random.default_rng([seed, zlib.crc32(dtype.encode())])
    if dtype == "bool":
        return np.asarray(rng.integers(0, 2, n).astype(np.bool_))
    if dtype in INTS:
        bits = rng.integers(0, 1 << 64, n, np.uint64) >> rng.integers(0, 8 * BYTES[dtype], n, np.uint64)
        return np.asarray(bits.astype(NUMPY[dtype]))
    sizes = rng.standard_normal(n) * 10.0 ** rng.integers(-3, 3, n)
    return np.asarray(sizes if dtype == "f64" else sizes.astype(np.float32).astype(NUMPY[dtype]))


def operands(dtypes: tuple[str, ...]) -> list[Array]:
    """All combinations of special values (a sample of them for three operands), then random numbers."""
    rng = np.random.default_rng(len(dtypes))
    grids = np.meshgrid(*[np.arange(specials(t).size) for t in dtypes], indexing="ij")
    keep = slice(None) if len(dtypes) < 3 else rng.integers(0, grids[0].size, 1000)
    return [
        np.concatenate([specials(t)[g.ravel()[keep]], numbers(t, 301, k)])
        for k, (t, g) in enumerate(zip(dtypes, grids, strict=True))
    ]


def opcode(row: Instruction, dtype: str) -> str:
    forms = {"same": f"{row.name}.{dtype}", "compare": f"{row.name}.{dtype}.bool", "select": f"select.bool.{dtype}"}
    return forms[row.form]


def program_of(row: Instruction, dtype: str) -> tuple[str, tuple[str, ...]]:
    """A program with the instruction's operands in every place: in memory, in the accumulator, twice the same."""
    types = ("bool", dtype, dtype) if row.form == "select" else (dtype,) * row.arity
    head = [f"in x{k} {t}" for k, t in enumerate(types)]
    body: list[str] = []

    def emit(code: str, *names: str) -> str:
        body.append(f"t{len(body)} = {code} {' '.join(names)}")
        return f"t{len(body) - 1}"

    def computed(k: int) -> str:
        # The same value, but computed just before.
        return emit("and.bool" if types[k] == "bool" else f"min.{types[k]}", f"x{k}", f"x{k}")

    code = opcode(row, dtype)
    names = [f"x{k}" for k in range(row.arity)]
    results = [emit(code, *names)]
    for k in range(row.arity):
        results.append(emit(code, *names[:k], computed(k), *names[k + 1 :]))
    if row.arity == 2:
        same = computed(0)
        results.append(emit(code, same, same))
    if row.form == "select":
        same = computed(1)
        results.append(emit(code, "x0", same, same))
        if dtype == "bool":
            same = computed(0)
            results += [emit(code, same, same, "x2"), emit(code, same, "x1", same)]
    return "\n".join(["onnxfuse 1", *head, *body, *[f"out {r}" for r in results]]) + "\n", types


def bound(row: Instruction, dtype: str) -> float:
    return row.ulp64 + 1 if dtype == "f64" and row.ulp64 > 0.5 else row.ulp if dtype == "f32" else 0.0


PAIRS = [(n, d) for n, row in INSTRUCTIONS.items() if row.form not in ("cast", "const") for d in row.types]


@pytest.mark.parametrize(("name", "dtype"), PAIRS)
def test_instruction(machine: MachineLibrary, isa: str, name: str, dtype: str) -> None:
    row = INSTRUCTIONS[name]
    text, types = program_of(row, dtype)
    xs = operands(types)
    got = machine.run(text, xs, xs[0].size, isa=isa)
    want = Program.parse(text).evaluate(xs)
    for k, (g, w) in enumerate(zip(got, want, strict=True)):
        assert_close(g, w, bound(row, dtype), f"output {k}, {name}.{dtype}", *xs)


@pytest.mark.parametrize("source", DTYPES)
def test_casts(machine: MachineLibrary, isa: str, source: str) -> None:
    x = operands((source,))[0]
    for target in DTYPES:
        # From memory, and of a value that was computed.
        text = f"onnxfuse 1\nin x0 {source}\nt0 = cast.{source}.{target} x0\nout t0\n"
        if source not in ("f16", "bf16"):
            same = "and" if source == "bool" else "min"
            text += f"t1 = {same}.{source} x0 x0\nt2 = cast.{source}.{target} t1\n"
            text = "".join(sorted(text.splitlines(True), key=lambda line: line.startswith("out"))) + "out t2\n"
        got = machine.run(text, [x], x.size, isa=isa)
        for g, w in zip(got, Program.parse(text).evaluate([x]), strict=True):
            assert_same(g, w, f"cast.{source}.{target}", x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_constants(machine: MachineLibrary, isa: str, dtype: str) -> None:
    lines, outs = [f"onnxfuse 1\nin x0 {dtype}\n"], []
    for k, value in enumerate(specials(dtype)[:16]):
        bits = int(np.array(value).view(f"u{BYTES[dtype]}"))
        lines.append(f"t{k} = const.{dtype} 0x{bits:0{2 * BYTES[dtype]}x}\n")
        outs.append(f"out t{k}\n")
    text = "".join(lines + outs)
    x = numbers(dtype, 5, 0)
    for g, w in zip(machine.run(text, [x], 5, isa=isa), Program.parse(text).evaluate([x]), strict=True):
        assert_same(g, w, f"const.{dtype}")


@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_bounds(machine: MachineLibrary, isa: str, name: str, dtype: str) -> None:
    """max and min with a constant have stages of their own, which must treat NaN and both zeros right."""
    x = specials(dtype)
    for value in (0.0, -0.0, 1.0, -3.0, np.inf, -np.inf, np.nan):
        bits = int(np.array(value, NUMPY[dtype]).view(f"u{BYTES[dtype]}"))
        text = (
            f"onnxfuse 1\nin x0 {dtype}\nt0 = const.{dtype} 0x{bits:0{2 * BYTES[dtype]}x}\n"
            f"t1 = {name}.{dtype} x0 t0\nt2 = {name}.{dtype} t0 x0\nt3 = neg.{dtype} x0\nt4 = {name}.{dtype} t3 t0\n"
            f"t5 = {name}.{dtype} t0 t0\nout t1\nout t2\nout t4\nout t5\n"
        )
        for g, w in zip(machine.run(text, [x], x.size, isa=isa), Program.parse(text).evaluate([x]), strict=True):
            assert_same(g, w, f"{name}.{dtype} with {value}", x)


# ---- stretches (every length in every place of memory: test_tails.py)


def typed_program(dtype: str) -> str:
    """Two inputs, two outputs of one type, and a bool output."""
    if dtype in ("f16", "bf16"):
        body = (f"t0 = cast.{dtype}.f32 x0\nt1 = cast.{dtype}.f32 x1\nt2 = add.f32 t0 t1\nt3 = cast.f32.{dtype} t2\n"
                f"t4 = lt.f32.bool t0 t1\nt5 = cast.f32.{dtype} t0\n")  # fmt: skip
        return f"onnxfuse 1\nin x0 {dtype}\nin x1 {dtype}\n{body}out t3\nout t4\nout t5\n"
    if dtype == "bool":
        return "onnxfuse 1\nin x0 bool\nin x1 bool\nt0 = xor.bool x0 x1\nt1 = not.bool x0\nout t0\nout t1\nout x0\n"
    return (f"onnxfuse 1\nin x0 {dtype}\nin x1 {dtype}\nt0 = add.{dtype} x0 x1\nt1 = lt.{dtype}.bool x0 x1\n"
            f"t2 = mul.{dtype} t0 x1\nout t2\nout t1\nout x0\n")  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_single_elements(machine: MachineLibrary, isa: str, dtype: str) -> None:
    text = typed_program(dtype)
    for a, b in itertools.product((numbers(dtype, 300, 1), numbers(dtype, 1, 3)[0]), repeat=2):
        for n in (1, 3, 300):
            x, y = (v[:n] if np.ndim(v) else v for v in (a, b))
            want = [np.broadcast_to(w, n) for w in Program.parse(text).evaluate([np.asarray(x), np.asarray(y)])]
            for g, w in zip(machine.run(text, [np.asarray(x), np.asarray(y)], n, isa=isa), want, strict=True):
                assert_same(g, np.ascontiguousarray(w), f"{n} elements of {dtype}", x, y)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("places", [{0: 0}, {0: 1}, {2: 1}, {2: 0}, {0: 1, 2: 0}])
def test_in_place(machine: MachineLibrary, isa: str, dtype: str, places: dict[int, int]) -> None:
    """An output over an input, also the one that another output still reads."""
    text = typed_program(dtype)
    a, b = numbers(dtype, 400, 1), numbers(dtype, 400, 2)
    if dtype == "bool":
        places = {**places, 1: 1 if 1 not in places.values() else 0} if len(places) == 1 else places
    want = Program.parse(text).evaluate([a, b])
    for n in (1, 15, 16, 64, 65, 200, 257, 400):
        got = machine.run(text, [a[:n], b[:n]], n, isa=isa, in_place=places)
        for g, w in zip(got, want, strict=True):
            assert_same(g, w[:n], f"{n} elements of {dtype} in place {places}", a, b)


@pytest.mark.parametrize("dtype", DTYPES)
def test_swap_in_place(machine: MachineLibrary, isa: str, dtype: str) -> None:
    """Inputs that leave, each over the other one."""
    text = f"onnxfuse 1\nin x0 {dtype}\nin x1 {dtype}\nout x0\nout x1\n"
    a, b = numbers(dtype, 300, 1), numbers(dtype, 300, 2)
    for n in (3, 300):
        got = machine.run(text, [a[:n], b[:n]], n, isa=isa, in_place={0: 1, 1: 0})
        for g, w in zip(got, (a, b), strict=True):
            assert_same(g, w[:n], f"{n} elements of {dtype}")


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_half_stored_as_f32(machine: MachineLibrary, isa: str, dtype: str) -> None:
    """Such values are read and written as they are, rounded by casts alone."""
    text = (f"onnxfuse 1\nin x0 {dtype}\nin x1 {dtype}\nt0 = cast.{dtype}.f32 x0\nt1 = cast.{dtype}.f32 x1\n"
            f"t2 = add.f32 t0 t1\nt3 = cast.f32.{dtype} t2\nout t3\nout x0\nout t2\n")  # fmt: skip
    rng = np.random.default_rng(5)
    wide, half = rng.standard_normal(333).astype(np.float32), rng.standard_normal(333).astype(NUMPY[dtype])
    total = wide + half.astype(np.float32)
    rounded = total.astype(NUMPY[dtype])
    got = machine.run(text, [wide, half], 333, isa=isa, in_storage=["f32", dtype], out_storage=["f32", "f32", "f32"])
    for g, w in zip(got, [rounded.astype(np.float32), wide, total], strict=True):
        assert_same(g, w, dtype)
    got = machine.run(text, [half, half], 333, isa=isa, in_storage=[dtype] * 2, out_storage=[dtype, "f32", "f32"])
    assert same_bits(got[1], half.astype(np.float32))
    with pytest.raises(MachineError, match=f"a value of type {dtype} cannot lie in memory as f64"):
        machine.run(text, [half, half], 333, isa=isa, in_storage=["f64", dtype])


def test_bool_bytes(machine: MachineLibrary, isa: str) -> None:
    """Any byte but zero is true; what is written is 0 or 1."""
    raw = np.arange(256).astype(np.uint8)
    got = machine.run("onnxfuse 1\nin x0 bool\nt0 = not.bool x0\nout x0\nout t0\n", [raw.view(np.bool_)], 256, isa=isa)
    assert got[0].view(np.uint8).tolist() == [0] + [1] * 255
    assert got[1].view(np.uint8).tolist() == [1] + [0] * 255


def test_scalars(machine: MachineLibrary, isa: str) -> None:
    """c inputs, read at each call or built in, and what depends on them alone."""
    text = (
        "onnxfuse 1\nin x0 f32\nin c0 f32\nin c1 f16\nin c2 i64\nin c3 u8\nin c4 bool\n"
        "t0 = cast.f16.f32 c1\nt1 = cast.i64.f32 c2\nt2 = cast.u8.f32 c3\nt3 = mul.f32 t0 t1\nt4 = exp.f32 t2\n"
        "t5 = select.bool.f32 c4 t3 t4\nt6 = mul.f32 x0 c0\nt7 = add.f32 t6 t5\nt8 = max.f32 t7 c0\n"
        "t9 = not.bool c4\nout t8\nout t3\nout c1\nout t9\nout c2\nout t8\n"
    )
    x = numbers("f32", 301, 0)
    cs = [np.array(v, NUMPY[t]) for v, t in ((0.75, "f32"), (1.5, "f16"), (-7, "i64"), (3, "u8"), (True, "bool"))]
    want = [np.broadcast_to(w, 301) for w in Program.parse(text).evaluate([x], cs)]
    for scalars in (False, True):
        for n in (1, 301):
            got = machine.run(text, [x[:n], *cs], n, isa=isa, scalars=scalars)
            for k, (g, w) in enumerate(zip(got, want, strict=True)):
                assert_close(g, np.ascontiguousarray(w[:n]), 0.5, f"output {k}")


def test_every_pair_builds(machine: MachineLibrary, isa: str) -> None:
    """The machine has a stage for every row of the table; without the oracle, so that this fails for itself."""
    for name, dtype in PAIRS:
        machine.tile(program_of(INSTRUCTIONS[name], dtype)[0], isa)


def test_unknown_isa(machine: MachineLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "onnxfuse 1\nin x0 f32\nout x0\n"
    for isa in machine.isas:
        monkeypatch.setenv("ONNXFUSE_ISA", isa)
        assert machine.tile(text, "best") == machine.tile(text, isa)
    monkeypatch.setenv("ONNXFUSE_ISA", "sse9")
    with pytest.raises(MachineError, match="ONNXFUSE_ISA is 'sse9'; it may be one of: avx512, avx2, baseline"):
        machine.tile(text, "best")
