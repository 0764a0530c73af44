"""A dozen small models of the shared corpus, checked as `make models` checks all of them: both feeds with and without
the library against the original, and what the runtime's optimizer makes of the result."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests.long.corpus import Row, catalog, examine

pytest.importorskip("onnxruntime", reason="the models run in the runtime")

# name -> whether anything is to be fused
MODELS = {
    "adamw_step": True,
    "black_scholes": True,
    "detection_losses": True,
    "egnn": True,
    "feature_hashing": True,  # integers
    "functions_mlp": False,  # the model's own functions stay as they are
    "if_early_exit": True,  # bodies
    "mobile_hswish_op10": True,  # an old opset
    "mobilenet_v2_fp16": False,  # all of it is in the blocked layout
    "mobilenet_v2_qdq": False,  # quantized operators
    "realnvp_flow": True,
    "scan_ema_rnn": True,  # bodies
}


@pytest.fixture(scope="module")
def models(corpus_folder: Path) -> ModuleType:
    return catalog(corpus_folder)


@pytest.mark.parametrize("name", MODELS)
def test_model(name: str, models: ModuleType, tmp_path: Path) -> None:
    row: Row = examine(name, models, tmp_path)
    assert row.problems == []
    assert (row.groups > 0) == MODELS[name]
    assert row.left or row.groups
