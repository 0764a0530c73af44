"""onnxfuse: fuses elementwise graphs of ONNX models ahead of time, for ONNX Runtime.

    import onnxfuse
    result = onnxfuse.optimize("model.onnx", "fused.onnx")

    options = onnxruntime.SessionOptions()
    onnxfuse.register(options, "fused.onnx")
    session = onnxruntime.InferenceSession("fused.onnx", options)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onnxfuse.errors import CheckFailed, ModelError, OnnxfuseError, SetupError, UsageError
from onnxfuse.version import __version__

if TYPE_CHECKING:
    from onnxfuse.api import Result, bench, explain, library_path, optimize, register, validate

__all__ = [
    "CheckFailed",
    "ModelError",
    "OnnxfuseError",
    "Result",
    "SetupError",
    "UsageError",
    "__version__",
    "bench",
    "explain",
    "library_path",
    "optimize",
    "register",
    "validate",
]

_LIBRARY = ("library_path", "register")
_API = ("Result", "bench", "explain", "optimize", "validate")


def __getattr__(name: str) -> Any:
    """The verbs are loaded at first use: a server that only registers the library does not load the optimizer."""
    import importlib

    if name in _LIBRARY:
        return getattr(importlib.import_module("onnxfuse.library"), name)
    if name in _API:
        return getattr(importlib.import_module("onnxfuse.api"), name)
    raise AttributeError(f"module 'onnxfuse' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
