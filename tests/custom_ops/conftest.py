"""Fixtures of the library's tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.custom_ops.library import ISAS, TestLibrary
from tests.custom_ops.machine import MachineLibrary


@pytest.fixture(scope="session")
def library(test_library: Path) -> TestLibrary:
    """The test library, loaded."""
    return TestLibrary(test_library)


@pytest.fixture(scope="session")
def ort_library(test_library: Path) -> str:
    """The library for ONNX Runtime: ONNXFUSE_LIBRARY, or the one built beside the test library."""
    path = Path(os.environ.get("ONNXFUSE_LIBRARY") or test_library.with_name(f"libonnxfuse{test_library.suffix}"))
    assert path.is_file(), f"{path} is missing: make build"
    return str(path.resolve())


@pytest.fixture(scope="session")
def machine(test_library: Path) -> MachineLibrary:
    """The machine alone."""
    return MachineLibrary(test_library)


@pytest.fixture(params=[name for name in ISAS if name != "best"])
def isa(request: pytest.FixtureRequest, machine: MachineLibrary) -> str:
    """Every instruction set; those that this processor lacks are skipped."""
    name = str(request.param)
    if not machine.has(name):
        pytest.skip(f"this processor has no {name}")
    return name


@pytest.fixture
def streamed(request: pytest.FixtureRequest, library: TestLibrary) -> Iterator[None]:
    """Parametrized with True: outputs of every size go past the caches while the test runs."""
    library.stream_from(int(request.param))
    yield
    library.stream_from(0)
