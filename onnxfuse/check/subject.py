"""A model that is to be run: a file, or a ModelProto and the folder of its external data."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import onnx

from onnxfuse.check import sessions
from onnxfuse.check.walk import nodes_of
from onnxfuse.errors import ModelError
from onnxfuse.library import DOMAIN, GPU_FAMILY

__all__ = ["Subject"]


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model to run: a file, or a ModelProto whose external data lie in `folder`."""

    model: onnx.ModelProto
    path: str | None = None
    folder: str | None = None

    @staticmethod
    def of(source: onnx.ModelProto | str | os.PathLike[str], folder: str | os.PathLike[str] | None = None) -> Subject:
        """From a path or a ModelProto. ModelError if the path is no model."""
        if isinstance(source, onnx.ModelProto):
            return Subject(source, None, None if folder is None else os.fspath(folder))
        path = os.fspath(source)
        try:
            return Subject(onnx.load(path, load_external_data=False), path, os.path.dirname(path) or ".")
        except Exception as error:
            raise ModelError(f"cannot be read as a model: {error}", path=path) from error

    def session(
        self, *, optimize: bool, library: str | os.PathLike[str] | None = None, device: str | None = None,
        threads: int = 0,
    ) -> Any:
        """As `sessions.create`."""
        if self.path is not None and library is None:
            return sessions.create(self.path, optimize=optimize, threads=threads)
        return sessions.create(
            self.model, optimize=optimize, library=library, device=device, folder=self.folder, threads=threads
        )

    @property
    def is_fused(self) -> bool:
        return any(node.domain == DOMAIN for node in nodes_of(self.model.graph))

    @property
    def has_gpu_groups(self) -> bool:
        """Whether some of its fused nodes are such on a GPU only."""
        return any(node.domain == DOMAIN and node.op_type.startswith(GPU_FAMILY) for node in nodes_of(self.model.graph))

    def fused_nodes(self) -> Iterator[onnx.NodeProto]:
        """Fused nodes of the main graph, in order."""
        return (node for node in self.model.graph.node if node.domain == DOMAIN)

    def with_outputs(self, names: list[str]) -> Subject:
        """The same model with more graph outputs (values of the main graph; the runtime infers their types)."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        have = {value.name for value in model.graph.output}
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in have)
        return dataclasses.replace(self, model=model, path=None)
