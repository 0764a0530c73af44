"""Plans in a readable form: a file of `plans/` holds a model as text, a line of dashes, and the plan of it."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import ModelProto

from onnxfuse.fusion.plan import Plan, PlanOptions, make_plan
from onnxfuse.model import Model, from_proto

FOLDER = Path(__file__).parent / "plans"
FILES = sorted(FOLDER.glob("*.txt"))
DASHES = "-" * 20 + "\n"


def read_plan_file(path: Path) -> tuple[ModelProto, str, str]:
    """The model, its text, and the expected plan."""
    source, _, expected = path.read_text(encoding="utf-8").partition(DASHES)
    return parse(source), source, expected


def parse(source: str) -> ModelProto:
    """A model from its text; the head may be left out (then opset 17)."""
    if "opset_import" not in source:
        source = f'<ir_version: 8, opset_import: ["" : 17]>\n{source}'
    return onnx.parser.parse_model(source)


def plan_of(source: str | ModelProto, **options: object) -> tuple[Model, Plan]:
    """The verified plan of a model, given as text or as it is."""
    model = from_proto(parse(source) if isinstance(source, str) else source)
    reserved = options.pop("reserved", None)
    return model, make_plan(model, PlanOptions(verify=True, **options), reserved)  # type: ignore[arg-type]
