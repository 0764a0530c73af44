"""The repository itself: what stands at the top, nothing large, no path of anybody's machine, scripts that parse."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

LARGEST = 256 << 10  # bytes; the picture of the README and golden texts are far below
TOP = {
    "pyproject.toml", "onnxfuse", "custom_ops", "tests", "models", "benchmarks", "docs", "Makefile", "README.md",
    "LICENSE",
}
# Homes and work folders of people and machines. Written so that this file does not match itself.
MACHINE = re.compile(r"/(?:home|root|Users|work)/(?!\$)[\w.]|[A-Z]:\\\\?Users\b")


@pytest.fixture(scope="module")
def tracked(root: Path) -> list[Path]:
    """Every file that git tracks; without git (a source archive), skips."""
    if shutil.which("git") is None or not (root / ".git").exists():
        pytest.skip("not a git checkout")
    done = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True)
    return [root / name for name in done.stdout.decode().split("\0") if name and (root / name).is_file()]


def test_top_level(tracked: list[Path], root: Path) -> None:
    assert {path.relative_to(root).parts[0] for path in tracked} >= TOP


def test_nothing_large(tracked: list[Path]) -> None:
    assert [path for path in tracked if path.stat().st_size > LARGEST] == []


def test_no_models_or_binaries(tracked: list[Path]) -> None:
    assert [path for path in tracked if path.suffix in {".onnx", ".so", ".dll", ".dylib", ".npz", ".whl", ".ort"}] == []


def test_no_machine_paths(tracked: list[Path]) -> None:
    found = []
    for path in tracked:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{path}:{n}" for n, line in enumerate(text.splitlines(), 1) if MACHINE.search(line)]
    assert found == []


@pytest.mark.parametrize("line", ["see " + "/ho" + "me/someone/x", "/ro" + "ot/.cache", "C:" + "\\Users\\x"])
def test_machine_paths_are_seen(line: str) -> None:
    assert MACHINE.search(line)


def test_links_lead_somewhere(tracked: list[Path]) -> None:
    """Relative links of the documents name files of the repository."""
    broken = []
    for path in (path for path in tracked if path.suffix == ".md"):
        for link in re.findall(r"\]\(([^)#\s]+)", path.read_text(encoding="utf-8")):
            if "://" not in link and not (path.parent / link).exists():
                broken.append(f"{path.name}: {link}")
    assert broken == []


def test_make_uses_files_that_exist(root: Path) -> None:
    """Scripts and modules that the Makefile runs are there."""
    text = (root / "Makefile").read_text(encoding="utf-8")
    modules = [name.replace(".", "/") for name in re.findall(r"-m ((?:onnxfuse|models|benchmarks)[.\w]*)", text)]
    scripts = re.findall(r"\b(?:tests|models|custom_ops)/[\w/]+\.(?:sh|py)\b", text)
    assert modules
    assert scripts
    missing = [name for name in modules if not (root / f"{name}.py").is_file() and not (root / name).is_dir()]
    assert [name for name in scripts if not (root / name).is_file()] + missing == []


def test_scripts_can_be_run(tracked: list[Path]) -> None:
    scripts = [path for path in tracked if path.suffix == ".sh" or path.parent.name == ".ci"]
    assert scripts
    for path in scripts:
        assert path.stat().st_mode & 0o100, f"{path} is not executable"
        assert path.read_text(encoding="utf-8").startswith("#!"), f"{path} has no first line that names its shell"


def test_make_explains_its_targets(root: Path) -> None:
    if shutil.which("make") is None:
        pytest.skip("no make")
    text = (root / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", text, re.M)
    assert phony
    explained = subprocess.run(["make", "-s"], cwd=root, capture_output=True, text=True, check=True).stdout
    missing = [name for name in phony.group(1).split() if f"make {name} " not in explained]
    assert missing == []
