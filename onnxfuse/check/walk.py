"""Small walks over a model: inputs that a caller gives, nodes of all graphs, constants, what an input reaches."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from onnxfuse.model import graphs

__all__ = ["Uses", "bodies", "free_inputs", "nodes_of", "reads"]

_SMALL = 4096


def free_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Graph inputs that no initializer stands for, in order."""
    given = {t.name for t in model.graph.initializer}
    given |= {t.values.name for t in model.graph.sparse_initializer}
    return [v for v in model.graph.input if v.name not in given]


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs that a node carries (branches of If, bodies of Loop and Scan)."""
    return (body for _, body in graphs.bodies(node))


def nodes_of(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """All nodes of a graph and of the bodies in it, each before those of its bodies."""
    pending: list[Iterator[onnx.NodeProto]] = [iter(graph.node)]
    while pending:
        node = next(pending[-1], None)
        if node is None:
            pending.pop()
            continue
        yield node
        pending.extend(iter(body.node) for body in reversed(list(bodies(node))))


def reads(node: onnx.NodeProto) -> list[str]:
    """Names that a node reads: its inputs, then what its bodies capture (and, harmlessly, their own values)."""
    names = [name for name in node.input if name]
    for body in bodies(node):
        for inner in nodes_of(body):
            names += [name for name in inner.input if name]
        names += [value.name for value in body.output]
    return names


@dataclasses.dataclass(frozen=True)
class _Use:
    node: onnx.NodeProto
    slot: int


class Uses:
    """Who reads what, over all graphs of a model by value name, and the small constants among the values.

    Names are looked up over all bodies at once: for hints on how an input is used that is precise enough.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._uses: dict[str, list[_Use]] = defaultdict(list)
        self._tensors: dict[str, onnx.TensorProto] = {}
        all_graphs = [model.graph]
        for node in nodes_of(model.graph):
            all_graphs += bodies(node)
            for slot, name in enumerate(node.input):
                if name:
                    self._uses[name].append(_Use(node, slot))
            self._note_body_inputs(node)
            if node.op_type == "Constant":
                for attribute in node.attribute:
                    if attribute.name == "value":
                        self._tensors[node.output[0]] = attribute.t
        for graph in all_graphs:
            self._tensors.update((t.name, t) for t in graph.initializer)
        self._shapes = {t.name: tuple(t.dims) for t in self._tensors.values() if t.name}
        self._shapes.update((name, tuple(t.dims)) for name, t in self._tensors.items())

    def _note_body_inputs(self, node: onnx.NodeProto) -> None:
        """A value that enters a body under another name is used as that name."""
        if node.op_type not in ("Loop", "Scan"):
            return
        for body in bodies(node):
            offset = 0 if node.op_type == "Loop" else len(node.input) - len(body.input)
            for slot, value in enumerate(body.input):
                if 0 <= slot + offset < len(node.input) and node.input[slot + offset]:
                    alias = onnx.NodeProto(op_type="Identity", input=[node.input[slot + offset]], output=[value.name])
                    self._uses[node.input[slot + offset]].append(_Use(alias, 0))

    def of(self, name: str) -> list[tuple[onnx.NodeProto, int]]:
        """(node, input slot) of every reader."""
        return [(use.node, use.slot) for use in self._uses.get(name, ())]

    def constant(self, name: str) -> NDArray[np.generic] | None:
        """The value of a small constant whose data are in the model itself, else None."""
        tensor = self._tensors.get(name)
        if tensor is None or tensor.data_location == onnx.TensorProto.EXTERNAL:
            return None
        if int(np.prod(tensor.dims, dtype=np.int64)) > _SMALL:
            return None
        return numpy_helper.to_array(tensor)

    def constant_shape(self, name: str) -> tuple[int, ...] | None:
        """Dims of a constant of any size."""
        return self._shapes.get(name)
