"""Every length up to four tiles in every place of memory: 64 byte offsets, and pages beside that nothing may touch.

Whatever way the machine takes for a stretch (whole tiles, a last tile that overlaps, shorter stages, a copy), each
element has the bits that it has within a whole tile.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from onnxfuse.program import Builder, Program
from onnxfuse.program.dtypes import NUMPY
from onnxfuse.program.instructions import BYTES, DTYPES, INTS
from tests.custom_ops.guarded import guarded, guarded_copy
from tests.custom_ops.handmade import one, sub_model
from tests.custom_ops.library import LibraryError, TestLibrary
from tests.custom_ops.machine import MachineError, MachineLibrary
from tests.custom_ops.test_session import run, session

Array = np.ndarray


def swiglu() -> Program:
    b = Builder()
    x, y = b.input("f32"), b.input("f32")
    b.output(b.emit("mul", b.emit("mul", x, b.emit("sigmoid", x)), y))
    return b.build()


def lstm() -> Program:
    """Five inputs, two outputs, values that wait."""
    b = Builder()
    i, f, g, o, c = (b.input("f32") for _ in range(5))
    cell = b.emit("add", b.emit("mul", b.emit("sigmoid", f), c), b.emit("mul", b.emit("sigmoid", i), b.emit("tanh", g)))
    b.output(cell)
    b.output(b.emit("mul", b.emit("sigmoid", o), b.emit("tanh", cell)))
    return b.build()


def hard_swish(dtype: str) -> Program:
    """Bounds, a product and a quotient; halves are computed in f32."""
    b = Builder()
    x = b.input(dtype)
    value = b.emit("cast", x, to="f32") if BYTES[dtype] == 2 else x
    kind = "f64" if dtype == "f64" else "f32"
    shifted = b.emit("add", value, b.const(kind, 3.0))
    bounded = b.emit("min", b.emit("max", shifted, b.const(kind, 0.0)), b.const(kind, 6.0))
    result = b.emit("div", b.emit("mul", value, bounded), b.const(kind, 6.0))
    b.output(b.emit("cast", result, to=dtype) if BYTES[dtype] == 2 else result)
    return b.build()


def arithmetic(dtype: str) -> Program:
    """Two operands of one type, results of it and of bool."""
    b = Builder()
    x, y = b.input(dtype), b.input(dtype)
    if dtype == "bool":
        b.output(b.emit("xor", x, y))
        b.output(b.emit("and", b.emit("not", x), y))
        return b.build()
    total = b.emit("add", b.emit("mul", x, y), y)
    b.output(b.emit("sub", total, x))
    b.output(b.emit("lt", x, y))
    return b.build()


def where() -> Program:
    """A mask from a comparison and one from memory."""
    b = Builder()
    x, y, m = b.input("f32"), b.input("f32"), b.input("bool")
    mask = b.emit("and", b.emit("lt", y, x), m)
    b.output(b.emit("select", mask, b.emit("mul", x, b.const("f32", 2.0)), b.emit("sub", y, x)))
    return b.build()


def normalize() -> Program:
    b = Builder()
    x, mean, scale = b.input("u8"), b.input("f32"), b.input("f32")
    b.output(b.emit("div", b.emit("sub", b.emit("cast", x, to="f32"), mean), scale))
    return b.build()


def widths() -> Program:
    """Elements of 1, 2, 4 and 8 bytes, in and out."""
    b = Builder()
    x, y, z, w = b.input("u8"), b.input("i16"), b.input("f32"), b.input("i64")
    total = b.emit("add", b.emit("add", b.emit("cast", x, to="f32"), b.emit("cast", y, to="f32")), z)
    long = b.emit("add", w, b.emit("cast", y, to="i64"))
    for value in (b.emit("cast", total, to="f16"), b.emit("lt", z, total), long, b.emit("cast", long, to="i16"), x,
                  b.emit("cast", total, to="f64")):  # fmt: skip
        b.output(value)
    return b.build()


def one_by_one() -> Program:
    """Instructions without vector code, in both widths."""
    b = Builder()
    x, y = b.input("i64"), b.input("i32")
    b.output(b.emit("fmod", x, b.const("i64", 7)))
    b.output(b.emit("fmod", y, b.const("i32", 5)))
    return b.build()


def many() -> Program:
    """More values alive at once than registers."""
    b = Builder()
    xs = [b.input("f32") for _ in range(6)]
    sums = [b.emit("add", x, y) for x in xs for y in xs if x < y]
    total = sums[0]
    for value in [*sums[1:], *reversed(sums)]:
        total = b.emit("sub", b.emit("mul", total, b.const("f32", 0.5)), value)
    b.output(total)
    b.output(sums[3])
    return b.build()


@dataclasses.dataclass(frozen=True)
class Case:
    program: Program
    single: tuple[int, ...] = ()
    """Inputs that are one element for all."""
    over: dict[int, int] = dataclasses.field(default_factory=dict)
    """Outputs that take the memory of an input."""


CASES = {
    "swiglu": Case(swiglu()),
    "swiglu-over-first": Case(swiglu(), over={0: 0}),
    "swiglu-over-second": Case(swiglu(), over={0: 1}),
    "swiglu-one-gate": Case(swiglu(), single=(1,), over={0: 0}),
    "lstm": Case(lstm()),
    "lstm-over": Case(lstm(), over={0: 4, 1: 1}),
    "hard-swish-f32": Case(hard_swish("f32")),
    "hard-swish-f16": Case(hard_swish("f16")),
    "hard-swish-bf16": Case(hard_swish("bf16")),
    "hard-swish-f64": Case(hard_swish("f64")),
    "hard-swish-f16-over": Case(hard_swish("f16"), over={0: 0}),
    **{f"arithmetic-{d}": Case(arithmetic(d)) for d in DTYPES if d not in ("f16", "bf16")},
    "arithmetic-u8-over": Case(arithmetic("u8"), over={0: 1, 1: 0}),
    "arithmetic-i64-over": Case(arithmetic("i64"), over={0: 1}),
    "arithmetic-bool-over": Case(arithmetic("bool"), over={0: 1, 1: 0}),
    "where": Case(where()),
    "where-over": Case(where(), over={0: 1}),
    "where-one-mask": Case(where(), single=(2,)),
    "normalize": Case(normalize()),
    "normalize-one": Case(normalize(), single=(1, 2)),
    "normalize-over": Case(normalize(), single=(2,), over={0: 1}),
    "widths": Case(widths()),
    "widths-over": Case(widths(), over={0: 1, 1: 0, 2: 3}),
    "one-by-one": Case(one_by_one()),
    "one-by-one-over": Case(one_by_one(), over={0: 0, 1: 1}),
    "many": Case(many()),
}


def values(dtype: str, n: int, seed: int) -> Array:
    """Numbers of ordinary size, none of them zero; small types take all they have."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return np.asarray(rng.integers(0, 2, n).astype(np.bool_))
    if dtype in INTS:
        info = np.iinfo(NUMPY[dtype])
        return np.asarray(rng.integers(max(info.min, -10000), min(info.max, 10000), n).astype(NUMPY[dtype]))
    return np.asarray((rng.uniform(0.25, 4, n) * rng.choice([-1, 1], n)).astype(np.float32).astype(NUMPY[dtype]))


