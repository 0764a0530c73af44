"""Nothing leaves the upper halves of vector registers in use: not the machine, not the driver, not the kernel in ONNX
Runtime, whose own SSE code would run at less than half its speed afterwards.

The test library looks after every run that any test makes; here is every way through it. In the runtime a library
between the two looks after each call (custom_ops/tools/upper_halves_probe.cc).
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from onnxfuse.program import Program
from tests.custom_ops.handmade import CHAIN, gate_model, half_model, mixed_model, one, sub_model
from tests.custom_ops.library import TestLibrary
from tests.custom_ops.machine import MachineLibrary
from tests.custom_ops.test_driver import data, weighted_sum
from tests.custom_ops.test_machine import numbers
from tests.custom_ops.test_session import floats, run, session

# Functions in either width, one by one, stores of every size, values that wait.
PROGRAMS = {
    "narrow": "in x0 f32\nin x1 f32\nt0 = tanh.f32 x0\nt1 = exp.f32 x1\nt2 = div.f32 t0 t1\nt3 = lt.f32.bool t2 x1\n"
    "t4 = cast.f32.u8 t1\nout t2\nout t3\nout t4\n",
    "wide": "in x0 f64\nin x1 f64\nt0 = tanh.f64 x0\nt1 = exp.f64 x1\nt2 = div.f64 t0 t1\nt3 = lt.f64.bool t2 x1\n"
    "t4 = cast.f64.f32 t1\nout t2\nout t3\nout t4\n",
    "halves": "in x0 f16\nin x1 bf16\nt0 = cast.f16.f32 x0\nt1 = cast.bf16.f32 x1\nt2 = sin.f32 t0\n"
    "t3 = pow.f32 t2 t1\nt4 = cast.f32.f16 t3\nt5 = cast.f32.bf16 t0\nout t4\nout t5\n",
    "one-by-one": "in x0 i64\nin x1 i64\nt0 = fmod.i64 x0 x1\nt1 = cast.i64.f64 t0\nt2 = pow.f64 t1 t1\n"
    "out t0\nout t2\n",
    "copies": "in x0 u8\nin x1 f32\nout x1\nout x0\n",
    "computed-once": "in x0 f32\nin c0 f32\nt0 = exp.f32 c0\nt1 = tanh.f32 t0\nt2 = mul.f32 x0 t1\nout t2\n",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_machine(machine: MachineLibrary, isa: str, name: str) -> None:
    """Whole tiles, rests, both, no element; single elements; outputs in place; scalars built in or read."""
    text = "onnxfuse 1\n" + PROGRAMS[name]
    types = [i.dtype for i in Program.parse(text).inputs]
    scalars = "in c0" in text
    tile = machine.tile(text, isa)
    for n in (0, 1, tile // 2, tile - 1, tile, tile + 1, 2 * tile, 3 * tile - 1):
        inputs = [numbers(t, n or 1, k)[:n] for k, t in enumerate(types)]
        if scalars:
            inputs[1] = numbers(types[1], 1, 1)[0]
        machine.run(text, inputs, n, isa=isa, scalars=scalars)
        machine.run(text, [inputs[0], *[numbers(t, 1, 1)[0] for t in types[1:]]], n, isa=isa)
        if name != "copies":
            machine.run(text, inputs, n, isa=isa, in_place={0: 0})


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtypes", [("f32", "f32"), ("f64", "u8"), ("f16", "i64")], ids="-".join)
def test_driver(library: TestLibrary, isa: str, dtypes: tuple[str, str], threads: int) -> None:
    """Rows, chunks, parts for several threads, inputs that are kept aside."""
    text = weighted_sum(dtypes)
    for shapes in (((1000,), (1000,)), ((5, 700), (5, 1)), ((333, 3), (3,)), ((50_001, 3), (50_001, 1)), ((7,), ())):
        library.run(text, [data(s, t, k) for k, (s, t) in enumerate(zip(shapes, dtypes, strict=True))],
                    isa=isa, threads=threads)  # fmt: skip
    same = weighted_sum(["f32", "f32"])
    memory = data((4000,), "f32", 1)
    library.run(same, [memory[:3000], memory[7:3007]], out=[memory[:3000], np.empty(3000, np.float32)], isa=isa,
                threads=threads)  # fmt: skip


class Watched:
    """The library in the runtime, with the probe between them."""

    def __init__(self, probe: Path, ort_library: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ONNXFUSE_PROBED", ort_library)
        self.path = str(probe.resolve())
        self._probe = ctypes.CDLL(self.path)

    @property
    def works(self) -> bool:
        """Whether it sees what it should see."""
        return bool(self._probe.upper_halves_seen())

    def counts(self) -> tuple[int, int, int]:
        """Since the last call: runs of kernels, pieces of work on threads, and how many of both left something."""
        counts = (ctypes.c_ulong * 3)()
        self._probe.upper_halves_counts(counts)
        return counts[0], counts[1], counts[2]


@pytest.fixture
def watched(test_library: Path, ort_library: str, monkeypatch: pytest.MonkeyPatch) -> Watched:
    probe = test_library.with_name("upper_halves_probe.so")
    if not probe.is_file():
        pytest.skip("no probe here: it needs Linux on x86-64")
    return Watched(probe, ort_library, monkeypatch)


def test_the_probe_sees_them(watched: Watched) -> None:
    if "avx" not in Path("/proc/cpuinfo").read_text(encoding="ascii").split():
        pytest.skip("this processor has no upper halves")
    assert watched.works


@pytest.mark.parametrize("threads", [1, 2])
def test_kernel(watched: Watched, isa: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each run of a kernel in the runtime, and after each part of one on the runtime's threads."""
    monkeypatch.setenv("ONNXFUSE_ISA", isa)
    gate = session(gate_model(one("float[N, M] x, float[M] b", "float[N, M]")), watched.path, threads=threads)
    chain = session(sub_model(CHAIN), watched.path, threads=threads)
    half = session(half_model(True), watched.path, threads=threads)
    mixed = session(mixed_model(), watched.path, threads=threads)
    shapes = ((1, 1), (3, 4), (333, 3), (3, 333), (0, 4), (70_000, 4), (3, 100_001))
    for shape in shapes:
        x, b = floats(*shape), floats(shape[1], seed=1)
        run(gate, x=x, b=b)
        run(chain, x=x, b=b)
    for rows in (1, 5, 20_000):
        run(half, x=floats(rows, 16).astype(np.float16), s=np.array([rows, 16]))
        run(mixed, x=floats(rows, 4), i=np.arange(4), m=np.ones((rows, 1), bool))
    runs, works, left = watched.counts()
    assert (runs, left) == (5 * len(shapes) + 2 * 3, 0)
    assert works > 10
