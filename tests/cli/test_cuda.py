"""The options for GPU code: what is printed, stored and refused."""

from __future__ import annotations

import ctypes.util
import json
import time
from pathlib import Path

import onnx
import pytest

import onnxfuse
from onnxfuse.codegen import Compiler, container, nvjitlink, nvrtc, toolchain
from onnxfuse.codegen.cache import Cache
from onnxfuse.errors import ModelError, SetupError, UsageError
from onnxfuse.program import Program
from tests.check.models import parse
from tests.cli.test_commands import CHAIN, invoke


@pytest.fixture
def chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model with one group, and a cache of compiled code that nobody else has."""
    if nvrtc.find() is None or nvjitlink.find() is None:
        pytest.skip('NVRTC or nvJitLink is not installed: pip install "onnxfuse[cuda]"')
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
    node = "mul"
    assert invoke("explain", chain, "--cuda", "--cuda-arch", "80", "--node", node).output == said
    assert "no fused node has 'y9' in it" in invoke("explain", chain, "--cuda", "--node", "y9", code=2).output


def test_registers_in_a_table(chain: Path) -> None:
    said = invoke("explain", chain, "-v", "--target", "cpu,cuda", "--cuda-arch", "80").output
    assert "registers" in said
    assert "strided" in said


@pytest.mark.parametrize(("options", "code", "words"), [
    (["--target", "cpu,cuda", "--cuda-arch", "eighty"], 2, "compute capabilities such as 80,90"),
    (["--target", "cpu,cuda", "--cuda-arch", ","], 2, "compute capabilities such as 80,90"),
    (["--target", "cpu,cuda", "--cuda-arch", "42"], 2, "makes no code for 42"),
    (["--target", "cpu,cuda", "--cuda-arch", "61"], 2, "it can be one of 70"),
    (["--target", "cpu", "--cuda-arch", "80"], 2, "--target cpu,cuda"),
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


def test_no_architecture(chain: Path) -> None:
    with pytest.raises(UsageError, match="no architecture"):
        onnxfuse.optimize(chain, targets=("cpu", "cuda"), cuda_arch=())
    assert onnxfuse.explain(chain, targets=("cuda", "cpu", "cuda"), cuda_arch=80).options["targets"] == ["cpu", "cuda"]


@pytest.mark.parametrize("program", [b"", b"garbage", b"\xff\xfe"])
def test_a_damaged_program_in_the_input(chain: Path, tmp_path: Path, program: bytes) -> None:
    """Costs an error that says so where it has to be compiled, and nothing where it has not."""
    fused = onnxfuse.optimize(chain).model
    (attribute,) = (a for node in fused.graph.node for a in node.attribute if a.name == "program")
    attribute.s = program
    onnx.save(fused, tmp_path / "damaged.onnx")
    onnxfuse.explain(tmp_path / "damaged.onnx")
    with pytest.raises(ModelError, match="program of a fused node is damaged"):
        onnxfuse.optimize(tmp_path / "damaged.onnx", targets=("cpu", "cuda"), cuda_arch=80)


def test_new_nodes_without_code_in_a_model_that_has_some(chain: Path, tmp_path: Path) -> None:
    coded = onnxfuse.optimize(chain, targets=("cpu", "cuda"), cuda_arch=80).model
    more = onnx.ModelProto()
    more.CopyFrom(coded)
    value = more.graph.output[0].name
    more.graph.node.extend([
        onnx.helper.make_node("CumSum", [value, "axis"], ["s"]), onnx.helper.make_node("Mul", ["s", "s"], ["t"]),
        onnx.helper.make_node("Sub", ["t", "s"], ["end"]),
    ])  # fmt: skip
    more.graph.output.add(name="end").type.CopyFrom(more.graph.output[0].type)
    (warning,) = onnxfuse.optimize(more, validate=False).report.warnings
    assert "--target cpu,cuda" in warning
    assert onnxfuse.optimize(more, validate=False, targets=("cpu", "cuda"), cuda_arch=80).report.warnings == ()


def test_an_interrupt_does_not_wait_for_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, chain: Path) -> None:
    """What is left is not compiled once nobody waits for it."""
    compiled = []
    real = nvjitlink.NvJitLink.cubin

    def cubin(self: nvjitlink.NvJitLink, ptx: bytes, architecture: int) -> bytes:
        compiled.append(architecture)
        return real(self, ptx, architecture)

    programs = [Program.parse(f"onnxfuse 1\nin x0 f32\nt0 = {name}.f32 x0\nout t0\n") for name in ("exp", "neg") * 4]
    compiler = Compiler(store=Cache(None))
    monkeypatch.setattr(nvjitlink.NvJitLink, "cubin", cubin)
    made = compiler.compile(programs)
    next(made)
    made.close()
    time.sleep(2.0)
    assert len(compiled) < 5 * len(programs) - 5


def test_a_library_that_is_no_compiler(monkeypatch: pytest.MonkeyPatch, chain: Path) -> None:
    library = ctypes.util.find_library("c")
    monkeypatch.setenv("ONNXFUSE_NVRTC", library or "libc.so.6")
    nvrtc.find.cache_clear()
    try:
        with pytest.raises(SetupError, match="does not load"):
            onnxfuse.optimize(chain, targets=("cpu", "cuda"))
    finally:
        nvrtc.find.cache_clear()


def test_default_targets(chain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both where the compilers are, unless a variable says otherwise."""
    out = tmp_path / "out.onnx"

    def targets() -> list[str]:
        invoke("optimize", chain, out, "--no-validate", "--report", tmp_path / "report.json")
        found: list[str] = json.loads((tmp_path / "report.json").read_text())["options"]["targets"]
        return found

    monkeypatch.setenv("ONNXFUSE_TARGET", "cuda, cpu")
    assert targets() == ["cpu", "cuda"]
    assert code_in(out).images
    monkeypatch.setenv("ONNXFUSE_TARGET", "cpu")
    assert targets() == ["cpu"]
    monkeypatch.delenv("ONNXFUSE_TARGET")
    assert targets() == ["cpu", "cuda"]
    monkeypatch.setenv("ONNXFUSE_NVJITLINK", str(tmp_path / "none.so"))
    nvjitlink.find.cache_clear()
    try:  # what a variable names has to be there
        said = invoke("optimize", chain, out, code=4).output
        assert "none.so does not load" in said
        assert "hint: ONNXFUSE_NVJITLINK names it: unset that, or --target cpu" in said
    finally:
        monkeypatch.delenv("ONNXFUSE_NVJITLINK")
        nvjitlink.find.cache_clear()
    monkeypatch.setattr("onnxfuse.codegen.toolchain.installed", lambda: False)
    assert targets() == ["cpu"]
    for wrong in ("gpu", ",", "cpu,gpu"):
        monkeypatch.setenv("ONNXFUSE_TARGET", wrong)
        said = invoke("optimize", chain, out, code=2).output
        assert f"ONNXFUSE_TARGET is '{wrong}'" in said
        assert "cpu, cuda or cpu,cuda" in said


