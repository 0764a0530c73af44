"""Tensors whose data lies in files beside the model: finding, checking and reading them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from onnxfuse.errors import ModelError

__all__ = ["DataRange", "check_external", "external_tensors", "is_external", "locate", "read_array", "read_bytes",
           "size_of"]


@dataclass(frozen=True)
class DataRange:
    """Where the data of an external tensor lies: ``length`` bytes of ``file`` from byte ``offset`` on."""

    file: Path
    offset: int
    length: int


def is_external(tensor: TensorProto) -> bool:
    """Whether the tensor's data lies in another file."""
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def external_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Every tensor of the model that is stored outside, in a fixed order; functions and training graphs included."""
    yield from (t for t in _tensors_of(model.graph) if is_external(t))
    for function in model.functions:
        for node in function.node:
            yield from (t for t in _node_tensors(node) if is_external(t))
    for info in model.training_info:
        for graph in (info.initialization, info.algorithm):
            yield from (t for t in _tensors_of(graph) if is_external(t))


def _tensors_of(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices
    for node in graph.node:
        if node.attribute:
            yield from _node_tensors(node)


def _node_tensors(node: NodeProto) -> Iterator[TensorProto]:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.TENSOR:
            yield attribute.t
        elif attribute.type == AttributeProto.TENSORS:
            yield from attribute.tensors
        elif attribute.type == AttributeProto.SPARSE_TENSOR:
            yield attribute.sparse_tensor.values
            yield attribute.sparse_tensor.indices
        elif attribute.type == AttributeProto.GRAPH:
            yield from _tensors_of(attribute.g)
        elif attribute.type == AttributeProto.GRAPHS:
            for graph in attribute.graphs:
                yield from _tensors_of(graph)


def size_of(tensor: TensorProto) -> int | None:
    """Bytes that a tensor of this type and these dims takes; None where the type has no fixed size."""
    elements = int(math.prod(tensor.dims))
    name = TensorProto.DataType.Name(tensor.data_type) if tensor.data_type in TensorProto.DataType.values() else ""
    if name in ("", "UNDEFINED", "STRING"):
        return None
    if name in ("INT4", "UINT4", "FLOAT4E2M1"):
        return (elements + 1) // 2
    if name in ("INT2", "UINT2"):
        return (elements + 3) // 4
    return int(elements * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)


def locate(tensor: TensorProto, folder: Path | None) -> DataRange:
    """Where an external tensor's data is. Raises ModelError where the reference is damaged, leads out of the model's
    folder (by a path or by a link), or names bytes that the file does not have."""
    entries = {e.key: e.value for e in tensor.external_data}
    name, place = tensor.name or "without a name", entries.get("location", "")
    what = f"external data of tensor {name!r}"
    if not place:
        raise ModelError(f"{what} names no file")
    if folder is None:
        raise ModelError(f"{what} is in {place!r}, but the model has no folder",
                         hint="load the model from its file, or load its external data first")
    try:
        offset, stated = int(entries.get("offset") or 0), int(entries.get("length") or -1)
    except ValueError:
        raise ModelError(f"{what} has an offset or length that is no number") from None
    base = folder.resolve()
    file = base / place
    if Path(place).is_absolute() or ".." in Path(place).parts or not file.resolve().is_relative_to(base):
        raise ModelError(f"{what} is in {place!r}, outside the model's folder",
                         hint="put the data file into the folder of the model")
    if not file.is_file():
        raise ModelError(f"{what} is in {place!r}, which does not exist" if not file.exists()
                         else f"{what} is in {place!r}, which is not a file",
                         hint="copy the data file into the folder of the model")
    wanted, available = size_of(tensor), file.stat().st_size
    length = stated if stated >= 0 else available - offset if wanted is None else wanted
    if offset < 0 or length < 0 or offset + length > available:
        raise ModelError(f"{what} is out of range: bytes {offset} to {offset + length} of {place!r}, "
                         f"which has {available}", hint="the data file may be incomplete")
    if wanted is not None and length != wanted:
        raise ModelError(f"{what} has {length} bytes in {place!r}, but its type and shape take {wanted}")
    return DataRange(file, offset, length)


def check_external(model: ModelProto, folder: Path | None) -> None:
    """Raises ModelError if the data of any external tensor cannot be used."""
    for tensor in external_tensors(model):
        locate(tensor, folder)


def read_bytes(tensor: TensorProto, folder: Path | None) -> bytes:
    """The data of an external tensor. Raises ModelError if it cannot be read."""
    where = locate(tensor, folder)
    try:
        with open(where.file, "rb") as file:
            file.seek(where.offset)
            return file.read(where.length)
    except OSError as error:
        raise ModelError(f"external data of tensor {tensor.name!r} cannot be read: {error.strerror}") from None


def read_array(tensor: TensorProto, folder: Path | None) -> np.ndarray:
    """The tensor as an array, read from its file if it is stored outside. Raises ModelError if it is damaged."""
    if is_external(tensor):
        tensor = TensorProto(data_type=tensor.data_type, dims=tensor.dims, name=tensor.name,
                             raw_data=read_bytes(tensor, folder))
    try:
        return onnx.numpy_helper.to_array(tensor)
    except (ValueError, TypeError) as error:
        raise ModelError(f"the data of tensor {tensor.name!r} is damaged: {error}") from None
