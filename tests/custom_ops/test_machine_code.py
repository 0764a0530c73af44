"""What the compiler made of the machine's stages, in the disassembly: jumps instead of calls, and each instruction set
in its own functions only. Holds for the instruction sets that this processor lacks, too."""

from __future__ import annotations

import dataclasses
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

SETS = ("baseline", "avx2", "avx512")
REGISTERS = {"zmm": ("avx512",), "ymm": ("avx512", "avx2")}
# Reads the upper halves for the tests.
OTHERS = ("upper_halves::",)

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64") or shutil.which("objdump") is None,
    reason="needs objdump and code for x86-64",
)


@dataclasses.dataclass
class Function:
    name: str
    code: list[str]

    @property
    def isa(self) -> str | None:
        """The instruction set whose namespace it is in."""
        found = re.match(r"(?:\w+ )*onnxfuse::(\w+)::", self.name)
        return found[1] if found and found[1] in SETS else None

    @property
    def is_stage(self) -> bool:
        return self.isa is not None and "(onnxfuse::Stage const*, onnxfuse::Context*, unsigned long, float" in self.name


@pytest.fixture(scope="module")
def functions(test_library: Path) -> list[Function]:
    command = ["objdump", "-d", "-C", "--no-show-raw-insn", str(test_library)]
    if os.environ.get("LD_PRELOAD", "").find("asan") >= 0:
        pytest.skip("sanitizers put calls of their own into the stages")
    result: list[Function] = []
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        if head := re.match(r"[0-9a-f]+ <(.*)>:$", line):
            result.append(Function(head[1], []))
        elif line.startswith(" ") and ":\t" in line:
            result[-1].code.append(line.split(":\t", 1)[1])
    return result


def test_stages_jump(functions: list[Function]) -> None:
    """Every stage ends in a jump to the next; only those that compute one lane or vector after the other call
    anything."""
    stages = [f for f in functions if f.is_stage]
    for isa in SETS:
        assert sum(f.isa == isa for f in stages) > 300, f"stages of {isa} are missing"
    for f in stages:
        # Vector functions have rare paths of their own, in the same instruction set.
        calls = [c for c in f.code if c.startswith("call") and f"onnxfuse::{f.isa}::" not in c]
        returns = [c for c in f.code if c.startswith("ret")]
        jumps = [c for c in f.code if c.startswith("jmp") and "*" in c]
        if not re.search(r"::(lanes_binary|function_loop|power_loop)<", f.name):
            assert not calls, f"{f.name} calls: {calls}"
        if "::end_stage(" in f.name:
            continue
        if re.match(r"jmp +[0-9a-f]+ <.*onnxfuse::Stage const", f.code[0]):
            continue  # the same code as that of another stage
        assert jumps, f"{f.name} does not jump to the next stage"
        ends = re.search(r"::loop_stage<|::(store|pair_store|choose)_stage<.*, true>\(", f.name)
        assert bool(returns) == bool(ends), f"{f.name} returns"


def test_registers(functions: list[Function]) -> None:
    """Wide registers are used by the code for them alone: nothing else may run on a processor without them."""
    for f in functions:
        text = "\n".join(f.code)
        for register, isas in REGISTERS.items():
            if register in text and not any(o in f.name for o in OTHERS):
                assert f.isa in isas, f"{f.name} uses {register}"


def test_vzeroupper(functions: list[Function]) -> None:
    """The way back out of the stages clears the upper halves, and so does every call of ordinary code."""
    entries = [f for f in functions if "::enter(" in f.name and f.isa is not None]
    assert {f.isa for f in entries} == set(SETS)
    for f in entries:
        assert ("vzeroupper" in f.code) == (f.isa != "baseline"), f"{f.name}"
    for f in functions:
        if f.is_stage and f.isa != "baseline":
            calls = [k for k, c in enumerate(f.code) if c.startswith("call") and "onnxfuse::" not in c]
            assert all("vzeroupper" in f.code[:k] for k in calls), f"{f.name} calls with upper halves in use"
