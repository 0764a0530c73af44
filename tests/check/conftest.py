"""What ONNX Runtime would fuse itself is asked in a child process, which takes a second; most tests do without."""

from __future__ import annotations

import contextlib

import pytest

from onnxfuse.fusion.reserved import Reserved


@pytest.fixture(autouse=True)
def nothing_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """No node is left to the runtime. A test that runs the command as a process of its own asks all the same."""
    monkeypatch.setattr("onnxfuse.api.asked", lambda *_: contextlib.nullcontext(Reserved))
