"""Made-up models are valid and what they say they are; the bench of the optimizer gives figures and tables."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from benchmarks import run_optimizer
from benchmarks.synthetic import SHAPES, build
from onnxfuse.ops import elementwise_like


@pytest.mark.parametrize("shape", SHAPES)
def test_a_made_up_model(shape: str) -> None:
    model = build(shape, 300)
    onnx.checker.check_model(model, full_check=True)
    assert model.SerializeToString() == build(shape, 300).SerializeToString()
    elementwise = sum(elementwise_like(node.domain, node.op_type) for node in model.graph.node)
    assert 300 <= elementwise <= 400


def test_the_exponent_of_growth() -> None:
    assert run_optimizer.slope([(10, 3.0), (20, 12.0), (40, 48.0)]) == pytest.approx(2)
    assert run_optimizer.slope([(10, 3.0)]) is None


def test_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime", reason="the optimizer asks it")
    target = tmp_path / "result.json"
    options = ["--graphs", "chain", "--nodes", "20,40", "--tools", "onnxfuse"]
    assert run_optimizer.main([*options, "--json", str(target)]) == 0
    data = json.loads(target.read_text(encoding="utf-8"))
    assert [row["nodes"] for row in data["rows"]] == [20, 40]
    for row in data["rows"]:
        found = row["onnxfuse"]
        assert set(found["stages"]) == set(run_optimizer.STAGES)
        assert sum(found["stages"].values()) == pytest.approx(found["seconds"], rel=0.1)
        assert found["groups"] == 1
    assert "chain" in capsys.readouterr().out
