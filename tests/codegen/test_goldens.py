"""The CUDA text of some programs against the files of `goldens/` (`--update-goldens` writes them anew from the program
in their heading), what NVRTC makes of it, and that whole blocks are moved."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from onnxfuse.codegen import DEFAULT, Compiler, Kernels, emit, shape_of
from onnxfuse.codegen.cache import Cache
from onnxfuse.program import Program
from tests.long.cuda_models import blocks, examine, movement, needs_local_memory, ptx_of

FOLDER = Path(__file__).parent / "goldens"
FILES = sorted(FOLDER.glob("*.cu"))
EACH = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
_INDENT = "//   "


def program_of(path: Path) -> Program:
    """The program in the heading of a golden."""
    heading = path.read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    return Program.parse("".join(line[len(_INDENT) :] + "\n" for line in heading if line.startswith(_INDENT)))


@pytest.fixture(scope="module")
def made(compiler: object) -> dict[str, Kernels]:
    """The code of each golden for the default architectures. A warning of NVRTC is a CompileError."""
    kernels = Compiler(store=Cache(None)).compile([program_of(path) for path in FILES])
    return dict(zip((path.stem for path in FILES), kernels, strict=True))


def test_what_they_show() -> None:
    """Every element type of floats, types of different sizes at once, several outputs, scalars; vectors one by one,
    several at once, and none."""
    programs = [program_of(path) for path in FILES]
    shapes = [shape_of(program) for program in programs]
    types = [{i.dtype for i in program.tensors} for program in programs]
    assert {"f32", "f16", "bf16", "f64", "bool"} <= set().union(*types)
    assert {"u8", "f32"} in types
    assert any(len(program.outputs) > 1 for program in programs)
    assert any(program.scalars for program in programs)
    assert {shape.unroll > 1 for shape in shapes if shape.vector > 1} == {True, False}
    assert any(shape.vector == 1 for shape in shapes)


@EACH
def test_text(path: Path, update_goldens: bool) -> None:
    program = program_of(path)
    text = emit(program)
    assert emit(program) == text
    if update_goldens:
        path.write_text(text, encoding="utf-8")
    else:
        assert text == path.read_text(encoding="utf-8")


def test_text_in_another_process() -> None:
    """No order of a set or dict gets into the text."""
    script = ("import sys\nfrom onnxfuse.codegen import emit\nfrom onnxfuse.program import Program\n"
              "sys.stdout.write(emit(Program.parse(sys.stdin.read())))\n")  # fmt: skip
    program = program_of(FOLDER / "outputs.cu")
    texts = [
        subprocess.run([sys.executable, "-c", script], input=program.text, capture_output=True, text=True, check=True,
                       env={**os.environ, "PYTHONHASHSEED": seed}).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert texts == [emit(program)] * 2


@EACH
def test_code(path: Path, made: dict[str, Kernels]) -> None:
    """Every architecture of the default list, at most 64 registers and 100 KB, no local memory but that of functions of
    float64 that cannot do without."""
    program, kernels = program_of(path), made[path.stem]
    assert set(kernels.facts) == set(DEFAULT)
    found = examine(program, kernels)
    assert found.findings == ()
    assert found.local == 0 or needs_local_memory(program)


@EACH
def test_whole_blocks_are_moved(path: Path, made: dict[str, Kernels]) -> None:
    """As many loads and stores of 16 bytes as the shape says; single elements only for tensors that stand still and for
    what is left of a row."""
    kernels = made[path.stem]
    wanted = blocks(program_of(path), kernels.shape)
    assert movement(ptx_of(kernels)) == wanted
    assert (min(wanted) > 0) == (kernels.shape.vector > 1)