def test_explain_compiles_what_it_shows(chain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXFUSE_TARGET", "cpu,cuda")
    assert "registers" not in invoke("explain", chain).output
    assert "registers" not in invoke("explain", chain, "--target", "cuda").output
    for options in (("-v",), ("--cuda-arch", "80")):
        assert "registers" in invoke("explain", chain, *options).output
    monkeypatch.setenv("ONNXFUSE_TARGET", "cpu")
    assert "registers" not in invoke("explain", chain, "-v").output
    assert "registers" in invoke("explain", chain, "--cuda-arch", "80").output
    assert 'extern "C" __global__ void' in invoke("explain", chain, "--cuda").output


def test_compilers_that_do_not_know_all_architectures(
    chain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default code is made for those that they know; one that is asked for has to be known."""
    monkeypatch.setattr(toolchain.Toolchain, "supported", lambda self, wanted: (
        [a for a in wanted if a <= 80], [a for a in wanted if a > 80]))  # fmt: skip
    out = tmp_path / "out.onnx"
    said = invoke("optimize", chain, out, "--target", "cpu,cuda").output
    assert "make no code for sm_90, sm_100, sm_120: such GPUs compile the PTX" in said
    assert [i.architecture for i in code_in(out).images] == [75, 80, 75]
    assert "makes no code for 90" in invoke("optimize", chain, out, "--cuda-arch", "80,90", code=2).output


def test_compilers_that_take_no_kernel(chain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain.Toolchain, "ptx", lambda *_: b"this is no PTX\0")
    said = invoke("optimize", chain, tmp_path / "out.onnx", "--target", "cpu,cuda", code=4).output
    assert "the compilers for CUDA do not take a kernel: nvJitLink" in said
    assert "hint: --target cpu leaves GPU code out" in said
    assert not (tmp_path / "out.onnx").exists()


def test_what_made_the_code_is_named(chain: Path, tmp_path: Path) -> None:
    """Also that the code is still there after the model was optimized for the CPU."""
    out, again = tmp_path / "out.onnx", tmp_path / "again.onnx"
    invoke("optimize", chain, out, "--cuda-arch", "80", "--max-fusions", "1")
    stamps = {entry.key: entry.value for entry in onnx.load(out).metadata_props}
    assert stamps["onnxfuse.cuda"] == toolchain.need().version
    assert stamps["onnxfuse.targets"] == "cpu,cuda"
    model = onnx.load(out)
    model.graph.node.extend(onnx.helper.make_node(op, [x], [y]) for op, x, y in (("Exp", "y", "e"), ("Neg", "e", "f")))
    model.graph.output[0].name = "f"
    onnx.save(model, out)
    invoke("optimize", out, again, "--target", "cpu")
    assert {e.key: e.value for e in onnx.load(again).metadata_props}["onnxfuse.targets"] == "cpu,cuda"


NORMALIZATION = """<ir_version: 8, opset_import: ["": 17]> g (float[N, 2, 5] x) => (float[N, 2, 5] y)
    <float[2] s = {1, 2}> { [normal] n = BatchNormalization(x, s, s, s, s)  [relu] y = Relu(n) }"""


def test_groups_for_a_gpu_alone_in_words(chain: Path) -> None:
    onnx.save(parse(NORMALIZATION), chain)
    said = invoke("optimize", chain, chain.with_name("out.onnx"), "--target", "cpu,cuda", "--cuda-arch", "80").output
    assert "on a GPU alone: 2 ops in 1 of them; on the CPU these stay single nodes" in said
    assert "2 -> 1 node (2 on the CPU); 2 ops in 1 fused group" in said
    assert "left alone on the CPU: 2 elementwise nodes (1 channel-parameters, 1 single)" in said
    assert "check: passed without the library, with the library, with the nodes for the GPU" in said
    said = invoke("explain", chain, "--node", "relu", "--target", "cpu,cuda", "--cuda-arch", "80").output
    assert "relu: fused into FusedDevice1 'fused_normal_to_relu', on a GPU alone" in said
    assert "relu (Relu): left alone on the CPU, single" in said
