"""Reading a model and refusing what cannot be used, with one clear line each."""

from __future__ import annotations

import builtins
import os
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]
from onnx import ModelProto, TensorProto

from onnxfuse.errors import ModelError, OnnxfuseError
from onnxfuse.model import schemas
from onnxfuse.model.external import check_external, external_tensors, locate, read_array, read_bytes
from onnxfuse.model.graphs import GraphView, view_graphs
from onnxfuse.model.infer import Values, infer
from onnxfuse.model.shapes import Term, fresh

__all__ = ["Model", "from_proto", "load"]


class Model:
    """A model as read, and what is known about it.

    ``proto`` is never changed; the data of external tensors is not in it. ``path`` is the file it came from (None for a
    model given in memory), ``folder`` where its external data lies.
    """

    def __init__(self, proto: ModelProto, path: Path | None, folder: Path | None) -> None:
        self.proto = proto
        self.path = path
        self.folder = folder
        self.main: GraphView = view_graphs(proto)
        self.opsets: dict[str, int] = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in proto.opset_import}

    @property
    def bytes(self) -> builtins.bytes:
        """The file as it is, or the model serialized."""
        return self.proto.SerializeToString() if self.path is None else self.path.read_bytes()

    @cached_property
    def graphs(self) -> dict[str, GraphView]:
        """Every graph by its path: the main graph first, bodies after their parent."""
        return {view.path: view for view in self.main.walk()}

    @cached_property
    def values(self) -> dict[str, Values]:
        """Types and shapes by the path of the graph."""
        return infer(self.proto, self.main)

    @cached_property
    def data_files(self) -> tuple[Path, ...]:
        """Resolved paths of the files that hold external data, each once."""
        files = (locate(tensor, self.folder).file.resolve() for tensor in external_tensors(self.proto))
        return tuple(dict.fromkeys(files))

    def check(self) -> None:
        """Raises ModelError if a node has operands of a number or of types that its operator does not take."""
        for view in self.graphs.values():
            for index in view.order:
                node = view.graph.node[index]
                schemas.check_node(node, [self.type_of(view, name) if name else None for name in node.input],
                                   self.opsets)

    def type_of(self, view: GraphView, name: str) -> int | None:
        """Number of the element type of a value as ``view`` sees it; None if unknown or no tensor."""
        own = self.values[view.path].types.get(name)  # mostly it is a value of this very graph
        if own is not None or view.parent is None or view.defines(name):
            return own
        return self.type_of(view.parent, name)

    def term_of(self, view: GraphView, name: str) -> Term:
        """The shape term of a value as ``view`` sees it."""
        term = self.values[view.path].terms.get(name)
        if term is not None:
            return term
        owner = view.owner(name)
        term = None if owner is None else self.values[owner.path].terms.get(name)
        return fresh(f"{view.path}:{name}") if term is None else term

    def array(self, tensor: TensorProto) -> np.ndarray:
        """The values of a tensor, read from its file if it is stored outside."""
        return read_array(tensor, self.folder)

    def raw_bytes(self, tensor: TensorProto) -> builtins.bytes:
        """The data of a tensor that is stored outside."""
        return read_bytes(tensor, self.folder)


def load(path: str | os.PathLike[str], *, check: bool = True) -> Model:
    """The model in a file. Raises ModelError if it cannot be used: missing, a folder, empty, not ONNX, truncated,
    without a graph, cyclic, types that do not fit, an opset or IR version that the installed onnx does not know,
    external data that is missing, damaged or outside the model's folder. Without ``check`` the types are not looked at
    yet (`Model.check` does it), which in a large model takes longer than all the rest."""
    file = Path(path)
    try:
        return _checked(_read(file), file, file.absolute().parent, check)
    except OnnxfuseError as error:
        if error.path is not None:
            raise
        raise type(error)(error.message, path=file, hint=error.hint) from None


def from_proto(proto: ModelProto, folder: str | os.PathLike[str] | None = None, *, check: bool = True) -> Model:
    """A model that is in memory already; ``folder`` is where its external data lies. Raises ModelError as `load`."""
    return _checked(proto, None, None if folder is None else Path(folder), check)


def _read(file: Path) -> ModelProto:
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        raise ModelError("no such file") from None
    except IsADirectoryError:
        raise ModelError("is a folder, not a model file") from None
    except OSError as error:
        raise ModelError(f"cannot be read: {error.strerror or error}") from None
    if not data:
        raise ModelError("the file is empty")
    proto = ModelProto()
    try:
        proto.ParseFromString(data)
    except (DecodeError, RuntimeError, ValueError):
        raise ModelError("not an ONNX model, or a truncated one: it cannot be decoded", hint=_guess(data)) from None
    if not proto.HasField("graph"):
        raise ModelError("not an ONNX model: it has no graph", hint=_guess(data))
    return proto


def _guess(data: bytes) -> str | None:
    """What a file that is no model may be instead."""
    if data.startswith(b"version https://git-lfs"):
        return "this is a Git LFS pointer; fetch the file itself"
    if data[4:8] == b"ORTM":
        return "this is an .ort file of ONNX Runtime; optimize the .onnx model it was made from"
    if data.startswith(b"PK\x03\x04"):
        return "this is a zip archive; give the .onnx file inside"
    return None


def _checked(proto: ModelProto, path: Path | None, folder: Path | None, types: bool) -> Model:
    _check_text(proto)
    _check_versions(proto)
    if not proto.graph.node and not proto.graph.output:
        raise ModelError("the graph is empty: it has neither nodes nor outputs")
    model = Model(proto, path, folder)
    check_external(proto, folder)
    if types:
        model.check()
    return model


def _check_text(message: Message) -> None:
    """Names are UTF-8: protobuf hands out bytes for those that are not."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING:
            wrong = [text for text in ([value] if isinstance(value, str | bytes) else value) if isinstance(text, bytes)]
            if wrong:
                raise ModelError(f"damaged: {field.name} is no UTF-8 text: {wrong[0]!r}")
        elif field.type == field.TYPE_MESSAGE:
            for inner in [value] if isinstance(value, Message) else value:
                _check_text(inner)


def _check_versions(proto: ModelProto) -> None:
    newest = onnx.defs.onnx_opset_version()
    if proto.ir_version > onnx.IR_VERSION:
        raise ModelError(f"IR version {proto.ir_version} is newer than the installed onnx knows ({onnx.IR_VERSION})",
                         hint="install a newer onnx")
    if proto.ir_version < 1:
        raise ModelError("not an ONNX model, or a damaged one: it states no IR version")
    versions = [o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")]
    if not proto.opset_import and proto.ir_version >= 3:
        raise ModelError("states no opset version: damaged or truncated")
    for version in versions:
        if version > newest:
            raise ModelError(f"opset {version} is unknown to the installed onnx, which knows 1 to {newest}",
                             hint="install a newer onnx, or export with a lower opset")
        if version < 1:
            raise ModelError(f"opset {version} does not exist")
