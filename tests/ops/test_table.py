"""The table itself: what is in it, that it keeps up with onnx, its refusals and its page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.defs
import pytest

from onnxfuse import ops
from onnxfuse.ops import OP_REASONS, OPS, docs, op_reason
from onnxfuse.program.instructions import INSTRUCTIONS, INTS
from tests.ops.harness import Case, values

WANTED = """Add Sub Mul Div Pow Mod Max Min Sum Mean Neg Abs Sign Reciprocal Sqrt Exp Log Erf Floor Ceil Round Clip Relu
    LeakyRelu PRelu Elu Selu Celu ThresholdedRelu Sigmoid HardSigmoid HardSwish Swish Tanh Softplus Softsign Gelu Mish
    Shrink Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh Equal Less LessOrEqual Greater GreaterOrEqual And Or
    Xor Not BitwiseAnd BitwiseOr BitwiseXor BitwiseNot BitShift Where IsNaN IsInf Cast CastLike Identity Dropout
    BatchNormalization QuantizeLinear DequantizeLinear""".split()
CONTRIB = "QuickGelu FastGelu BiasGelu Gelu".split()
ONNX_ROWS = [op for op in OPS if op.domain == ""]


def test_every_op_that_is_promised_is_there() -> None:
    for name in WANTED:
        assert ops.elementwise_like("", name), name
        assert ops.find("ai.onnx", name) is ops.find("", name)
    for name in CONTRIB:
        assert ops.elementwise_like("com.microsoft", name), name
    assert not ops.elementwise_like("", "Conv")
    assert not ops.elementwise_like("com.microsoft", "Add")
    assert len({(op.domain, op.name) for op in OPS}) == len(OPS)


@pytest.mark.parametrize("op", ONNX_ROWS, ids=lambda op: op.name)
def test_every_version_of_the_installed_onnx_has_been_read(op: ops.Op) -> None:
    """Fails when a new onnx changes an op: read the new text, then add the number to the row."""
    schemas = onnx.defs.get_all_schemas_with_history()
    history = {s.since_version for s in schemas if (s.domain, s.name) == ("", op.name)}
    if not history:
        pytest.skip(f"onnx {onnx.__version__} does not know {op.name}")
    first = max(v for v in history if v <= max(op.since, min(history)))
    missing = {v for v in history if v >= first} - set(op.versions)
    assert not missing, f"{op.name}: versions {sorted(missing)} of onnx {onnx.__version__} are not in the table"
    assert list(op.versions) == sorted(op.versions)
    assert first == op.versions[0]


@pytest.mark.parametrize("op", ONNX_ROWS, ids=lambda op: op.name)
def test_types_are_those_of_the_schema(op: ops.Op) -> None:
    """A row takes exactly the types that some version of the schema takes and the format has."""
    words = {"float": "f32", "double": "f64", "float16": "f16", "bfloat16": "bf16", "bool": "bool"}
    words |= {f"{'u' * u}int{b}": f"{'u' if u else 'i'}{b}" for u in (0, 1) for b in (8, 16, 32, 64)}
    complete = onnx.defs.onnx_opset_version() >= ops.NEWEST_OPSET
    seen: dict[int, set[str]] = {}
    for version in op.versions:
        if version > onnx.defs.onnx_opset_version():
            continue
        schema = onnx.defs.get_schema(op.name, version, "")
        constraints = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
        for index, formal in enumerate(schema.inputs[:len(op.signature.split("->")[0].replace("*", ""))]):
            found = {words.get(t[7:-1]) for t in constraints.get(formal.type_str, [formal.type_str])
                     if t.startswith("tensor(")}
            seen.setdefault(index, set()).update(w for w in found if w)
    # A scale of int32 (QuantizeLinear) would be an integer division, and nobody has an Erf of integers.
    refused = {("QuantizeLinear", 1): {"i32"}, ("Erf", 0): set(INTS)}
    for index, types in seen.items():
        if op.letter(index) != "?":
            allowed, types = set(op.allowed(index)), types - refused.get((op.name, index), set())
            assert allowed == types if complete else allowed >= types, (op.name, index)


def test_attributes_have_the_schemas_defaults() -> None:
    """A node without attributes is the node with the schema's defaults written out."""
    for op in ONNX_ROWS:
        if op.since > onnx.defs.onnx_opset_version() or op.name in ("Cast", "BitShift", "BatchNormalization"):
            continue
        opset = min(max(op.since, *op.versions), onnx.defs.onnx_opset_version())
        schema = onnx.defs.get_schema(op.name, opset, "")
        given = {name: onnx.helper.get_attribute_value(a.default_value) for name, a in schema.attributes.items()
                 if a.default_value.name}
        dtype = next(d for d in ("f32", "i32", "bool", "u8") if d in op.allowed(0))
        if op.name == "Mod":
            given["fmod"], dtype = 0, "i32"
        inputs = [values("bool" if op.letter(k) == "B" else dtype if op.letter(k) != "Z" else "u8")
                  for k in range(op.required)]
        if "Linear" in op.name:
            inputs = [values("f32" if op.name == "QuantizeLinear" else "u8"), np.float32(0.5)]
        if op.name == "CastLike":
            inputs = [inputs[0], values("i64")]
        bare, full = Case(op.name, inputs, opset), Case(op.name, inputs, opset, **given)
        assert bare.program()[0] == full.program()[0], op.name


