"""benchmarks/run_instructions.py: its table, and what it says where valgrind is not there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks import run_instructions


def test_views() -> None:
    """Counts stand in the order engine, then the loops with 1, 2 and 4 vectors; the shortest loop counts."""
    data = {"options": {"size": 80}, "names": ["swiglu", "mish"], "counts": [300, 400, 200, 250, 90, 60, 70, 80]}
    (view,) = run_instructions.views(data)
    assert [list(row) for row in view.rows] == [
        ["swiglu", "30.0", "20.0", "1.50", "10.0"], ["mish", "9.0", "6.0", "1.50", "3.0"],
    ]


def test_without_valgrind(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "")
    assert run_instructions.main(["--chains", "swiglu"]) == 2
    assert "valgrind" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_a_chain_that_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_instructions.main(["--chains", "gelu_erf", "--json", str(tmp_path / "i.json")]) == 2
    assert "nothing is fused in gelu_erf" in capsys.readouterr().err
