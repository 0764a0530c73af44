"""The emitted text through NVRTC and nvJitLink, and what the cubins say: no warnings, no local memory, parameters of
the layout."""

from __future__ import annotations

import concurrent.futures
import re
from pathlib import Path
from types import ModuleType

import pytest

from onnxfuse.codegen import Shape, cubin, emit, layout, nvjitlink, nvrtc, shape_of, toolchain
from onnxfuse.codegen.kernels import KERNELS, LONGEST
from onnxfuse.codegen.libraries import CompileError
from onnxfuse.codegen.toolchain import Toolchain
from onnxfuse.errors import SetupError
from onnxfuse.program import Program
from tests.codegen.instructions import Group, groups
from tests.codegen.programs import CHAINS, long_program

ARCHITECTURES = (70, 75, 80, 90, 100, 120)


def machine_code(compiler: Toolchain, text: str, *architectures: int) -> list[bytes]:
    """A cubin for each, all of one PTX as in a container."""
    ptx = compiler.ptx(text, compiler.ptx_architecture(architectures))
    return [compiler.cubin(ptx, a) for a in architectures]


@pytest.mark.parametrize("name", CHAINS)
def test_cubins(compiler: Toolchain, name: str) -> None:
    """Every architecture (most programs: two): kernels without local memory, whose parameters have the bytes that the
    launcher packs."""
    program = CHAINS[name]
    text = emit(program)
    known, _ = compiler.supported(ARCHITECTURES)
    if name not in ("swiglu", "mish", "where_mask"):
        known = [k for k in known if k in (80, 90)]
    for architecture, code in zip(known, machine_code(compiler, text, *known), strict=True):
        assert cubin.architecture(code) == architecture
        found = cubin.kernels(code)
        assert set(found) == set(KERNELS)
        for kernel, facts in found.items():
            assert facts.parameters == layout.offsets(KERNELS[kernel], *layout.counts(program))[""]
            assert facts.frame == 0, (architecture, kernel)
            assert 0 < facts.registers <= 64  # what four thread blocks leave to each


@pytest.mark.parametrize("group", list(groups()), ids=lambda g: g.label)
def test_every_instruction(compiler: Toolchain, group: Group) -> None:
    """The text of every instruction on every type compiles without a warning."""
    (code,) = machine_code(compiler, emit(group.program, Shape(16, 1)), 90)
    assert set(cubin.kernels(code)) == set(KERNELS)


@pytest.mark.parametrize("text", [
    "in x0 f32\nin c0 f32\nt0 = exp.f32 c0\nout t0\n",
    "in x0 f32\nin x1 u8\nt0 = exp.f32 x0\nt1 = neg.f32 x0\nout t1\nout x0\n",
])  # fmt: skip
def test_what_nothing_reads(compiler: Toolchain, text: str) -> None:
    """Inputs and statements that nothing reads are no reason for a warning."""
    machine_code(compiler, emit(Program.parse(f"onnxfuse 1\n{text}")), 80)


def test_same_bytes_again(compiler: Toolchain) -> None:
    text = emit(CHAINS["gelu"])
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: machine_code(compiler, text, 80, 90), range(2))
    assert first == second
    assert text == emit(CHAINS["gelu"])


def test_ptx_moves_whole_blocks(compiler: Toolchain) -> None:
    """Loads and stores of 16 bytes, one for each block of every tensor, and as many in flight as the shape says."""
    text = compiler.ptx(emit(CHAINS["swiglu"]), 75).decode()
    rows = text[text.index("rows(") :].split(".entry")[0]
    at_once = shape_of(CHAINS["swiglu"]).unroll
    assert at_once == 2
    assert len(re.findall(r"\bld\.global\.v4\.", rows)) == 2 * at_once
    assert len(re.findall(r"\bst\.global\.v4\.", rows)) == at_once
    waits = rows.index("st.global.v4")
    assert len(re.findall(r"\bld\.global\.v4\.", rows[:waits])) == 2 * at_once  # all before the first result
    assert not re.findall(r"\b(ld|st)\.(local|[uvfb])", text)


@pytest.mark.parametrize("name", CHAINS)
def test_ptx_for_old_drivers(compiler: Toolchain, name: str) -> None:
    """Its version is one that old drivers take, it has nothing newer (nvJitLink looks), and nothing that may be
    contracted: no sum or product without a rounding of its own."""
    ptx = compiler.ptx(emit(CHAINS[name]), 75)
    assert ptx.endswith(b"\n\0")
    assert re.search(rb"^\.version 6\.3$", ptx, re.MULTILINE)
    assert re.search(rb"^\.target sm_75$", ptx, re.MULTILINE)
    assert not re.findall(rb"\b(?:add|sub|mul)\.(?:ftz\.)?f(?:32|64)\b", ptx)
    compiler.cubin(ptx, 75)


