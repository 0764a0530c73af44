"""The native part of the bench computes what it is compared with, and writes nothing but its outputs."""

from __future__ import annotations

import contextlib
import functools
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import numpy_helper

import onnxfuse
from benchmarks import native
from benchmarks.chains import CHAINS, Case, chain
from onnxfuse.timing import Repeated

SPECIAL = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 1e-45, 88.8, -88.8, -104.0, 6e4, -6e4, 3e38, 1.0, -3.0, 0.5]
)
SHAPES: dict[str, tuple[tuple[int, ...], ...]] = {
    "bias_residual": ((1, 256), (3, 37), (40, 256)),
    "channel_silu": ((2, 3, 5, 7), (1, 4, 1, 1), (2, 3, 40, 40)),
    "normalize_u8": ((1, 3), (5, 17, 3), (60, 61, 3)),
}
FLAT = ((1,), (7,), (33,), (4099,), (8192 + 67,))  # the last one is split over threads

# ONNX Runtime makes one node of this chain, so nothing is fused.
GELU_ERF = """onnxfuse 1
in x0 f32
in c0 f32
in c1 f32
in c2 f32
t0 = div.f32 x0 c0
t1 = erf.f32 t0
t2 = add.f32 t1 c1
t3 = mul.f32 x0 t2
t4 = mul.f32 t3 c2
out t4
"""


@functools.cache
def fused(name: str, dtype: str) -> tuple[str, tuple[str, ...], list[np.ndarray]]:
    """The program of a chain, the names of its tensors in the model, and its scalars."""
    case = chain(name).case(1 << 20, dtype)
    if name == "gelu_erf":
        return GELU_ERF, ("x",), [case.scalars[name] for name in ("root", "one", "half")]
    (node,) = onnxfuse.optimize(case.model, validate=False).model.graph.node
    attributes = {a.name: a for a in node.attribute}
    count = sum(name[0] == "c" and name[1:].isdigit() for name in attributes)
    scalars = [numpy_helper.to_array(attributes[f"c{k}"].t) for k in range(count)]
    return attributes["program"].s.decode(), tuple(node.input[1:]), scalars


def cases() -> Iterator[Case]:
    for one in CHAINS:
        for dtype in ("float32", "float16") if one.half else ("float32",):
            for shape in SHAPES.get(one.name, FLAT):
                yield Case(one, 0, shape, np.dtype(dtype), seed=1)


def with_specials(case: Case) -> dict[str, np.ndarray]:
    """Graph inputs and vectors by name; a quarter of the floats are special values."""
    rng = np.random.default_rng(7)
    for array in case.feed.values():
        if array.dtype.kind == "f":
            flat = array.reshape(-1)
            chosen = rng.random(flat.size) < 0.25
            with np.errstate(over="ignore"):
                flat[chosen] = rng.choice(SPECIAL, int(chosen.sum())).astype(array.dtype)
    return {**case.feed, **case.vectors}


