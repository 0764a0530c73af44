"""What the commands do when all is well: files, summaries, tables, and the same through Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result

import onnxfuse
from onnxfuse.cli import cli
from onnxfuse.library import find_library
from tests.check.models import parse

CHAIN = """<ir_version: 8, opset_import: ["" : 17]>
    chain (float[N, 4] x) => (float[N, 4] y) <float k = {2.0}, int64 axis = {1}> {
        [mul] a = Mul(x, k)
        [add] b = Add(a, x)
        [sum] c = CumSum(b, axis)
        [abs] y = Abs(c)
    }"""
NOTHING = '<ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (float[N] y) { [neg] y = Neg(x) }'


def invoke(*args: str | os.PathLike[str], code: int = 0) -> Result:
    result = CliRunner().invoke(cli, [os.fspath(arg) for arg in args])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    path = tmp_path / "chain.onnx"
    onnx.save(parse(CHAIN), path)
    return path


def fused_nodes(path: Path) -> list[onnx.NodeProto]:
    return [node for node in onnx.load(path).graph.node if node.domain == "onnxfuse"]


def test_optimize_writes_and_says_what_it_did(chain: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    text = invoke("optimize", chain, out).output
    assert len(fused_nodes(out)) == 1
    assert f"{chain}: 4 -> 3 nodes; 2 ops in 1 fused group (1 distinct)" in text
    assert "left alone: 1 elementwise node (1 single)" in text
    assert "check: passed without the library" in text
    assert f"written: {out}" in text


def test_verbose_lists_groups_and_reasons(chain: Path, tmp_path: Path) -> None:
    text = invoke("optimize", chain, tmp_path / "out.onnx", "-v").output
    for part in ("FusedElementwise1", "Mul, Add", "single", "abs", "float32"):
        assert part in text


def test_verbose_leaves_out_empty_tables(tmp_path: Path) -> None:
    onnx.save(parse(NOTHING), tmp_path / "in.onnx")
    text = invoke("optimize", tmp_path / "in.onnx", tmp_path / "out.onnx", "-v").output
    assert "fused node" not in text
    assert "single" in text


def test_no_progress_bar_without_a_terminal(chain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert invoke("optimize", chain, tmp_path / "out.onnx").stderr == ""


def test_quiet_prints_nothing(chain: Path, tmp_path: Path) -> None:
    assert invoke("optimize", chain, tmp_path / "out.onnx", "-q").output == ""


def test_in_may_be_out(chain: Path) -> None:
    invoke("optimize", chain, chain)
    assert len(fused_nodes(chain)) == 1
    assert os.listdir(chain.parent) == ["chain.onnx"]


def test_optimizing_again_gives_the_same_bytes(chain: Path, tmp_path: Path) -> None:
    once, twice = tmp_path / "once.onnx", tmp_path / "twice.onnx"
    invoke("optimize", chain, once)
    text = invoke("optimize", once, twice).output
    assert once.read_bytes() == twice.read_bytes()
    assert "nothing to fuse" in text
    assert "1 of them fused already" in text


def test_paths_with_blanks_and_letters(chain: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mein modell (v1) [größe] %20"
    folder.mkdir()
    source = folder / "netz ü.onnx"
    source.write_bytes(chain.read_bytes())
    text = invoke("optimize", source, folder / "aus gang.onnx", "--report", folder / "bericht ß.json").output
    assert "aus gang.onnx" in text
    assert len(fused_nodes(folder / "aus gang.onnx")) == 1
    assert json.loads((folder / "bericht ß.json").read_text("utf-8"))["input"] == str(source)


def test_nothing_to_fuse_copies_byte_for_byte(tmp_path: Path) -> None:
    source, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(parse(NOTHING), source)
    text = invoke("optimize", source, out).output
    assert out.read_bytes() == source.read_bytes()
    assert "nothing to fuse (1 node)" in text
    assert "check: not needed" in text


def test_dry_run_does_everything_but_write(chain: Path, tmp_path: Path) -> None:
    before = sorted(os.listdir(tmp_path))
    text = invoke("optimize", chain, "--dry-run").output
    assert "check: passed" in text
    assert "written: nothing (dry run)" in text
    out = tmp_path / "out.onnx"
    invoke("optimize", chain, out, "--dry-run")
    assert sorted(os.listdir(tmp_path)) == before


def test_dry_run_with_a_report(chain: Path, tmp_path: Path) -> None:
    report = tmp_path / "r.json"
    invoke("optimize", chain, "--dry-run", "--report", report)
    data = json.loads(report.read_text())
    assert data["output"] is None
    assert data["validation"]["passed"] is True


def test_the_report_may_go_to_a_pipe(chain: Path, tmp_path: Path) -> None:
    done = run("optimize", chain, "--dry-run", "-q", "--no-validate", "--report", "/dev/stdout")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["schema"] == 1


def test_the_report_may_go_where_standard_output_goes(chain: Path, tmp_path: Path) -> None:
    """Where that is a file, the link /dev/stdout is still no file to replace."""
    code = "from onnxfuse.api import write_text; write_text('/dev/stdout', 'report')"
    with open(tmp_path / "out.json", "wb") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
    assert (tmp_path / "out.json").read_text() == "report"


def test_no_validate_runs_nothing(chain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("validation was asked for")

    monkeypatch.setattr("onnxfuse.api.compare_models", fail)
    text = invoke("optimize", chain, tmp_path / "out.onnx", "--no-validate").output
    assert "check: left out (--no-validate)" in text


def test_max_fusions_stops(chain: Path, tmp_path: Path) -> None:
    text = invoke("optimize", chain, tmp_path / "out.onnx", "--max-fusions", "0").output
    assert "nothing to fuse" in text
    assert "max-fusions" in text


def test_given_inputs_and_shapes_are_used(chain: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.ones((5, 4), np.float32))
    report = tmp_path / "r.json"
    invoke("optimize", chain, "--dry-run", "--inputs", tmp_path / "in.npz", "--report", report)
    assert json.loads(report.read_text())["validation"]["inputs"] == {"x": "float32[5, 4]"}
    invoke("optimize", chain, "--dry-run", "--shape", "x:7,4", "--report", report)
    assert json.loads(report.read_text())["validation"]["inputs"] == {"x": "float32[7, 4]"}


def test_validate_prints_a_table(chain: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    invoke("optimize", chain, out)
    text = invoke("validate", chain, out).output
    assert "without the library" in text
    assert "check: passed" in text
    invoke("validate", chain, out, "--report", tmp_path / "v.json", "-q")
    assert json.loads((tmp_path / "v.json").read_text())["validation"]["passed"] is True


def test_validate_of_a_wrong_model_is_1(chain: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.onnx"
    onnx.save(parse(CHAIN.replace("{2.0}", "{2.5}")), wrong)
    text = invoke("validate", chain, wrong, code=1).output
    assert "FAILED" in text
    assert f"onnxfuse: error: {wrong}: output 'y' differs at [" in text


def test_validate_of_models_that_have_other_inputs_is_2(chain: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.onnx"
    onnx.save(parse(CHAIN.replace(" x)", " z)").replace("(x,", "(z,").replace(", x)", ", z)")), other)
    assert "needs the input 'z'" in invoke("validate", chain, other, code=2).output
    onnx.save(parse(CHAIN.replace(" y)", " w)").replace("] y =", "] w =")), other)
    assert "does not give the output 'y'" in invoke("validate", chain, other, code=2).output


def test_explain_shows_groups_and_reasons(chain: Path) -> None:
    text = invoke("explain", chain).output
    for part in ("4 nodes; 2 ops would become 1 fused node", "FusedElementwise1", "Mul, Add", "single", "abs"):
        assert part in text


@pytest.mark.parametrize(
    ("node", "said"),
    [("mul", "fused into FusedElementwise1"), ("b", "together: mul, add"), ("abs", "left alone, single")],
)
def test_explain_one_node(chain: Path, node: str, said: str) -> None:
    assert said in invoke("explain", chain, "--node", node).output


def test_bench_prints_one_table(chain: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    invoke("optimize", chain, out)
    text = invoke("bench", chain, out, "--seconds", "0.01", "--report", tmp_path / "b.json").output
    assert "noise" in text
    rows = json.loads((tmp_path / "b.json").read_text())["rows"]
    assert [(row["model"], row["threads"]) for row in rows] == [
        (str(chain), 1), (str(out), 1), (str(chain), 2), (str(out), 2)
    ]
    assert rows[0]["speedup"]["median"] == 1.0
    assert all(row["speedup"]["low"] <= row["speedup"]["median"] <= row["speedup"]["high"] for row in rows)


def test_library_prints_the_path_or_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = tmp_path / "libonnxfuse.so"
    library.write_bytes(b"x")
    monkeypatch.setenv("ONNXFUSE_LIBRARY", str(library))
    assert invoke("library").output.strip() == str(library.resolve())
    monkeypatch.setenv("ONNXFUSE_LIBRARY", str(tmp_path / "none.so"))
    text = invoke("library", code=4).output
    assert "hint: " in text
    assert str(tmp_path / "none.so") in text


def test_python_gives_the_same_bytes_and_the_report(chain: Path, tmp_path: Path) -> None:
    by_cli, by_python = tmp_path / "cli.onnx", tmp_path / "python.onnx"
    invoke("optimize", chain, by_cli)
    result = onnxfuse.optimize(chain, by_python)
    assert by_cli.read_bytes() == by_python.read_bytes() == result.model.SerializeToString()
    assert result.report.output == str(by_python)
    assert [group.ops for group in result.report.groups] == [("Mul", "Add")]
    assert result.report.validation is not None
    assert result.report.validation.passed
    in_memory = onnxfuse.optimize(onnx.load(chain))
    assert in_memory.model == result.model
    assert in_memory.report.output is None
    assert onnxfuse.validate(chain, by_python).passed
    assert onnxfuse.explain(chain).left_counts == {"single": 1}


def test_without_a_runtime_commands_end_with_4_and_the_hint(
    chain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # an import of it fails
    for args in (("optimize", chain, tmp_path / "o.onnx"), ("validate", chain, chain), ("bench", chain)):
        text = invoke(*args, code=4).output
        assert 'hint: pip install "onnxfuse[cpu]"' in text
    assert not (tmp_path / "o.onnx").exists()
    assert "!!" in invoke("doctor", code=4).output


def run(*args: str | os.PathLike[str], **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "onnxfuse", *(os.fspath(arg) for arg in args)]
    variables = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=variables, check=False)


def test_the_module_runs_and_keeps_streams_apart(chain: Path, tmp_path: Path) -> None:
    done = run("optimize", chain, tmp_path / "out.onnx", PYTHONHASHSEED="1")
    assert done.returncode == 0
    assert done.stderr == ""  # no progress bar where there is no terminal
    assert "written: " in done.stdout
    again = run("optimize", chain, tmp_path / "again.onnx", PYTHONHASHSEED="2")
    assert again.returncode == 0
    assert (tmp_path / "out.onnx").read_bytes() == (tmp_path / "again.onnx").read_bytes()
    failed = run("optimize", tmp_path / "no.onnx", tmp_path / "out.onnx")
    assert failed.returncode == 3
    assert failed.stdout == ""
    assert failed.stderr == f"onnxfuse: error: {tmp_path / 'no.onnx'}: no such file\n"


def test_help_and_version() -> None:
    assert "optimize" in invoke("--help").output
    assert onnxfuse.__version__ in invoke("--version").output
    for command in ("optimize", "validate", "explain", "bench", "library", "doctor"):
        assert "--debug" in invoke(command, "--help").output


@pytest.mark.skipif(find_library() is None, reason="the library is not built")
def test_with_the_library_both_runs_are_checked(chain: Path, tmp_path: Path) -> None:
    text = invoke("optimize", chain, tmp_path / "out.onnx").output
    assert "check: passed without the library, with the library" in text
