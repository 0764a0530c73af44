"""Made-up models of any number of elementwise nodes, in the shapes of graph that a planner may find hard.

    build("chain", 5000) -> ModelProto

`nodes` counts elementwise nodes; MatMul nodes and the like come on top. The same arguments give the same model. Values
stay within a few units in every shape, so that the models can be run and compared too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

__all__ = ["SHAPES", "build"]

_OPSET, _IR = 17, 8
_WIDTH = 16  # elements in a row of every tensor
_ROWS = "N"
_UNARY = ("Tanh", "Sigmoid", "Relu", "Abs", "Neg", "Softsign", "Sin")


class _Graph:
    """A graph in the making: one input `x`, float32 values of shape [N, 16]."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.elementwise = 0

    def op(self, kind: str, *inputs: str) -> str:
        """Appends an elementwise node and returns what it makes."""
        self.elementwise += 1
        return self.node(kind, *inputs)

    def matmul(self, value: str) -> str:
        """Appends a MatMul with small weights of its own."""
        weights = np.array([self.random.uniform(-0.2, 0.2) for _ in range(_WIDTH * _WIDTH)], np.float32)
        return self.node("MatMul", value, self.constant(weights.reshape(_WIDTH, _WIDTH)))

    def constant(self, value: float | np.ndarray) -> str:
        """An initializer of its own."""
        name = f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(value, np.float32), name))
        return name

    def unary(self, value: str) -> str:
        return self.op(self.random.choice(_UNARY), value)

    def node(self, kind: str, *inputs: str) -> str:
        """Appends a node of any kind and returns what it makes."""
        made = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [made], name=f"n{len(self.nodes)}"))
        return made

    def model(self, shape: str, outputs: Sequence[str]) -> ModelProto:
        def value(name: str) -> ValueInfoProto:
            return helper.make_tensor_value_info(name, TensorProto.FLOAT, [_ROWS, _WIDTH])

        graph = helper.make_graph(self.nodes, shape, [value("x")], [value(name) for name in outputs],
                                  self.initializers)
        return helper.make_model(graph, ir_version=_IR, opset_imports=[helper.make_opsetid("", _OPSET)],
                                 producer_name="onnxfuse benchmarks")


def _chain(graph: _Graph, nodes: int) -> list[str]:
    """One chain from the input to the output, every node reads the one before it."""
    half, value = graph.constant(0.5), "x"
    while graph.elementwise < nodes:
        kind = graph.random.choice(("Add", "Mul", "unary"))
        value = graph.unary(value) if kind == "unary" else graph.op(kind, value, half)
    return [value]


def _groups(graph: _Graph, nodes: int) -> list[str]:
    """Groups of eight between MatMuls: bias, gate, residual, as in the layers of a network."""
    value = "x"
    while graph.elementwise < nodes:
        inner = graph.op("Add", graph.matmul(value), graph.constant(np.full(_WIDTH, 0.1)))
        gate = graph.op("Mul", graph.op("Sigmoid", inner), inner)
        scaled = graph.op("Mul", gate, graph.constant(0.5))
        moved = graph.op("Sub", graph.op("Tanh", scaled), graph.constant(np.full(_WIDTH, 0.2)))
        value = graph.op("Tanh", graph.op("Add", moved, value))
    return [value]


def _diamonds(graph: _Graph, nodes: int) -> list[str]:
    """Sixteen lanes that read one another, each a row of diamonds; every lane ends in an output."""
    lanes = [graph.unary("x") for _ in range(16)]
    while graph.elementwise < nodes:
        for lane, value in enumerate(lanes):
            left, right = graph.unary(value), graph.unary(value)
            both = graph.op("Add", left, right)
            lanes[lane] = graph.op("Tanh", graph.op("Sub", both, graph.random.choice(lanes)))
    return lanes


def _constants(graph: _Graph, nodes: int) -> list[str]:
    """Every node reads a constant of its own, a number or a row, with a MatMul after each hundred."""
    value, since = "x", 0
    while graph.elementwise < nodes:
        number = graph.random.uniform(0.4, 0.6)
        row = np.array([number + place / 100 for place in range(_WIDTH)]) if graph.random.random() < 0.3 else number
        value = graph.op(graph.random.choice(("Add", "Sub", "Mul", "Max", "Min")), value, graph.constant(row))
        since += 1
        if since == 100:
            value, since = graph.matmul(value), 0
    return [value]


def _mix(graph: _Graph, nodes: int) -> list[str]:
    """Random edges, near and far, shared constants, a MatMul or Softmax here and there, outputs in between."""
    values, unread, outputs = ["x"], ["x"], []
    shared = [graph.constant(graph.random.uniform(0.2, 0.8)) for _ in range(20)]
    while graph.elementwise < nodes:
        value = unread.pop(graph.random.randrange(-min(len(unread), 40), 0))
        draw = graph.random.random()
        if draw < 0.03:
            made = graph.matmul(value)
        elif draw < 0.04:
            made = graph.node("Softmax", value)
        elif draw < 0.45:
            made = graph.unary(value)
        elif draw < 0.7:
            made = graph.op(graph.random.choice(("Mul", "Add", "Max")), value, graph.random.choice(shared))
        else:
            other = graph.random.choice(values[-40:] if draw < 0.98 else values)
            made = graph.op("Tanh", graph.op(graph.random.choice(("Add", "Mul", "Sub", "Max")), value, other))
        values.append(made)
        unread.append(made)
        if len(unread) == 1 or graph.random.random() < 0.1:  # a second reader of a value some way back
            unread.insert(0, graph.random.choice(values[-40:]))
        if graph.random.random() < 0.005:
            outputs.append(made)
    ends = [name for name in unread if name != "x"]
    return list(dict.fromkeys([*outputs, *ends]))


SHAPES: dict[str, Callable[[_Graph, int], list[str]]] = {
    "chain": _chain, "groups": _groups, "diamonds": _diamonds, "constants": _constants, "mix": _mix,
}
"""Shapes of graph by name; what each is says its function."""


def build(shape: str, nodes: int, seed: int = 0) -> ModelProto:
    """A valid model with at least `nodes` elementwise nodes (and no more than a hundred more)."""
    graph = _Graph(seed)
    return graph.model(shape, SHAPES[shape](graph, nodes))