def outputs_of(case: Case) -> list[np.ndarray]:
    return [np.full(case.shape, -7, case.dtype) for _ in case.chain.outputs]


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal bits; a NaN may be any, as its sign and payload depend on the order of operands."""
    word = np.dtype(f"u{a.itemsize}")
    return bool(((a.view(word) == b.view(word)) | (np.isnan(a) & np.isnan(b))).all())


@pytest.fixture(scope="module")
def isas() -> list[str]:
    """The instruction sets of this processor."""
    found = []
    for name in native.ISAS:
        with contextlib.suppress(native.NativeError):
            native.Copy([np.zeros(64)], [np.zeros(64)], isa=name)
            found.append(name)
    assert len(found) > 1, "the best one, and its name"
    return found


@pytest.mark.parametrize("case", list(cases()), ids=lambda c: f"{c.chain.name}-{c.dtype}-{'x'.join(map(str, c.shape))}")
def test_hand_has_the_bits_of_the_engine(case: Case, isas: list[str]) -> None:
    tensors = with_specials(case)
    program, names, scalars = fused(case.chain.name, str(case.dtype))
    operands = list(case.operands.values())
    for isa in isas:
        want = outputs_of(case)
        native.Engine(program, [tensors[name] for name in names], scalars, want, isa=isa).run(1)
        for unroll, threads in itertools.product(native.UNROLLS, (1, 2)):
            got = outputs_of(case)
            native.Hand(case.chain.name, operands, got, isa=isa, threads=threads, unroll=unroll).run(2)
            assert all(map(same_bits, want, got)), f"{isa}, {unroll} vectors, {threads} threads"


def test_engine_on_two_threads() -> None:
    program, names, _ = fused("swiglu", "float32")
    case = Case(chain("swiglu"), 0, (70001,), np.dtype(np.float32), seed=2)
    results = []
    for threads in (1, 2):
        results.append(outputs_of(case))
        native.Engine(program, [case.feed[n] for n in names], [], results[-1], threads=threads).run(3)
    assert same_bits(results[0][0], results[1][0])


def test_fastest_unroll_is_taken() -> None:
    x = np.ones(1000, np.float32)
    hand = native.Hand("hardswish", [x], [np.empty_like(x)])
    assert hand.unroll in native.UNROLLS
    assert isinstance(hand, Repeated)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("size", [1, 64, 1000, 65536 + 5])
def test_copy_reads_and_writes_everything(isas: list[str], streaming: bool, threads: int, size: int) -> None:
    for isa in isas:
        check_copy(isa, streaming, threads, size)


def check_copy(isa: str, streaming: bool, threads: int, size: int) -> None:
    inputs: list[np.ndarray] = [np.zeros(size, np.float32), np.zeros(size, np.uint8), np.zeros(1, np.uint8)]
    outputs = [native.aligned((size,), np.float32) for _ in range(2)]
    for output in outputs:
        output.fill(np.nan)
    native.Copy(inputs, outputs, streaming=streaming, isa=isa, threads=threads).run(1)
    assert all((output == 0).all() for output in outputs)
    inputs[0][:] = np.arange(size)
    native.Copy(inputs[:1], outputs[:1], streaming=streaming, isa=isa, threads=threads).run(1)
    whole = size // 16 * 16
    assert (outputs[0][:whole] == inputs[0][:whole]).all()
    assert (outputs[1] == 0).all()


def session(case: Case, **options: object) -> tuple[native.OrtSession, dict[str, np.ndarray]]:
    outputs = case.outputs()
    return native.OrtSession(case.model.SerializeToString(), case.feed, outputs, **options), outputs  # type: ignore[arg-type]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["swiglu", "lstm", "where_mask", "normalize_u8"])
def test_session_gives_what_pythons_gives(name: str, threads: int) -> None:
    case = chain(name).case(256)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    want = onnxruntime.InferenceSession(
        case.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    ).run(list(case.chain.outputs), dict(case.feed))
    bound, outputs = session(case, threads=threads)
    bound.run(2)
    assert all(np.array_equal(a, b) for a, b in zip(want, outputs.values(), strict=True))


def test_session_after_other_libraries(test_library: Path) -> None:
    """A library that came first may have the symbols that keep this one in memory."""
    code = (
        "import ctypes, sys\n"
        "from benchmarks import native\n"
        "from benchmarks.chains import chain\n"
        "ctypes.CDLL(sys.argv[1])\n"
        "case = chain('swiglu').case(256)\n"
        "native.OrtSession(case.model.SerializeToString(), case.feed, case.outputs()).run(1)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(test_library)], check=True, cwd=Path(native.__file__).parent.parent)


def test_session_with_the_library() -> None:
    case = chain("swiglu").case(256)
    fused_model = onnxfuse.optimize(chain("swiglu").case(1 << 20).model, validate=False).model
    for value in (*fused_model.graph.input, *fused_model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 256
    outputs = case.outputs()
    names = {"onnxfuse.names": "FusedElementwise:3"}
    library = native.library_path().with_name(native.library_path().name.replace("_bench", ""))
    native.OrtSession(fused_model.SerializeToString(), case.feed, outputs, library=library, config=names).run(1)
    program, inputs, scalars = fused("swiglu", "float32")
    want = outputs_of(case)
    native.Engine(program, [case.feed[name] for name in inputs], scalars, want).run(1)
    assert same_bits(want[0], outputs["out"])


def test_what_is_wrong_is_said() -> None:
    case = chain("swiglu").case(256)
    model, x = case.model.SerializeToString(), np.zeros(256, np.float32)
    with pytest.raises(native.NativeError, match="protobuf"):
        native.OrtSession(b"no model", {}, {})
    with pytest.raises(native.NativeError, match="nothing"):
        native.OrtSession(model, {"nothing": x}, case.outputs())
    with pytest.raises(native.NativeError, match="dimensions"):
        native.OrtSession(model, {"a": x[:5], "b": x[:5]}, case.outputs())
    with pytest.raises(native.NativeError, match=r"missing\.so"):
        native.OrtSession(model, case.feed, case.outputs(), library="missing.so")
    with pytest.raises(native.NativeError, match="no loop is written by hand for sinh of f32"):
        native.Hand("sinh", [x], [x], unroll=1)
    with pytest.raises(native.NativeError, match="2 inputs"):
        native.Hand("swiglu", [x], [x.copy()], unroll=1)
    with pytest.raises(native.NativeError, match="not contiguous"):
        native.Hand("swiglu", [x[::2], x[::2]], [x[::2]], unroll=1)
    with pytest.raises(native.NativeError, match="2 inputs"):
        native.Engine(fused("swiglu", "float32")[0], [x], [], [x.copy()])
    with pytest.raises(native.NativeError, match="aligned"):
        native.Copy([x[1:]], [native.aligned((256,), np.float32)[1:]], streaming=True)
