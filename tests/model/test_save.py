"""Writing is all or nothing, and external data goes where the result needs it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, external_data_helper, numpy_helper

from onnxfuse.errors import ModelError, SetupError
from onnxfuse.fusion.plan import make_plan
from onnxfuse.model import Model, from_proto, load
from onnxfuse.model.external import locate
from onnxfuse.model.save import save
from onnxfuse.rewrite import apply

BIG, SMALL = np.arange(5000, dtype=np.float32), np.arange(300, dtype=np.float32)


def write_model(folder: Path, chain: str = "a = Mul(x, W)  y = Add(a, W)  z = Add(s, S)") -> Path:
    """A model with tensors in two files, one range used twice."""
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "one.bin").write_bytes(b"\xff" * 4096 + BIG.tobytes())
    (folder / "two.bin").write_bytes(SMALL.tobytes() + b"\xff")
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[N, 5000] x, float[300] s) => (float[N, 5000] y, float[300] z) {{ {chain} }}""")
    for name, array, place, offset in (("W", BIG, "data/one.bin", 4096), ("S", SMALL, "two.bin", 0),
                                       ("S2", SMALL, "two.bin", 0)):
        tensor = model.graph.initializer.add()
        tensor.CopyFrom(numpy_helper.from_array(array, name))
        external_data_helper.set_external_data(tensor, place, offset, array.nbytes, checksum="0" * 40)
        tensor.ClearField("raw_data")
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def fused(path: Path) -> tuple[Model, ModelProto]:
    model = load(path)
    return model, apply(model, make_plan(model))


def weights(path: Path) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def test_in_the_same_folder_references_stay(tmp_path: Path) -> None:
    model, result = fused(write_model(tmp_path))
    assert result is not model.proto
    save(result, tmp_path / "out.onnx", model)
    assert sorted(os.listdir(tmp_path)) == ["data", "m.onnx", "out.onnx", "two.bin"]
    kept = {t.name: t for t in onnx.load(tmp_path / "out.onnx", load_external_data=False).graph.initializer}
    for tensor in model.proto.graph.initializer:
        assert tensor.name not in kept or kept[tensor.name] == tensor


def test_elsewhere_one_data_file_is_written(tmp_path: Path) -> None:
    model, result = fused(write_model(tmp_path / "in"))
    (tmp_path / "out").mkdir()
    save(result, tmp_path / "out" / "o.onnx", model)
    assert sorted(os.listdir(tmp_path / "out")) == ["o.onnx", "o.onnx.data"]
    got = weights(tmp_path / "out" / "o.onnx")
    assert np.array_equal(got["W"], BIG)
    assert np.array_equal(got["S"], SMALL)
    assert np.array_equal(got["S2"], SMALL)
    data = tmp_path / "out" / "o.onnx.data"
    assert data.stat().st_size < BIG.nbytes + 2 * SMALL.nbytes  # equal ranges once
    entries = [{e.key: e.value for e in t.external_data} for t in onnx.load(
        tmp_path / "out" / "o.onnx", load_external_data=False).graph.initializer if t.external_data]
    assert all(int(e["offset"]) % 64 == 0 for e in entries)
    assert {e["checksum"] for e in entries} != {"0" * 40}
    onnx.checker.check_model(str(tmp_path / "out" / "o.onnx"), full_check=True)


def test_data_files_of_the_original_are_never_overwritten(tmp_path: Path) -> None:
    path = write_model(tmp_path)
    (tmp_path / "sub").mkdir()
    proto = onnx.load(path, load_external_data=False)
    (tmp_path / "sub" / "o.onnx.data").write_bytes(SMALL.tobytes())
    for tensor in proto.graph.initializer[1:]:
        tensor.external_data[0].value = "sub/o.onnx.data"
    path.write_bytes(proto.SerializeToString())
    model, result = fused(path)
    save(result, tmp_path / "sub" / "o.onnx", model)
    assert (tmp_path / "sub" / "o.onnx.data").read_bytes() == SMALL.tobytes()
    assert np.array_equal(weights(tmp_path / "sub" / "o.onnx")["W"], BIG)
    assert np.array_equal(weights(path)["S"], SMALL)


def test_onto_itself(tmp_path: Path) -> None:
    path = write_model(tmp_path)
    model, result = fused(path)
    save(result, path, model)
    assert path.read_bytes() == result.SerializeToString()
    assert sorted(os.listdir(tmp_path)) == ["data", "m.onnx", "two.bin"]
    again = load(path)
    save(again.proto, path, again)
    assert path.read_bytes() == result.SerializeToString()


def test_what_is_not_changed_is_copied_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[N] x) => (float[N] y) { y = Neg(x) }""")
    # the same model as no serializer writes it: an unknown field in front
    path.write_bytes(b"\xf8\x3e\x01" + proto.SerializeToString())
    model, result = fused(path)
    assert result is model.proto
    save(result, tmp_path / "o.onnx", model)
    assert (tmp_path / "o.onnx").read_bytes() == path.read_bytes()


class Full:
    """Every write fails as on a full disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(descriptor: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", fail)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool) -> None:
    model, result = fused(write_model(tmp_path / "in"))
    folder = tmp_path / ("out" if elsewhere else "in")
    folder.mkdir(exist_ok=True)
    (folder / "o.onnx").write_bytes(b"old")
    before = sorted(os.listdir(folder))
    Full(monkeypatch)
    with pytest.raises(SetupError, match="No space left") as caught:
        save(result, folder / "o.onnx", model)
    assert caught.value.exit_code == 4
    assert "space" in str(caught.value.hint)
    assert (folder / "o.onnx").read_bytes() == b"old"
    assert sorted(os.listdir(folder)) == before


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    model = from_proto(onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[N] x) => (float[N] y) { y = Neg(x) }"""))
    with pytest.raises(SetupError, match="is a folder"):
        save(model.proto, tmp_path, model)
    with pytest.raises(SetupError, match="cannot be written") as caught:
        save(model.proto, tmp_path / "no" / "o.onnx", model)
    assert "create the folder" in str(caught.value.hint)


def test_a_data_file_that_shrinks_while_it_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, result = fused(write_model(tmp_path / "in"))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "o.onnx").write_bytes(b"old")
    def locate_then_cut(tensor: onnx.TensorProto, folder: Path | None) -> object:
        found = locate(tensor, folder)
        os.truncate(found.file, found.offset + found.length - 4)
        return found

    monkeypatch.setattr("onnxfuse.model.save.locate", locate_then_cut)
    with pytest.raises(ModelError, match=r"out of range|became shorter"):
        save(result, tmp_path / "out" / "o.onnx", model)
    assert os.listdir(tmp_path / "out") == ["o.onnx"]


def test_an_executable_bit_and_other_modes_stay(tmp_path: Path) -> None:
    model, result = fused(write_model(tmp_path))
    out = tmp_path / "o.onnx"
    out.write_bytes(b"old")
    out.chmod(0o640)
    save(result, out, model)
    assert out.stat().st_mode & 0o777 == 0o640


def test_a_device_is_written_through() -> None:
    model = from_proto(onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[N] x) => (float[N] y) { y = Neg(x) }"""))
    save(model.proto, os.devnull, model)
    assert not Path(os.devnull).is_file()