@pytest.mark.parametrize("name", CASES)
def test_every_length_everywhere(machine: MachineLibrary, isa: str, name: str) -> None:
    case = CASES[name]
    text = case.program.text
    tiles = 4 * machine.tile(text, isa)
    inputs = [values(i.dtype, tiles, k) for k, i in enumerate(case.program.inputs)]
    for k in case.single:
        inputs[k] = inputs[k][0]
    want = machine.run(text, inputs, tiles, isa=isa)
    for got, true in zip(want, case.program.evaluate(inputs), strict=True):
        if got.dtype.kind == "f":
            np.testing.assert_allclose(got, true, rtol=1e-5 if got.dtype.itemsize > 2 else 2e-3, atol=1e-5)
        else:
            np.testing.assert_array_equal(got, true)
    for traffic in (0, 1, 2):
        assert machine.everywhere(text, inputs, want, tiles - 1, isa=isa, over=case.over, traffic=traffic) == 65 * tiles


def test_the_sweep_sees_what_is_wrong(machine: MachineLibrary) -> None:
    """A wrong bit in the last element; an output that needs more room than the input whose memory it takes."""
    text = "onnxfuse 1\nin x0 f32\nt0 = neg.f32 x0\nout t0\n"
    x = values("f32", 10, 1)
    want = -x
    want.view(np.uint32)[-1] ^= 1
    assert machine.everywhere(text, [x], [-x], 10, isa="best") == 65 * 11
    with pytest.raises(MachineError, match="an output is wrong: 10 elements, offset 0"):
        machine.everywhere(text, [x], [want], 10, isa="best")
    text = "onnxfuse 1\nin x0 u8\nt0 = cast.u8.f32 x0\nout t0\n"
    x = values("u8", 2000, 1)
    with pytest.raises(MachineError, match=r"memory beside an operand was touched: \d+ elements, at the end of a page"):
        machine.everywhere(text, [x], [x.astype(np.float32)], 2000, isa="best", over={0: 0})


