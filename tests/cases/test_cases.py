"""Every shared case through the command line, with and without the library, by the cases' own runner.

The runner takes many cases a process, which saves its start; as many processes as there are cores share the cases
that were selected. ONNXFUSE_CASES names the folder; cases marked SLOW (gigabytes) wait for `make test-long`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from onnxfuse import library_path
from tests.conftest import shared_folder

FOLDER = shared_folder("ONNXFUSE_CASES", "../shared/cases")
CASES = sorted(FOLDER.glob("[0-9][0-9][0-9]_*.py")) if FOLDER else []
SLOW = {path.stem for path in CASES if re.search(r"^SLOW\s*=\s*True", path.read_text(encoding="utf-8"), re.M)}
RUN_SLOW = os.environ.get("ONNXFUSE_SLOW_CASES") == "1"
LIMIT = 3600 if RUN_SLOW else 900  # seconds for all of them


@dataclass(frozen=True)
class Outcome:
    """What the runner said about one case; `tag` and `text` are empty where it passed."""

    ok: bool
    tag: str
    text: str


def start(names: list[str], folder: Path, number: int) -> tuple[subprocess.Popen[bytes], Path]:
    """Start the runner on the cases named; it writes its results to the path that is returned too."""
    assert FOLDER is not None
    results = folder / f"results{number}.json"
    command = [sys.executable, str(FOLDER / "run.py"), "--cli", f"{sys.executable} -m onnxfuse"]
    command += ["--with-library", library_path(), "--json", str(results), *names]
    with (folder / f"log{number}.txt").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder), results


@pytest.fixture(scope="session")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Outcome]]:
    """The outcome of every case that this session selected, by name."""
    items = (item for item in request.session.items if isinstance(item, pytest.Function))
    chosen = {str(item.callspec.params["case"]) for item in items if item.originalname == "test_case"}
    selected = sorted(chosen - skipped())
    folder = tmp_path_factory.mktemp("cases")
    count = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2, 8, len(selected))
    running = [start(selected[k::count], folder, k) for k in range(count)]
    found: dict[str, Outcome] = {}
    try:
        for process, results in running:
            process.wait(LIMIT)
            if results.is_file():
                rows = json.loads(results.read_text(encoding="utf-8"))
                found |= {row["name"]: Outcome(row["ok"], row["tag"], row["text"]) for row in rows}
        yield found
    finally:
        for process, _ in running:
            process.kill()
            process.wait()


def skipped() -> set[str]:
    """The names of cases that do not run now."""
    return set() if RUN_SLOW else SLOW


if CASES:

    @pytest.mark.timeout(LIMIT + 60)
    @pytest.mark.parametrize("case", [path.stem for path in CASES])
    def test_case(case: str, outcomes: dict[str, Outcome]) -> None:
        if case in skipped():
            pytest.skip("takes gigabytes: make test-long")
        assert case in outcomes, "the runner of the cases did not get to this one"
        outcome = outcomes[case]
        assert outcome.ok, f"[{outcome.tag}] {outcome.text}"

else:

    def test_cases_are_at_hand() -> None:
        pytest.skip("no folder of shared cases: set ONNXFUSE_CASES")
