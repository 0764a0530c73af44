"""The options for GPU code: what is printed, stored and refused."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

import onnxfuse
from onnxfuse.codegen import container, nvrtc
from onnxfuse.errors import SetupError
from tests.check.models import parse
from tests.cli.test_commands import CHAIN, invoke


@pytest.fixture
def chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model with one group, and a cache of compiled code that nobody else has."""
    if nvrtc.find() is None:
        pytest.skip('NVRTC is not installed: pip install "onnxfuse[cuda]"')
    monkeypatch.setenv("ONNXFUSE_CUDA_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "chain.onnx"
    onnx.save(parse(CHAIN), path)
    return path


def code_in(path: Path) -> container.Container:
    (code,) = (t.raw_data for t in onnx.load(path).graph.initializer if t.data_type == onnx.TensorProto.UINT8)
    found = container.unpack(code)
    assert found is not None
    return found


def test_code_for_the_architectures_that_were_asked_for(chain: Path, tmp_path: Path) -> None:
    out, report = tmp_path / "out.onnx", tmp_path / "report.json"
    options = ("--target", "cpu,cuda", "--cuda-arch", "sm_80, 9.0", "--report", report)
    said = invoke("optimize", chain, out, *options).output
    assert "GPU code: 1 program for sm_80, sm_90 and PTX" in said
    assert "no local memory" in said
    assert [(i.kind, i.architecture) for i in code_in(out).images] == [(0, 80), (0, 90), (1, 75)]
    (entry,) = json.loads(report.read_text())["cuda"]
    assert entry["ops"] == ["FusedElementwise1"]
    assert set(entry["kernels"]) == {"80", "90"}
    assert entry["kernels"]["80"]["rows"]["registers"] > 8
    assert json.loads(report.read_text())["options"]["cuda_arch"] == [80, 90]
    again = tmp_path / "again.onnx"
    invoke("optimize", out, again, "--target", "cpu,cuda", "--cuda-arch", "80,90")
    assert again.read_bytes() == out.read_bytes()


def test_code_for_a_model_that_has_none_yet(chain: Path, tmp_path: Path) -> None:
    plain, out, straight = (tmp_path / f"{name}.onnx" for name in ("plain", "out", "straight"))
    invoke("optimize", chain, plain)
    for source, target in ((plain, out), (chain, straight)):
        invoke("optimize", source, target, "--target", "cpu,cuda", "--cuda-arch", "80")
    assert code_in(out) == code_in(straight)


def test_the_text_of_the_kernels(chain: Path) -> None:
    said = invoke("explain", chain, "--cuda", "--cuda-arch", "80").output
    assert "// ---- FusedElementwise1" in said
    assert 'extern "C" __global__ void' in said


def test_registers_in_a_table(chain: Path) -> None:
    said = invoke("explain", chain, "-v", "--target", "cpu,cuda", "--cuda-arch", "80").output
    assert "registers" in said
    assert "strided" in said


@pytest.mark.parametrize(("options", "code", "words"), [
    (["--target", "cpu,cuda", "--cuda-arch", "eighty"], 2, "compute capabilities such as 80,90"),
    (["--target", "cpu,cuda", "--cuda-arch", ","], 2, "compute capabilities such as 80,90"),
    (["--target", "cpu,cuda", "--cuda-arch", "42"], 2, "makes no code for 42"),
    (["--cuda-arch", "80"], 2, "--target cpu,cuda"),
])  # fmt: skip
def test_options_that_make_no_sense(
    chain: Path, tmp_path: Path, options: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    invoke("optimize", chain, tmp_path / "out.onnx", *options, code=code)
    assert words in capsys.readouterr().err or words in invoke("optimize", chain, "x", *options, code=code).output
    assert not (tmp_path / "out.onnx").exists()


def test_without_a_compiler(chain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Says what to install, before any work is done; nothing is written."""
    monkeypatch.setattr(nvrtc, "find", lambda: None)
    with pytest.raises(SetupError, match="NVRTC") as caught:
        onnxfuse.optimize(chain, tmp_path / "out.onnx", targets=("cpu", "cuda"))
    assert caught.value.hint is not None
    assert "--target cpu" in caught.value.hint
    assert not (tmp_path / "out.onnx").exists()


def test_native_without_a_gpu(chain: Path) -> None:
    with pytest.raises(SetupError, match=r"driver|no GPU"):
        onnxfuse.optimize(chain, targets=("cpu", "cuda"), cuda_arch="native")
