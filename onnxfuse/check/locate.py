"""Which group is at fault: its own outputs, made outputs of both models, are the first that differ."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import onnx

from onnxfuse.check import sessions
from onnxfuse.check.compare import Tolerance, compare
from onnxfuse.check.subject import Subject
from onnxfuse.check.walk import bodies, nodes_of
from onnxfuse.library import DOMAIN

__all__ = ["describe_group", "first_differing_group", "sources_of"]

_CHUNK = 48
"""Groups looked at in one run: enough to be quick, few enough to hold their outputs in memory."""
_MAX_SOURCE = 120


def sources_of(node: onnx.NodeProto) -> tuple[str, ...]:
    """Names of the nodes that a fused node replaces (an output's name where a node had none)."""
    text = next((entry.value for entry in node.metadata_props if entry.key == "onnxfuse.source"), "")
    try:
        names = json.loads(text or "[]")
    except ValueError:
        names = [text]
    return tuple(str(name) for name in names) if isinstance(names, list) else (str(names),)


def describe_group(node: onnx.NodeProto) -> str:
    """A fused node in words: op type, name, and what it replaces."""
    source = ", ".join(sources_of(node))
    if len(source) > _MAX_SOURCE:
        source = source[: _MAX_SOURCE - 1] + "…"
    return f"{node.op_type} {node.name!r}" + (f" (replaces {source})" if source else "")


def first_differing_group(
    original: Subject,
    fused: Subject,
    feed: Mapping[str, Any],
    tolerance: Tolerance,
    library: str | os.PathLike[str] | None,
    device: str | None = None,
    threads: int = 0,
) -> str:
    """The first group in graph order whose own outputs differ, in words; empty if none can be named.

    Groups in bodies of If, Loop and Scan have no outputs of the main graph: where only such are left, the node that
    carries the body is named.
    """
    made = {name for node in original.model.graph.node for name in node.output if name}
    groups = [(node, [n for n in node.output if n in made]) for node in fused.fused_nodes()]
    for start in range(0, len(groups), _CHUNK):
        chunk = groups[start : start + _CHUNK]
        names = list(dict.fromkeys(name for _, outputs in chunk for name in outputs))
        try:
            want = sessions.run(original.with_outputs(names).session(optimize=False, threads=threads), feed, names)
            session = fused.with_outputs(names).session(
                optimize=True, library=library, device=device, threads=threads
            )
            got = sessions.run(session, feed, names)
        except sessions.RunRefused:
            continue  # some values cannot leave the graph; others still may tell
        for node, outputs in chunk:
            if any(not r.passed for name in outputs for r in compare(name, got[name], want[name], tolerance)):
                return describe_group(node)
    for node in fused.model.graph.node:
        for body in bodies(node):
            if any(inner.domain == DOMAIN for inner in nodes_of(body)):
                return f"one in the body of {node.op_type} {node.name or node.output[0]!r}"
    return ""
