"""The process that asks the runtime: started before there is anything to ask, and gone whatever happens."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

import onnxfuse
from onnxfuse.errors import ModelError, UsageError
from onnxfuse.fusion import ort_child
from onnxfuse.fusion.ort_child import RuntimeRefused, optimizing, started
from onnxfuse.fusion.reserved import reserved_nodes
from onnxfuse.model import from_proto
from tests.fusion.planning import parse

CHAIN = """g (float[N, 4] x) => (float[N, 4] y) {
    a = Tanh(x)
    y = Exp(a)
}"""


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Every process that the test starts; temporary folders are made in ``tmp_path/temporary``."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    found = []

    def popen(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        found.append(plain(*arguments, **options))
        return found[-1]

    plain = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", popen)
    return found


def nothing_left(processes: list[subprocess.Popen[bytes]], folder: Path) -> bool:
    (process,) = processes
    return process.poll() is not None and not list((folder / "temporary").iterdir())


@pytest.mark.parametrize("verb", [onnxfuse.optimize, onnxfuse.explain])
@pytest.mark.parametrize("content", [None, b"", b"no model at all", b"version https://git-lfs"])
def test_a_model_that_cannot_be_read_leaves_nothing(
    verb: Callable[[Path], object], content: bytes | None, tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    path = tmp_path / "model.onnx"
    if content is not None:
        path.write_bytes(content)
    start = time.monotonic()
    with pytest.raises(ModelError):
        verb(path)
    assert nothing_left(processes, tmp_path)
    assert processes[0].returncode < 0, "it was waited for"
    assert time.monotonic() - start < 30.0


def test_an_argument_that_does_not_fit_leaves_nothing(tmp_path: Path, processes: list[subprocess.Popen[bytes]]) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(parse(CHAIN), path)
    with pytest.raises(UsageError):
        onnxfuse.optimize(path, report=path, validate=False)
    assert nothing_left(processes, tmp_path)


def test_an_answer_leaves_nothing(tmp_path: Path, processes: list[subprocess.Popen[bytes]]) -> None:
    pytest.importorskip("onnxruntime", reason="the answer is the runtime's")
    report = onnxfuse.optimize(parse(CHAIN), validate=False).report
    assert report.note is None
    assert report.new_groups == 1
    assert nothing_left(processes, tmp_path)
    assert processes[0].returncode == 0


def test_a_runtime_that_is_not_installed_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "onnxruntime.py").write_text("raise ImportError('no such runtime')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    answer = reserved_nodes(from_proto(parse(CHAIN)))
    assert answer.note == ("ONNX Runtime cannot optimize this model, so no node is reserved for it: no such runtime")


def test_a_process_that_cannot_be_started_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "absent"))
    note = onnxfuse.explain(parse(CHAIN)).note
    assert note is not None
    assert "no process can be started for ONNX Runtime" in note


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts another program in the place of the child's."""

    def put(program: str) -> None:
        path = tmp_path / "child.py"
        path.write_text(program)
        monkeypatch.setattr(ort_child, "__file__", str(path))

    return put


def test_time_before_the_request_does_not_count(tmp_path: Path, stand_in: Callable[[str], None]) -> None:
    stand_in("import sys; sys.stdin.read(); sys.exit('asked')")
    with started() as child:
        time.sleep(1.5)
        with optimizing(tmp_path / "absent.onnx", child, timeout=1.0) as answer, pytest.raises(
                RuntimeRefused, match="asked"):
            answer()


def test_a_process_that_ends_before_the_request_is_a_refusal(tmp_path: Path, stand_in: Callable[[str], None]) -> None:
    stand_in("import sys; sys.exit('no room')")
    with started() as child:
        time.sleep(1.0)
        with optimizing(tmp_path / "absent.onnx", child) as answer, pytest.raises(RuntimeRefused, match="no room"):
            answer()


def test_without_a_request_it_ends_by_itself(tmp_path: Path) -> None:
    command = [sys.executable, ort_child.__file__, str(tmp_path)]
    assert subprocess.run(command, stdin=subprocess.DEVNULL, check=False, timeout=60).returncode == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_that_holds_the_pipe_does_not_hold_it_up(tmp_path: Path) -> None:
    """Another thread of the caller may fork at any moment, and its process keeps every file that is open."""
    path = tmp_path / "model.onnx"
    onnx.save(parse(CHAIN), path)
    with started() as child:
        holder = os.fork()
        if holder == 0:
            time.sleep(120)
            os._exit(0)
        try:
            with optimizing(path, child, timeout=60) as answer:
                assert [node.op_type for node in answer().full.nodes] == ["Tanh", "Exp"]
        finally:
            os.kill(holder, signal.SIGKILL)
            os.waitpid(holder, 0)


def test_the_answer_does_not_keep_the_model() -> None:
    """No reference cycle: the model goes when nobody needs it, without a search for garbage."""
    model = from_proto(parse(CHAIN))
    gone = weakref.ref(model.main)
    gc.collect()
    gc.disable()
    try:
        reserved_nodes(model)
        del model
        assert gone() is None
    finally:
        gc.enable()
