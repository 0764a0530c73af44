"""What a kernel keeps from one call to the next, and what kernels share: right after every change of shapes, apart
where scalars or types differ, and gone with the sessions.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxfuse.program import Program
from tests.custom_ops.fused_model import fused_model
from tests.custom_ops.handmade import GATE, GATE_BODY, half_model, one, sub_model
from tests.custom_ops.test_session import floats, run, session, sub

Shape = tuple[int, ...]
OP = "FusedElementwise1"

# Shapes of x and b: equal ones, rows, columns, single elements, empty ones, other ranks with the same dims, equal
# results from other inputs, and ranks that are too high to be kept.
CALLS: list[tuple[Shape, Shape]] = [
    ((4, 6), (4, 6)), ((4, 6), (6,)), ((6,), (4, 6)), ((4, 6), (4, 1)), ((4, 6), (1, 6)), ((4, 1), (1, 6)),
    ((24,), (24,)), ((4, 6), ()), ((), (4, 6)), ((), ()), ((1,), ()), ((0, 6), (6,)), ((4, 0), (4, 1)),
    ((2, 2, 6), (2, 6)), ((4, 2, 3), (2, 3)), ((2, *[1] * 8, 3), (2, *[1] * 8, 3)), ((1,) * 17, (5,)),
    ((300, 300), (300,)), ((300, 3), (3,)), ((8, 256), (256,)), ((256,), (256,)), ((90_000, 4), (90_000, 1)),
    ((2, 1, 2, 1, 2, 1, 2, 1, 3), (1, 2, 1, 2, 1, 2, 1, 2, 1)), ((2, 1) * 4, (1, 2) * 4),
]  # fmt: skip


@pytest.fixture(scope="module")
def any_shapes() -> onnx.ModelProto:
    """(x - b) * b of inputs of any rank."""
    model = sub_model(one("float[N] x, float[M] b", "float[K]"), checked=False)
    for value in [*model.graph.input, *model.graph.output]:
        value.type.tensor_type.ClearField("shape")
    return model


@pytest.mark.parametrize("threads", [1, 2])
def test_shapes_change_from_call_to_call(ort_library: str, any_shapes: onnx.ModelProto, threads: int) -> None:
    """Every shape after every other one, and twice in turn."""
    s = session(any_shapes, ort_library, threads=threads)
    feeds = [(floats(*x, seed=k), floats(*b, seed=k + 100)) for k, (x, b) in enumerate(CALLS)]
    small = [feed for feed in feeds if max(value.size for value in feed) < 10_000]
    for first in feeds:
        for second in small:
            for x, b in (first, second, second):
                have = run(s, x=x, b=b)[0]
                want = sub(x, b)
                assert have.shape == want.shape
                np.testing.assert_array_equal(have, want)


def test_a_call_that_fails_leaves_nothing(ort_library: str, any_shapes: onnx.ModelProto) -> None:
    s = session(any_shapes, ort_library)
    x, b = floats(4, 6), floats(6, seed=1)
    for _ in range(2):
        np.testing.assert_array_equal(run(s, x=x, b=b)[0], sub(x, b))
        with pytest.raises(Exception, match="do not broadcast"):
            run(s, x=x, b=floats(5))


def two_gates(first: float, second: float) -> onnx.ModelProto:
    """Two nodes of equal programs: x * c0 + b, times its sigmoid."""
    model = fused_model(
        """g (float[N] x, float[N] b) => (float[N] y, float[N] z)
        { y = onnxfuse.FusedElementwise1(kernels, x, b) z = onnxfuse.FusedElementwise1(kernels, x, b) }""",
        {OP: GATE_BODY}, {OP: GATE}, {OP: [np.array(first, np.float32)]},
    )  # fmt: skip
    changed = helper.make_attribute("c0", numpy_helper.from_array(np.array(second, np.float32)))
    (attribute,) = [a for a in model.graph.node[1].attribute if a.name == "c0"]
    attribute.CopyFrom(changed)
    return model


@pytest.mark.parametrize("scalars", [(1.5, 1.5), (1.5, -2.0), (0.0, -0.0)])
def test_equal_programs_keep_their_own_scalars(ort_library: str, scalars: Sequence[float]) -> None:
    """In one session, and in sessions that live at the same time."""
    x, b = floats(300), floats(300, seed=1)
    program = Program.parse(GATE)
    want = [program.evaluate([x, b], [np.array(c, np.float32)])[0] for c in scalars]
    both = session(two_gates(*scalars), ort_library)
    alone = [session(two_gates(c, c), ort_library) for c in scalars]
    for k, expected in enumerate(want):
        np.testing.assert_allclose(run(both, x=x, b=b)[k], expected, rtol=2e-6, atol=1e-6)
        np.testing.assert_allclose(run(alone[k], x=x, b=b)[0], expected, rtol=2e-6, atol=1e-6)


def test_equal_programs_keep_their_own_types(ort_library: str) -> None:
    """The runtime widens the float16 values of one session and not of the other; the programs are the same."""
    x, shape = floats(5, 16).astype(np.float16), np.array([5, 16])
    known, unknown = (session(half_model(known=known), ort_library) for known in (True, False))
    for _ in range(2):
        np.testing.assert_allclose(run(known, x=x, s=shape)[0], run(unknown, x=x, s=shape)[0], rtol=4e-3, atol=4e-3)


def test_instruction_sets_are_kept_apart(
    ort_library: str, any_shapes: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable counts for the session that is created under it, whatever others share by then."""
    x, b = floats(300), floats(300, seed=1)
    first = session(any_shapes, ort_library)
    monkeypatch.setenv("ONNXFUSE_ISA", "baseline" if os.uname().machine == "x86_64" else "neon")
    second = session(any_shapes, ort_library)
    monkeypatch.setenv("ONNXFUSE_ISA", "none")
    with pytest.raises(Exception, match="ONNXFUSE_ISA is 'none'"):
        session(any_shapes, ort_library)
    for s in (first, second):
        np.testing.assert_array_equal(run(s, x=x, b=b)[0], sub(x, b))


