"""Sessions of ONNX Runtime on its CPU provider, and runs with numpy in and out.

All of it happens in this process: what onnxfuse writes is standard ONNX plus our own library, whose kernels
never crash on a valid model; the one foreign step that may (optimizing the original) has its own process.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import onnx

from onnxfuse import library as fused_library
from onnxfuse.errors import OnnxfuseError, SetupError
from onnxfuse.model.external import external_tensors

__all__ = ["RunRefused", "create", "load_runtime", "run"]

MISSING_HINT = 'pip install "onnxfuse[cpu]" (or "onnxfuse[gpu]" for a machine with an NVIDIA GPU)'
_EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"
_READS_FOLDER = (1, 20)  # the first runtime that knows this entry
_BFLOAT16 = int(onnx.TensorProto.BFLOAT16)


class RunRefused(Exception):
    """The runtime did not create or run a session; `message` is its reason in one short line, `text` all of it."""

    def __init__(self, error: Exception) -> None:
        self.text = " ".join(str(error).split())
        self.message = fused_library.one_line(self.text)
        super().__init__(self.message)


def load_runtime() -> ModuleType:
    """The module onnxruntime. Raises SetupError with the hint what to install."""
    try:
        onnxruntime = importlib.import_module("onnxruntime")
    except ImportError as error:
        raise SetupError(f"ONNX Runtime cannot be imported: {error}", hint=MISSING_HINT) from error
    if not hasattr(onnxruntime, "InferenceSession"):
        raise SetupError(
            "ONNX Runtime is installed but broken (no InferenceSession in it)",
            hint="onnxruntime and onnxruntime-gpu were probably installed side by side: uninstall both, then "
            + MISSING_HINT,
        )
    return onnxruntime


def create(
    model: onnx.ModelProto | str | os.PathLike[str],
    *,
    optimize: bool,
    library: str | os.PathLike[str] | None = None,
    device: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    threads: int = 0,
    providers: Sequence[Any] = ("CPUExecutionProvider",),
    profile: bool = False,
) -> Any:
    """A session for `model`, all of the runtime's optimizations on or all off.

    `folder` is where the external data of a ModelProto lie; `threads` 0 leaves the number to the runtime; `device` as
    in `onnxfuse.register`.
    Raises RunRefused if the runtime does not take the model, SetupError if it does not take the library.
    """
    runtime = load_runtime()
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.enable_profiling = profile
    level = runtime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
    if library is not None:
        fused_library.register(options, model, device=device, library=library)
    try:
        if not isinstance(model, onnx.ModelProto):
            return runtime.InferenceSession(os.fspath(model), options, providers=list(providers))
        data = model.SerializeToString()
        if folder is None or not any(True for _ in external_tensors(model)):
            return runtime.InferenceSession(data, options, providers=list(providers))
        options.add_session_config_entry(_EXTERNAL_FOLDER, str(Path(folder).resolve()))
        with _inside(folder) if _version(runtime) < _READS_FOLDER else contextlib.nullcontext():
            return runtime.InferenceSession(data, options, providers=list(providers))
    except OnnxfuseError:
        raise
    except Exception as error:  # the runtime's exceptions have no common base but Exception
        raise RunRefused(error) from error


def _version(runtime: ModuleType) -> tuple[int, ...]:
    return tuple(int(part) for part in str(runtime.__version__).split(".")[:2] if part.isdigit())


@contextlib.contextmanager
def _inside(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Work in `folder`: an old runtime looks there for the external data of a model that comes from memory."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def too_new(error: RunRefused) -> SetupError | None:
    """SetupError if a refusal says that the model is newer than the runtime, else None."""
    hint = "install a newer ONNX Runtime, or use --no-validate to write without checking"
    match = re.search(r"Opset (\d+) is under development.*till opset (\d+)", error.text)
    if match:
        return SetupError(f"opset {match[1]} is newer than this ONNX Runtime runs (up to {match[2]})", hint=hint)
    match = re.search(r"[Uu]nsupported model IR version: (\d+), max supported IR version: (\d+)", error.text)
    if match:
        return SetupError(f"IR version {match[1]} is newer than this ONNX Runtime reads (up to {match[2]})", hint=hint)
    return None


def run(session: Any, feed: Mapping[str, Any], outputs: Sequence[str] | None = None) -> dict[str, Any]:
    """All outputs (or those named) of one run, as numpy arrays (lists for sequences, None for an empty optional).

    bfloat16 arrays have the dtype of ml_dtypes on both sides. Raises RunRefused.
    """
    kinds = {o.name: o.type for o in session.get_outputs()}
    names = list(kinds) if outputs is None else list(outputs)
    half = any("bfloat16" in kinds[n] for n in names)
    half = half or any(isinstance(v, np.ndarray) and v.dtype == ml_dtypes.bfloat16 for v in feed.values())
    try:
        if half:
            return _run_bfloat16(session, feed, names)
        return dict(zip(names, session.run(names, dict(feed)), strict=True))
    except Exception as error:
        raise RunRefused(error) from error


def _run_bfloat16(session: Any, feed: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """As `run`, through OrtValues: plain `run` has no numpy type for bfloat16."""
    value = load_runtime().OrtValue
    if not hasattr(value, "ortvalue_from_numpy_with_onnx_type"):  # before 1.20
        raise NotImplementedError("this ONNX Runtime takes no bfloat16 arrays from Python")
    given = {}
    for name, array in feed.items():
        if isinstance(array, np.ndarray) and array.dtype == ml_dtypes.bfloat16:
            raw = np.ascontiguousarray(array).view(np.uint16)
            given[name] = value.ortvalue_from_numpy_with_onnx_type(raw, _BFLOAT16)
        else:
            given[name] = value.ortvalue_from_numpy(np.asarray(array))
    results = session.run_with_ort_values(list(names), given)
    return {name: _to_numpy(result) for name, result in zip(names, results, strict=True)}


def _to_numpy(value: Any) -> Any:
    if not value.is_tensor() or value.element_type() != _BFLOAT16:
        return value.numpy()
    shape = tuple(value.shape())
    if 0 in shape:
        return np.zeros(shape, ml_dtypes.bfloat16)
    raw = ctypes.string_at(value.data_ptr(), 2 * int(np.prod(shape, dtype=np.int64)))
    return np.frombuffer(raw, dtype=ml_dtypes.bfloat16).reshape(shape)
