"""What all tests share: where the shared models and cases lie, the compiled libraries, and the switch for goldens."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# What a test optimizes for depends on the test alone, not on what is installed.
os.environ.setdefault("ONNXFUSE_TARGET", "cpu")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="write the expected texts anew instead of comparing")


def shared_folder(variable: str, default: str) -> Path | None:
    """The folder that the environment variable names, or `default` relative to the repository; None if it is absent."""
    folder = Path(os.environ.get(variable) or ROOT / default)
    return folder.resolve() if folder.is_dir() else None


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def corpus_folder() -> Path:
    """The folder of shared models (ONNXFUSE_CORPUS); skips where there is none."""
    folder = shared_folder("ONNXFUSE_CORPUS", "../shared/models")
    if folder is None:
        pytest.skip("no folder of shared models: set ONNXFUSE_CORPUS")
    return folder


@pytest.fixture(scope="session")
def test_library() -> Path:
    """The compiled test library (`make build`). ONNXFUSE_TEST_LIBRARY names another one, e.g. with sanitizers."""
    suffix = {"darwin": "dylib", "win32": "dll"}.get(sys.platform, "so")
    path = Path(os.environ.get("ONNXFUSE_TEST_LIBRARY") or ROOT / "build" / "test" / f"libonnxfuse_test.{suffix}")
    assert path.is_file(), f"{path} is missing: make build"
    return path


@pytest.fixture
def update_goldens(request: pytest.FixtureRequest) -> bool:
    """Whether expected texts are to be written anew (--update-goldens)."""
    return bool(request.config.getoption("--update-goldens"))
