"""Work in a process of its own, so that a crash, a lack of memory or an endless run costs that piece alone.

    answer("benchmarks.run_models", ["--one", "resnet50", "--json"], seconds=1800) -> what it wrote, or a Problem
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["Problem", "answer"]

ROOT = Path(__file__).resolve().parents[1]


class Problem(Exception):
    """Why there is no answer: one line."""


def answer(module: str, arguments: Sequence[str], seconds: float) -> Any:
    """What ``python -m module arguments FILE`` writes into that file as JSON.

    Raises Problem where it takes longer than `seconds`, ends with another code than 0, or writes nothing.
    """
    with tempfile.TemporaryDirectory(prefix="onnxfuse-child-", ignore_cleanup_errors=True) as temporary:
        result, log = Path(temporary) / "result.json", Path(temporary) / "log"
        command = [sys.executable, "-m", module, *arguments, str(result)]
        with log.open("wb") as output:
            try:
                done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                      timeout=seconds, check=False)
            except subprocess.TimeoutExpired:
                raise Problem(f"took longer than {seconds:g} s") from None
        if done.returncode or not result.exists():
            last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            raise Problem(f"process ended with {done.returncode}: {''.join(last)[:300]}")
        return json.loads(result.read_text(encoding="utf-8"))