def test_hints_of_newer_ptx(compiler: Toolchain) -> None:
    """NVRTC 12.9 says of some loads which of their bytes matter, in words of PTX 8.3: they are left out."""
    inputs = ("x0", "x1", "x2", "x3", "c0", "c1")
    lines = [
        *(f"in {name} f16" for name in inputs), *(f"t{k} = cast.f16.f32 {name}" for k, name in enumerate(inputs)),
        "t6 = add.f32 t0 t1", "t7 = max.f32 t6 t4", "t8 = mul.f32 t7 t2", "t9 = add.f32 t8 t3",
        "t10 = lt.f32.bool t5 t9", "t11 = select.bool.f32 t10 t5 t9", "t12 = cast.f32.f16 t11", "out t12",
    ]  # fmt: skip
    text = emit(Program.parse("".join(f"{line}\n" for line in ("onnxfuse 1", *lines))))
    if compiler.nvrtc.version == "12.9":
        assert "used_bytes_mask" in compiler.nvrtc.ptx(text, 75)
    assert b"used_bytes_mask" not in compiler.ptx(text, 75)
    machine_code(compiler, text, 75)


def test_long_program(compiler: Toolchain) -> None:
    """One kernel without vectors, in little memory and code."""
    program = long_program("f16", LONGEST // 8 + 1)
    assert shape_of(program) == Shape(1, 1)
    assert shape_of(long_program("f16", LONGEST // 8 - 40)).vector == 8
    for code in machine_code(compiler, emit(program), 80, 120):
        found = cubin.kernels(code)
        assert set(found) == {"strided"}
        assert found["strided"].parameters == layout.offsets("Strided", *layout.counts(program))[""]
        assert found["strided"].frame == 0
        assert found["strided"].registers <= 64


def test_faults(compiler: Toolchain) -> None:
    with pytest.raises(CompileError, match=r"NVRTC.*compute_75.*undefined"):
        compiler.ptx('extern "C" __global__ void k() { nothing(); }', 75)
    with pytest.raises(CompileError, match="unused"):
        compiler.ptx('extern "C" __global__ void k() { int unused; }', 75)
    ptx = compiler.ptx('extern "C" __global__ void k() {}', 75)
    with pytest.raises(CompileError, match=r"(?s)nvJitLink.*sm_80.*nothing"):
        compiler.cubin(ptx.replace(b"ret;", b"nothing;"), 80)
    with pytest.raises(CompileError, match=r"nvJitLink.*sm_81"):
        compiler.cubin(ptx, 81)
    with pytest.raises(CompileError, match=r"(?s)nvJitLink.*sm_80.*match"):
        compiler.cubin(b"no PTX at all\0", 80)
    with pytest.raises(ValueError, match="ELF"):
        cubin.kernels(b"MZ" * 100)


def test_architectures(compiler: Toolchain) -> None:
    """Those that both know; PTX is for compute_75, or for the oldest GPU that is asked for."""
    known, unknown = compiler.supported([80, 42, 75, 81, 60])
    assert (known, unknown) == ([80, 75], [42, 81, 60])
    assert set(known) <= set(compiler.architectures)
    assert [compiler.nvjitlink.accepts(a) for a in (80, 81)] == [True, False]
    assert compiler.ptx_architecture([120]) == 75
    if 70 in compiler.architectures:
        assert compiler.ptx_architecture([90, 70]) == 70
        assert re.search(rb"^\.target sm_70$", compiler.ptx(emit(CHAINS["gelu"]), 70), re.MULTILINE)
        assert cubin.architecture(machine_code(compiler, emit(CHAINS["gelu"]), 70)[0]) == 70


def test_tools_of_two_versions(compiler: Toolchain, monkeypatch: pytest.MonkeyPatch) -> None:
    """nvJitLink is asked what it knows."""
    monkeypatch.setattr(compiler.nvjitlink, "version", "12.0")
    monkeypatch.setattr(compiler.nvjitlink, "accepts", lambda architecture: architecture < 90)
    assert compiler.supported([80, 90]) == ([80], [90])


def test_ptx_of_later_tools() -> None:
    """Where NVRTC begins beyond compute_75, PTX is for the first that it knows, in NVRTC's own version."""

    class Later:
        architectures = (80, 90)
        version = "99.0"

        def ptx(self, text: str, architecture: int) -> str:
            return f".version 99.0\n.target sm_{architecture}\n{text}"

    tools = Toolchain(Later(), None)  # type: ignore[arg-type]
    assert tools.ptx_architecture([90, 80]) == 80
    assert tools.ptx("x", 80) == b".version 99.0\n.target sm_80\nx\0"


@pytest.mark.parametrize(("module", "name", "variable"), [
    (nvrtc, "NVRTC", "ONNXFUSE_NVRTC"), (nvjitlink, "nvJitLink", "ONNXFUSE_NVJITLINK"),
])  # fmt: skip
def test_not_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: ModuleType, name: str, variable: str
) -> None:
    """Where one of the two is not there, and where it does not load."""
    monkeypatch.setattr(nvrtc, "find", lambda: object())
    monkeypatch.setattr(nvjitlink, "find", lambda: object())
    monkeypatch.setattr(module, "find", lambda: None)
    with pytest.raises(SetupError, match=f"{name}, which .* is not installed") as caught:
        toolchain.need()
    assert caught.value.hint == 'pip install "onnxfuse[cuda]", or --target cpu'
    monkeypatch.undo()
    monkeypatch.setenv(variable, str(tmp_path / "library.so.12"))
    with pytest.raises(SetupError, match="does not load"):
        module.find.__wrapped__()
