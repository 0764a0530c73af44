"""Fixtures of the tests that run GPU code in sessions of ONNX Runtime without a GPU."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
import pytest

import onnxfuse
from onnxfuse.codegen import nvjitlink, nvrtc
from onnxfuse.fusion.reserved import Reserved
from tests.cuda import models
from tests.cuda.build import Standin, build, write_map
from tests.cuda.child import DEFAULTS, Child, count
from tests.custom_ops.conftest import ort_library

__all__ = ["ort_library"]

Models = dict[str, onnx.ModelProto]
Start = Callable[..., Child]


@pytest.fixture(scope="session")
def _able() -> None:
    """Skips where something is missing that all these tests need."""
    if not sys.platform.startswith("linux"):
        pytest.skip("the stand-in for the CUDA driver is for Linux")
    if shutil.which("g++") is None:
        pytest.skip("the stand-ins need g++")
    if nvrtc.find() is None or nvjitlink.find() is None:
        pytest.skip('NVRTC or nvJitLink is not installed: pip install "onnxfuse[cuda]"')
    if tuple(map(int, ort.__version__.split(".")[:2])) < (1, 24):
        pytest.skip(f"providers with kernels as plugins need ONNX Runtime 1.24; this is {ort.__version__}")
    if "asan" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("sanitizers do not know of memory that only a GPU reaches")


@pytest.fixture(scope="session")
def standin(_able: None, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Standin:
    """The stand-ins, compiled."""
    return build(root, tmp_path_factory.mktemp("standin"))


@pytest.fixture(scope="session")
def plain(_able: None) -> Models:
    """The models as they were before."""
    made = {name: models.affine(x, b) for name, (x, _, b, _) in models.LAYOUTS.items()}
    return made | {
        f.__name__: f() for f in (models.half, models.half_products, models.long, models.outputs, models.mixed,
                                  models.branches, models.loop, models.many, models.normalization)
    }  # fmt: skip


def optimize(model: onnx.ModelProto, **options: Any) -> onnx.ModelProto:
    """The model optimized without checks. What the runtime would fuse itself is not asked, which takes a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onnxfuse.api.asked", lambda *_: contextlib.nullcontext(Reserved))
        return onnxfuse.optimize(model, validate=False, **options).model


@pytest.fixture(scope="session")
def fused(plain: Models, tmp_path_factory: pytest.TempPathFactory) -> Models:
    """The models with GPU code for sm_80 and PTX."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONNXFUSE_CUDA_CACHE", str(tmp_path_factory.mktemp("cache")))
        return {name: optimize(model, targets=("cpu", "cuda"), cuda_arch=(80,)) for name, model in plain.items()}


@pytest.fixture(scope="session")
def images(fused: Models, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code of all models, as the stand-in driver runs it."""
    return write_map(fused.values(), tmp_path_factory.mktemp("host"))


@pytest.fixture(scope="session")
def start(
    standin: Standin, images: Path, root: Path, ort_library: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Start]:
    """Starts children; `driver=None`: on a machine without one, `provider=None`: without the provider."""
    children: list[Child] = []

    def make(*, driver: Path | None = standin.driver, provider: Path | None = standin.provider, **more: str) -> Child:
        log = tmp_path_factory.mktemp("child") / "log"
        children.append(Child(standin, ort_library, images, log, root, driver=driver, provider=provider, **more))
        return children[-1]

    yield make
    for child in children:
        child.close()


@pytest.fixture(scope="session")
def _shared() -> list[Child]:
    return []


@pytest.fixture
def gpu(start: Start, _shared: list[Child]) -> Iterator[Child]:
    """A child with a GPU of compute capability 8.0, which one test has at a time. At the end nothing may be left of the
    sessions, and the driver must have seen nothing wrong."""
    if not _shared or not _shared[-1].alive:
        _shared.append(start())
    child = _shared[-1]
    child.lines()
    child.environment(**DEFAULTS)
    child.history = []
    yield child
    if child.alive:
        child.drop()
        child.lines()
        lines = child.history
        assert [line for line in lines if line.startswith("wrong")] == []
        for one, other in (("load", "unload"), ("retain", "release"), ("push", "pop")):
            assert count(lines, one) == count(lines, other), (one, lines)
