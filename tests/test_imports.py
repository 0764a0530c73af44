"""Data flows one way: model, ops, program, fusion, rewrite, check, report. An import against the flow is a fault.

The table says what each part may import from the others; it is the design, so a change of it needs a reason. `errors`
may be imported by all. The rules that matter most: `program` knows nothing of ONNX, `fusion` nothing of files, and
nothing knows the command line.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "onnxfuse"
EVERYWHERE = {"errors", "version"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "version": set(),
    "library": set(),
    "program": set(),
    "codegen": {"program"},
    "model": set(),
    "ops": {"program"},
    "fusion": {"model", "ops", "program"},
    "rewrite": {"fusion", "model", "ops", "program"},
    "check": {"fusion", "library", "model", "ops", "program", "rewrite"},
    "timing": {"check", "library", "model"},
    "report": {"check", "codegen", "fusion", "library", "model", "ops", "program", "rewrite", "timing"},
}
ABOVE = {"__init__", "__main__", "api", "cli"}  # these see all parts
FOREIGN = {
    "program": {"onnx", "onnxruntime", "onnx_graphsurgeon", "rich", "click"},
    "codegen": {"onnx", "onnxruntime", "onnx_graphsurgeon", "rich", "click"},
    "ops": {"onnxruntime", "onnx_graphsurgeon", "rich", "click"},
    "model": {"onnxruntime", "rich", "click"},
    "rewrite": {"onnxruntime", "rich", "click"},
    "api": {"rich", "click"},
}


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Every import of a file as (line, absolute dotted name), relative ones resolved; names for typing included."""
    package = ["onnxfuse", *path.relative_to(PACKAGE).parent.parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def part_of(path: Path) -> str:
    """The part that a file belongs to: its folder under onnxfuse/, or its own name."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else path.stem


FILES = sorted(PACKAGE.rglob("*.py"))


def test_there_are_files() -> None:
    assert len(FILES) > 10


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_follow_the_flow(path: Path) -> None:
    part = part_of(path)
    faults = []
    for line, name in imported(path):
        top, *rest = name.split(".")
        if top in FOREIGN.get(part, set()):
            faults.append(f"line {line}: {part} imports {top}")
        if top != "onnxfuse" or part in ABOVE:
            continue
        target = rest[0] if rest else "__init__"
        if target not in MAY_IMPORT.get(part, set()) | EVERYWHERE | {part}:
            faults.append(f"line {line}: {part} imports onnxfuse.{target}")
    assert not faults, faults


def test_every_part_has_its_rule() -> None:
    assert {part_of(path) for path in FILES} == set(MAY_IMPORT) | ABOVE


@pytest.mark.parametrize(
    ("text", "fault"),
    [("from ..fusion import plan\n", "onnxfuse.fusion.plan"), ("import onnx\n", "onnx"), ("", None)],
)
def test_the_reader_sees_imports(text: str, fault: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    file = tmp_path / "program" / "x.py"
    file.parent.mkdir()
    file.write_text(text, encoding="utf-8")
    assert [name for _, name in imported(file)] == ([fault] if fault else [])
