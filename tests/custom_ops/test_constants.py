"""Initializers among the inputs of a fused node: what the library makes of them when a kernel is created must hold for
every shape of the others, for every run and on every thread."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import onnxruntime
import pytest

from onnxfuse.program import Builder, Program
from onnxfuse.program.dtypes import NUMPY
from tests.custom_ops.fused_model import fused_model
from tests.custom_ops.test_concurrency import together
from tests.custom_ops.test_session import run, session

Shape = tuple[int, ...]
ELEMENT = {"f32": "float", "f16": "float16", "f64": "double", "u8": "uint8", "i64": "int64", "bool": "bool"}


@dataclasses.dataclass(frozen=True)
class Case:
    program: Program
    constants: dict[int, Shape]
    """The inputs that are initializers, and their shapes; numbers of their types between 0.5 and 4."""
    shapes: tuple[Shape, ...]
    """Of the other inputs, all alike."""


IMAGES = ((2, 6, 5, 7), (1, 6, 1, 1), (0, 6, 5, 7), (1, 6, 1, 300), (3, 6, 64, 64), (5, 6, 2, 1), (2, 6, 190, 190))
ROWS = ((1, 3), (5, 3), (0, 3), (700, 3), (64, 64, 3), (70_001, 3), (2, 1, 3))
ANY = ((300,), (1,), (1, 300), (7, 300), (0, 300), (400, 300), (7, 1), ())


def normalization() -> Program:
    """(x - mean) / sqrt(variance + e) * scale + bias: half of it depends on initializers alone."""
    b = Builder()
    x, mean, variance, scale, bias = (b.input("f32") for _ in range(5))
    spread = b.emit("sqrt", b.emit("add", variance, b.const("f32", 1e-3)))
    b.output(b.emit("add", b.emit("mul", b.emit("div", b.emit("sub", x, mean), spread), scale), bias))
    return b.build()


def image() -> Program:
    b = Builder()
    x, mean, scale = b.input("u8"), b.input("f32"), b.input("f32")
    b.output(b.emit("div", b.emit("sub", b.emit("cast", x, to="f32"), mean), scale))
    return b.build()


def half_scale() -> Program:
    b = Builder()
    x, scale = (b.emit("cast", b.input("f16"), to="f32") for _ in range(2))
    b.output(b.emit("cast", b.emit("mul", x, scale), to="f16"))
    return b.build()


def mask() -> Program:
    """A constant condition, and a constant that is an output as well."""
    b = Builder()
    x, m, other = b.input("f32"), b.input("bool"), b.input("f32")
    b.output(b.emit("select", m, b.emit("neg", x), other))
    b.output(other)
    return b.build()


def wide() -> Program:
    b = Builder()
    x, step, scale = b.input("i64"), b.input("i64"), b.input("f64")
    total = b.emit("add", x, b.emit("mul", step, step))
    b.output(total)
    b.output(b.emit("mul", b.emit("cast", total, to="f64"), b.emit("neg", scale)))
    return b.build()


CASES = {
    "channels": Case(normalization(), dict.fromkeys(range(1, 5), (6, 1, 1)), IMAGES),
    "channels-and-one": Case(normalization(), {1: (6, 1, 1), 2: (1,), 3: (), 4: (1, 6, 1, 1)}, IMAGES),
    "columns": Case(normalization(), dict.fromkeys(range(1, 5), (3,)), ROWS),
    "crossed": Case(normalization(), {1: (6, 1, 1), 2: (5, 1), 3: (7,), 4: (6, 5, 7)}, ((2, 6, 5, 7), (6, 5, 7), (1,))),
    "larger-than-the-input": Case(normalization(), {1: (4, 300), 2: (300,), 3: (4, 1), 4: (4, 1)},
                                  ((300,), (1,), (), (4, 300), (4, 1))),
    "many-channels": Case(normalization(), dict.fromkeys(range(1, 5), (300,)), ANY),
    "large": Case(normalization(), dict.fromkeys(range(1, 5), (70_000,)), ((70_000,), (1,), (3, 70_000))),
    "empty": Case(normalization(), dict.fromkeys(range(1, 5), (0,)), ((0,), (1,), (3, 0))),
    "all-of-them": Case(normalization(), dict.fromkeys(range(5), (6, 1, 1)), ((),)),
    "image": Case(image(), {1: (3,), 2: (3,)}, ROWS),
    "image-by-one": Case(image(), {1: (1,), 2: ()}, ROWS),
    "half": Case(half_scale(), {1: (3,)}, ROWS),
    "half-first": Case(half_scale(), {0: (6, 1, 1)}, IMAGES),
    "mask": Case(mask(), {1: (3,), 2: (1, 3)}, ROWS),
    "wide": Case(wide(), {1: (3,), 2: (1,)}, ROWS),
    "wide-channels": Case(wide(), {1: (6, 1, 1), 2: (6, 1, 1)}, IMAGES),
}  # fmt: skip


def values(shape: Shape, dtype: str, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed).uniform(0.5, 4, shape) * (20 if dtype == "u8" else 1)
    return np.asarray(random > 2 if dtype == "bool" else random.astype(NUMPY[dtype]))


def constants_of(case: Case) -> dict[str, np.ndarray]:
    return {f"k{n}": values(s, case.program.inputs[n].dtype, n) for n, s in case.constants.items()}


def model_of(case: Case) -> onnx.ModelProto:
    """Inputs x0, ...; initializers k0, ...; outputs y0, ... The body says something else than the program."""
    program, op = case.program, "FusedElementwise1"
    names = [f"k{n}" if n in case.constants else f"x{n}" for n in range(len(program.inputs))]
    free = [f"{ELEMENT[i.dtype]}[] {name}" for i, name in zip(program.inputs, names, strict=True) if name[0] == "x"]
    outputs = [f"y{n}" for n in range(len(program.outputs))]
    declared = [f"{ELEMENT[program.dtype_of(o)]}[] {y}" for o, y in zip(program.outputs, outputs, strict=True)]
    inputs = ", ".join(f"x{n}" for n in range(len(names)))
    body = " ".join(f"{y} = Cast<to = {onnx.helper.np_dtype_to_tensor_dtype(NUMPY[program.dtype_of(o)])}>(x0)"
                    for o, y in zip(program.outputs, outputs, strict=True))  # fmt: skip
    return fused_model(
        f"g ({', '.join(free)}) => ({', '.join(declared)}) "
        f"{{ {', '.join(outputs)} = onnxfuse.{op}(kernels, {', '.join(names)}) }}",
        {op: f"{op} (kernels, {inputs}) => ({', '.join(outputs)}) {{ {body} }}"}, {op: program.text},
        initializers=constants_of(case), checked=False,
    )  # fmt: skip


def check(case: Case, s: onnxruntime.InferenceSession, shape: Shape, seed: int) -> None:
    constants = constants_of(case)
    inputs = {f"x{n}": values(shape, i.dtype, seed + 50) for n, i in enumerate(case.program.inputs)
              if n not in case.constants}  # fmt: skip
    both = {int(name[1:]): value for name, value in [*constants.items(), *inputs.items()]}
    want = case.program.evaluate([both[n] for n in range(len(both))])
    for have, true in zip(run(s, **inputs), want, strict=True):
        np.testing.assert_array_equal(have, true)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_every_shape_on_one_session(ort_library: str, name: str, threads: int) -> None:
    """Forward and back, so that nothing remains of the shape before."""
    case = CASES[name]
    s = session(model_of(case), ort_library, threads=threads)
    for k, shape in enumerate([*case.shapes, *reversed(case.shapes)]):
        check(case, s, shape, k)


@pytest.mark.parametrize("name", ["channels", "columns", "crossed", "wide"])
def test_shapes_at_the_same_time(ort_library: str, name: str) -> None:
    case = CASES[name]
    s = session(model_of(case), ort_library, threads=2)

    def work(seed: int) -> None:
        for k in range(2 * len(case.shapes)):
            check(case, s, case.shapes[(k + seed) % len(case.shapes)], seed)

    together([lambda seed=seed: work(seed) for seed in range(6)])  # type: ignore[misc]


def test_an_initializer_that_enters_twice(ort_library: str) -> None:
    text = "onnxfuse 1\nin x0 f32\nin x1 f32\nin x2 f32\nt0 = sub.f32 x0 x1\nt1 = mul.f32 t0 x2\nout t1\n"
    op = "FusedElementwise1"
    model = fused_model(
        "g (float[N, 4] x) => (float[N, 4] y) { y = onnxfuse.FusedElementwise1(kernels, x, w, w) }",
        {op: f"{op} (kernels, x0, x1, x2) => (y0) {{ y0 = Add(x0, x1) }}"}, {op: text},
        initializers={"w": np.arange(1, 5, dtype=np.float32)},
    )  # fmt: skip
    s = session(model, ort_library)
    w = np.arange(1, 5, dtype=np.float32)
    for rows in (1, 3, 500):
        x = values((rows, 4), "f32", rows)
        np.testing.assert_array_equal(run(s, x=x)[0], (x - w) * w)
