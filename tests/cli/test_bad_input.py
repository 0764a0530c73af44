"""Everything that can be wrong with what the caller gives: exit code, one clear line, the existing output untouched."""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import external_data_helper as external
from onnx import helper, numpy_helper

from onnxfuse.cli import cli
from tests.check.models import parse

OLD = b"an older result\n"


def invoke(*args: str | os.PathLike[str]) -> Result:
    return CliRunner().invoke(cli, [os.fspath(arg) for arg in args])


def simple(opset: int = 17, ir_version: int = 8) -> onnx.ModelProto:
    model = parse(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 64] x) => (float[N, 64] y) { a = Add(x, w)  y = Relu(a) }'
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones((64, 64), np.float32)[:1], "w"))
    model.opset_import[0].version = opset
    model.ir_version = ir_version
    return model


def written(folder: Path, model: onnx.ModelProto) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def raw(folder: Path, data: bytes) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(data)
    return path


def missing(folder: Path) -> Path:
    return folder / "nowhere.onnx"


def directory(folder: Path) -> Path:
    (folder / "a folder").mkdir()
    return folder / "a folder"


def truncated(folder: Path) -> Path:
    data = simple().SerializeToString()
    return raw(folder, data[: len(data) // 2])


def random_bytes(folder: Path) -> Path:
    return raw(folder, np.random.default_rng(0).bytes(4000))


def no_text(folder: Path) -> Path:
    return raw(folder, simple().SerializeToString().replace(b"Relu", b"Rel\xfc"))


def no_graph(folder: Path) -> Path:
    return raw(folder, onnx.ModelProto(ir_version=8).SerializeToString())


def cyclic(folder: Path) -> Path:
    model = simple()
    model.graph.node[0].input[1] = "y"
    return written(folder, model)


def two_producers(folder: Path) -> Path:
    model = simple()
    model.graph.node.append(helper.make_node("Neg", ["x"], ["a"]))
    return written(folder, model)


def nobody_makes_it(folder: Path) -> Path:
    model = simple()
    model.graph.node[0].input[1] = "ghost"
    return written(folder, model)


def types_do_not_fit(folder: Path) -> Path:
    model = parse("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[N] x, int64[N] k) => (float[N] y) { [ok] a = Mul(x, x)  [bad_add] b = Add(a, k)  y = Relu(b) }""")
    return written(folder, model)


def unknown_opset(folder: Path) -> Path:
    return written(folder, simple(opset=onnx.defs.onnx_opset_version() + 1))


def unknown_ir(folder: Path) -> Path:
    return written(folder, simple(ir_version=onnx.IR_VERSION + 7))


def with_external(folder: Path, location: str, *, present: bool, length: int = 256) -> Path:
    inner = folder / "models"
    inner.mkdir()
    model = parse(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[64] x) => (float[64] y) { a = Add(x, w)  y = Relu(a) }'
    )
    tensor = numpy_helper.from_array(np.ones(64, np.float32), "w")
    external.set_external_data(tensor, location, 0, length)
    tensor.ClearField("raw_data")
    model.graph.initializer.append(tensor)
    if present:
        (inner / location).write_bytes(b"\0" * 256)
    return written(inner, model)


def external_missing(folder: Path) -> Path:
    return with_external(folder, "weights.bin", present=False)


def external_outside(folder: Path) -> Path:
    return with_external(folder, "../secret.bin", present=True)


def external_too_short(folder: Path) -> Path:
    path = with_external(folder, "weights.bin", present=True)
    (path.parent / "weights.bin").write_bytes(b"\0" * 100)
    return path


@dataclasses.dataclass(frozen=True)
class Case:
    make: Callable[[Path], Path]
    message: str


CASES = [
    Case(missing, "no such file"),
    Case(directory, "is a folder"),
    Case(lambda folder: raw(folder, b""), "the file is empty"),
    Case(random_bytes, "not an ONNX model"),
    Case(no_text, "op_type is no UTF-8 text"),
    Case(lambda folder: raw(folder, b"hello, world\n"), "not an ONNX model"),
    Case(truncated, "truncated"),
    Case(no_graph, "no graph"),
    Case(cyclic, "cycl"),
    Case(two_producers, "'a'"),
    Case(nobody_makes_it, "'ghost'"),
    Case(types_do_not_fit, "bad_add"),
    Case(unknown_opset, "is unknown to the installed onnx"),
    Case(unknown_ir, "IR version"),
    Case(external_missing, "weights.bin"),
    Case(external_outside, "secret.bin"),
    Case(external_too_short, "weights.bin"),
]


@pytest.mark.parametrize("command", ["optimize", "explain", "validate", "bench"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: getattr(case.make, "__name__", "?"))
def test_an_input_that_cannot_be_used_is_3(command: str, case: Case, tmp_path: Path) -> None:
    source = case.make(tmp_path)
    target = tmp_path / "out" / "result.onnx"
    target.parent.mkdir()
    target.write_bytes(OLD)
    more = [target] if command == "optimize" else [source] if command == "validate" else []
    result = invoke(command, source, *more)
    assert result.exit_code == 3, result.output
    lines = result.output.strip().splitlines()
    assert lines[0].startswith(f"onnxfuse: error: {source}: ")
    assert case.message in lines[0]
    assert len(lines) == 1 or (len(lines) == 2 and lines[1].startswith("hint: "))
    assert "Traceback" not in result.output
    assert target.read_bytes() == OLD
    assert os.listdir(target.parent) == ["result.onnx"]


USAGE = [
    ([], "Usage:"),
    (["frobnicate"], "No such command 'frobnicate'"),
    (["optimize"], "Missing argument 'IN'"),
    (["optimize", "{in}"], "OUT is missing"),
    (["optimize", "{in}", "{out}", "more"], "unexpected extra argument"),
    (["optimize", "{in}", "{out}", "--frob"], "No such option"),
    (["optimize", "{in}", "{out}", "--target", "tpu"], "unknown target 'tpu'"),
    (["optimize", "{in}", "{out}", "--target", ","], "no target"),
    (["optimize", "{in}", "{out}", "--half-math", "double"], "unknown --half-math"),
    (["optimize", "{in}", "{out}", "--rtol", "-1"], "--rtol must be"),
    (["optimize", "{in}", "{out}", "--atol", "nan"], "--atol must be"),
    (["optimize", "{in}", "{out}", "--rtol", "much"], "not a valid float"),
    (["optimize", "{in}", "{out}", "--max-fusions", "-3"], "must not be negative"),
    (["optimize", "{in}", "{out}", "--shape", "x"], "not of the form"),
    (["optimize", "{in}", "{out}", "--shape", "x:99999999999999999999,64"], "not of the form"),
    (["optimize", "{in}", "{out}", "--shape", "z:1,64"], "no input 'z'"),
    (["optimize", "{in}", "{out}", "--report", "{in}"], "take the place"),
    (["optimize", "{in}", "{out}", "--report", "{folder}/./result.onnx"], "take the place"),
    (["optimize", "{in}", "{out}", "--inputs", "{npz}", "--report", "{npz}"], "take the place"),
    (["optimize", "{in}", "{out}", "--shape", "x:1,65"], "the model wants"),
    (["optimize", "{in}", "{out}", "--inputs", "{folder}/none.npz"], "no such file"),
    (["optimize", "{in}", "{out}", "--inputs", "{in}"], "cannot be read as an .npz"),
    (["optimize", "{in}", "{out}", "--inputs", "{npz}"], "no input 'other'"),
    (["validate", "{in}"], "Missing argument 'B'"),
    (["validate", "{in}", "{in}", "--report", "{in}"], "take the place"),
    (["explain", "{in}", "--node", "ghost"], "no elementwise node 'ghost'"),
    (["explain", "{in}", "--report", "{in}"], "take the place"),
    (["bench"], "Missing argument"),
    (["bench", "{in}", "--threads", "two"], "not of the form"),
    (["bench", "{in}", "--threads", "0"], "from 1 to 1024"),
    (["bench", "{in}", "--threads", "1,99999999999"], "from 1 to 1024"),
    (["bench", "{in}", "--seconds", "nan"], "--seconds must be"),
    (["bench", "{in}", "--seconds", "-1"], "--seconds must be"),
    (["bench", "{in}", "--report", "{in}"], "take the place"),
    (["library", "x"], "unexpected extra argument"),
]


@pytest.mark.parametrize(("args", "message"), USAGE, ids=[" ".join(args) or "none" for args, _ in USAGE])
def test_wrong_usage_is_2(args: list[str], message: str, tmp_path: Path) -> None:
    source, target = written(tmp_path, simple()), tmp_path / "result.onnx"
    before = source.read_bytes()
    target.write_bytes(OLD)
    np.savez(tmp_path / "in.npz", other=np.zeros(3))
    places = {"in": source, "out": target, "npz": tmp_path / "in.npz", "folder": tmp_path}
    result = invoke(*(arg.format(**places) for arg in args))
    assert result.exit_code == 2, result.output
    assert message in result.output
    if args:
        assert result.output.startswith("onnxfuse: error: ")
    assert target.read_bytes() == OLD
    assert source.read_bytes() == before


@pytest.mark.parametrize("option", ["OUT", "--report"])
def test_external_data_of_the_model_is_not_overwritten(option: str, tmp_path: Path) -> None:
    source = with_external(tmp_path, "weights.bin", present=True)
    data, other = source.with_name("weights.bin"), source.with_name("other")
    result = invoke("optimize", source, *([data] if option == "OUT" else [other, option, data]))
    assert result.exit_code == 2, result.output
    assert "would take the place of" in result.output
    assert data.read_bytes() == bytes(256)
    assert not other.exists()


def test_an_output_that_cannot_be_written_is_4(tmp_path: Path) -> None:
    source = written(tmp_path, simple())
    folder = tmp_path / "folder"
    folder.mkdir()
    for target, message in (
        (folder, "it is a folder"),
        (tmp_path / "none" / "out.onnx", "its folder does not exist"),
        (source / "out.onnx", "its parent is not a folder"),
        (Path(os.devnull), "it is not a regular file"),
        (tmp_path / ("n" * 300), os.strerror(errno.ENAMETOOLONG)),
    ):
        result = invoke("optimize", source, target)
        assert result.exit_code == 4, result.output
        assert result.output.startswith(f"onnxfuse: error: {target}: cannot be written: {message}")
    result = invoke("optimize", source, tmp_path / "out.onnx", "--report", tmp_path / "none" / "r.json")
    assert result.exit_code == 4
    assert not (tmp_path / "out.onnx").exists()


def test_a_full_disk_is_4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("onnxfuse.api.save", full)
    target = tmp_path / "out.onnx"
    target.write_bytes(OLD)
    result = invoke("optimize", written(tmp_path, simple()), target)
    assert result.exit_code == 4, result.output
    assert "the disk is full" in result.output
    assert target.read_bytes() == OLD


def test_an_opset_newer_than_the_runtime_is_4_unless_not_validated(tmp_path: Path) -> None:
    import onnxruntime

    newest = onnx.defs.onnx_opset_version()
    model = simple(opset=newest)
    try:
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        pytest.skip("the runtime runs every opset that onnx knows")
    except Exception as error:
        assert "opset" in str(error).lower()  # noqa: PT017 - the runtime's exceptions have no common type
    source, target = written(tmp_path, model), tmp_path / "out.onnx"
    for command, other in (("optimize", target), ("validate", source)):
        result = invoke(command, source, other)
        assert result.exit_code == 4, result.output
        assert f"opset {newest} is newer than this ONNX Runtime runs" in result.output
        assert "--no-validate" in result.output
    assert not target.exists()
    assert invoke("optimize", source, target, "--no-validate").exit_code == 0
    assert target.exists()


def test_an_internal_error_is_5_and_asks_for_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("two lines\nof trouble")

    monkeypatch.setattr("onnxfuse.api.make_plan", broken)
    source = written(tmp_path, simple())
    result = invoke("optimize", source, tmp_path / "out.onnx")
    assert result.exit_code == 5
    first, hint = result.output.strip().splitlines()
    assert "please report it" in first
    assert "RuntimeError: two lines of trouble" in first
    assert "--debug" in hint
    result = invoke("optimize", source, tmp_path / "out.onnx", "--debug")
    assert result.exit_code == 5
    assert "Traceback (most recent call last)" in result.output


def test_debug_shows_the_traceback_of_a_known_error(tmp_path: Path) -> None:
    assert "Traceback" in invoke("optimize", tmp_path / "no.onnx", tmp_path / "out.onnx", "--debug").output


def test_interruption_leaves_nothing_and_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("onnxfuse.api.compare_models", interrupted)
    target = tmp_path / "out.onnx"
    target.write_bytes(OLD)
    result = invoke("optimize", written(tmp_path, simple()), target)
    assert result.exit_code == 130
    assert result.output.strip() == "onnxfuse: interrupted"
    assert target.read_bytes() == OLD


def test_a_failed_check_is_1_and_writes_nothing_but_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onnxfuse import rewrite

    def spoiled(*args: object, **kwargs: object) -> onnx.ModelProto:
        model = onnx.ModelProto()
        model.CopyFrom(rewrite.apply(*args, **kwargs))  # type: ignore[arg-type]
        for function in model.functions:
            for node in function.node:
                node.op_type = "Sub" if node.op_type == "Add" else node.op_type
        return model

    monkeypatch.setattr("onnxfuse.api.apply", spoiled)
    target, report = tmp_path / "out.onnx", tmp_path / "r.json"
    target.write_bytes(OLD)
    source = written(tmp_path, simple())
    result = invoke("optimize", source, target, "--report", report)
    assert result.exit_code == 1, result.output
    assert result.output.startswith(f"onnxfuse: error: {source}: output 'y' differs at [")
    assert "first group whose own outputs differ: FusedElementwise1" in result.output
    assert target.read_bytes() == OLD
    assert '"passed": false' in report.read_text()
