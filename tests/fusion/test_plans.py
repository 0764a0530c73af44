"""Plans against the files of `plans/` (`--update-goldens` writes them anew), and what the fused models compute."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from onnxfuse.fusion.show import show_plan
from onnxfuse.model import from_proto
from onnxfuse.rewrite import apply
from tests.fusion.planning import DASHES, FILES, plan_of, read_plan_file
from tests.runtime import assert_same_results

EACH = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def test_there_are_plans() -> None:
    assert len(FILES) > 20


@EACH
def test_plan(path: Path, request: pytest.FixtureRequest) -> None:
    proto, source, expected = read_plan_file(path)
    text = show_plan(*plan_of(proto))
    if request.config.getoption("--update-goldens"):
        path.write_text(source + DASHES + text, encoding="utf-8")
    else:
        assert text == expected


@EACH
def test_fused_model_runs_without_the_library_and_is_final(path: Path) -> None:
    proto, _, _ = read_plan_file(path)
    before = proto.SerializeToString()
    model, plan = plan_of(proto)
    fused = apply(model, plan)
    assert proto.SerializeToString() == before
    if not plan.groups:
        assert fused is proto
        return
    onnx.checker.check_model(fused, full_check=True)
    assert_same_results(proto, fused)
    again = from_proto(fused)
    second = plan_of(fused)[1]
    assert not second.groups
    assert apply(again, second) is fused
