"""Fixtures of the tests of generated kernels."""

import pytest

from onnxfuse.codegen import nvrtc
from tests.custom_ops.conftest import machine

__all__ = ["machine"]


@pytest.fixture(scope="session")
def compiler() -> nvrtc.Nvrtc:
    """NVRTC; skips where it is not installed."""
    found = nvrtc.find()
    if found is None:
        pytest.skip('NVRTC is not installed: pip install "onnxfuse[cuda]"')
    return found
