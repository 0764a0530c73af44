"""Broadcasting, stretches, threads and in-place writes of the library's driver, against the numpy oracle.

Every operation here is exact, so results are compared bit for bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from onnxfuse.program import Program
from onnxfuse.program.dtypes import NUMPY
from tests.custom_ops.library import LibraryError, TestLibrary

Shape = tuple[int, ...]


def weighted_sum(dtypes: Sequence[str], pads: Sequence[int] = (), scalars: int = 0) -> str:
    """x0 * 1 + x1 * 2 + x2 * 3 + ... in f32, with the c inputs behind; exact for small whole numbers.

    A second output in the type of x0, so that output sizes differ.
    """
    names = [f"x{k}" for k in range(len(dtypes))] + [f"c{k}" for k in range(scalars)]
    types = [*dtypes, *["f32"] * scalars]
    pads = [*pads] + [0] * (len(names) - len(pads))
    lines = ["onnxfuse 1"]
    lines += [f"in {n} {t}" + (f" pad {p}" if p else "") for n, t, p in zip(names, types, pads, strict=True)]
    count = itertools.count()

    def emit(text: str) -> str:
        name = f"t{next(count)}"
        lines.append(f"{name} = {text}")
        return name

    total = None
    for k, (name, dtype) in enumerate(zip(names, types, strict=True)):
        value = name if dtype == "f32" else emit(f"cast.{dtype}.f32 {name}")
        weight = emit(f"const.f32 0x{int(np.float32(k % 7 + 1).view(np.uint32)):08x}")
        value = emit(f"mul.f32 {value} {weight}")
        total = value if total is None else emit(f"add.f32 {total} {value}")
    assert total is not None
    second = total if dtypes[0] == "f32" else emit(f"cast.f32.{dtypes[0]} {total}")
    return "\n".join([*lines, f"out {total}", f"out {second}"]) + "\n"


def data(shape: Shape, dtype: str, seed: int) -> np.ndarray:
    """Whole numbers from 0 to 7 (0 and 1 for bool)."""
    values = np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 8, shape)
    return values.astype(NUMPY[dtype])


def check(
    library: TestLibrary,
    shapes: Sequence[Shape],
    dtypes: Sequence[str] = (),
    pads: Sequence[int] = (),
    scalars: int = 0,
    threads: int = 1,
) -> None:
    dtypes = dtypes or ["f32"] * len(shapes)
    text = weighted_sum(dtypes, pads, scalars)
    xs = [data(s, t, k) for k, (s, t) in enumerate(zip(shapes, dtypes, strict=True))]
    cs = [data((), "f32", 100 + k) for k in range(scalars)]
    want = Program.parse(text).evaluate(xs, cs)
    have = library.run(text, xs, cs, threads=threads)
    for h, w in zip(have, want, strict=True):
        assert h.shape == w.shape
        assert h.dtype == w.dtype
        np.testing.assert_array_equal(h, w)


BROADCASTS: dict[str, tuple[list[Shape], list[int]]] = {
    "equal": ([(3, 4, 5), (3, 4, 5)], []),
    "scalar": ([(3, 4, 5), ()], []),
    "scalar-first": ([(), (300,)], []),
    "only-scalars": ([(), ()], []),
    "one-element": ([(3, 4, 5), (1, 1)], []),
    "all-one-element": ([(1, 1), (1,), ()], []),
    "row": ([(7, 300), (300,)], []),
    "column": ([(7, 300), (7, 1)], []),
    "short-row": ([(100, 3), (3,)], []),
    "short-column": ([(700, 3), (700, 1)], []),
    "outer-product": ([(300, 1), (1, 257)], []),
    "short-outer-product": ([(5, 1), (1, 7)], []),
    "rank-grows": ([(4,), (3, 1), (2, 1, 1), (5, 1, 1, 1)], []),
    "every-rank": ([(2, 3, 4, 5), (3, 4, 5), (4, 5), (5,), ()], []),
    "channel": ([(2, 7, 9, 31), (7, 1, 1)], []),
    "channel-pad": ([(2, 7, 9, 31), (7,)], [0, 2]),
    "channel-pad-short": ([(20, 7, 3, 3), (7,)], [0, 2]),
    "channel-and-row": ([(2, 7, 9, 3), (7,), (3,)], [0, 2, 0]),
    "pad-makes-rank": ([(3,), (4,)], [2, 0]),
    "pad-of-scalar": ([(), (2, 2)], [3, 0]),
    "pad-of-scalar-first-rank": ([(), (3, 4)], [2, 0]),
    "pad-eight": ([(2, 3), (2, 3)], [8, 0]),
    "middle": ([(4, 5, 6, 7), (4, 1, 6, 1), (1, 5, 1, 7)], []),
    "middle-long": ([(3, 5, 2, 300), (3, 1, 2, 300), (1, 5, 1, 300)], []),
    "outer-long": ([(1, 2000), (3, 1)], []),
    "no-input-has-the-shape": ([(3, 1, 5), (1, 4, 1), (2, 1, 1, 1)], []),
    "eight-dims": ([(2, 1, 2, 1, 3, 1, 2, 1), (1, 2, 1, 2, 1, 3, 1, 2)], []),
    "nine-dims": ([(2, 1, 2, 1, 2, 1, 2, 1, 2), (1, 2, 1, 2, 1, 2, 1, 2, 1)], []),
    "nine-dims-and-ones": ([(2, 1, 2, 1, 3, 1, 2, 1, 2), (2, 1, 2, 1, 2, 1), (1, 1), ()], [0, 2]),
    "twelve-dims": ([(2, 1) * 6, (1, 2) * 6, (2,) * 12, (2, 1, 2), (1,) * 12], [0, 0, 0, 6]),
    "seventeen-dims": ([(1, 2) * 8 + (1,), (2, 1) * 8 + (3,)], []),
    "many-dims-that-merge": ([(2,) * 12, (1,) * 6 + (2,) * 6], []),
    "ones-between": ([(1, 3, 1, 1, 4, 1, 5, 1, 1, 1), (4, 1, 1, 1, 1, 1)], []),
    "rank-twenty": ([(1,) * 17 + (3, 2, 4), (2, 4)], []),
    "just-below-a-chunk": ([(1023, 1), (1, 2)], []),
    "row-of-255": ([(9, 255), (9, 1), (255,)], []),
    "row-of-256": ([(9, 256), (9, 1), (256,)], []),
    "many-inputs": ([(3, 4, 5), *[(1, 4, 1), (3, 1, 5)] * 20], []),
}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", BROADCASTS)
def test_broadcast(library: TestLibrary, name: str, threads: int) -> None:
    shapes, pads = BROADCASTS[name]
    check(library, shapes, pads=pads, threads=threads)
    check(library, shapes, pads=pads, scalars=2, threads=threads)


@pytest.mark.parametrize("name", BROADCASTS)
def test_broadcast_of_mixed_sizes(library: TestLibrary, name: str) -> None:
    shapes, pads = BROADCASTS[name]
    sizes = ["u8", "f32", "i64", "f16", "bool", "i16", "f64", "bf16"]
    for first in range(4):
        dtypes = [sizes[(first + k) % len(sizes)] for k in range(len(shapes))]
        check(library, shapes, dtypes, pads)


def test_random_shapes(library: TestLibrary) -> None:
    random = np.random.default_rng(7)
    for _ in range(300):
        rank = int(random.integers(0, 7))
        full = [int(random.choice([1, 2, 3, 5, 8, 17, 40, 300])) for _ in range(rank)]
        while int(np.prod(full, dtype=np.int64)) > 30000:
            full[int(random.integers(rank))] = 1
        shapes: list[Shape] = []
        pads = []
        for _ in range(int(random.integers(1, 5))):
            keep = full[int(random.integers(0, rank + 1)) :]
            shape = [1 if random.random() < 0.3 else dim for dim in keep]
            ones = 0
            while random.random() < 0.7 and ones < 8 and shape and shape[-1] == 1:
                shape.pop()
                ones += 1
            shapes.append(tuple(shape))
            pads.append(ones)
        check(library, shapes, pads=pads, threads=int(random.integers(1, 3)))


def test_every_length(library: TestLibrary) -> None:
    """Tails of tiles: nothing is written beside the output (the buffers are guarded)."""
    for n in [*range(1, 300), 511, 512, 513, 1023, 1024, 1025]:
        check(library, [(n,), (n,), ()])


def test_every_row_length(library: TestLibrary) -> None:
    for n in range(1, 300, 7):
        check(library, [(5, n), (5, 1)])
        check(library, [(5, n), (n,)], ["u8", "f64"])


def test_every_alignment(library: TestLibrary) -> None:
    text = weighted_sum(["f32", "f64"])
    memory = np.zeros(4096, np.uint8)
    for offset in range(0, 64, 4):
        x = memory[offset : offset + 4 * 130].view(np.float32)
        x[:] = data((130,), "f32", offset)
        y = data((130,), "f64", 1)
        for h, w in zip(library.run(text, [x, y]), Program.parse(text).evaluate([x, y]), strict=True):
            np.testing.assert_array_equal(h, w)


THREADED: dict[str, tuple[list[Shape], list[int]]] = {
    "contiguous": ([(200_003,), (200_003,)], []),
    "rows": ([(67, 3001), (3001,), (67, 1)], []),
    "one-long-row-each": ([(3, 70_001), (3, 1)], []),
    "short-rows": ([(50_001, 3), (3,)], []),
    "short-columns": ([(50_001, 3), (50_001, 1)], []),
    "channels": ([(11, 37, 7, 31), (37,)], [0, 2]),
    "middle": ([(40, 1, 77, 13), (1, 3, 77, 1), (40, 3, 1, 13)], []),
    "repeats": ([(300, 4, 64), (64,), (4, 64), ()], []),
    "large-and-many": ([(1100, 331), (1100, 331), (1100, 331), (331,)], []),
}

# Inputs that do nothing but begin anew after a power of two of bytes; in the last two lists they do more, or are short.
REPEATS: list[list[Shape]] = [
    [(9, 64), (64,)], [(9, 128), (128,)], [(7, 256), (256,), (1,)], [(5, 4096), (4096,)], [(3, 8192), (8192,)],
    [(3, 2, 4, 128), (128,), (4, 128), (2, 4, 128)], [(512,), (6, 512)], [(6, 1, 256), (6, 5, 256), (5, 256)],
    [(9, 256), (256,), (9, 1)], [(9, 4, 32), (32,)],
]  # fmt: skip


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtypes", ["f32", "f16", "u8", "f64", "bool", "mixed"])
@pytest.mark.parametrize("shapes", REPEATS, ids=str)
def test_repeats(library: TestLibrary, shapes: list[Shape], dtypes: str, threads: int) -> None:
    mixed = ["f16", "f32", "u8", "i64"]
    check(library, shapes, [dtypes if dtypes != "mixed" else mixed[k] for k in range(len(shapes))], threads=threads)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("name", THREADED)
def test_threads(library: TestLibrary, name: str, threads: int) -> None:
    """Large enough to be split; every element is written once, by whichever thread."""
    shapes, pads = THREADED[name]
    check(library, shapes, pads=pads, threads=threads)


EMPTY: dict[str, tuple[list[Shape], list[int]]] = {
    "empty": ([(0,), (0,)], []),
    "empty-and-one": ([(0,), (1,)], []),
    "empty-and-scalar": ([(3, 0, 4), ()], []),
    "empty-row": ([(3, 0), (3, 1)], []),
    "empty-outer": ([(0, 5), (5,)], []),
    "both-empty": ([(0, 1), (1, 0)], []),
    "huge-and-empty": ([(1 << 40, 1, 0), (1, 1 << 40, 0)], []),
}


@pytest.mark.parametrize("name", EMPTY)
def test_empty(library: TestLibrary, name: str) -> None:
    shapes, pads = EMPTY[name]
    text = weighted_sum(["f32"] * len(shapes), pads)
    out = np.full(64, 7, np.float32)
    library.run(text, [np.empty(s, np.float32) for s in shapes], out=[out, out])
    assert (out == 7).all()


REFUSED: dict[str, tuple[list[Shape], list[int], str]] = {
    "different": (
        [(2, 3), (2, 4)], [],
        r"input 1 \(x0\) of shape \[2,3\] and input 2 \(x1\) of shape \[2,4\] do not broadcast",
    ),
    "zero": ([(0,), (3,)], [], r"shape \[0\] and input 2 \(x1\) of shape \[3\]"),
    "third": ([(5, 1), (1, 3), (4, 3)], [], r"input 1 \(x0\) of shape \[5,1\] and input 3 \(x2\) of shape \[4,3\]"),
    "scalar-between": ([(2,), (), (3,)], [], r"input 1 .* and input 3 \(x2\)"),
    "pad": ([(2, 3, 4), (2,)], [0, 1], r"input 2 \(x1\) of shape \[2\] with pad 1 do not broadcast"),
    "too-large": ([(1 << 40, 1), (1, 1 << 40)], [], "too large"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(library: TestLibrary, name: str) -> None:
    shapes, pads, words = REFUSED[name]
    text = weighted_sum(["f32"] * len(shapes), pads)
    xs = [np.broadcast_to(np.float32(0), s) for s in shapes]  # the huge ones are never read
    xs = [x if x.size > 1 << 30 else np.ascontiguousarray(x) for x in xs]
    with pytest.raises(LibraryError, match=words) as caught:
        library.run(text, xs, out=[np.zeros(1, np.float32)] * 2, contiguous=False)
    assert caught.value.code == 2


def inplace_text(pads: Sequence[int] = (0, 0)) -> str:
    return "onnxfuse 1\n" + "".join(
        f"in x{k} f32" + (f" pad {p}\n" if p else "\n") for k, p in enumerate(pads)
    ) + "t0 = sub.f32 x0 x1\nt1 = mul.f32 t0 x1\nout t1\nout t0\n"  # fmt: skip


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((1000,), (1000,)), ((50, 300), (300,)), ((500, 3), (3,)), ((500, 3), (500, 1)), ((70, 3001), (70, 1)),
        ((5,), ()), ((60, 256), (256,)),
    ],
    ids=str,
)  # fmt: skip
def test_in_place(library: TestLibrary, first: Shape, second: Shape, threads: int) -> None:
    text = inplace_text()
    x, y = data(first, "f32", 1), data(second, "f32", 2)
    want = Program.parse(text).evaluate([x, y])
    for reused in (0, 1):
        own = x.copy()
        outputs = [np.empty(first, np.float32), np.empty(first, np.float32)]
        outputs[reused] = own
        library.run(text, [own, y], out=outputs, threads=threads)
        for h, w in zip(outputs, want, strict=True):
            np.testing.assert_array_equal(h, w)


def test_same_memory_other_type(library: TestLibrary) -> None:
    """In place with another type of the same size, and of another size (kept aside)."""
    text = "onnxfuse 1\nin x0 f32\nt0 = cast.f32.i32 x0\nt1 = cast.f32.u8 x0\nout t0\nout t1\n"
    x = data((5000,), "f32", 1)
    want = Program.parse(text).evaluate([x])
    own = x.copy()
    small = np.empty(x.shape, np.uint8)
    library.run(text, [own], out=[own.view(np.int32), small])
    np.testing.assert_array_equal(own.view(np.int32), want[0])
    np.testing.assert_array_equal(small, want[1])
    own = x.copy()
    wide = np.empty(x.shape, np.int32)
    library.run(text, [own], out=[wide, own.view(np.uint8)[:5000]])
    np.testing.assert_array_equal(wide, want[0])
    np.testing.assert_array_equal(own.view(np.uint8)[:5000], want[1])


def test_one_value_twice_and_an_input_that_leaves(library: TestLibrary) -> None:
    text = "onnxfuse 1\nin x0 f32\nin x1 i64\nt0 = neg.f32 x0\nout t0\nout t0\nout x0\nout x1\n"
    xs = [data((3, 1), "f32", 1), data((1, 500), "i64", 2)]
    for h, w in zip(library.run(text, xs), Program.parse(text).evaluate(xs), strict=True):
        np.testing.assert_array_equal(h, w)


@pytest.mark.parametrize("half", ["f16", "bf16"])
def test_half_values_held_as_f32(library: TestLibrary, half: str) -> None:
    """The runtime may hold a half value as float32, on either side; the values are the same."""
    text = (f"onnxfuse 1\nin x0 {half}\nin x1 {half}\nt0 = cast.{half}.f32 x0\nt1 = cast.{half}.f32 x1\n"
            f"t2 = mul.f32 t0 t1\nt3 = cast.f32.{half} t2\nout t3\nout x1\n")  # fmt: skip
    for shapes in ([(700,), (700,)], [(300, 2), (2,)], [(3, 300), (3, 1)]):
        xs = [(data(s, "f32", k) / 7).astype(NUMPY[half]) for k, s in enumerate(shapes)]
        want = [w.astype(np.float32) for w in Program.parse(text).evaluate(xs)]
        for wide in itertools.product([None, "f32"], repeat=4):
            arrays = [x if w is None else x.astype(np.float32) for x, w in zip(xs, wide[:2], strict=True)]
            have = library.run(text, arrays, in_storage=wide[:2], out_storage=wide[2:])
            for h, w in zip(have, want, strict=True):
                np.testing.assert_array_equal(h.astype(np.float32), w)


def test_many_wide_inputs(library: TestLibrary) -> None:
    """More expanded inputs than the small scratch holds."""
    shapes: list[Shape] = [(50, 2, 3), *[(1, 2, 1), (50, 1, 3), (50, 1, 1)] * 20]
    check(library, shapes, ["f64"] * len(shapes))


def test_deep_program(library: TestLibrary) -> None:
    """4,096 statements, and many values alive at once."""
    lines = ["onnxfuse 1", "in x0 f32"]
    lines += [f"t{k} = add.f32 {f't{k - 1}' if k else 'x0'} x0" for k in range(2048)]
    lines += [f"t{2048 + k} = sub.f32 {f't{2047 + k}'} t{2047 - k}" for k in range(2048)]
    text = "\n".join([*lines, "out t4095", "out t1000"]) + "\n"
    x = np.arange(-300, 300, dtype=np.float32) / 4
    for h, w in zip(library.run(text, [x], threads=2), Program.parse(text).evaluate([x]), strict=True):
        np.testing.assert_array_equal(h, w)
