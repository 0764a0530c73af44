"""Outputs in the memory of inputs, in every way that a caller may bind them: views of one buffer that agree, overlap by
some elements or bytes, cross, or hold an operand that is read again and again. The values are those of the oracle, and
nothing but the outputs changes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnxruntime
import pytest

from onnxfuse.program import Builder, Program
from onnxfuse.program.dtypes import NUMPY
from onnxfuse.program.instructions import BYTES
from tests.custom_ops.fused_model import fused_model
from tests.custom_ops.handmade import MIXED, SUB, mixed_model, one, sub_model
from tests.custom_ops.library import TestLibrary
from tests.custom_ops.test_session import session

Shape = tuple[int, ...]
# Contiguous in one part and in many, rows, columns, chunks, single elements.
SHAPES: list[list[Shape]] = [
    [(1,), (1,)], [(63,), (63,)], [(1001,), (1001,)], [(70_001,), (70_001,)], [(300,), ()], [(5, 300), (300,)],
    [(5, 300), (5, 1)], [(200, 3), (3,)], [(200, 3), (200, 1)], [(30_000, 3), (3,)], [(9, 1), (1, 40)],
    [(4, 1500), (1500,)], [(2, 1, 2, 1, 2, 1, 2, 1, 3), (1, 2, 1, 2, 1, 2, 1, 2, 1)],
    [(2,) * 9, (2, 1, 2, 1, 2, 1, 2, 1, 2)],
]  # fmt: skip


@dataclasses.dataclass
class Buffer:
    """One stretch of memory with everything in it, and a copy of how it was."""

    memory: np.ndarray
    before: np.ndarray

    @classmethod
    def of(cls, size: int, seed: int) -> Buffer:
        """Random bytes; as floats of any type they are small numbers, none of them NaN."""
        memory = (np.random.default_rng(seed).integers(0, 256, size + 64) & 0xBF).astype(np.uint8)
        memory = memory[-memory.ctypes.data % 64 :][:size]
        return cls(memory, memory.copy())

    def view(self, begin: int, shape: Shape, dtype: str, *, before: bool = False) -> np.ndarray:
        """`begin`: in bytes."""
        size = int(np.prod(shape, dtype=np.int64)) * BYTES[dtype]
        raw = (self.before if before else self.memory)[begin : begin + size]
        assert raw.size == size
        array: np.ndarray = raw.view(NUMPY[dtype]).reshape(shape)
        return array

    def check_rest(self, outputs: Sequence[np.ndarray]) -> None:
        """Nothing beside the outputs has changed."""
        same = self.memory == self.before
        for out in outputs:
            begin = out.ctypes.data - self.memory.ctypes.data
            same[begin : begin + out.nbytes] = True
        assert same.all(), f"written at byte {int(np.flatnonzero(~same)[0])}, beside the outputs"


@dataclasses.dataclass
class Layout:
    """Where each operand of a program begins in the buffer, in bytes."""

    size: int
    inputs: list[int]
    outputs: list[int]


def whole(shapes: Sequence[Shape]) -> Shape:
    return np.broadcast_shapes(*shapes)


def check_driver(
    library: TestLibrary, program: Program, shapes: Sequence[Shape], layout: Layout, threads: int, seed: int = 0
) -> None:
    buffer = Buffer.of(layout.size, seed)
    types = [i.dtype for i in program.inputs]
    places = list(zip(layout.inputs, shapes, types, strict=True))
    want = program.evaluate([buffer.view(*place, before=True) for place in places])
    out = [buffer.view(begin, whole(shapes), program.dtype_of(o))
           for begin, o in zip(layout.outputs, program.outputs, strict=True)]  # fmt: skip
    library.run(program.text, [buffer.view(*place) for place in places], out=out, threads=threads)
    for k, (h, w) in enumerate(zip(out, want, strict=True)):
        np.testing.assert_array_equal(h, w, f"output {k} of {layout} for {shapes}")
    buffer.check_rest(out)


def two_outputs(dtype: str) -> Program:
    """(x0 - x1) * x1 and x0 - x1."""
    b = Builder()
    x, y = b.input(dtype), b.input(dtype)
    first, second = (b.emit("cast", v, to="f32") if BYTES[dtype] == 2 else v for v in (x, y))
    difference = b.emit("sub", first, second)
    for value in (b.emit("mul", difference, second), difference):
        b.output(b.emit("cast", value, to=dtype) if BYTES[dtype] == 2 else value)
    return b.build()


N = 700


def shifted(element: int) -> dict[str, Layout]:
    """Layouts of two inputs and two outputs of N elements; distances in elements."""
    def of(*places: float) -> Layout:
        begins = [round(p * element) for p in places]
        return Layout(6 * N * element, begins[:2], begins[2:])

    layouts = {
        "over-first": of(0, N, 0, 2 * N), "over-second": of(0, N, N, 2 * N), "over-both": of(0, N, 0, N),
        "over-both-swapped": of(0, N, N, 0), "one-input": of(0, 0, 0, N), "one-input-second": of(0, 0, N, 0),
        "inputs-overlap-over-first": of(0, 1, 0, 2 * N), "inputs-overlap-over-second": of(0, 1, 1, 2 * N),
        "inputs-overlap-back-over-first": of(1, 0, 1, 2 * N), "across-both": of(0, N, N // 2, 2 * N),
        "across-both-behind": of(N, 2 * N, N // 2, 3 * N), "both-across": of(N, 2 * N, N // 2, N // 2 + N),
        "both-across-swapped": of(N, 2 * N, N // 2 + N, N // 2), "first-over-second-across": of(N, 2 * N, N, 2 * N + 9),
        "second-over-first-across": of(N, 2 * N, 2 * N + 9, N),
        "a-byte-more": of(N, 2 * N, N + 1 / element, 4 * N),
        "unaligned": of(1 / element, N + 3 / element, 1 / element, 2 * N + 5 / element),
    }  # fmt: skip
    for distance in (1, 7, 8, 31, 32, 63, 64, 65, 128, 255, N - 1):
        layouts[f"forward-{distance}"] = of(N, 3 * N, N + distance, 4 * N)
        layouts[f"back-{distance}"] = of(N, 3 * N, N - distance, 4 * N)
    return layouts


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", ["f32", "f16", "u8", "i64"])
@pytest.mark.parametrize("name", shifted(4))
def test_views_of_one_buffer(library: TestLibrary, name: str, dtype: str, threads: int) -> None:
    layout = shifted(BYTES[dtype])[name]
    check_driver(library, two_outputs(dtype), [(N,), (N,)], layout, threads)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("shapes", [s for s in SHAPES if s[0] != s[1]], ids=str)
def test_output_over_a_broadcast_operand(library: TestLibrary, shapes: list[Shape], threads: int) -> None:
    """An operand that is read again and again lies at the beginning of an output, within it or at its end, or an output
    ends within the operand."""
    program = two_outputs("f32")
    out = 4 * int(np.prod(whole(shapes)))
    first, second = (4 * int(np.prod(s)) for s in shapes)
    for begin in (0, out // 8 * 4, out - second, out - 4):
        check_driver(library, program, shapes, Layout(4 * out + second, [3 * out, begin], [0, 2 * out]), threads)
        check_driver(library, program, shapes, Layout(4 * out + second, [2 * out, begin], [2 * out, 0]), threads)
    if first < out:
        check_driver(library, program, shapes, Layout(4 * out, [4, out], [0, out]), threads)


def mixed_program(rng: np.random.Generator, types: Sequence[str]) -> Program:
    """Outputs of several types, each exact."""
    b = Builder()
    xs = [b.input(t) for t in types]
    wide = [x if t == "f32" else b.emit("cast", x, to="f32") for x, t in zip(xs, types, strict=True)]
    total = wide[0]
    for value in wide[1:]:
        total = b.emit("sub", total, value)
    outputs = [total, b.emit("cast", total, to="f16"), b.emit("lt", total, wide[0]), xs[0],
               b.emit("cast", b.emit("mul", total, wide[-1]), to="f64")]  # fmt: skip
    for k in rng.permutation(len(outputs))[: rng.integers(1, 4)]:
        b.output(outputs[k])
    return b.build()


def random_layout(
    rng: np.random.Generator, inputs: Sequence[int], outputs: Sequence[int], elements: Sequence[int]
) -> Layout:
    """Outputs apart from each other, at any byte or at an element; inputs anywhere, often where an output is. Sizes in
    bytes; `elements`: of the inputs."""
    places, begin = [0] * len(outputs), 0
    for k in rng.permutation(len(outputs)):
        begin += int(rng.choice([0, 0, 8, 64, int(rng.integers(0, 200))]))
        begin = begin if rng.random() < 0.2 else -(-begin // 8) * 8
        places[k] = begin
        begin += outputs[k]
    size = begin + max(inputs) + 256
    found = []
    for bytes_, element in zip(inputs, elements, strict=True):
        if rng.random() < 0.7:
            distance = int(rng.choice([0, 0, 0, 1, -1, 5, -64, 64, int(rng.integers(-99, 99))]))
            nearby = int(rng.choice(places)) + element * distance
        else:
            nearby = int(rng.integers(0, size))
        found.append(min(max(nearby, 0), size - bytes_))
    return Layout(size, found, places)


@pytest.mark.parametrize("streamed", [False, True], indirect=True)
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.usefixtures("streamed")
def test_random_views_of_one_buffer(library: TestLibrary, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for k in range(10):
        shapes = list(SHAPES[rng.integers(len(SHAPES))])
        types = [str(t) for t in rng.choice(["f32", "f32", "u8", "i16", "f16", "i64", "f64"], len(shapes))]
        if rng.random() < 0.3:
            shapes.append(shapes[0])
            types.append(types[0])
        program = mixed_program(rng, types)
        count = int(np.prod(whole(shapes), dtype=np.int64))
        layout = random_layout(
            rng, [int(np.prod(s, dtype=np.int64)) * BYTES[t] for s, t in zip(shapes, types, strict=True)],
            [count * BYTES[program.dtype_of(o)] for o in program.outputs], [BYTES[t] for t in types],
        )  # fmt: skip
        check_driver(library, program, shapes, layout, 1 + k % 2, seed)


# ---- the same in ONNX Runtime, bound by address


def bound_run(
    s: onnxruntime.InferenceSession, buffer: Buffer, inputs: dict[str, tuple[int, Shape, str]],
    outputs: dict[str, tuple[int, Shape, str]],
) -> None:  # fmt: skip
    binding = s.io_binding()
    address = buffer.memory.ctypes.data
    for name, (begin, shape, dtype) in inputs.items():
        binding.bind_input(name, "cpu", 0, NUMPY[dtype].type, list(shape), address + begin)
    for name, (begin, shape, dtype) in outputs.items():
        binding.bind_output(name, "cpu", 0, NUMPY[dtype].type, list(shape), address + begin)
    s.run_with_iobinding(binding)


def check_session(s: onnxruntime.InferenceSession, program: Program, names: tuple[str, str], shapes: Sequence[Shape],
                  layout: Layout, seed: int = 0) -> None:  # fmt: skip
    """`names`: of the inputs and of the outputs, one letter each."""
    buffer = Buffer.of(layout.size, seed)
    types = [i.dtype for i in program.inputs]
    inputs = dict(zip(names[0], zip(layout.inputs, shapes, types, strict=True), strict=True))
    full = [(begin, whole(shapes), program.dtype_of(o))
            for begin, o in zip(layout.outputs, program.outputs, strict=True)]  # fmt: skip
    want = program.evaluate([buffer.view(*place, before=True) for place in inputs.values()])
    out = [buffer.view(*place) for place in full]
    bound_run(s, buffer, inputs, dict(zip(names[1], full, strict=True)))
    for k, (h, w) in enumerate(zip(out, want, strict=True)):
        np.testing.assert_array_equal(h, w, f"output {k} of {layout} for {shapes}")
    buffer.check_rest(out)


TWO = "FusedElementwise1 (kernels, x0, x1) => (y0, y1) { y1 = Sub(x0, x1) y0 = Mul(y1, x1) }"


@pytest.mark.parametrize("threads", [1, 2])
def test_views_bound_in_a_session(ort_library: str, threads: int) -> None:
    """The layouts above, by address; a tensor of the runtime may lie anywhere."""
    program = two_outputs("f32")
    op = "FusedElementwise1"
    model = fused_model(
        "g (float[N] x, float[N] b) => (float[N] y, float[N] z) { y, z = onnxfuse.FusedElementwise1(kernels, x, b) }",
        {op: TWO}, {op: program.text},
    )  # fmt: skip
    s = session(model, ort_library, threads=threads)
    for layout in shifted(4).values():
        check_session(s, program, ("xb", "yz"), [(N,), (N,)], layout)


@pytest.mark.parametrize("threads", [1, 2])
def test_random_views_bound_in_a_session(ort_library: str, threads: int) -> None:
    s = session(sub_model(one("float[N, M] x, float[K, L] b", "float[N, M]")), ort_library, threads=threads)
    program = Program.parse(SUB)
    rng = np.random.default_rng(5)
    for seed in range(60):
        rows, columns = [(1, 1001), (5, 300), (200, 3), (30_000, 3), (3, 40_001)][rng.integers(5)]
        shapes: list[Shape] = [(rows, columns), (int(rng.choice([1, rows])), int(rng.choice([1, columns])))]
        sizes = [4 * int(np.prod(shape)) for shape in shapes]
        check_session(s, program, ("xb", "y"), shapes, random_layout(rng, sizes, sizes[:1], [4, 4]), seed)


def test_views_of_mixed_types_bound_in_a_session(ort_library: str) -> None:
    """Three outputs of three types: over one input, then across all."""
    s = session(mixed_model(), ort_library, threads=2)
    for layout in (Layout(208_000, [0, 60_000, 90_000], [0, 100_000, 112_000]),
                   Layout(160_000, [0, 50_000, 52_000], [4, 49_000, 64_000])):  # fmt: skip
        check_session(s, Program.parse(MIXED), ("xim", "abc"), [(3000, 4), (4,), (3000, 1)], layout)
