"""The library as a file that is copied to other machines: one exported symbol, no need but the C and C++ runtime, no
trace of the folder that it was built in."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux") or shutil.which("objdump") is None,
                       reason="reads ELF files with objdump"),
    pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="sanitizers add their own to the file"),
]  # fmt: skip
RUNTIME = re.compile(r"lib(c|m|stdc\+\+|gcc_s|pthread|dl)\.so|ld-linux")


def objdump(option: str, path: str) -> list[str]:
    return subprocess.run(["objdump", option, path], check=True, capture_output=True, text=True).stdout.splitlines()


def test_exports_one_symbol(ort_library: str) -> None:
    rows = [line.split() for line in objdump("-T", ort_library) if re.match(r"[0-9a-f]{8,} ", line)]
    assert [row[-1] for row in rows if "*UND*" not in row] == ["RegisterCustomOps"]


def test_needs_the_c_and_cpp_runtime_alone(ort_library: str) -> None:
    needed = [line.split()[1] for line in objdump("-p", ort_library) if line.strip().startswith("NEEDED")]
    assert needed
    assert [name for name in needed if not RUNTIME.match(name)] == []


def test_names_no_folder_of_the_build(ort_library: str, root: Path) -> None:
    assert str(root).encode() not in Path(ort_library).read_bytes()
