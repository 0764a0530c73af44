"""Programs to containers: what is in them, and that the second time costs nothing."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from onnxfuse.codegen import Compiler, Shape, build, container, cubin, emit, toolchain
from onnxfuse.codegen.cache import Cache
from onnxfuse.codegen.kernels import KERNELS
from onnxfuse.codegen.libraries import CompileError
from onnxfuse.codegen.toolchain import Toolchain
from onnxfuse.errors import UsageError
from onnxfuse.program import Program
from tests.codegen.programs import CHAINS

pytestmark = pytest.mark.usefixtures("compiler")
SOME = [CHAINS[name] for name in ("swiglu", "bytes")]


def test_default_list(tmp_path: Path) -> None:
    """A cubin for every architecture of the list, PTX that old drivers take, under 100 KB a program; the second time
    from the cache, with the same bytes and without the compiler."""
    compiler = Compiler(store=Cache(tmp_path))
    count: list[int] = []
    made = list(compiler.compile(SOME, lambda: count.append(1)))
    assert len(count) == len(SOME)
    for kernels in made:
        found = container.unpack(kernels.data)
        assert found is not None
        images = found.images
        assert [(i.kind, i.architecture) for i in images] == [
            *((container.CUBIN, a) for a in build.DEFAULT), (container.PTX, toolchain.PTX_FOR),
        ]  # fmt: skip
        assert found.form == dataclasses.astuple(kernels.shape)
        assert len(kernels.data) < 100_000
        assert set(kernels.facts) == set(build.DEFAULT)
        for image in images[:-1]:
            assert cubin.architecture(image.code) == image.architecture
            assert cubin.kernels(image.code) == kernels.facts[image.architecture]
        assert re.search(rb"^\.version 6\.3$", images[-1].code, re.MULTILINE)
        assert all(f".entry {name}(".encode() in images[-1].code for name in KERNELS)
        assert images[-1].code.endswith(b"\0")

    again = Compiler(store=Cache(tmp_path))
    again._tools = dataclasses.make_dataclass("Nothing", [("version", str)])(compiler.version)
    assert list(again.compile(SOME)) == made


def test_other_architectures(tmp_path: Path) -> None:
    store = Cache(tmp_path)
    (made,) = Compiler([90, 80, 90], store).compile(SOME[:1])
    assert list(made.facts) == [80, 90]
    with pytest.raises(UsageError, match="no code for 42, 81"):
        Compiler([42, 80, 81], store)


def test_ptx_for_the_oldest(compiler: Toolchain) -> None:
    """PTX runs on every architecture that there is a cubin for, which is made from it."""
    if 70 not in compiler.architectures:
        pytest.skip(f"{compiler.version} make no code for compute capability 7.0")
    (made,) = Compiler([80, 70], Cache(None)).compile(SOME[:1])
    found = container.unpack(made.data)
    assert found is not None
    images = [(i.kind, i.architecture) for i in found.images]
    assert images == [(container.CUBIN, 70), (container.CUBIN, 80), (container.PTX, 70)]
    assert [compiler.cubin(found.images[2].code, i.architecture) for i in found.images[:2]] == [
        i.code for i in found.images[:2]
    ]  # fmt: skip


@pytest.mark.parametrize("tool", ["nvrtc", "nvjitlink"])
def test_versions_of_the_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str) -> None:
    """Both are named, and code that was made with others is not taken from the cache."""
    compiler = toolchain.need()  # not that of the fixture: other tests have the tools loaded anew
    first = Compiler([80], Cache(tmp_path))
    assert first.version == f"NVRTC {compiler.nvrtc.release}, nvJitLink {compiler.nvjitlink.release}"
    assert getattr(compiler, tool).release.startswith(getattr(compiler, tool).version)
    list(first.compile(SOME[:1]))
    list(first.compile(SOME[:1]))
    assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.setattr(getattr(compiler, tool), "release", "12.9.99")
    other = Compiler([80], Cache(tmp_path))
    assert "12.9.99" in other.version
    list(other.compile(SOME[:1]))
    assert len(list(tmp_path.iterdir())) == 2


def test_local_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a kernel would take local memory, smaller shapes are tried in turn."""
    tried: list[Shape] = []
    frames = {2: 16, 3: 8, 4: 0}  # the first text is for the name in the cache
    real = cubin.kernels

    def kernels(code: bytes) -> dict[str, cubin.Kernel]:
        found = real(code)
        return {name: dataclasses.replace(k, frame=frames[len(tried)]) for name, k in found.items()}

    def record(program: Program, shape: Shape) -> str:
        tried.append(shape)
        return emit(program, shape)

    monkeypatch.setattr(build, "emit", record)
    monkeypatch.setattr(cubin, "kernels", kernels)
    (made,) = Compiler([80], Cache(tmp_path)).compile(SOME[:1])
    assert [(s.unroll, s.resident) for s in tried] == [(2, 4), (2, 4), (1, 4), (1, 2)]
    assert made.shape == tried[-1]
    assert made.text == emit(SOME[0], made.shape)

    tried.clear()
    frames = dict.fromkeys(range(9), 16)  # whatever the shape: then the first one stays
    (made,) = Compiler([80], Cache(None)).compile(SOME[:1])
    assert len(tried) == 3
    assert made.shape == tried[0]


