"""The JSON record: every field that docs/report.md promises, the same bytes each time."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxfuse import api
from onnxfuse.report import schema
from onnxfuse.timing import BenchReport, Ratio, Row
from tests.check.models import parse

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[N, 4] x, bool c) => (float[N, 4] y, float[N, 4] z) <float k = {2.0}> {
        [mul] a = Mul(x, k)  [add] b = Add(a, x)  [soft] s = Softmax(b)  [neg] y = Neg(s)
        [choose] z = If(c) <then_branch = t () => (float[N, 4] u) { [m2] m = Mul(x, x)  [s2] u = Sub(m, x) },
                            else_branch = e () => (float[N, 4] v) { [i2] v = Identity(x) }> }"""


@pytest.fixture
def record() -> dict[str, Any]:
    return schema.to_dict(api.optimize(parse(MODEL)).report)


NAMES = {"options.shapes", "validation.inputs", "left_counts", "versions", "machine.caches", "inputs",
         "noise", "rounds"}


def documented_fields(root: Path, section: str) -> set[str]:
    """The fields that a section of docs/report.md lists, those of `versions` left out."""
    text = (root / "docs" / "report.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| `([^`]+)` \|", text.split(f"\n## {section}\n")[1].split("\n## ")[0], re.M)
    return {name for name in found if not name.startswith("versions.")}


def paths(value: Any, prefix: str = "") -> set[str]:
    """Every key as a dotted path; what stands in lists under `[]`. Keys that are names of a model are left out."""
    if isinstance(value, list):
        return set().union(*(paths(item, f"{prefix}[]") for item in value)) if value else set()
    if not isinstance(value, dict) or prefix in NAMES:
        return set()
    found = set()
    for key, item in value.items():
        path = f"{prefix}.{key}" if prefix else key
        found |= {path} | paths(item, path)
    return found


def test_every_field_is_documented_and_every_documented_field_is_there(record: dict[str, Any], root: Path) -> None:
    assert paths(record) == documented_fields(root, "optimize")
    text = (root / "docs" / "report.md").read_text(encoding="utf-8")
    assert set(record["versions"]) == set(re.findall(r"^\| `versions\.(\w+)` \|", text, re.M))


def test_every_field_of_bench_is_documented(root: Path) -> None:
    one = Ratio(1.0, 1.0, 1.0)
    record = schema.bench_record(BenchReport((Row("m", 1, False, 0.1, one),), {1: one}, {1: 5}, {"x": "float32[3]"}))
    assert paths(record) == documented_fields(root, "bench")
    assert record["noise"] == {"1": {"median": 1.0, "low": 1.0, "high": 1.0}}
    assert json.loads(schema.to_json(record))["machine"]["cores"] >= 1


def test_every_code_of_the_planner_is_documented(root: Path) -> None:
    text = (root / "docs" / "report.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `([^`]+)` \|", text.split("## Codes")[1].split("\n## ")[0], re.M))
    sources = (path.read_text(encoding="utf-8") for path in (root / "onnxfuse" / "fusion").glob("*.py"))
    given = {code for source in sources for code in re.findall(r"\bReason\(\s*\"([^\"]+)\"", source)}
    assert documented == given


def test_the_record_of_a_run(record: dict[str, Any]) -> None:
    assert record["schema"] == 1
    assert record["nodes"] == {"before": 8, "after": 6, "on_cpu": 6, "fused": 4}
    assert [(g["graph"], g["ops"], g["source"]) for g in record["groups"]] == [
        ("", ["Mul", "Add"], ["mul", "add"]), ("z.then_branch", ["Mul", "Sub"], ["m2", "s2"])
    ]
    assert [(node["node"], node["code"]) for node in record["left"]] == [("neg", "single"), ("i2", "single")]
    assert record["left_counts"] == {"single": 2}
    assert record["validation"]["passed"] is True
    assert {output["name"] for output in record["validation"]["runs"][0]["outputs"]} == {"y", "z"}


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    source = tmp_path / "in.onnx"
    onnx.save(parse(MODEL), source)
    texts = []
    for name in ("a.json", "b.json"):
        api.optimize(source, dry_run=True, report=tmp_path / name)
        texts.append((tmp_path / name).read_bytes())
    assert texts[0] == texts[1]
    assert json.loads(texts[0])["schema"] == 1


def test_nan_and_infinity_are_text() -> None:
    data = json.loads(schema.to_json({"a": float("nan"), "b": [float("inf"), 1.5], "c": {"d": -float("inf")}}))
    assert data == {"a": "nan", "b": ["inf", 1.5], "c": {"d": "-inf"}}
