"""Checks: seeded inputs, sessions of the runtime, comparison of outputs, validation of a fused model."""

from __future__ import annotations
