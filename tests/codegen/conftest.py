"""Fixtures of the tests of generated kernels."""

from tests.custom_ops.conftest import machine

__all__ = ["machine"]