def test_local_memory_of_one_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that alone takes local memory is enough for a smaller shape, of which all are then compiled anew."""
    real = cubin.kernels

    def kernels(code: bytes) -> dict[str, cubin.Kernel]:
        spilled = cubin.architecture(code) == 80 and len(made) < 3
        made.append(cubin.architecture(code))
        return {name: dataclasses.replace(k, frame=8 if spilled else 0) for name, k in real(code).items()}

    made: list[int] = []
    monkeypatch.setattr(cubin, "kernels", kernels)
    (code,) = Compiler([75, 80, 90], Cache(None)).compile(SOME[:1])
    assert made == [75, 80, 90, 80, 75, 90]
    assert (code.shape.unroll, list(code.facts)) == (1, [75, 80, 90])
    monkeypatch.undo()
    (straight,) = Compiler([75, 80, 90], Cache(None)).compile(SOME[:1])
    assert straight.shape.unroll == 2


def test_too_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program whose code is too large has no vectors."""
    (large,) = Compiler([80, 90], Cache(None)).compile(SOME[:1])
    monkeypatch.setattr(build, "MOST_BYTES", len(large.data) // 3 - 1)
    (small,) = Compiler([80, 90], Cache(None)).compile(SOME[:1])
    assert large.shape.vector > 1
    assert small.shape == Shape(1, 1)
    assert list(small.facts[80]) == ["strided"]
    assert len(small.data) < len(large.data)


def test_after_an_error_the_compiler_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where machine code is not what can be read."""
    compiler = Compiler([80], Cache(None))
    for broken in (b"no ELF file", b"\x7fELF\x02" + bytes(60)):
        with monkeypatch.context() as patch:
            patch.setattr(Toolchain, "cubin", lambda *_, code=broken: code)
            with pytest.raises(CompileError, match="for sm_80 cannot be read"):
                list(compiler.compile(SOME))
    with monkeypatch.context() as patch:
        patch.setattr(Toolchain, "ptx", lambda *_: b"this is no PTX\0")
        with pytest.raises(CompileError, match="nvJitLink"):
            list(compiler.compile(SOME))
    assert len(list(compiler.compile(SOME))) == len(SOME)


def test_two_at_once_with_one_compiler() -> None:
    """Two calls that are both under way."""
    compiler = Compiler([80], Cache(None))
    calls = [compiler.compile(SOME), compiler.compile(SOME)]
    pairs = [(next(calls[0]), next(calls[1])) for _ in SOME]
    assert all(one.data == other.data for one, other in pairs)
