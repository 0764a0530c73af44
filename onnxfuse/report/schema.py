"""The record as JSON (`--report FILE.json`), schema 1: docs/report.md describes every field.

Deterministic but for `bench`: the same run gives the same bytes, no times, no paths but those that the caller gave.
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from onnxfuse.check.compare import Comparison
from onnxfuse.check.validate import RunReport, ValidationReport
from onnxfuse.report.machine import machine
from onnxfuse.report.summary import Code, Group, LeftNode, Report, versions
from onnxfuse.timing import BenchReport

__all__ = ["SCHEMA", "bench_record", "to_dict", "to_json", "validation_record", "validation_to_dict"]

SCHEMA = 1


def to_dict(report: Report) -> dict[str, Any]:
    """The report as plain dicts and lists."""
    return {
        "schema": SCHEMA,
        "command": report.command,
        "versions": versions(),
        "input": report.input,
        "output": report.output,
        "options": report.options,
        "nodes": {"before": report.nodes_before, "after": report.nodes_after, "on_cpu": report.nodes_on_cpu,
                  "fused": report.ops_fused},
        "groups": [_group(group) for group in report.groups],
        "left_counts": report.left_counts,
        "left": [_left(node) for node in report.left],
        "reserved_note": report.note,
        "validation": None if report.validation is None else validation_to_dict(report.validation),
        "warnings": list(report.warnings),
        "cuda": [_code(code, report.ops_of(code)) for code in report.codes],
    }


def to_json(data: dict[str, Any]) -> str:
    """Text of a report: two spaces of indent, NaN and infinities as strings, a line break at the end."""
    return json.dumps(_plain(data), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def validation_to_dict(report: ValidationReport) -> dict[str, Any]:
    """The part `validation`."""
    return {
        "passed": report.passed,
        "method": report.method,
        "seed": report.seed,
        "rtol": report.tolerance.rtol,
        "atol": report.tolerance.atol,
        "quantized": report.quantized,
        "inputs": dict(report.inputs),
        "not_compared": dict(report.skipped),
        "largest_error": report.largest_error,
        "first_differing_group": report.first_group or None,
        "runs": [_run(run) for run in report.runs],
        "warnings": list(report.warnings),
    }


def _run(run: RunReport) -> dict[str, Any]:
    return {
        "name": run.name,
        "passed": run.passed,
        "refused": run.refused or None,
        "outputs": [_output(output) for output in run.outputs],
    }


def _output(output: Comparison) -> dict[str, Any]:
    return {
        "name": output.name,
        "passed": output.passed,
        "rule": output.rule,
        "dtype": output.dtype,
        "shape": list(output.shape),
        "error": output.error,
        "limit": output.limit,
        "largest": output.largest,
        "differing": output.differing,
        "total": output.total,
        "index": None if output.index is None else list(output.index),
        "expected": output.want or None,
        "got": output.got or None,
        "problem": output.problem or None,
    }


def _group(group: Group) -> dict[str, Any]:
    return {
        "op": group.op,
        "name": group.name,
        "graph": group.graph,
        "ops": list(group.ops),
        "source": list(group.source),
        "inputs": list(group.inputs),
        "outputs": list(group.outputs),
    }


def _code(code: Code, ops: list[str]) -> dict[str, Any]:
    return {
        "ops": ops,
        "bytes": code.bytes,
        "kernels": {
            str(architecture): {name: dataclasses.asdict(kernel) for name, kernel in kernels.items()}
            for architecture, kernels in code.facts.items()
        },
    }


def _left(node: LeftNode) -> dict[str, Any]:
    return {
        "graph": node.graph,
        "node": node.node,
        "op": node.op,
        "output": node.output,
        "code": node.code,
        "text": node.text,
    }


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def validation_record(original: str, fused: str, report: ValidationReport) -> dict[str, Any]:
    """The record of `onnxfuse validate A B`."""
    return {
        "schema": SCHEMA,
        "command": "validate",
        "versions": versions(),
        "original": original,
        "fused": fused,
        "validation": validation_to_dict(report),
    }


def bench_record(report: BenchReport) -> dict[str, Any]:
    """The record of `onnxfuse bench A B`."""
    return {
        "schema": SCHEMA,
        "command": "bench",
        "versions": versions(),
        "machine": machine(),
        "inputs": dict(report.inputs),
        "noise": {str(threads): dataclasses.asdict(value) for threads, value in report.noise.items()},
        "rounds": {str(threads): count for threads, count in report.rounds.items()},
        "rows": [dataclasses.asdict(row) for row in report.rows],
    }
