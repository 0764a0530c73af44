"""Groups checked one by one, for models that the runtime cannot run as a whole (a custom op, a type without kernels).

Each fused node becomes a model of its own, runs on random inputs with its function body and with the library, and
is compared with what its program evaluates to in numpy.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from onnxfuse.check import sessions
from onnxfuse.check.classify import profile, tolerance_for
from onnxfuse.check.compare import STEPS, Comparison, Tolerance, compare, is_float
from onnxfuse.check.inputs import numpy_dtype
from onnxfuse.check.locate import describe_group
from onnxfuse.check.subject import Subject
from onnxfuse.check.validate import WITH, WITHOUT, RunReport, ValidationReport
from onnxfuse.check.walk import nodes_of
from onnxfuse.library import DOMAIN, find_library
from onnxfuse.program.program import Program

__all__ = ["check_groups"]

_ELEMENT = {
    "f32": "FLOAT", "f64": "DOUBLE", "f16": "FLOAT16", "bf16": "BFLOAT16", "bool": "BOOL", "i8": "INT8", "i16": "INT16",
    "i32": "INT32", "i64": "INT64", "u8": "UINT8", "u16": "UINT16", "u32": "UINT32", "u64": "UINT64",
}
_SIZES = (2, 3, 4, 5)
_RANKS = (4, 3, 2, 5, 1)


def check_groups(
    original: Subject,
    fused: Subject,
    reason: str,
    *,
    library: str | os.PathLike[str] | None = None,
    seed: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
) -> ValidationReport:
    """Check every group of `fused` by itself; `reason` says why not the whole models, and goes into the warning."""
    found = profile(original.model)
    tolerance = tolerance_for(found, rtol, atol)
    tensors = {t.name: t for t in fused.model.graph.initializer if t.data_location != onnx.TensorProto.EXTERNAL}
    path = os.fspath(library) if library is not None else find_library()
    results: dict[str, list[Comparison]] = {WITHOUT: [], WITH: []}
    unchecked, first = [], ""
    nodes = [node for node in nodes_of(fused.model.graph) if node.domain == DOMAIN]
    for node in nodes:
        done = False
        for mode, where in ((WITHOUT, None), (WITH, path)):
            if mode == WITH and path is None:
                continue
            outcome = _check_group(fused.model, node, tensors, where, tolerance, seed)
            results[mode] += outcome
            done = done or bool(outcome)
            if not first and any(not result.passed for result in outcome):
                first = describe_group(node)
        if not done:
            unchecked.append(node.name or node.output[0])
    warnings = [
        f"{reason}: {len(nodes) - len(unchecked)} of {len(nodes)} groups were checked one by one instead"
    ]
    if unchecked:
        warnings.append(f"not checked, for they cannot be run alone: {len(unchecked)} groups, first {unchecked[0]!r}")
    runs = tuple(RunReport(mode, tuple(outputs)) for mode, outputs in results.items() if outputs)
    return ValidationReport("oracle", runs, tolerance, seed, warnings=tuple(warnings), first_group=first)


def _check_group(
    model: onnx.ModelProto, node: onnx.NodeProto, tensors: dict[str, onnx.TensorProto], library: Any,
    tolerance: Tolerance, seed: int,
) -> list[Comparison]:
    """Results for the first rank of inputs that the node runs on; empty if it runs on none."""
    attributes = {a.name: a for a in node.attribute}
    program = Program.parse(attributes["program"].s.decode())
    scalars = [numpy_helper.to_array(attributes[v.name].t) for v in program.scalars]
    for values in _inputs(program, node, tensors, seed):
        alone = _alone(model, node, program, values)
        try:
            session = sessions.create(alone, optimize=False, library=library, device="cuda")
            got = sessions.run(session, dict(zip(node.input[1:], values, strict=True)))
        except sessions.RunRefused:
            continue
        want = program.evaluate(values, scalars)
        results = []
        for name, expected in zip(node.output, want, strict=True):
            if name:
                rule = None if is_float(expected.dtype) else STEPS if _has_floats(program) else None
                results += compare(name, got[name], expected, tolerance, rule=rule)
        return results
    return []


def _has_floats(program: Program) -> bool:
    return any(value.dtype in ("f32", "f64", "f16", "bf16") for value in program.inputs)


def _inputs(
    program: Program, node: onnx.NodeProto, tensors: dict[str, onnx.TensorProto], seed: int
) -> Iterator[list[NDArray[Any]]]:
    """Values of the x inputs, for one rank after the other: constants as they are, others random."""
    declared = program.tensors
    fixed = [numpy_helper.to_array(tensors[name]) if name in tensors else None for name in node.input[1:]]
    pads = [value.pad for value, constant in zip(declared, fixed, strict=True)]
    ranks: Sequence[int] = [max(pads) + 2, *_RANKS] if any(pads) else _RANKS
    for rank in dict.fromkeys(ranks):
        shape = list(_SIZES[:rank]) + [2] * (rank - len(_SIZES))
        for constant, pad in zip(fixed, pads, strict=True):
            for axis, size in enumerate(reversed((constant.shape if constant is not None else ()) + (1,) * pad)):
                if size != 1 and axis < rank:
                    shape[rank - 1 - axis] = size
        values = []
        for k, value in enumerate(declared):
            constant = fixed[k]
            if constant is None:
                dims = shape if not value.pad else shape[rank - 1 - value.pad : rank - value.pad]
                constant = _random(value.dtype, dims, [seed, k, zlib.crc32(node.output[0].encode())])
            values.append(constant)
        yield values


def _random(dtype: str, shape: Sequence[int], seed: list[int]) -> NDArray[Any]:
    rng = np.random.default_rng(seed)
    target = numpy_dtype(getattr(onnx.TensorProto, _ELEMENT[dtype]))
    if dtype == "bool":
        return np.asarray(rng.random(shape) < 0.5)
    if dtype[0] in "iu":
        return rng.integers(0, 8, shape).astype(target)
    return rng.standard_normal(shape).astype(target)


def _alone(
    model: onnx.ModelProto, node: onnx.NodeProto, program: Program, values: Sequence[NDArray[Any]]
) -> onnx.ModelProto:
    """A model with this node alone; the x inputs are graph inputs, also where they are constants in the model."""
    alone = onnx.ModelProto(ir_version=model.ir_version)
    alone.opset_import.extend(model.opset_import)
    alone.functions.extend(f for f in model.functions if f.domain != DOMAIN or f.name == node.op_type)
    graph = alone.graph
    graph.name = "group"
    graph.node.append(node)
    graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.uint8), node.input[0]))
    declared = program.tensors
    seen = set()
    for name, value, array in zip(node.input[1:], declared, values, strict=True):
        if name not in seen:
            seen.add(name)
            elem = getattr(onnx.TensorProto, _ELEMENT[value.dtype])
            graph.input.append(onnx.helper.make_tensor_value_info(name, elem, list(array.shape)))
    for name, result in zip(node.output, program.outputs, strict=True):
        if name:
            elem = getattr(onnx.TensorProto, _ELEMENT[program.dtype_of(result)])
            graph.output.append(onnx.helper.make_tensor_value_info(name, elem, None))
    return alone