# Prints by how many KiB the resident memory grows over 200 sessions, each with a program of its own, after sixty.
MEMORY = """
import ctypes, gc, itertools, mmap, sys
import onnxruntime
library, path = sys.argv[1:]
model = open(path, "rb").read()
libc = ctypes.CDLL(None)
number = itertools.count(0x3F800000)
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
options.intra_op_num_threads = 1
options.register_custom_ops_library(library)

def resident(count):
    for _ in range(count):
        other = model.replace(b"0x3f800000", b"0x%08x" % next(number))
        assert len(other) == len(model)
        onnxruntime.InferenceSession(other, options, providers=["CPUExecutionProvider"])
    gc.collect()
    libc.malloc_trim(0)
    return int(open("/proc/self/statm").read().split()[1]) * mmap.PAGESIZE // 1024

first = resident(60)
print(resident(200) - first)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc and needs glibc")
@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer keeps what is freed for a while")
@pytest.mark.parametrize("length", [150, 1000])
def test_programs_go_with_their_sessions(ort_library: str, tmp_path: Path, length: int) -> None:
    """Short programs are kept, but few of them; of 200 each would leave over 15 or 100 KiB."""
    steps = [f"t{k} = add.f32 t{k - 1} x1" for k in range(2, length)]
    text = ["onnxfuse 1", "in x0 f32", "in x1 f32", "t0 = const.f32 0x3f800000", "t1 = add.f32 x0 t0", *steps]
    program = "\n".join([*text, f"out t{length - 1}"]) + "\n"
    body = "FusedElementwise1 (kernels, x0, x1) => (y0) { y0 = Add(x0, x1) }"
    model = fused_model(one("float[N] x, float[N] b", "float[N]"), {OP: body}, {OP: program})
    onnx.save(model, tmp_path / "m.onnx")
    done = subprocess.run([sys.executable, "-c", MEMORY, ort_library, str(tmp_path / "m.onnx")],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) < 1024, f"{done.stdout.strip()} KiB more after 200 sessions"
