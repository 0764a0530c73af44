"""Cast and CastLike between all types, and the ops that change nothing."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from onnxfuse import ops
from onnxfuse.program.dtypes import NUMPY
from tests.ops.harness import BF16, NUMBER, Case, assert_same, current_runtime, values

pytestmark = current_runtime


def in_range(source: str, target: str) -> np.ndarray:
    """Values whose cast is defined: for float to integer those that fit once they are cut."""
    x = values(source, 60, scale=40)
    if NUMPY[source].kind in "iub" or NUMPY[target].kind not in "iu":
        return x
    wide = x.astype(np.float64)
    info = np.iinfo(NUMPY[target])
    return x[np.isfinite(wide) & (np.trunc(wide) >= info.min) & (np.trunc(wide) <= info.max)]


@pytest.mark.parametrize("source", list(NUMPY))
def test_cast_to_every_type(source: str) -> None:
    for target, opset in itertools.product(NUMPY, (9, 13, 25)):
        if "bf16" in (source, target) and opset < 13:
            continue
        x = in_range(source, target)
        case = Case("Cast", [x], opset, to=NUMBER[target])
        got = case.ours()
        assert ops.counts(case.node, case.context) == (source != target)
        assert_same(got, numpy_cast(x, target), (source, target))
        # ORT casts float64 and wide integers to half types through float32, which rounds twice.
        if target != "bf16" and not (target == "f16" and NUMPY[source].itemsize == 8):
            wanted = case.runtime()
            assert wanted is not None or source == "bf16"
            if wanted is not None:
                assert_same(got, wanted, (source, target))


def numpy_cast(x: np.ndarray, target: str) -> np.ndarray:
    """numpy's own conversion, one rounding for bfloat16 too (the samples need no more than float32 holds there)."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        if target == "bool":
            return np.asarray(x.astype(np.float32) != 0 if x.dtype == BF16 else x != 0)
        if target == "bf16" or x.dtype == BF16:
            return x.astype(np.float32).astype(NUMPY[target])
        return x.astype(NUMPY[target])


def test_out_of_range_as_the_runtime() -> None:
    """Not promised, but the same here: what x86 makes of it."""
    x = np.array([300.7, -300.2, 1e10, np.nan, np.inf, -np.inf, 3e9, -3e9, 1e19, 70000], np.float32)
    for target in ("i8", "i16", "i32", "i64", "u8", "u16", "bool"):
        case = Case("Cast", [x], 13, to=NUMBER[target])
        wanted = case.runtime()
        assert wanted is not None
        assert_same(case.ours(), wanted, target)


def test_saturate_is_no_matter_for_integers() -> None:
    x = np.array([1.5, -2.5], np.float32)
    assert_same(Case("Cast", [x], 19, to=TensorProto.INT8, saturate=0).ours(), np.array([1, -2], np.int8), "saturate")


@pytest.mark.parametrize(("target", "code"), [
    (TensorProto.STRING, "string"), (TensorProto.FLOAT8E4M3FN, "unsupported-dtype"),
    (TensorProto.INT4, "unsupported-dtype"), (TensorProto.COMPLEX64, "unsupported-dtype"), (0, "unsupported-dtype"),
    (99, "unsupported-dtype")])
def test_cast_to_other_types_is_refused(target: int, code: str) -> None:
    reason = Case("Cast", [np.ones(2, np.float32)], 21, to=target).examine()
    assert reason is not None
    assert reason.code == code


def test_cast_like_reads_its_first_input_only() -> None:
    x = np.array([1.5, -2.5, 300], np.float32)
    case = Case("CastLike", [x, np.zeros((7, 7), np.int64)], 19)
    assert [o.value for o in ops.operands(case.node, case.context)] == ["x0"]
    assert_same(case.ours(), np.array([1, -2, 300], np.int64), "CastLike")
    assert ops.counts(case.node, case.context)
    same = Case("CastLike", [x, np.zeros(1, np.float32)], 19)
    assert not ops.counts(same.node, same.context)
    unknown = Case("CastLike", [x, x], 19)
    unknown.context.dtypes.pop("x1")  # type: ignore[attr-defined]
    assert unknown.examine() == ops.op_reason("unknown-dtype", value="x1")


def test_cast_like_to_a_string_is_refused() -> None:
    case = Case("CastLike", [np.ones(2, np.float32), np.array(["a"], object)], 19)
    assert case.examine() == ops.op_reason("string", value="y")


def test_identity_of_every_type() -> None:
    for dtype in NUMPY:
        case = Case("Identity", [values(dtype)], 14)
        assert_same(case.ours(), values(dtype), dtype)
        assert not ops.counts(case.node, case.context)
        assert case.program()[0].statements == ()


@pytest.mark.parametrize("opset", [7, 10, 12, 13, 22])
def test_dropout_in_inference(opset: int) -> None:
    x = values("f32")
    inputs = [x] if opset < 12 else [x, np.asarray(0.3, np.float32)]
    attributes: dict[str, Any] = {"ratio": 0.3} if opset < 12 else {}
    case = Case("Dropout", inputs, opset, **attributes)
    assert_same(case.ours(), x, opset)
    assert not ops.counts(case.node, case.context)
    assert [o.value for o in ops.operands(case.node, case.context)] == ["x0"]
    found = case.runtime()
    assert found is not None
    assert_same(case.ours(), found, opset)


def test_dropout_is_left_alone_with_its_mask_or_in_training() -> None:
    x, ratio = values("f32"), np.float32(0.5)
    assert Case("Dropout", [x], 10, outputs=2).examine() == ops.op_reason("mask-output")
    assert Case("Dropout", [x, ratio, np.array(True)], 13, constants=[2]).examine() == \
        ops.op_reason("training-mode", op="Dropout")
    assert Case("Dropout", [x, ratio, np.array(False)], 13).examine() == ops.op_reason("training-mode", op="Dropout")
    assert Case("Dropout", [x, ratio, np.array(False)], 13, constants=[2]).examine() is None
    unnamed = Case("Dropout", [x], 10)
    unnamed.node.output.append("")
    assert unnamed.examine() is None


def test_reference_attributes_are_refused() -> None:
    case = Case("LeakyRelu", [values("f32")], 16, alpha=0.5)
    case.node.attribute[0].CopyFrom(onnx.AttributeProto(name="alpha", ref_attr_name="slope",
                                                        type=onnx.AttributeProto.FLOAT))
    assert case.examine() == ops.op_reason("attribute-reference", name="alpha", op="LeakyRelu")
