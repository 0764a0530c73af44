"""New names that meet no old one."""

from __future__ import annotations

from onnx import ModelProto

from onnxfuse.model.graphs import GraphView

__all__ = ["Names"]

_LONGEST = 60


class Names:
    """Every name of a model, of nodes and values in all scopes, and the new ones given out."""

    def __init__(self, model: ModelProto, main: GraphView) -> None:
        self._taken: set[str] = set()
        for view in main.walk():
            self._taken |= view.inputs | view.sparse | view.initializers.keys() | view.producer.keys()
            self._taken.update(view.free)
            self._taken.update(node.name for node in view.graph.node)
            self._taken.update(value.name for value in view.graph.value_info)
        for info in model.training_info:
            for graph in (info.initialization, info.algorithm):
                self._taken.update(t.name for t in graph.initializer)
                self._taken.update(o for node in graph.node for o in node.output)

    def new(self, wish: str) -> str:
        """The wished name, with a number behind it if it is taken."""
        name, number = wish, 0
        while name in self._taken:
            number += 1
            name = f"{wish}_{number}"
        self._taken.add(name)
        return name

    def for_group(self, sources: list[str]) -> str:
        """A node name made from the first and the last of the names that a fused node replaces."""
        first, last = sources[0][:_LONGEST], sources[-1][-_LONGEST:]
        return self.new(f"fused_{first}" if first == last else f"fused_{first}_to_{last}")
