"""The bench of GPU code: its figures and tables, and one model through it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks import run_cuda, table
from benchmarks.run_cuda import TWENTY, Row

ROWS = [
    Row(TWENTY, programs=20, cold=3.5, busy=6.5, warm=0.4, bytes=600_000, largest=50_000, rounds=5),
    Row("many", 100, 9, 8, 1.5, 2.0, 3.5, 0.05, 200_000, 400_000, 30_000, 3),
    Row("most", 200, 9, 9, 2.5, 3.0, 4.5, 0.06, 300_000, 400_000, 120_000, 3),
    Row("one", 10, 1, 1, 0.5, 0.2, 0.3, 0.01, 20_000, 80_000, 20_000, 5),
    Row("two", 20, 3, 2, 0.7, 0.4, 0.6, 0.03, 40_000, 400_000, 10_000, 5),
    Row("three", 30, 3, 3, 0.9, 0.6, 0.9, 0.02, 60_000, 200_000, 10_000, 5),
    Row("none", 5, seconds=0.3, rounds=1),
    Row("broken", problem="process ended with 1: no"),
]


def data(rows: list[Row] = ROWS) -> dict[str, Any]:
    return {"rows": [asdict(row) for row in rows], "figures": [f.to_dict() for f in run_cuda.figures(rows)]}


def test_figures() -> None:
    """The 20 programs, and the largest of all programs; nothing where they were not measured."""
    figures = run_cuda.figures(ROWS)
    assert [figure.value for figure in figures] == [3.5, 0.4, 120.0]
    assert [figure.met for figure in figures] == [True, False, False]
    assert [figure.value for figure in run_cuda.figures(ROWS[-2:])] == [None, None, None]


def test_tables() -> None:
    """Models with many programs by themselves, the slowest to compile first; the others in two rows."""
    view, _ = run_cuda.views(data())
    assert [row[0] for row in view.rows] == [
        TWENTY, "most", "many", *(f"3 models with fewer than 5 programs, {word}" for word in ("median", "most")),
    ]  # fmt: skip
    assert view.rows[0][1:5] == ["", "", "20", ""]
    assert view.rows[2][1:] == ["100", "9", "8", "1.50", "2.00", "3.50", "0.05", "200", "50.0", "30.0"]
    assert view.rows[3][3:8] == ["2", "0.70", "0.40", "0.60", "0.02"]
    assert view.rows[4][7:10] == ["0.03", "60.0", "30.0"]
    assert view.notes[0].startswith("5 models, 23 programs")
    assert view.notes[1].endswith("nothing is added: 1.")
    assert view.notes[2] == "broken: process ended with 1: no."
    assert len({len(row) for row in (view.columns, *view.rows)}) == 1


def test_earlier_rows(tmp_path: Path) -> None:
    """Those of the same sources that have figures are used again."""
    path = tmp_path / "cuda.json"
    path.write_text(json.dumps(data([dataclasses.replace(row, key="now") for row in ROWS[1:]] + ROWS[:1])))
    assert run_cuda.earlier(path, "now") == {r.name: dataclasses.replace(r, key="now") for r in ROWS[1:-1]}
    assert run_cuda.earlier(tmp_path / "other.json", "now") == {}
    assert run_cuda.earlier(None, "now") == {}


def test_into_a_document(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text("before\n<!-- begin cuda -->\nold\n<!-- end cuda -->\nafter\n")
    table.insert(document, "cuda", "\n".join(view.markdown() for view in run_cuda.views(data())))
    text = document.read_text(encoding="utf-8")
    assert "| most | 200 |" in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")


def test_one_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPU code makes the file larger by its containers at least; nothing stays in the user's cache."""
    pytest.importorskip("onnxruntime", reason="the optimizer asks it")
    from benchmarks.chains import chain
    from onnxfuse.codegen import Compiler
    from onnxfuse.errors import SetupError

    try:
        Compiler()
    except SetupError as error:
        pytest.skip(str(error))
    import onnx

    monkeypatch.setenv("ONNXFUSE_CUDA_CACHE", "")
    source = tmp_path / "model.onnx"
    onnx.save(chain("swiglu").case(256).model, source)
    store = tmp_path / "store"
    plain, *others = (run_cuda.optimize(source, targets, store)
                      for targets in (("cpu",), ("cpu", "cuda"), ("cpu", "cuda")))  # fmt: skip
    for run in others:
        (code,) = run.report.codes
        assert code.bytes <= run.bytes - plain.bytes < code.bytes + 1000
        assert 0 < run.rest < run.seconds
        assert run.busy > 0
    assert len(list(store.iterdir())) == 1
