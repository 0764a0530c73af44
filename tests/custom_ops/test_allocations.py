"""A run of a fused node takes nothing from the heap: counted by a preloaded library, for calls of ours alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from tests.custom_ops.handmade import CHAIN, mixed_model, sub_model

RUNS = """
import ctypes, sys
import numpy as np, onnxruntime
count = ctypes.CDLL(None).onnxfuse_allocations
count.restype = ctypes.c_ulong
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 2
options.register_custom_ops_library(sys.argv[1])
for name in ("chain", "mixed"):
    session = onnxruntime.InferenceSession(f"{sys.argv[2]}/{name}.onnx", options, providers=["CPUExecutionProvider"])
    before = count()
    for rows, columns in ((3, 4), (1, 4), (0, 4), (700, 4), (90000, 4)):
        x = np.ones((rows, columns), np.float32)
        feed = {"x": x, "b": x[:1].reshape(-1) if rows else np.ones(columns, np.float32)}
        if name == "mixed":
            feed = {"x": x, "i": np.arange(4), "m": np.ones((rows, 1), bool)}
        session.run(None, feed)
    print(name, before > 0, count() - before)
"""


def test_a_run_allocates_nothing(ort_library: str, test_library: Path, tmp_path: Path) -> None:
    probe = test_library.with_name("alloc_probe.so")
    if not probe.is_file():
        pytest.skip("no counter of allocations here: it needs glibc and a build without sanitizers")
    onnx.save(sub_model(CHAIN), tmp_path / "chain.onnx")
    onnx.save(mixed_model(), tmp_path / "mixed.onnx")
    done = subprocess.run(
        [sys.executable, "-c", RUNS, ort_library, str(tmp_path)],
        capture_output=True, text=True, check=False, env={**os.environ, "LD_PRELOAD": str(probe)},
    )  # fmt: skip
    assert (done.returncode, done.stdout.splitlines()) == (0, ["chain True 0", "mixed True 0"]), done.stderr
