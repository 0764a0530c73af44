"""benchmarks/child.py: answers and problems of a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import child


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that writes a list with its first argument, or ends as the argument says."""
    (tmp_path / "made_up_child.py").write_text(
        "import json, os, signal, sys, time\n"
        "what, file = sys.argv[1:]\n"
        "if what == 'late': time.sleep(60)\n"
        "if what == 'killed': os.kill(os.getpid(), signal.SIGKILL)\n"
        "if what == 'refused': sys.exit('two\\nlast words')\n"
        "if what != 'silent': json.dump([what], open(file, 'w'))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "made_up_child"


def test_answer(module: str) -> None:
    assert child.answer(module, ["x"], 60) == ["x"]


@pytest.mark.parametrize(
    ("what", "seconds", "text"),
    [("late", 0.2, "took longer than 0.2 s"), ("killed", 60, "process ended with -9: "),
     ("refused", 60, "process ended with 1: last words"), ("silent", 60, "process ended with 0: ")],
)
def test_problems(module: str, what: str, seconds: float, text: str) -> None:
    if what == "killed" and sys.platform == "win32":
        pytest.skip("Windows has no signals")
    with pytest.raises(child.Problem) as caught:
        child.answer(module, [what], seconds)
    assert str(caught.value) == text