def test_refusals_that_every_op_shares() -> None:
    x = values("f32")
    assert Case("Conv", [x, x], 17).examine() == op_reason("not-in-table", op="Conv")
    assert Case("Add", [x, x], 6).examine() == op_reason("old-opset", op="Add", opset=6, since=7)
    assert Case("Mish", [x], 17).examine() == op_reason("old-opset", op="Mish", opset=17, since=18)
    newest = ops.NEWEST_OPSET
    assert Case("Add", [x, x], newest + 1).examine() == op_reason(
        "new-opset", op="Add", opset=newest + 1, newest=newest)
    assert Case("Add", [x, x], newest).examine() is None
    assert Case("Add", [x], 17).examine() == op_reason("missing-input", index=1, op="Add")
    assert Case("Add", [x, None], 17).examine() == op_reason("missing-input", index=1, op="Add")
    assert Case("Add", [x, values("f64")], 17).examine() == op_reason(
        "type-mismatch", op="Add", value="x1", dtype="f64", wanted="f32")
    assert Case("Sqrt", [values("i32")], 17).examine() == op_reason(
        "unsupported-dtype", op="Sqrt", dtype="i32", value="x0")
    assert Case("Equal", [np.array(["a"], object)] * 2, 19).examine() == op_reason("string", value="x0")
    unknown = Case("Add", [x, x], 17)
    unknown.context.dtypes.pop("x1")  # type: ignore[attr-defined]
    assert unknown.examine() == op_reason("unknown-dtype", value="x1")
    float8 = Case("Identity", [x], 19)
    float8.context.dtypes["x0"] = "float8e5m2"  # type: ignore[index]
    assert float8.examine() == op_reason("unsupported-dtype", op="Identity", dtype="float8e5m2", value="x0")
    assert Case("Gelu", [x], 20, approximate="sigmoid").examine() == op_reason(
        "bad-attribute", name="approximate", op="Gelu", value="sigmoid")


def test_reason_codes_are_stable() -> None:
    """Codes are in reports that people keep: this list only grows."""
    assert list(OP_REASONS) == [
        "not-in-table", "old-opset", "new-opset", "attribute-reference", "missing-input", "unknown-dtype", "string",
        "unsupported-dtype", "type-mismatch", "unknown-rank", "bad-axis", "bad-attribute", "float-modulo",
        "training-mode", "mask-output", "not-per-channel", "blocked-quantization", "precision"]


def test_operands_name_a_value_once() -> None:
    case = Case("Mul", [values("f32")], 17)
    case.node.input.append("x0")
    assert [o.value for o in ops.operands(case.node, case.context)] == ["x0"]
    assert case.program()[0].text == "onnxfuse 1\nin x0 f32\nt0 = mul.f32 x0 x0\nout t0\n"


def test_the_page_is_current(root: Path) -> None:
    """`python -m onnxfuse.ops.docs > docs/ops.md` brings it up to date."""
    assert (root / "docs" / "ops.md").read_text(encoding="utf-8") == docs.page()


def test_the_page_names_every_op_and_reason() -> None:
    page = docs.page()
    for op in OPS:
        assert f"| {op.name} |" in page
    for code in OP_REASONS:
        assert f"`{code}`" in page
    for op in OPS:
        assert docs.instructions(op), op.name
        assert set(docs.instructions(op)) <= set(INSTRUCTIONS) | {"nothing"}


def test_programs_are_the_expected_texts(root: Path, update_goldens: bool) -> None:
    """The program of a plain node of every op; `pytest --update-goldens` writes the file anew."""
    path = root / "tests" / "ops" / "programs.txt"
    texts = "".join(f"# {op.domain + '.' if op.domain else ''}{op.name}\n{docs.program(op).text}\n" for op in OPS)
    if update_goldens:
        path.write_text(texts, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == texts
