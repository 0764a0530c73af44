"""tests/gpu/sessions.py on the CPU's provider: the whole run on small models, and what it must find."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxfuse.codegen import toolchain
from tests.gpu import check, prepare_sessions, session_child, sessions
from tests.gpu.patterns import DTYPES, PATTERNS

CPU = "CPUExecutionProvider"
CHAIN = """<ir_version: 9, opset_import: ["" : 17]>
chain (float[n,16] x, float s) => (float[n,16] y, int64[n] k) <float two = {2.0}> {
    a = Mul (x, two) b = Add (a, s) c = Exp (b) d = Tanh (c) y = Sub (d, x)
    k = ArgMax <axis = 1, keepdims = 0> (x)
}"""
NOTHING = """<ir_version: 9, opset_import: ["" : 17]>
nothing (float[4,16] x) => (float[4,16] y) { y = Softmax <axis = -1> (x) }"""


def chain_feed(rows: int) -> dict[str, Any]:
    x = np.random.default_rng(rows).standard_normal((rows, 16), np.float32)
    return {"x": x, "s": np.array(0.25, np.float32)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, test_library: Path) -> Path:
    """A folder with two models, as tests.gpu.prepare makes it."""
    if not toolchain.installed():
        pytest.skip("no compiler for the GPU: pip install onnxfuse[cuda]")
    made = tmp_path_factory.mktemp("gpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONNXFUSE_LIBRARY", str(test_library.with_name(f"libonnxfuse{test_library.suffix}")))
        models = prepare_sessions.Models(made, 60_000_000, [80])
        for name, text, feed, alt in (("chain", CHAIN, chain_feed(4), chain_feed(7)),
                                      ("nothing", NOTHING, {"x": chain_feed(4)["x"]}, {})):  # fmt: skip
            path = made.with_name(f"{name}.onnx")
            onnx.save(parser.parse_model(text), path)
            assert models.add(name, path, feed, alt)
    return made


def run(folder: Path, out: Path, *more: str) -> tuple[int, dict[str, Any]]:
    code = sessions.main([str(folder), "--out", str(out), "--provider", CPU, "--seconds", "0.05", *more])
    return code, json.loads((out / "sessions.json").read_text(encoding="utf-8"))


def wheel(folder: Path) -> Path:
    """A package with nothing in it but one module."""
    path = folder / "onnxfuse_nothing-1.0-py3-none-any.whl"
    about = "onnxfuse_nothing-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("onnxfuse_nothing.py", "")
        file.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: onnxfuse-nothing\nVersion: 1.0\n")
        file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{about}/RECORD", "")
    return path


def test_whole(folder: Path, tmp_path: Path) -> None:
    pieces = tmp_path / "pieces"
    assert prepare_sessions.cut(wheel(tmp_path), pieces, 200) > 2
    code, found = run(folder, tmp_path / "out", "--pieces", str(pieces))
    assert code == 0
    chain, nothing = found["models"]
    assert (chain["problems"], nothing["problems"]) == ([], [])
    assert sessions.count(chain["main"]["ran"]["fused"], "ours", CPU) == chain["groups"] == 1
    assert sessions.count(chain["main"]["ran"]["inlined"], "ours", CPU) == 0
    assert chain["main"]["ran"]["inlined"] == chain["main"]["ran"]["original"]
    assert set(chain["main"]["values"]) == {"fused", "inlined", "fused, second feed"}
    assert all(value["right"] for part in ("main", "graphs") for value in chain[part]["values"].values())
    assert {name: (row["runs"], row["right"]) for name, row in chain["main"]["threads"].items()} == {
        "two sessions": (40, True), "one session": (40, True),
    }  # fmt: skip
    assert set(chain["main"]["latency"]["faster"]) == {"original", "fused", "inlined", "again"}
    assert set(chain["graphs"]["latency"]["milliseconds"]) == {"original", "fused"}
    assert nothing["main"]["values"] == {}
    assert len(found["patterns"]) == len(PATTERNS) * len(DTYPES)
    assert [name for name, ran in found["patterns"].items() if isinstance(ran, str)] == []
    assert found["patterns"]["Gemm Relu, float32"] == {CPU: {"FusedGemm": 1}}
    text = (tmp_path / "out" / "sessions.txt").read_text(encoding="utf-8")
    assert "1 / 1" in text
    assert "nothing fused" in text


def test_wrong_output_is_found(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "gpu"
    shutil.copytree(folder, other)
    fused = onnx.load(other / "models" / "chain.fused.onnx")
    next(node for node in fused.graph.node if node.op_type == "ArgMax").op_type = "ArgMin"
    onnx.save(fused, other / "models" / "chain.fused.onnx")
    code, found = run(other, tmp_path / "out")
    assert code == 1
    assert "fused: outputs differ (inf)" in found["models"][0]["problems"]


def test_a_crash_costs_its_step_alone(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "gpu"
    shutil.copytree(folder, other)
    (other / "models" / "chain.fused.onnx").write_bytes(b"no model")
    code, found = run(other, tmp_path / "out")
    assert code == 1
    assert [p for p in found["models"][0]["problems"] if p.startswith("in 'fused': ended with 1")]
    assert set(found["models"][0]["main"]["ran"]) == {"written", "original"}
    assert found["models"][1]["problems"] == []


def test_no_time(folder: Path, tmp_path: Path) -> None:
    code, found = run(folder, tmp_path, "--minutes", "-1")
    assert code == 0
    assert found["not_begun"] == ["chain", "nothing"]


def test_left_out(tmp_path: Path) -> None:
    reason = "the folder has no models"
    assert run(tmp_path, tmp_path / "out") == (2, {"left_out": reason})
    assert check.sessions(tmp_path, tmp_path / "out", None, 1.0) == {"exit_code": 2, "left_out": reason}


@pytest.mark.parametrize(("spoil", "reason"), [
    (lambda p: (p / "piece01").write_bytes(b""), "piece piece01 of the wheel is damaged"),
    (lambda p: (p / "piece01").unlink(), "piece piece01 of the wheel is missing"),
    (lambda p: (p / "pieces.json").unlink(), "no pieces.json among the pieces of the wheel"),
])  # fmt: skip
def test_pieces(tmp_path: Path, spoil: Any, reason: str) -> None:
    source = wheel(tmp_path)
    prepare_sessions.cut(source, tmp_path / "pieces", 200)
    (tmp_path / "joined").mkdir()
    assert sessions.join(tmp_path / "pieces", tmp_path / "joined").read_bytes() == source.read_bytes()
    spoil(tmp_path / "pieces")
    with pytest.raises(sessions.LeftOut, match=reason):
        sessions.join(tmp_path / "pieces", tmp_path / "joined")


def test_too_large_is_left_out(tmp_path: Path, folder: Path) -> None:
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONNXFUSE_LIBRARY", str(folder / "libonnxfuse.so"))
        models = prepare_sessions.Models(tmp_path, 1000, [80], said.append)
    assert not models.add("chain", folder / "models" / "chain.onnx", chain_feed(4), {})
    assert said[0].startswith("chain left out: with it the folder would have")
    assert list((tmp_path / "models").glob("chain*")) == []


def row(**more: Any) -> dict[str, Any]:
    return {"main": {"step": "", "values": {}, "threads": {}, "ran": {}}, "graphs": {"step": ""}} | more


def test_copies_are_a_problem() -> None:
    cuda = {"Relu": 3, "MemcpyToHost": 1}
    ran = {"original": {"X": cuda}, "fused": {"X": {"FusedElementwise1": 1, "MemcpyToHost": 1, "MemcpyFromHost": 1}}}
    found = row(main={"step": "", "ran": ran})
    sessions.judge(found, "X")
    assert found["problems"] == ["fused: 1 copies between devices became 2"]


@pytest.mark.parametrize(("refused", "problems", "notes"), [
    ({"original": "why", "fused": "why"}, 0, 2), ({"fused": "why"}, 1, 0),
])  # fmt: skip
def test_graphs_that_the_runtime_refuses(refused: dict[str, str], problems: int, notes: int) -> None:
    found = row(graphs={"step": "", "refused": refused, "values": {}})
    sessions.judge(found, "X")
    assert (len(found["problems"]), len(found["notes"])) == (problems, notes)


def test_compare() -> None:
    a = np.array([1.0, np.nan, np.inf, 4.0], np.float32)
    assert session_child.compare([a], [a], 0.0) == {"error": 0.0, "right": True, "equal": True}
    assert session_child.compare([a + np.float32(0.1)], [a], 0.05)["right"]
    assert not session_child.compare([a + np.float32(0.1)], [a], 0.01)["right"]
    assert not session_child.compare([np.nan_to_num(a)], [a], 1.0)["right"]
    assert not session_child.compare([np.array([1])], [np.array([2])], 1.0)["right"]
    half = np.array([1.0, 2.0], np.float16)
    assert session_child.compare([half * np.float16(1.005)], [half], 1e-3)["right"]


def test_the_reason_is_the_missing_library() -> None:
    log = "\x1b[1;31m [E] Failed to load library /x/y.so with error: z.so: cannot open\nRuntimeError: no provider\n"
    assert sessions.last(log) == "z.so: cannot open"
    assert sessions.last("a\nRuntimeError: b\n\n") == "RuntimeError: b"
