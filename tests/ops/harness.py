"""One-node models three ways: lowered to a program and evaluated, run by ONNX Runtime, run by onnx.reference."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.reference
import onnxruntime as ort
import pytest
from onnx import helper

from onnxfuse import ops
from onnxfuse.ops import Operand, PlainContext, Reason
from onnxfuse.program import Builder, Program
from onnxfuse.program.dtypes import NUMPY, name_of

Array = np.ndarray

NUMBER: dict[str, int] = {
    word: int(getattr(onnx.TensorProto, name)) for word, name in (
        ("f32", "FLOAT"), ("f64", "DOUBLE"), ("f16", "FLOAT16"), ("bf16", "BFLOAT16"), ("i8", "INT8"), ("i16", "INT16"),
        ("i32", "INT32"), ("i64", "INT64"), ("u8", "UINT8"), ("u16", "UINT16"), ("u32", "UINT32"), ("u64", "UINT64"),
        ("bool", "BOOL"))}
"""onnx.TensorProto.DataType of the format's types."""


def _session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _runtime_opset() -> int:
    value = helper.make_tensor_value_info
    nodes = [helper.make_node("Neg", ["x"], ["y"])]
    graph = helper.make_graph(nodes, "probe", [value("x", 1, [1])], [value("y", 1, [1])])
    for opset in range(onnx.defs.onnx_opset_version(), 0, -1):
        try:
            _session(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8))
        except Exception:  # ONNX Runtime's own class: the opset is too new for it
            continue
        return opset
    raise AssertionError("ONNX Runtime loads nothing")


RUNTIME_OPSET = _runtime_opset()
"""The newest opset that the installed ONNX Runtime loads."""

current_runtime = pytest.mark.skipif(
    RUNTIME_OPSET < 26,
    reason="compares with the CPU kernels of ONNX Runtime 1.31; older ones lose NaN and signed zeros")
"""For tests that take ONNX Runtime's (or onnx.reference's) results bit by bit."""

BF16 = np.dtype(ml_dtypes.bfloat16)


class Case:
    """A node with the tensors that it reads; `None` is a missing input, `constants` names inputs that are fixed."""

    def __init__(self, op: str, inputs: Sequence[Array | None], opset: int, domain: str = "", outputs: int = 1,
                 constants: Sequence[int] = (), ranks_unknown: bool = False, half_math: str = "float32",
                 **attributes: Any) -> None:
        self.inputs = {f"x{k}": np.asarray(v) for k, v in enumerate(inputs) if v is not None}
        names = [f"x{k}" if v is not None else "" for k, v in enumerate(inputs)]
        outs = ["y", *(f"extra{k}" for k in range(1, outputs))]
        self.node = helper.make_node(op, names, outs, domain=domain, name=op, **attributes)
        self.opset, self.domain = opset, domain
        shapes = {} if ranks_unknown else {n: tuple(v.shape) for n, v in self.inputs.items()}
        self.context = PlainContext(
            dtypes={n: name_of(v.dtype) or ("string" if v.dtype.kind in "OU" else str(v.dtype))
                    for n, v in self.inputs.items()},
            shapes=shapes, opsets={"": opset, "com.microsoft": 1}, half_math=half_math,
            constants={f"x{k}": self.inputs[f"x{k}"] for k in constants})

    def examine(self) -> Reason | None:
        return ops.examine(self.node, self.context)

    def program(self) -> tuple[Program, list[Operand]]:
        """The program of the node alone, and its operands."""
        reason = self.examine()
        assert reason is None, reason
        builder = Builder()
        reads = ops.operands(self.node, self.context)
        values = {}
        for read in reads:
            dtype = self.context.dtypes[read.value]
            values[read.value, read.pad] = ops.enter(builder, dtype, builder.input(dtype, read.pad))
        results = ops.lower(self.node, self.context, builder, values)
        assert results[1:] == [""] * (len(self.node.output) - 1)
        builder.output(ops.leave(builder, ops.result_dtype(self.node, self.context), results[0]))
        return builder.build(), reads

    def ours(self) -> Array:
        """The result of the lowered program."""
        program, reads = self.program()
        result = program.evaluate([self.inputs[r.value] for r in reads])[0]
        assert result.dtype == NUMPY[ops.result_dtype(self.node, self.context)]
        return result

    def model(self) -> onnx.ModelProto:
        result = NUMBER[ops.result_dtype(self.node, self.context)]
        graph = helper.make_graph(
            [self.node], "one",
            [helper.make_tensor_value_info(n, NUMBER[self.context.dtypes[n]], list(v.shape))
             for n, v in self.inputs.items()],
            [helper.make_tensor_value_info("y", result, None)])
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)

    def runtime(self) -> Array | None:
        """ONNX Runtime's result on its CPU provider, None if it has no kernel (or numpy no type) for this."""
        if self.opset > RUNTIME_OPSET or any(v.dtype == BF16 for v in self.inputs.values()):
            return None
        try:
            session = _session(self.model())
        except Exception as error:
            if "NOT_IMPLEMENTED" in str(error) or "Type Error" in str(error):
                return None
            raise
        return np.asarray(session.run(None, self.inputs)[0])

    def reference(self) -> Array:
        """The result of onnx.reference."""
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            results: Any = onnx.reference.ReferenceEvaluator(self.model()).run(None, self.inputs)
            return np.asarray(results[0])


