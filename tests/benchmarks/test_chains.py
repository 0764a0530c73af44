"""The bench of the chains: every subject computes the chain, the figures are what the rows say. No times are judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import compose

import onnxfuse
from benchmarks import chain_tables, costs, opponents, run_chains, table
from benchmarks.chains import CHAINS, Case
from benchmarks.native import Hand
from onnxfuse.api import Result
from onnxfuse.check import sessions
from onnxfuse.library import DOMAIN
from onnxfuse.timing import Ratio

CASES = [one.case(256, dtype, seed=3) for one in CHAINS for dtype in (("float32", "float16")[: 1 + one.half])]
LIMIT = {"float32": 1e-6, "float16": 1e-3}  # of the largest value


def name_of(case: Case) -> str:
    return f"{case.chain.name}-{case.dtype}"


@pytest.fixture(scope="module")
def optimized() -> tuple[onnx.ModelProto, Result]:
    """All cases beside each other in one model, unfused and fused: asking the runtime takes most of the time."""
    whole = onnx.ModelProto()
    for case in CASES:
        model = compose.add_prefix(case.model, f"{name_of(case)}_")
        if not whole.HasField("graph"):
            whole.CopyFrom(model)
            continue
        for part in ("node", "input", "output", "initializer"):
            getattr(whole.graph, part).extend(getattr(model.graph, part))
    return whole, onnxfuse.optimize(whole, validate=False)


@pytest.fixture(scope="module")
def results(optimized: tuple[onnx.ModelProto, Result]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Outputs of the unfused and of the fused model, names with their prefix."""
    feed = {f"{name_of(case)}_{name}": value for case in CASES for name, value in case.feed.items()}
    whole, result = optimized
    plain = sessions.create(whole, optimize=True)
    fused = sessions.create(result.model, optimize=True, library=onnxfuse.library_path())
    return sessions.run(plain, feed), sessions.run(fused, feed)


def check(case: Case, outputs: dict[str, Any]) -> None:
    for name, want in case.expected().items():
        assert outputs[name].dtype == case.dtype
        error = np.max(np.abs(outputs[name] - want))
        assert error <= LIMIT[str(case.dtype)] * np.max(np.abs(want)), name


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_unfused_and_fused_compute_the_chain(case: Case, results: tuple[dict[str, Any], dict[str, Any]]) -> None:
    for made in results:
        check(case, {name: made[f"{name_of(case)}_{name}"] for name in case.chain.outputs})


def test_every_chain_becomes_one_node_but_the_one_that_the_runtime_fuses(
    optimized: tuple[onnx.ModelProto, Result],
) -> None:
    result = optimized[1]
    fused = [node for node in result.model.graph.node if node.domain == DOMAIN]
    assert sorted(node.output[0].split("_out")[0].split("_cell")[0] for node in fused) == sorted(
        name_of(case) for case in CASES if case.chain.name != "gelu_erf"
    )
    assert result.report.left_counts == {"fused-by-runtime": 5}


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_loops_written_by_hand_compute_the_chain(case: Case) -> None:
    outputs = case.outputs()
    Hand(case.chain.name, list(case.operands.values()), list(outputs.values()), unroll=2).run(1)
    check(case, outputs)


@pytest.mark.parametrize("case", [case for case in CASES if case.dtype == np.float32], ids=name_of)
def test_numexpr_computes_the_chain(case: Case) -> None:
    pytest.importorskip("numexpr")
    made = opponents.numexpr_call(case)
    assert (made is None) == (case.chain.name == "gelu_erf")
    if made is not None:
        check(case, made[1])


@pytest.mark.parametrize("size", [256, 65536, 1048576, 16777216])
def test_sizes_and_traffic(size: int) -> None:
    for one in CHAINS:
        case = one.case(size)
        assert size - 1 <= case.elements <= size
    swiglu, image = (one for one in CHAINS if one.name in ("swiglu", "normalize_u8"))
    assert swiglu.case(size).traffic == 12 * size
    assert image.case(size).traffic == 5 * (size - 1) + 24


# ---------------------------------------------------------------- rows, figures, tables


def row(chain: str, speedup: float, **more: Any) -> dict[str, Any]:
    def one(value: float | None) -> dict[str, float] | None:
        return None if value is None else {"median": value, "low": value, "high": value}

    found: dict[str, Any] = {
        "chain": chain, "kind": "arithmetic", "cheap": True, "size": 65536, "shape": [65536], "dtype": "float32",
        "threads": 1, "traffic_bytes": 1, "runtime_ops": ["Add", "Mul"], "left_alone": None, "rounds": 5,
        "microseconds": {"ort": 2.0, "fused": 1.0}, "noise": 1.0, "engine_over_hand": 1.5, "fused_over_hand": 1.6,
        "share_of_copy": 0.9, "torch_over_fused": 4.0, "numexpr_over_fused": None, "problems": [], **more,
    }
    ratios = ("noise", "engine_over_hand", "fused_over_hand", "share_of_copy", "torch_over_fused", "numexpr_over_fused")
    return {**found, "speedup": one(speedup), **{key: one(found[key]) for key in ratios}}


def values(rows: list[dict[str, Any]]) -> dict[str, table.Figure]:
    return {figure.name: figure for figure in chain_tables.figures(rows, {})}


