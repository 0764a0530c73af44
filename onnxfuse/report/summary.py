"""The record of one run of `optimize` or `explain`: groups, nodes left alone, the outcome of validation.

Groups are read from the fused model itself, so the record says what is in the file.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from onnxfuse.check.locate import sources_of
from onnxfuse.check.validate import ValidationReport
from onnxfuse.check.walk import nodes_of
from onnxfuse.codegen.cubin import Kernel
from onnxfuse.fusion.plan import Left
from onnxfuse.library import DOMAIN, GPU_FAMILY
from onnxfuse.model.graphs import bodies
from onnxfuse.rewrite.kernels import program_of
from onnxfuse.version import __version__

__all__ = ["Code", "Group", "LeftNode", "Report", "code_line", "collect_groups", "count_nodes", "versions"]


@dataclasses.dataclass(frozen=True)
class Group:
    """One fused node: where it stands, what it replaces. `graph` is "" for the main graph."""

    op: str
    name: str
    graph: str
    source: tuple[str, ...]
    ops: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    program: str = ""

    @property
    def on_gpu_alone(self) -> bool:
        """Whether a session on the CPU runs what it replaces instead."""
        return self.op.startswith(GPU_FAMILY)


@dataclasses.dataclass(frozen=True)
class Code:
    """GPU code of one program: its CUDA text, bytes in the model, and the kernels by architecture."""

    program: str
    text: str
    bytes: int
    facts: Mapping[int, Mapping[str, Kernel]]

    @property
    def registers(self) -> dict[str, int]:
        """Registers of a thread by kernel, the most of all architectures."""
        names = dict.fromkeys(name for kernels in self.facts.values() for name in kernels)
        return {name: max(kernels[name].registers for kernels in self.facts.values()) for name in names}

    @property
    def frame(self) -> int:
        """Bytes of local memory of a thread, the most of all kernels: above 0, values are spilled or lie in tables."""
        return max((k.frame for kernels in self.facts.values() for k in kernels.values()), default=0)


@dataclasses.dataclass(frozen=True)
class LeftNode:
    """An elementwise node that was left alone, and why."""

    graph: str
    node: str
    op: str
    output: str
    code: str
    text: str


@dataclasses.dataclass(frozen=True)
class Report:
    """Everything about one run.

    `output` is None unless it was written; `validation` None if it was not asked for or nothing changed. `groups` are
    all fused nodes of the result, `new_groups` of them were not in the input already. `left` are the nodes that are
    fused nowhere, or not on the CPU.
    """

    command: str
    input: str | None
    output: str | None
    options: dict[str, Any]
    nodes_before: int
    nodes_after: int
    new_groups: int
    groups: tuple[Group, ...]
    left: tuple[LeftNode, ...]
    note: str | None = None
    validation: ValidationReport | None = None
    warnings: tuple[str, ...] = ()
    codes: tuple[Code, ...] = ()

    def ops_of(self, code: Code) -> list[str]:
        """Op types of the fused nodes with this program."""
        return list(dict.fromkeys(group.op for group in self.groups if group.program == code.program))

    @property
    def ops_fused(self) -> int:
        return sum(len(group.ops) for group in self.groups)

    @property
    def gpu_groups(self) -> tuple[Group, ...]:
        """Those that are fused on a GPU alone."""
        return tuple(group for group in self.groups if group.on_gpu_alone)

    @property
    def nodes_on_cpu(self) -> int:
        """Nodes that a session on the CPU has in place of `nodes_after`."""
        return self.nodes_after + sum(len(group.ops) - 1 for group in self.gpu_groups)

    @property
    def left_counts(self) -> dict[str, int]:
        """Number of nodes left alone by code, most first, ties by code."""
        counts = Counter(node.code for node in self.left)
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    @property
    def passed(self) -> bool:
        return self.validation is None or self.validation.passed


def code_line(codes: Sequence[Code]) -> str:
    """Some GPU code in a few words: how much of it, for what, and what a thread of it takes."""
    names = ", ".join(f"sm_{architecture}" for architecture in codes[0].facts)
    frame = max(code.frame for code in codes)
    return (f"{len(codes):,} program{'' if len(codes) == 1 else 's'} for {names} and PTX, "
            f"{sum(code.bytes for code in codes) / 1024:,.0f} KB; "
            f"at most {max(max(code.registers.values()) for code in codes)} registers, "
            f"{f'at most {frame} bytes of' if frame else 'no'} local memory")


def versions() -> dict[str, str | None]:
    """Versions that decide over the result; None for what is not installed."""
    found: dict[str, str | None] = {"onnxfuse": __version__, "python": platform.python_version()}
    found.update({"onnx": onnx.__version__, "numpy": np.__version__, "onnxruntime": None})
    for package in ("onnxruntime", "onnxruntime-gpu"):
        try:
            found["onnxruntime"] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def count_nodes(model: onnx.ModelProto) -> int:
    """Nodes of the main graph and of all bodies in it; functions are not counted."""
    return sum(1 for _ in nodes_of(model.graph))


def collect_groups(model: onnx.ModelProto) -> tuple[Group, ...]:
    """The fused nodes of a model, main graph first, bodies where their node stands."""
    ops_of = {(f.domain, f.name): tuple(n.op_type for n in f.node if not _is_plumbing(n)) for f in model.functions
              if f.domain == DOMAIN}
    groups = []
    for path, node in _walk(model.graph, ""):
        if node.domain != DOMAIN:
            continue
        ops = ops_of.get((node.domain, node.op_type), ())
        groups.append(
            Group(node.op_type, node.name, path, sources_of(node), ops, tuple(node.input[1:]), tuple(node.output),
                  program_of(node) or "")
        )
    return tuple(groups)


def _is_plumbing(node: onnx.NodeProto) -> bool:
    """A Constant that reads an attribute of the fused node: it stands for no node of the original."""
    return node.op_type == "Constant" and any(a.ref_attr_name for a in node.attribute)


def _walk(graph: onnx.GraphProto, path: str) -> Iterator[tuple[str, onnx.NodeProto]]:
    """Nodes with the path of their graph, as the plan names it."""
    for node in graph.node:
        yield path, node
        first = next((output for output in node.output if output), "")
        for attribute, body in bodies(node):
            yield from _walk(body, f"{path}/{first}.{attribute}" if path else f"{first}.{attribute}")


def collect_left(left: Sequence[Left]) -> tuple[LeftNode, ...]:
    """The plan's nodes left alone, as records."""
    return tuple(LeftNode(n.graph, n.node, n.op, n.output, n.reason.code, n.reason.text) for n in left)
