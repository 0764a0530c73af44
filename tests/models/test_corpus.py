"""A dozen small models of the shared corpus through everything that `make models` does to all of them.

They need no network: the corpus rebuilds them from skeletons. Between them they have long chains, masks and selects,
bodies of If and Scan, functions of their own, quantization, float16, dynamic shapes and unknown ranks.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import shared_folder
from tests.long import corpus

FOLDER = shared_folder("ONNXFUSE_CORPUS", "../shared/models")
# name: the fewest fused nodes that it must have, so that "nothing fused" cannot pass for success
SMALL = {
    "black_scholes": 1,
    "adamw_step": 1,
    "feature_hashing": 2,
    "if_early_exit": 4,
    "scan_ema_rnn": 1,
    "diffusion_policy": 6,
    "functions_mlp": 0,
    "egnn": 4,
    "dfl_head": 1,
    "realnvp_flow": 15,
    "mobile_hswish_op10": 12,
    "mobilenet_v2_qdq": 0,
    "mobilenet_v2_fp16": 0,
    "siren_mlp": 4,
}


@pytest.mark.skipif(FOLDER is None, reason="no folder of shared models: set ONNXFUSE_CORPUS")
@pytest.mark.parametrize("name", SMALL)
def test_small_model(name: str, cache_folder: Path) -> None:
    assert FOLDER is not None
    row = corpus.examine(name, corpus.catalog(FOLDER), cache_folder / "corpus")
    assert row.problems == []
    assert row.groups >= SMALL[name]
