"""Running small models in ONNX Runtime: feeds from a seed, results by name."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime as ort
from onnx import ModelProto

SIZE = 3
"""What a dim without a number becomes."""


def feeds(model: ModelProto, seed: int = 0) -> dict[str, np.ndarray]:
    """Seeded values for every input that needs one. Inputs called ``shape…`` get [2, SIZE], ``ratio…`` 0.5, integers
    0 to 3."""
    rng = np.random.default_rng(seed)
    defaults = {tensor.name for tensor in model.graph.initializer}
    made: dict[str, np.ndarray] = {}
    for value in model.graph.input:
        if value.name in defaults:
            continue
        tensor = value.type.tensor_type
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        dims = [d.dim_value if d.HasField("dim_value") else SIZE for d in tensor.shape.dim]
        if value.name.startswith("shape"):
            made[value.name] = np.array([2, SIZE], dtype)
        elif value.name.startswith("ratio"):
            made[value.name] = np.array(0.5, dtype)
        elif dtype.kind == "f":
            made[value.name] = np.asarray(rng.standard_normal(dims), dtype)
        elif dtype.kind == "b":
            made[value.name] = np.asarray(rng.random(dims) < 0.5)
        else:
            made[value.name] = np.asarray(rng.integers(0, 4, dims), dtype)
    return made


def run(model: ModelProto, feed: Mapping[str, np.ndarray], optimize: bool = False) -> dict[str, np.ndarray]:
    """All outputs of a model on the CPU."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(feed)), strict=True))


def assert_same_results(a: ModelProto, b: ModelProto, seeds: int = 2) -> None:
    """Both models give the same shapes and types, and values that differ by rounding at most."""
    for seed in range(seeds):
        feed = feeds(a, seed)
        want = run(a, feed)
        for optimize in (False, True):
            got = run(b, feed, optimize)
            assert list(got) == list(want)
            for name, value in want.items():
                assert got[name].dtype == value.dtype, name
                assert got[name].shape == value.shape, name
                np.testing.assert_allclose(got[name], value, rtol=2e-6, atol=1e-6, err_msg=name)
