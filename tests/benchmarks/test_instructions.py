"""benchmarks/run_instructions.py: its table, and what it says where valgrind is not there."""

from __future__ import annotations

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
