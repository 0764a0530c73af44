"""The declarations of ONNX Runtime's C API against facts taken from its released headers."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

_ROW = re.compile(r"^  X\((\d+), (\w+),", re.M)


@pytest.fixture(scope="module")
def facts(root: Path) -> dict[tuple[str, str], tuple[int, str]]:
    """(struct, member) -> (position or offset, version that brought it or "")."""
    path = Path(os.environ.get("ONNXFUSE_FACTS") or root / "../shared/facts/ort_api.tsv")
    if not path.is_file():
        pytest.skip("no table of the C API: set ONNXFUSE_FACTS")
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith(("#", "struct\t")):
            continue
        struct, position, name, since = (line + "\t\t").split("\t")[:4]
        found[struct, name] = (int(position), since)
    return found


@pytest.fixture(scope="module")
def header(root: Path) -> str:
    return (root / "custom_ops/src/ort_api.h").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def bench_header(root: Path) -> str:
    return (root / "benchmarks/native/ort_session_api.h").read_text(encoding="utf-8")


def rows(header: str, macro: str) -> list[tuple[int, str]]:
    """The rows of an X-macro list of the header."""
    text = header.split(f"#define {macro}(X)")[1].split("\n\n")[0]
    found = [(int(position), name) for position, name in _ROW.findall(text)]
    assert len(found) == text.count("X("), f"a row of {macro} is not in the form X(position, name, ..."
    return found


def minor(version: str) -> int:
    return int(version.split(".")[1]) if version else 0


def test_positions(header: str, bench_header: str, facts: dict[tuple[str, str], tuple[int, str]]) -> None:
    used = rows(header, "ONNXFUSE_ORT_API") + rows(bench_header, "ONNXFUSE_ORT_SESSION_API")
    assert len(used) > 45
    for position, name in used:
        assert facts["OrtApi", name][0] == position, name
        assert minor(facts["OrtApi", name][1]) <= 18, f"{name} is newer than the version that is asked for"


def test_positions_of_newer_functions(header: str, facts: dict[tuple[str, str], tuple[int, str]]) -> None:
    used = rows(header, "ONNXFUSE_ORT_API_24")
    assert used
    for position, name in used:
        assert facts["OrtApi", name] == (position, "1.24"), name


def test_offsets(header: str, facts: dict[tuple[str, str], tuple[int, str]]) -> None:
    """Every field, so that the struct has the size that the runtime reads; the compiler checks the layout."""
    declared = {name: offset for offset, name in rows(header, "ONNXFUSE_CUSTOM_OP")} | {"version": 0}
    assert declared == {name: offset for (struct, name), (offset, _) in facts.items() if struct == "OrtCustomOp"}
