"""The part of ort_versions.py that runs in the other environments: needs numpy and onnxruntime, nothing else."""

from __future__ import annotations

import itertools
import json
import sys
from typing import Any

import numpy as np
import onnxruntime

DISABLED = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
ALL = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL


def session(path: str, level: Any, library: str | None, device: str | None = None) -> Any:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 4
    options.intra_op_num_threads = 2
    if device is not None:
        options.add_session_config_entry("onnxfuse.device", device)
    if library is not None:
        options.register_custom_ops_library(library)
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def run(s: Any, feeds: list[dict[str, np.ndarray]]) -> list[list[Any]]:
    names = {value.name for value in s.get_inputs()} | {value.name for value in s.get_overridable_initializers()}
    return [s.run(None, {k: v for k, v in feed.items() if k in names}) for feed in feeds or [{}]]


def difference(have: Any, want: Any, rtol: float, atol: float) -> str:
    """What differs, or "". Floats within atol + rtol * the largest value; everything else equal."""
    if not isinstance(want, np.ndarray):
        return "" if repr(have) == repr(want) else "differs"
    if have.dtype != want.dtype or have.shape != want.shape:
        return f"{have.dtype}{have.shape} instead of {want.dtype}{want.shape}"
    if want.dtype.kind != "f" or want.size == 0:
        return "" if (have == want).all() else "differs"
    a, b = have.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(np.isnan(a), np.isnan(b)) or not np.array_equal(a[np.isinf(b)], b[np.isinf(b)]):
        return "not finite in other places"
    if not finite.any():
        return ""
    worst = float(np.abs(a[finite] - b[finite]).max())
    return "" if worst <= atol + rtol * float(np.abs(b[finite]).max()) else f"differs by {worst:g}"


def load(paths: list[str]) -> list[dict[str, np.ndarray]]:
    found = []
    for path in paths:
        with np.load(path, allow_pickle=True) as data:  # strings; written by ort_versions.py
            found.append(dict(data))
    return found


def compare(entry: dict[str, Any], s: Any, want: list[list[Any]]) -> str:
    """Runs every feed; what differs both from `want` and from what the case expects, or ""."""
    expected = load(entry["expected"])
    names = [value.name for value in s.get_outputs()]
    for k, (mine, theirs) in enumerate(zip(run(s, load(entry["feeds"])), want, strict=True)):
        for name, a, b in zip(names, mine, theirs, strict=True):
            text = difference(a, b, entry["rtol"], entry["atol"])
            if text and expected and name in expected[k]:
                text = difference(a, expected[k][name], entry["rtol"], entry["atol"])
            if text:
                return f"feed {k}, output {name}: {text}"
    return ""


def examine(entry: dict[str, Any], library: str) -> list[str]:
    """What is wrong with one optimized model; raises what the runtime raises for the original."""
    want = run(session(entry["original"], DISABLED, None), load(entry["feeds"]))
    levels = [DISABLED]
    try:
        if not compare(entry, session(entry["original"], ALL, None), want):
            levels.append(ALL)
    except Exception:
        pass  # the runtime's own optimizations break the original
    wrong = []
    modes = ((None, None, "without library"), (library, None, "with library"), (library, "cuda", "as on a GPU"))
    for (lib, device, mode), level in itertools.product(modes, levels):
        try:
            text = compare(entry, session(entry["fused"], level, lib, device), want)
        except Exception as error:
            text = str(error)[:300]
        if text:
            wrong.append(f"{mode}, optimizations {'on' if level == ALL else 'off'}: {text}")
    return wrong


def refusal(path: str, library: str) -> str:
    """What is wrong with how the library takes a tampered model, or ""."""
    try:
        session(path, DISABLED, library)
    except Exception as error:
        return "" if "onnxfuse: node 'the node'" in str(error) else str(error)[:300]
    return "is not refused"


def main() -> int:
    with open(sys.argv[1], encoding="utf-8") as file:
        work = json.load(file)
    passed, failed, unknown = 0, 0, []
    for entry in work["jobs"]:
        try:
            wrong = examine(entry, work["library"])
        except Exception:
            unknown.append(entry["name"])  # this version does not run the original
            continue
        failed += bool(wrong)
        passed += not wrong
        for text in wrong:
            print(f"  {entry['name']}: {text}")
    for path in work["tampered"]:
        problem = refusal(path, work["library"])
        failed += bool(problem)
        passed += not problem
        if problem:
            print(f"  {path}: {problem}")
    text = f"; does not run the original of {', '.join(unknown)}" if unknown else ""
    print(f"onnxruntime {onnxruntime.__version__}: {passed} passed, {failed} failed{text}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
