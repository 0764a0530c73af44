"""Many threads on one session, many sessions in one process, and no memory that stays behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxfuse.program import Program
from tests.custom_ops.fused_model import fused_model
from tests.custom_ops.handmade import CHAIN, GATE, MIXED, OTHER_BODY, SCALE, gate_model, mixed_model, one, sub_model
from tests.custom_ops.test_session import floats, numbered, one_node, run, session, sub

Shape = tuple[int, ...]
# In one part and in many, by rows and by chunks, with and without what has to be expanded.
SHAPES: list[Shape] = [(1, 1), (3, 4), (0, 7), (900, 31), (50, 700), (20_011, 3), (3, 40_001), (64, 64)]


def together(workers: Sequence[Callable[[], None]]) -> None:
    """Runs all at the same time, each on a thread of its own; raises what any of them raises."""
    failures: list[BaseException] = []
    start = threading.Barrier(len(workers))

    def work(worker: Callable[[], None]) -> None:
        try:
            start.wait(60)
            worker()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def gate_work(library: str, threads: int) -> Callable[[int], None]:
    """x * c0 + b, times its sigmoid; b is a row, a column, one element or a whole tensor."""
    s = session(gate_model(one("float[N, M] x, float[K, L] b", "float[N, M]")), library, threads=threads)
    program = Program.parse(GATE)

    def work(seed: int) -> None:
        for k in range(2 * len(SHAPES)):
            rows, columns = SHAPES[(k + seed) % len(SHAPES)]
            side = [(1, columns), (rows, 1), (1, 1), (rows, columns)][(k + seed // 2) % 4]
            x, b = floats(rows, columns, seed=seed), floats(*side, seed=seed + 100)
            want = program.evaluate([x, b], [SCALE])[0]
            np.testing.assert_allclose(run(s, x=x, b=b)[0], want, rtol=2e-6, atol=1e-6)

    return work


def chain_work(library: str, threads: int) -> Callable[[int], None]:
    """Fused nodes one behind the other, whose values the runtime lets write over each other."""
    s = session(sub_model(CHAIN), library, threads=threads)

    def work(seed: int) -> None:
        for k in range(len(SHAPES)):
            rows, columns = SHAPES[(k + seed) % len(SHAPES)]
            x, b = floats(rows, columns, seed=seed), floats(columns, seed=seed + 100)
            w = sub(sub(np.maximum(x, 0), b), b)
            np.testing.assert_array_equal(run(s, x=x, b=b)[0], sub(b, w) - sub(w, w))

    return work


def mixed_work(library: str, threads: int) -> Callable[[int], None]:
    """Three outputs of three types; a row and a column that broadcast."""
    s = session(mixed_model(), library, threads=threads)
    program = Program.parse(MIXED)

    def work(seed: int) -> None:
        for k in range(10):
            rows = (1, 5, 333, 30_001)[(k + seed) % 4]
            x, i = floats(rows, 4, seed=seed) * 9, np.arange(4) - seed
            m = floats(rows, 1, seed=seed + 1) > 0
            for have, want in zip(run(s, x=x, i=i, m=m), program.evaluate([x, i, m]), strict=True):
                np.testing.assert_array_equal(have, want)

    return work


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("make", [gate_work, chain_work, mixed_work])
def test_sixteen_threads_on_one_session(
    ort_library: str, make: Callable[[str, int], Callable[[int], None]], threads: int
) -> None:
    work = make(ort_library, threads)
    together([lambda seed=seed: work(seed) for seed in range(16)])  # type: ignore[misc]


def test_sessions_come_and_go_on_threads(ort_library: str) -> None:
    """Created, run and dropped by eight threads at once, with other numbers of names, threads of their own, and some
    that cannot be created."""
    x, b = floats(300, 300), floats(300, seed=1)
    want = sub(x, b)
    bad = one_node(program=GATE.replace("sigmoid", "sigmund"))

    def work(seed: int) -> None:
        for k in range(6):
            number = 1 + (seed * 6 + k) % 40
            s = session(numbered(number), ort_library, threads=1 + k % 2,
                        config={"onnxfuse.names": f"FusedElementwise:{40 + seed % 3}"})  # fmt: skip
            np.testing.assert_array_equal(run(s, x=x.ravel(), b=np.resize(b, x.size))[0], want.ravel())
            if k % 3 == 2:
                with pytest.raises(Exception, match="unknown instruction"):
                    session(bad, ort_library)

    together([lambda seed=seed: work(seed) for seed in range(8)])  # type: ignore[misc]


def test_a_session_outlives_its_makers(ort_library: str) -> None:
    """Runs on threads while other sessions of the library begin and end."""
    work = gate_work(ort_library, 2)
    x, b = floats(5), floats(5, seed=1)

    def others() -> None:
        for k in range(20):
            np.testing.assert_array_equal(run(session(numbered(1 + k % 16), ort_library), x=x, b=b)[0], sub(x, b))

    together([others, *[lambda seed=seed: work(seed) for seed in range(3)]])


def long_program(length: int) -> str:
    body = [f"t{k} = {'add' if k % 2 else 'sub'}.f32 {f't{k - 1}' if k else 'x0'} x1" for k in range(length)]
    return "\n".join(["onnxfuse 1", "in x0 f32", "in x1 f32", *body, f"out t{length - 1}"]) + "\n"


# Prints by how many KiB the resident memory grows over 200 sessions, or 200 times four runs of one session, after
# sixty that fill pools and caches.
MEMORY = """
import ctypes, gc, mmap, sys, threading
import numpy as np, onnxruntime
library, model, kind = sys.argv[1:]
libc = ctypes.CDLL(None)

def create():
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 2 if kind == "runs" else 1
    options.register_custom_ops_library(library)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

def run(session, rows):
    session.run(None, {"x": np.ones((rows, 3), np.float32), "b": np.ones((1, 3), np.float32)})

kept = create()

def some(count):
    for _ in range(count):
        if kind == "runs":
            for rows in (1, 7, 301, 5000):
                run(kept, rows)
        else:
            run(create(), 5)

def resident(count):
    threads = [threading.Thread(target=some, args=(count // 4,)) for _ in range(4 if kind == "threads" else 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not threads:
        some(count)
    gc.collect()
    libc.malloc_trim(0)
    return int(open("/proc/self/statm").read().split()[1]) * mmap.PAGESIZE // 1024

if kind == "sessions":
    kept = None  # so that each is the only one: the runtime closes the library behind it
first = resident(60)
print(resident(200) - first)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc and needs glibc")
@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer keeps what is freed for a while")
@pytest.mark.parametrize("kind", ["sessions", "threads", "runs"])
def test_memory_does_not_grow(ort_library: str, tmp_path: Path, kind: str) -> None:
    """A kernel of a thousand statements takes over 100 KiB, what the library makes for a runtime 11 KiB: left behind
    200 times, they are 20 MiB and 2 MiB. The bound, 1 MiB, is ten times what is seen to move without a leak."""
    op = "FusedElementwise1"
    model = fused_model(one("float[N, 3] x, float[M, 3] b", "float[N, 3]"), {op: OTHER_BODY}, {op: long_program(1000)})
    onnx.save(model, tmp_path / "m.onnx")
    done = subprocess.run([sys.executable, "-c", MEMORY, ort_library, str(tmp_path / "m.onnx"), kind],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) < 1024, f"{done.stdout.strip()} KiB more after 200 times"