def schema_takes(op: str, opset: int, letter_index: int, dtype: str) -> bool:
    """Whether the operator's schema at this opset allows `dtype` for input `letter_index`; False where the installed
    onnx does not know the op or the opset yet."""
    if opset > onnx.defs.onnx_opset_version():
        return False
    schema = onnx.defs.get_schema(op, opset, "")
    name = onnx.TensorProto.DataType.Name(NUMBER[dtype]).lower()
    allowed: Mapping[str, set[str]] = {c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints}
    wanted = schema.inputs[letter_index].type_str
    return f"tensor({name})" in allowed.get(wanted, {wanted})


def values(dtype: str, count: int = 40, seed: int = 1, scale: float = 3.0) -> Array:
    """Special values of a type, then ordinary ones."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, count).astype(bool)
    kind = NUMPY[dtype]
    if dtype in ("f32", "f64", "f16", "bf16"):
        tiny = {"f16": 6e-8, "bf16": 1e-40, "f32": 1e-45, "f64": 5e-324}[dtype]
        special = [0.0, -0.0, np.nan, np.inf, -np.inf, tiny, -tiny, 0.5, -0.5, 1.5, 2.5, 1.0, -1.0]
        return np.concatenate([special, rng.normal(0, scale, count)]).astype(kind)
    info = np.iinfo(kind)
    special_ints = [0, 1, info.max, info.min, info.max // 2 + 1]
    small = rng.integers(max(info.min, -50), 51, count)
    return np.concatenate([np.array(special_ints, kind), small.astype(kind)])


def pairs(dtype: str, seed: int = 2) -> tuple[Array, Array]:
    """Every special value beside every other, as [n, 1] and [m], so that broadcasting takes part."""
    a = values(dtype, 12, seed)
    return a.reshape(-1, 1), values(dtype, 20, seed + 1)


def assert_same(got: Array, wanted: Array, note: object, zero_signs: bool = True) -> None:
    """Equal bit by bit, any NaN for NaN; without `zero_signs` a zero is a zero."""
    assert got.dtype == wanted.dtype, (note, got.dtype, wanted.dtype)
    assert got.shape == wanted.shape, (note, got.shape, wanted.shape)
    if got.dtype == BF16:
        got, wanted = got.astype(np.float32), wanted.astype(np.float32)
    np.testing.assert_array_equal(got, wanted, err_msg=str(note))
    if zero_signs and got.dtype.kind == "f":
        number = ~np.isnan(got)
        np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(wanted[number]), err_msg=f"{note}: signs")


def assert_close(got: Array, wanted: Array, note: object, rtol: float, atol: float) -> None:
    """Within a tolerance, infinities and NaN in the same places."""
    assert got.dtype == wanted.dtype, (note, got.dtype, wanted.dtype)
    assert got.shape == wanted.shape, (note, got.shape, wanted.shape)
    np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), rtol=rtol, atol=atol,
                               err_msg=str(note))
