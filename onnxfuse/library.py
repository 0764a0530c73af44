"""Where the compiled library is, and how it gets into an ONNX Runtime session.

Needs ONNX Runtime only when `register` is called.
"""

from __future__ import annotations

import mmap
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxfuse.errors import SetupError, UsageError

if TYPE_CHECKING:  # a server that registers the library needs onnx only if it names models
    import onnx

__all__ = ["DOMAIN", "FAMILY", "GPU_FAMILY", "find_library", "highest_names", "library_path", "register"]

DOMAIN = "onnxfuse"
FAMILY = "FusedElementwise"
GPU_FAMILY = "FusedDevice"
"""Names that the library registers for sessions on a GPU alone: elsewhere such a node becomes its body."""

_MOST_NAMES = 4096  # what the library takes; further nodes are inlined
_MARK = "onnxfuse.registered"
_FILE_NAMES = ("libonnxfuse.so", "libonnxfuse.dylib", "onnxfuse.dll")
_NAME = re.compile(r"(Fused[A-Za-z]+?)(\d+)")
_NAME_BYTES = re.compile(rb"Fused[A-Za-z]+\d")


def find_library() -> Path | None:
    """The compiled library: `ONNXFUSE_LIBRARY` if set, else the one inside the package, else None."""
    override = os.environ.get("ONNXFUSE_LIBRARY")
    if override:
        return Path(override) if Path(override).is_file() else None
    # An editable install has two folders: the sources, and the one in site-packages with what was compiled.
    folders = [Path(folder) / "_lib" for folder in sys.modules[__package__].__path__]
    found = (folder / name for folder in folders for name in _FILE_NAMES)
    return next((path for path in found if path.is_file()), None)


def library_path() -> str:
    """Absolute path of the compiled library, for `register_custom_ops_library` in any language.

    Raises SetupError where there is none.
    """
    found = find_library()
    if found is not None:
        return str(found.resolve())
    override = os.environ.get("ONNXFUSE_LIBRARY")
    if override:
        raise SetupError(
            "the library that ONNXFUSE_LIBRARY names does not exist",
            path=override,
            hint="unset ONNXFUSE_LIBRARY to use the library of the package",
        )
    raise SetupError(
        "the compiled library is not in this installation",
        hint="install a wheel of onnxfuse, or build from source with `pip install .` (needs gcc >= 12 or clang)",
    )


def _nodes(graph: onnx.GraphProto) -> Iterable[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)
            for inner in attribute.graphs:
                yield from _nodes(inner)


def highest_names(model: onnx.ModelProto) -> dict[str, int]:
    """The highest number of each family of fused names in a model, e.g. {"FusedElementwise": 12}."""
    highest: dict[str, int] = {}
    for function in model.functions:
        match = _NAME.fullmatch(function.name) if function.domain == DOMAIN else None
        if match:
            highest[match[1]] = max(highest.get(match[1], 0), int(match[2]))
    for node in _nodes(model.graph):
        match = _NAME.fullmatch(node.op_type) if node.domain == DOMAIN else None
        if match:
            highest[match[1]] = max(highest.get(match[1], 0), int(match[2]))
    return dict(sorted(highest.items()))


def _names_in_bytes(data: bytes | mmap.mmap) -> dict[str, int]:
    """The same from the bytes of a model, which may be large: a string of protobuf stands behind its length."""
    highest: dict[str, int] = {}
    for match in _NAME_BYTES.finditer(data):
        length = data[match.start() - 1] if match.start() else 0
        name = _NAME.fullmatch(data[match.start() : match.start() + length].decode("ascii", "replace"))
        if name:
            highest[name[1]] = max(highest.get(name[1], 0), int(name[2]))
    return highest


def _names(model: onnx.ModelProto | bytes | str | os.PathLike[str]) -> dict[str, int]:
    if isinstance(model, bytes):
        return _names_in_bytes(model)
    if not isinstance(model, (str, os.PathLike)):
        return highest_names(model)
    try:
        with open(model, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _names_in_bytes(data)
    except (OSError, ValueError) as error:  # ValueError: an empty file
        raise UsageError(f"cannot be read as a model: {error}", path=model) from error


def register(
    session_options: Any,
    *models: onnx.ModelProto | bytes | str | os.PathLike[str],
    device: str | None = None,
    library: str | os.PathLike[str] | None = None,
) -> None:
    """Register the compiled library on `onnxruntime.SessionOptions`.

    `models` (paths, bytes or ModelProtos) say how many names are needed, each of which costs some 0.1 ms of
    session creation; without them 16 a family are registered. `device="cuda"`, for sessions on a GPU, also registers
    the names of nodes that are fused there only. Raises SetupError where the library is missing or the runtime refuses
    it, for instance because it is already registered on these options.
    """
    if device not in (None, "cpu", "cuda"):
        raise UsageError(f"unknown device {device!r}", hint='device is None, "cpu" or "cuda"')
    highest: dict[str, int] = {}
    for model in models:
        for family, number in _names(model).items():
            highest[family] = max(highest.get(family, 0), number)
    if highest:  # models that have fused nodes have none of a family that is not here
        highest.setdefault(FAMILY, 0)
        if device == "cuda":
            highest.setdefault(GPU_FAMILY, 0)
    path = library_path() if library is None else os.path.abspath(library)  # a bare name is no path to the loader
    if _is_registered(session_options):
        raise SetupError(
            "the library is already registered on these session options", path=path,
            hint="register it once for each SessionOptions object",
        )
    wanted = [f"{family}:{min(number, _MOST_NAMES)}" for family, number in sorted(highest.items())]
    if wanted:
        session_options.add_session_config_entry("onnxfuse.names", ",".join(wanted))
    if device is not None:
        session_options.add_session_config_entry("onnxfuse.device", device)
    try:
        session_options.register_custom_ops_library(path)
    except Exception as error:
        raise SetupError(
            f"the runtime does not load the library: {one_line(str(error))}", path=path,
            hint="run `onnxfuse doctor` to see what does not fit",
        ) from error
    session_options.add_session_config_entry(_MARK, "1")


def _is_registered(session_options: Any) -> bool:
    """Whether `register` was called on these options: the runtime itself notices only when it makes a session."""
    try:
        return bool(session_options.get_session_config_entry(_MARK) == "1")
    except Exception:  # the runtime's way to say that there is no such entry
        return False


def one_line(text: str, limit: int = 300) -> str:
    """A message of the runtime without its prefixes, as one line of at most `limit` characters."""
    text = " ".join(text.split())
    text = re.sub(r"\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ", "", text)
    position = re.search(r"\S+\.(?:cc|h):\d+ ", text)
    if position:
        text = text[: position.start()] + _after_signature(text[position.end() :])
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _after_signature(text: str) -> str:
    """What follows a C++ function signature: the runtime prints file, line and signature before its message."""
    depth = 0
    for index, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == ")" and depth == 0:
            return text[index + 1 :].strip().removeprefix("const ")
    return text
