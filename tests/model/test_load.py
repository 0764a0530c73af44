"""What is refused, with which words, and what is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, external_data_helper, helper, numpy_helper

from onnxfuse.errors import ModelError
from onnxfuse.model import from_proto, load
from onnxfuse.model.external import read_array

GOOD = "g (float[N] x) => (float[N] y) { a = Neg(x)  y = Abs(a) }"


def parse(source: str, opset: int = 17, ir: int = 8) -> ModelProto:
    return onnx.parser.parse_model(f'<ir_version: {ir}, opset_import: ["" : {opset}]>\n{source}')


def nodes_model(*nodes: onnx.NodeProto) -> ModelProto:
    graph = helper.make_graph(list(nodes), "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N"])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N"])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(("data", "words", "hint"), [
    (b"", "the file is empty", None),
    (bytes(range(256)) * 10, "not an ONNX model", None),
    (parse(GOOD).SerializeToString()[:-20], "not an ONNX model, or a truncated one", None),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "not an ONNX model", "Git LFS"),
    (b"PK\x03\x04" + bytes(100), "not an ONNX model", "zip archive"),
    (b"\x18\x00\x00\x00ORTM" + bytes(100), "not an ONNX model", ".ort file"),
    (ModelProto(ir_version=8).SerializeToString(), "it has no graph", None),
])
def test_files_that_are_no_model(tmp_path: Path, data: bytes, words: str, hint: str | None) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=words) as caught:
        load(path)
    assert caught.value.exit_code == 3
    assert caught.value.path == str(path)
    assert "\n" not in str(caught.value)
    assert hint is None or hint in str(caught.value.hint)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nowhere\.onnx: no such file"):
        load(tmp_path / "nowhere.onnx")
    with pytest.raises(ModelError, match="is a folder"):
        load(tmp_path)


@pytest.mark.parametrize(("model", "words"), [
    (nodes_model(helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Neg", ["a"], ["b"]),
                 helper.make_node("Abs", ["b"], ["y"])), "cycle"),
    (nodes_model(helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Abs", ["x"], ["y"])), "'y' is made twice"),
    (nodes_model(helper.make_node("Neg", ["x"], ["x"]), helper.make_node("Abs", ["x"], ["y"])), "'x' is made twice"),
    (nodes_model(helper.make_node("Neg", ["q"], ["y"], name="bad")), "'q', read by node 'bad'"),
    (nodes_model(helper.make_node("Neg", ["x"], ["z"])), "graph output 'y' is made by no node"),
    (nodes_model(helper.make_node("Add", ["x"], ["y"], name="bad")), "'bad' .* has 1 inputs"),
    (nodes_model(helper.make_node("And", ["x", "x"], ["y"], name="bad")), "A cannot be of type float"),
    (parse("g (float[N] x, int64[N] k) => (float[N] y) { [bad] y = Add(x, k) }"), "'bad' .*float and B is int64"),
    (parse("g (string[N] x) => (bool[N] y) { y = Equal(x, x) }"), "string in opset 17"),
    (parse(GOOD, opset=onnx.defs.onnx_opset_version() + 1), "unknown to the installed onnx"),
    (parse(GOOD, ir=onnx.IR_VERSION + 1), "IR version"),
    (ModelProto(ir_version=8, graph=onnx.GraphProto(), opset_import=[helper.make_opsetid("", 17)]), "empty"),
    (ModelProto(ir_version=8, graph=parse(GOOD).graph), "states no opset"),
    (ModelProto(graph=parse(GOOD).graph), "no IR version"),
    (parse("""g (float[N] x, bool c) => (float[N] y) { y = If (c) <
        then_branch = t () => (float[N] u) { u = Neg(nobody) },
        else_branch = e () => (float[N] v) { v = Neg(x) } > }"""),
     "'nobody'"),
])
def test_models_that_cannot_be_used(model: ModelProto, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        from_proto(model)


@pytest.mark.parametrize("model", [
    parse("g (float[N] x) => (float[N] y) { y = Neg(a)  a = Abs(x) }"),
    onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17, "house" : 3]>
        g (float[N] x) => (y) { a = house.Own(x)  y = Neg(a) }"""),
    nodes_model(helper.make_node("Neg", ["x"], ["a"], name="n"), helper.make_node("Abs", ["a"], ["y"], name="n")),
    nodes_model(helper.make_node("NotInOnnx", ["x"], ["y"])),
])
def test_what_is_no_error(model: ModelProto) -> None:
    assert from_proto(model).proto is model


def external_model(location: str, offset: int = 0, length: int = 64) -> ModelProto:
    model = parse("g (float[16] x) => (float[16] y) { y = Add(x, w) }")
    model.graph.initializer.append(numpy_helper.from_array(np.arange(16, dtype=np.float32), "w"))
    external_data_helper.set_external_data(model.graph.initializer[0], location, offset, length)
    model.graph.initializer[0].ClearField("raw_data")
    return model


@pytest.mark.parametrize(("location", "offset", "length", "words"), [
    ("gone.bin", 0, 64, "'gone.bin', which does not exist"),
    ("../secret.bin", 0, 64, "outside the model's folder"),
    ("sub/../../secret.bin", 0, 64, "outside the model's folder"),
    ("/etc/passwd", 0, 64, "outside the model's folder"),
    ("link.bin", 0, 64, "outside the model's folder"),
    ("sub", 0, 64, "is not a file"),
    ("w.bin", 64, 64, "out of range"),
    ("w.bin", -4, 64, "out of range"),
    ("w.bin", 0, 32, "has 32 bytes"),
    ("", 0, 64, "names no file"),
])
def test_external_data_that_cannot_be_used(tmp_path: Path, location: str, offset: int, length: int, words: str) -> None:
    folder = tmp_path / "models"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "secret.bin").write_bytes(bytes(64))
    (folder / "w.bin").write_bytes(bytes(100))
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    (folder / "m.onnx").write_bytes(external_model(location, offset, length).SerializeToString())
    with pytest.raises(ModelError, match=words):
        load(folder / "m.onnx")


def test_external_data_is_read_on_demand(tmp_path: Path) -> None:
    values = np.arange(16, dtype=np.float32)
    (tmp_path / "w.bin").write_bytes(bytes(8) + values.tobytes())
    (tmp_path / "m.onnx").write_bytes(external_model("w.bin", 8).SerializeToString())
    model = load(tmp_path / "m.onnx")
    tensor = model.proto.graph.initializer[0]
    assert not tensor.raw_data
    assert np.array_equal(read_array(tensor, tmp_path), values)
    assert model.bytes == (tmp_path / "m.onnx").read_bytes()