def test_figures_of_rows() -> None:
    rows = [
        row("a", 1.0, runtime_ops=["Gelu"], left_alone="fused by the runtime", engine_over_hand=None),
        row("b", 2.0), row("c", 4.0, engine_over_hand=1.7), row("d", 8.0, kind="transcendental", torch_over_fused=0.9),
        row("b", 9.0, dtype="float16"), row("c", 4.0, dtype="float16"),
        row("b", 3.0, size=16777216, share_of_copy=0.7),
    ]
    found = values(rows)
    assert found["geometric mean, 64 K, 1 thread, all 4 chains"].value == pytest.approx(64 ** (1 / 4))
    assert found["geometric mean, 64 K, 1 thread, without the best two"].value == pytest.approx(2**0.5)
    lowest = found["lowest of the chains that the runtime runs as two nodes or more (b, 64 K, 1 thread)"]
    assert (lowest.value, lowest.met) == (2.0, True)
    assert found["geometric mean in float16, all sizes and threads"].value == pytest.approx(6.0)
    hand = "engine over hand-written loop at 64 K, one thread"
    assert not found[f"{hand}, arithmetic, broadcast and mask (c, 64 K, 1 thread)"].met
    assert not found[f"{hand}, transcendental (d, 64 K, 1 thread)"].met
    assert found["share of a copy at 16 M, 1 thread, cheap chains (b, 16 M, 1 thread)"].value == 0.7
    assert found["torch over fused at 64 K and above, lowest (d, 64 K, 1 thread)"].met is False
    assert found["numexpr over fused at 64 K and above, lowest"].met is None


def test_figures_of_costs() -> None:
    found = {figure.name: figure for figure in chain_tables.figures([row("a", 1.0)], {
        "unrelated_op": {"ratio": {"median": 2.5}},
        "creation": {"small": {"slower_ms": 1.0, "slower_all_names_ms": 4.0}, "many": {"speedup": {"median": 3.0}}},
        "peak": {"chain": {"fused_mib": 50.0, "unfused_mib": 100.0}},
    })}
    met = [figure.met for name, figure in found.items()
           if any(word in name for word in ("peak", "session", "ops of", "16 names"))]
    assert met == [False, True, None, True, False, True]


def test_tables_for_terminal_and_document() -> None:
    view = table.View("T", ("name", "n"), [("a|b", "1")], ["a note"])
    assert view.markdown() == "### T\n\n| name | n |\n| --- | ---: |\n| a/b | 1 |\n\na note\n"
    assert view.rich().row_count == 1
    assert table.Figure("x", None, 2.0).cells() == ["x", "", "≥ 2", "not measured"]
    assert table.Figure("x", 1.0, 3.0, True, " ms").cells() == ["x", "1.00 ms", "≤ 3 ms", "met"]
    assert table.Figure.of(table.Figure("x", 1.0, 3.0).to_dict()) == table.Figure("x", 1.0, 3.0)
    assert [table.number(value) for value in (None, 1.234, 12.34, 1234.5)] == ["", "1.23", "12.3", "1,234"]
    assert table.geometric_mean([]) is None
    assert table.ratio_text({"median": 1.0, "low": 0.5, "high": 2.0}, True) == Ratio(1.0, 0.5, 2.0).text()


def test_a_quick_run_writes_its_result_and_shows_it_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costs, "creation", lambda model, seconds: {
        "unfused_ms": 1.0, "fused_ms": 2.0, "slower_ms": 1.0, "speedup": {"median": 0.5, "low": 0.5, "high": 0.5},
        "noise": {"median": 1.0, "low": 1.0, "high": 1.0},
    })
    path = tmp_path / "made" / "bench.json"
    assert run_chains.main(["--quick", "--chains", "gelu_erf,hardswish", "--sizes", "256", "--json", str(path)]) == 0
    shown = capsys.readouterr().out
    data = json.loads(path.read_text(encoding="utf-8"))
    assert [(one["chain"], one["size"], one["threads"]) for one in data["rows"]] == [
        ("gelu_erf", 256, 1), ("hardswish", 256, 1)
    ]
    alone, fused = data["rows"]
    assert alone["left_alone"]
    assert alone["engine_over_hand"] is None
    assert len(alone["runtime_ops"]) == 1
    assert fused["left_alone"] is None
    assert {"ort", "fused", "again", "engine", "hand", "copy"} == set(fused["microseconds"])
    assert data["extras"]["unrelated_op"]["ratio"]["median"] > 0
    assert data["machine"]["processor"]
    assert data["versions"]["onnxruntime"]
    assert "gelu_erf is left alone" in shown
    assert table.main([str(path), "--markdown"]) == 0
    assert "| hardswish | 1 | 4 | yes |" in capsys.readouterr().out
    document = tmp_path / "performance.md"
    document.write_text("Before.\n<!-- begin chains -->\nold\n<!-- end chains -->\nAfter.\n", encoding="utf-8")
    for _ in range(2):
        assert table.main([str(path), "--into", str(document)]) == 0
    written = document.read_text(encoding="utf-8")
    assert written.startswith("Before.\n<!-- begin chains -->\n\n### Figures to reach\n")
    assert written.endswith("\n\n<!-- end chains -->\nAfter.\n")
    assert "old" not in written
    assert written.count("| hardswish |") == 1
    full = written.replace("| hardswish |", "| mish |\n| hardswish |")
    document.write_text(full, encoding="utf-8")
    with pytest.raises(SystemExit):
        table.main([str(path), "--into", str(document)])
    assert document.read_text(encoding="utf-8") == full
    assert table.main([str(path), "--into", str(document), "--shorter"]) == 0
    assert document.read_text(encoding="utf-8") == written


@pytest.mark.parametrize("text", ["", "[]", '{"command": "optimize"}'])
def test_other_files_have_no_tables(text: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit) as stopped:
        table.main([str(path)])
    assert stopped.value.code == 2


@pytest.mark.parametrize("arguments", ["--chains none", "--sizes 16", "--threads 0", "--seconds -1"])
def test_wrong_arguments_are_refused(arguments: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        run_chains.main(arguments.split())
    assert stopped.value.code == 2
