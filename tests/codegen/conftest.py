"""Fixtures of the tests of generated kernels."""

import pytest

from onnxfuse.codegen import nvjitlink, nvrtc
from onnxfuse.codegen.toolchain import Toolchain
from tests.custom_ops.conftest import machine

__all__ = ["machine"]


@pytest.fixture(scope="session")
def compiler() -> Toolchain:
    """NVRTC and nvJitLink; skips where one of them is not installed."""
    text_to_ptx, ptx_to_cubin = nvrtc.find(), nvjitlink.find()
    if text_to_ptx is None or ptx_to_cubin is None:
        pytest.skip('NVRTC or nvJitLink is not installed: pip install "onnxfuse[cuda]"')
    return Toolchain(text_to_ptx, ptx_to_cubin)
