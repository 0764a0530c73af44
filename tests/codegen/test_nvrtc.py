"""The emitted text through NVRTC, and what the cubins say: no warnings, no local memory, parameters of the layout."""

from __future__ import annotations

import concurrent.futures
import re
from pathlib import Path

import pytest

from onnxfuse.codegen import Shape, cubin, emit, layout, nvrtc, shape_of
from onnxfuse.codegen.kernels import KERNELS
from onnxfuse.errors import SetupError
from onnxfuse.program import Program
from tests.codegen.instructions import Group, groups
from tests.codegen.programs import CHAINS

ARCHITECTURES = (70, 75, 80, 90, 100, 120)


@pytest.mark.parametrize("name", CHAINS)
def test_cubins(compiler: nvrtc.Nvrtc, name: str) -> None:
    """Every architecture (most programs: two): kernels without local memory, whose parameters have the bytes that the
    launcher packs."""
    program = CHAINS[name]
    text = emit(program)
    known, _ = nvrtc.supported(compiler, ARCHITECTURES)
    if name not in ("swiglu", "mish", "where_mask"):
        known = [k for k in known if k in (80, 90)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        made = dict(zip(known, pool.map(lambda a: compiler.cubin(text, a), known), strict=True))
    for architecture, code in made.items():
        assert cubin.architecture(code) == architecture
        found = cubin.kernels(code)
        assert set(found) == set(KERNELS)
        for kernel, facts in found.items():
            assert facts.parameters == layout.offsets(KERNELS[kernel], *layout.counts(program))[""]
            assert facts.frame == 0, (architecture, kernel)
            assert 0 < facts.registers <= 64  # what four thread blocks leave to each


@pytest.mark.parametrize("group", list(groups()), ids=lambda g: g.label)
def test_every_instruction(compiler: nvrtc.Nvrtc, group: Group) -> None:
    """The text of every instruction on every type compiles without a warning."""
    assert set(cubin.kernels(compiler.cubin(emit(group.program, Shape(16, 1)), 90))) == set(KERNELS)


@pytest.mark.parametrize("text", [
    "in x0 f32\nin c0 f32\nt0 = exp.f32 c0\nout t0\n",
    "in x0 f32\nin x1 u8\nt0 = exp.f32 x0\nt1 = neg.f32 x0\nout t1\nout x0\n",
])  # fmt: skip
def test_what_nothing_reads(compiler: nvrtc.Nvrtc, text: str) -> None:
    """Inputs and statements that nothing reads are no reason for a warning."""
    compiler.cubin(emit(Program.parse(f"onnxfuse 1\n{text}")), 80)


def test_same_bytes_again(compiler: nvrtc.Nvrtc) -> None:
    text = emit(CHAINS["gelu"])
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: compiler.cubin(text, 80), range(2))
    assert first == second
    assert text == emit(CHAINS["gelu"])


def test_ptx_moves_whole_blocks(compiler: nvrtc.Nvrtc) -> None:
    """Loads and stores of 16 bytes, one for each block of every tensor, and as many in flight as the shape says."""
    text = compiler.ptx(emit(CHAINS["swiglu"]), 75)
    rows = text[text.index("rows(") :].split(".entry")[0]
    at_once = shape_of(CHAINS["swiglu"]).unroll
    assert at_once == 2
    assert len(re.findall(r"\bld\.global\.v4\.", rows)) == 2 * at_once
    assert len(re.findall(r"\bst\.global\.v4\.", rows)) == at_once
    waits = rows.index("st.global.v4")
    assert len(re.findall(r"\bld\.global\.v4\.", rows[:waits])) == 2 * at_once  # all before the first result
    assert not re.findall(r"\b(ld|st)\.(local|[uvfb])", text)


def test_faults(compiler: nvrtc.Nvrtc) -> None:
    with pytest.raises(nvrtc.CompileError, match=r"sm_80.*undefined"):
        compiler.cubin('extern "C" __global__ void k() { nothing(); }', 80)
    with pytest.raises(nvrtc.CompileError, match="unused"):
        compiler.cubin('extern "C" __global__ void k() { int unused; }', 80)
    with pytest.raises(ValueError, match="ELF"):
        cubin.kernels(b"MZ" * 100)


def test_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where NVRTC is not there, and where it does not load."""
    monkeypatch.setattr(nvrtc, "find", lambda: None)
    with pytest.raises(SetupError, match="not installed") as caught:
        nvrtc.need()
    assert "--target cpu" in str(caught.value.hint)
    monkeypatch.undo()
    monkeypatch.setenv("ONNXFUSE_NVRTC", str(tmp_path / "libnvrtc.so.12"))
    with pytest.raises(SetupError, match="does not load"):
        nvrtc.find.__wrapped__()