# Shapes whose inputs the driver walks in its several ways: along rows, expanded for every chunk, expanded once.
PATHS: dict[str, list[tuple[int, ...]]] = {
    "one-dim": [(1003,), (1003,)],
    "one-element": [(77,), ()],
    "row": [(5, 333), (333,)],
    "long-row": [(3, 1500), (1500,)],
    "column": [(5, 700), (5, 1)],
    "short-row": [(501, 3), (3,)],
    "short-column": [(501, 3), (501, 1)],
    "channels": [(3, 7, 5, 31), (7, 1, 1)],
    "middle": [(4, 5, 6, 7), (4, 1, 6, 1)],
    "outer-product": [(31, 1), (1, 67)],
    "rows-of-tiles": [(9, 64), (9, 1)],
    "split": [(40_003, 3), (3,)],
}


@pytest.mark.parametrize("streamed", [False, True], indirect=True)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("at_end", [True, False], ids=["end", "begin"])
@pytest.mark.parametrize("name", PATHS)
@pytest.mark.usefixtures("streamed")
def test_operands_at_the_edge_of_a_page(library: TestLibrary, isa: str, name: str, at_end: bool, threads: int) -> None:
    for dtypes in (("f32", "f32"), ("u8", "f16"), ("f64", "bool")):
        builder = Builder()
        xs = [builder.input(dtype) for dtype in dtypes]
        wide = [x if d in ("f32", "f64") else builder.emit("cast", x, to=dtypes[0] if d == "bool" else "f32")
                for x, d in zip(xs, dtypes, strict=True)]  # fmt: skip
        total = builder.emit("sub", *wide)
        builder.output(total)
        builder.output(builder.emit("lt", total, wide[0]))
        program = builder.build()
        inputs = [guarded_copy(values(d, max(1, int(np.prod(s))), k).reshape(s), at_end=at_end)
                  for k, (s, d) in enumerate(zip(PATHS[name], dtypes, strict=True))]  # fmt: skip
        want = program.evaluate(inputs)
        out = [guarded(w.shape, w.dtype, at_end=at_end) for w in want]
        library.run(program.text, inputs, out=out, isa=isa, threads=threads)
        for have, true in zip(out, want, strict=True):
            np.testing.assert_array_equal(have, true)


@pytest.mark.parametrize("streamed", [False, True], indirect=True)
@pytest.mark.parametrize("shape", [(17_000_003,), (17_000, 1001)], ids=str)
@pytest.mark.usefixtures("streamed")
def test_a_large_output(library: TestLibrary, shape: tuple[int, ...]) -> None:
    """More than 64 MiB: contiguous, and rows with a column."""
    text = "onnxfuse 1\nin x0 u8\nin x1 f32\nt0 = cast.u8.f32 x0\nt1 = mul.f32 t0 x1\nout t1\n"
    x = np.arange(np.prod(shape), dtype=np.uint32).astype(np.uint8).reshape(shape)
    factor = np.arange(shape[0], dtype=np.float32).reshape(-1, 1) if len(shape) > 1 else np.full(1, 3, np.float32)
    out = np.full(shape, np.nan, np.float32)
    library.run(text, [x, factor], out=[out], threads=2)
    assert (out == x * factor).all()


def test_a_large_output_in_a_session(ort_library: str) -> None:
    x, b = np.arange(17_000_003, dtype=np.float32), np.full(1, 3, np.float32)
    s = session(sub_model(one("float[N] x, float[M] b", "float[N]")), ort_library, threads=2)
    assert (run(s, x=x, b=b)[0] == (x - b) * b).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_read_beside_a_page_is_seen(library: TestLibrary, threads: int) -> None:
    """A tensor that says of itself to be one element longer than it is."""
    text = "onnxfuse 1\nin x0 f32\nt0 = neg.f32 x0\nout t0\n"
    x = guarded((100_000,), np.float32)
    longer = np.lib.stride_tricks.as_strided(x, (100_001,))
    with pytest.raises(LibraryError, match="memory was touched that may not be"):
        library.run(text, [longer], out=[np.empty(100_001, np.float32)], threads=threads)
