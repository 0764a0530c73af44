"""Sessions of ONNX Runtime on one model, in a process of its own: what tests/gpu/sessions.py starts, part by part.

    python tests/gpu/session_child.py PART FOLDER NAME RESULT --provider CUDAExecutionProvider [--site FOLDER]

Needs numpy and onnxruntime alone. RESULT is a JSON file that is written anew before every step, so that a crash leaves
what was found before it and the name of the step that it came in.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Feed = Mapping[str, Array]
Step = Callable[..., None]
LIBRARY = "libonnxfuse.so"
CUDA = "CUDAExecutionProvider"
WARM, SLICE = 0.3, 0.002  # seconds that a subject is warmed up, and that a timed slice lasts at least
ROUNDS, MOST_ROUNDS = 7, 400
RUNS = 20  # in each thread
GRAPH_RTOL = 1e-2  # at least, where TF32 is on


# ------------------------------------------------------------------------------------------------ sessions


def load(site: Path | None, provider: str) -> Any:
    """The module onnxruntime, from the folder `site` if given, with the libraries of CUDA that other packages bring."""
    if site is not None:
        # the runtime looks for NVIDIA's packages beside itself
        nvidia = next((Path(p) / "nvidia" for p in sys.path if p and (Path(p) / "nvidia" / "cudnn").is_dir()), None)
        if nvidia is not None and not (site / "nvidia").exists():
            (site / "nvidia").symlink_to(nvidia, target_is_directory=True)
        sys.path.insert(0, str(site))
    import onnxruntime

    if provider == CUDA and hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()
    return onnxruntime


class Runtime:
    """ONNX Runtime on one provider; all sessions have the same options but for what is asked."""

    def __init__(self, module: Any, provider: str, library: Path) -> None:
        self.module, self.provider, self.library = module, provider, library
        self.device = "cuda" if provider == CUDA else "cpu"

    def session(self, path: Path, *, names: str | None = None, optimize: bool = True, exact: bool = False,
                graph: bool = False, profile: str = "") -> Any:  # fmt: skip
        """`names`: with the library and these names. `exact`: no TF32. `graph`: a CUDA graph. `profile`: a prefix."""
        options, level = self.module.SessionOptions(), self.module.GraphOptimizationLevel
        options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        if profile:
            options.enable_profiling, options.profile_file_prefix = True, profile
        if names is not None:
            options.add_session_config_entry("onnxfuse.names", names)
            options.add_session_config_entry("onnxfuse.device", self.device)
            options.register_custom_ops_library(str(self.library.resolve()))
        providers: list[Any] = [self.provider]
        if self.provider == CUDA:
            # the exhaustive search times algorithms: two sessions may take different ones, with other roundings
            given = {"device_id": "0", "cudnn_conv_algo_search": "HEURISTIC", "use_tf32": "0" if exact else "1"}
            providers = [(CUDA, given | ({"enable_cuda_graph": "1"} if graph else {})), "CPUExecutionProvider"]
        session = self.module.InferenceSession(str(path), options, providers=providers)
        if self.provider not in session.get_providers():  # the runtime goes on without a provider that does not load
            raise RuntimeError(f"the session has no {self.provider}")
        return session

    def profiled(self, path: Path, feed: Feed, **options: Any) -> tuple[list[Any], dict[str, dict[str, int]]]:
        """The outputs of one run, and the nodes that ran."""
        with tempfile.TemporaryDirectory(prefix="onnxfuse-profile-") as temporary:
            session = self.session(path, profile=str(Path(temporary) / "run"), **options)
            outputs = session.run(None, dict(feed))
            events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        return outputs, kernels(events)


def kernels(events: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """How often nodes ran, by op, by provider, from the events of a profile. In a loop each time counts."""
    ran = (e["args"] for e in events if e.get("cat") == "Node" and e.get("name", "").endswith("_kernel_time"))
    counted = Counter((str(a.get("provider", "")), str(a.get("op_name", ""))) for a in ran)
    made: dict[str, dict[str, int]] = {}
    for (provider, op), count in sorted(counted.items()):
        made.setdefault(provider, {})[op] = count
    return made


class Bound:
    """A session with its inputs and outputs in memory of its device, at the same addresses in every run."""

    def __init__(self, runtime: Runtime, session: Any, feed: Feed, like: Sequence[Array]) -> None:
        value, device = runtime.module.OrtValue, runtime.device
        self.session, self.binding = session, session.io_binding()
        # copied: on the CPU a value is the array itself
        self.inputs = {n: value.ortvalue_from_numpy(np.array(a, order="C"), device, 0) for n, a in feed.items()}
        self.outputs = {o.name: value.ortvalue_from_shape_and_type(list(a.shape), a.dtype.type, device, 0)
                        for o, a in zip(session.get_outputs(), like, strict=True)}  # fmt: skip
        for name, given in self.inputs.items():
            self.binding.bind_ortvalue_input(name, given)
        for name, taken in self.outputs.items():
            self.binding.bind_ortvalue_output(name, taken)

    def __call__(self) -> None:
        self.session.run_with_iobinding(self.binding)
        self.binding.synchronize_outputs()

    def update(self, feed: Feed) -> None:
        for name, array in feed.items():
            self.inputs[name].update_inplace(np.array(array, order="C"))

    def results(self) -> list[Array]:
        return [taken.numpy() for taken in self.outputs.values()]


# ------------------------------------------------------------------------------------------------ values and times


def compare(got: Sequence[Any], want: Sequence[Any], rtol: float) -> dict[str, Any]:
    """The largest error of all outputs, each as a share of the largest value of its output, and whether it is within
    `rtol` (ten times that in float16). Integers, infinities and NaNs must be where they were."""
    found = {"error": 0.0, "right": True, "equal": True}
    for mine, other in zip(got, want, strict=True):
        if not isinstance(other, np.ndarray) or other.dtype.kind not in "fiub":
            continue  # sequences and texts: no kernel of ours makes one
        error, bound = _distance(mine, other), rtol * (10 if other.dtype.itemsize == 2 else 1)
        found["error"] = max(found["error"], error)
        found["right"] = found["right"] and error <= (bound if other.dtype.kind == "f" else 0.0)
        found["equal"] = found["equal"] and np.array_equal(mine, other, equal_nan=other.dtype.kind == "f")
    return found


def _distance(mine: Array, other: Array) -> float:
    """The largest difference as a share of the largest value; infinity where that says too little."""
    if mine.shape != other.shape or mine.dtype != other.dtype:
        return float("inf")
    if other.dtype.kind != "f":
        return 0.0 if np.array_equal(mine, other) else float("inf")
    a, b = mine.astype(np.float64), other.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return float("inf")
    largest = float(np.abs(b[finite]).max(initial=0.0)) or 1.0
    return float(np.abs(a[finite] - b[finite]).max(initial=0.0)) / largest


def interleaved(calls: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, Any]:
    """Milliseconds of a run of each (median), and how much faster than the first it is: the median of the ratios in
    rounds in which all run in turn, each round beginning with another one."""
    repeats = {}
    for name, call in calls.items():
        best, end, runs = float("inf"), time.perf_counter() + WARM, 0
        while runs < 5 or time.perf_counter() < end:
            start = time.perf_counter()
            call()
            best, runs = min(best, time.perf_counter() - start), runs + 1
        repeats[name] = max(1, round(SLICE / best))
    times: dict[str, list[float]] = {name: [] for name in calls}
    order, rounds, end = list(calls), 0, time.perf_counter() + seconds
    while rounds < MOST_ROUNDS and (rounds < ROUNDS or time.perf_counter() < end):
        for name in order:
            start = time.perf_counter()
            for _ in range(repeats[name]):
                calls[name]()
            times[name].append((time.perf_counter() - start) / repeats[name])
        order.append(order.pop(0))
        rounds += 1
    first = next(iter(times.values()))
    ratios = {n: statistics.median(a / b for a, b in zip(first, own, strict=True)) for n, own in times.items()}
    milliseconds = {name: statistics.median(own) * 1000 for name, own in times.items()}
    return {"milliseconds": milliseconds, "faster": ratios, "rounds": rounds}


def concurrent(sessions: Sequence[Any], feeds: Sequence[Feed], wanted: Sequence[Sequence[Any]],
               rtol: float) -> dict[str, Any]:  # fmt: skip
    """RUNS runs in each of several threads at once, thread i with session i and feed i; every output compared."""
    barrier = threading.Barrier(len(sessions))
    found: list[dict[str, Any]] = []

    def work(place: int) -> None:
        try:
            barrier.wait(60)
            for _ in range(RUNS):
                got = sessions[place].run(None, dict(feeds[place]))
                found.append(compare(got, wanted[place], rtol))
        except Exception as error:
            found.append({"error": float("inf"), "right": False, "equal": False, "problem": line(error)})

    threads = [threading.Thread(target=work, args=(place,)) for place in range(len(sessions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made = {"runs": len(found), "error": max(f["error"] for f in found), "right": all(f["right"] for f in found),
            "equal": all(f["equal"] for f in found)}  # fmt: skip
    raised = [f["problem"] for f in found if "problem" in f]
    return made | ({"problem": raised[0]} if raised else {})


def line(error: object, limit: int = 300) -> str:
    """A message as one line, without the folders of the runtime's sources."""
    text = re.sub(r"\S*/(\w+\.(?:cc|h):\d+)", r"\1", " ".join(str(error).split()))
    return text if len(text) <= limit else text[: limit - 1] + "…"


# ------------------------------------------------------------------------------------------------ the parts


class Model:
    """The files of one model."""

    def __init__(self, folder: Path, name: str) -> None:
        rows = json.loads((folder / "models" / "models.json").read_text(encoding="utf-8"))["models"]
        row = next(row for row in rows if row["name"] == name)
        self.names: str = row["names"]
        self.original = folder / "models" / f"{name}.onnx"
        self.fused = folder / "models" / f"{name}.fused.onnx"
        self.variants: dict[str, str | None] = {"fused": self.names, "inlined": None} if row["groups"] else {}
        self.feed = self._arrays(folder / "models" / f"{name}.npz")
        alt = folder / "models" / f"{name}.alt.npz"
        self.alt = self._arrays(alt) if alt.is_file() else halved(self.feed)

    @staticmethod
    def _arrays(path: Path) -> dict[str, Array]:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}


def halved(feed: Feed) -> dict[str, Array]:
    """Another feed of the same shapes."""
    return {n: np.asarray(a * 0.5, a.dtype) if a.dtype.kind == "f" else a for n, a in feed.items()}


def main_part(runtime: Runtime, model: Model, rtol: float, seconds: float, step: Step) -> None:
    """Nodes and outputs of every variant, threads, latency."""
    ran: dict[str, Any] = {}
    values: dict[str, Any] = {}
    step("original as it is written")
    ran["written"] = runtime.profiled(model.original, model.feed, optimize=False, exact=True)[1]
    step("original", ran=ran)
    want, ran["original"] = runtime.profiled(model.original, model.feed, exact=True)
    for name, names in model.variants.items():
        step(name, ran=ran, values=values)
        got, ran[name] = runtime.profiled(model.fused, model.feed, names=names, exact=True)
        values[name] = compare(got, want, rtol)
    if model.variants:
        step("second feed", ran=ran, values=values)
        second = runtime.session(model.original, exact=True).run(None, dict(model.alt))
        pair = [runtime.session(model.fused, names=model.names, exact=True) for _ in range(2)]
        values["fused, second feed"] = compare(pair[0].run(None, dict(model.alt)), second, rtol)
        step("two threads", values=values)
        feeds = [model.feed, model.alt]
        wanted = [pair[0].run(None, dict(feed)) for feed in feeds]
        threads = {"two sessions": concurrent(pair, feeds, wanted, rtol),
                   "one session": concurrent([pair[0], pair[0]], feeds, wanted, rtol)}  # fmt: skip
        step("latency", threads=threads)
        del pair
    step("latency", ran=ran, values=values)
    calls = {"original": Bound(runtime, runtime.session(model.original), model.feed, want)}
    for name, names in model.variants.items():
        calls[name] = Bound(runtime, runtime.session(model.fused, names=names), model.feed, want)
    calls["again"] = Bound(runtime, runtime.session(model.original), model.feed, want)
    step("", latency=interleaved(calls, seconds))


def graphs_part(runtime: Runtime, model: Model, rtol: float, seconds: float, step: Step) -> None:
    """Original and fused model in CUDA graphs: whether the runtime captures them, values of a replay, latency."""
    step("original without a graph")
    plain = runtime.session(model.original)
    same = {n: a.shape for n, a in model.alt.items()} == {n: a.shape for n, a in model.feed.items()}
    other = model.alt if same else halved(model.feed)
    like, want = (plain.run(None, dict(feed)) for feed in (model.feed, other))
    calls: dict[str, Bound] = {}
    refused: dict[str, str] = {}
    values: dict[str, Any] = {}
    graph = runtime.provider == CUDA
    for name, names in (("original", None), ("fused", model.names))[: 2 if model.variants else 1]:
        step(name, refused=refused, values=values)
        path = model.original if name == "original" else model.fused
        try:
            call = Bound(runtime, runtime.session(path, names=names, graph=graph), model.feed, like)
            for _ in range(3):
                call()
            call.update(other)  # a kernel that is not in the graph leaves what it made of the first feed
            call()
        except Exception as error:
            refused[name] = line(error)
            continue
        values[name] = compare(call.results(), want, max(rtol, GRAPH_RTOL) if graph else rtol)
        calls[name] = call
    step("latency", refused=refused, values=values)
    step("", latency=interleaved(calls, seconds) if calls else None)


def patterns_part(runtime: Runtime, folder: Path, step: Step) -> None:
    """What the runtime makes of each of the small patterns: the nodes that run."""
    found: dict[str, Any] = {}
    for row in json.loads((folder / "models" / "models.json").read_text(encoding="utf-8"))["patterns"]:
        step(row["name"], patterns=found)
        feed = {name: np.full(shape, 0.5, row["dtype"]) for name, shape in row["inputs"].items()}
        try:
            found[row["name"]] = runtime.profiled(folder / "models" / row["file"], feed)[1]
        except Exception as error:
            found[row["name"]] = line(error)
    step("", patterns=found)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="session_child.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part", choices=("probe", "main", "graphs", "patterns"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("name", help='the model; "-" for patterns')
    parser.add_argument("result", type=Path)
    parser.add_argument("--provider", default=CUDA)
    parser.add_argument("--site", type=Path)
    parser.add_argument("--rtol", type=float, default=1e-3)
    parser.add_argument("--seconds", type=float, default=1.5)
    options = parser.parse_args(arguments)
    found: dict[str, Any] = {}

    def step(name: str, **facts: Any) -> None:
        """What is known by now, and what is done next."""
        found.update(facts, step=name)
        written = options.result.with_suffix(".new")
        written.write_text(json.dumps(found), encoding="utf-8")
        os.replace(written, options.result)

    step("import")
    module = load(options.site, options.provider)
    runtime = Runtime(module, options.provider, options.folder / LIBRARY)
    if options.part == "patterns":
        patterns_part(runtime, options.folder, step)
        return 0
    model = Model(options.folder, options.name)
    if options.part == "probe":
        step("session")
        runtime.session(model.original)
        step("", version=module.__version__, built_for=str(getattr(module, "cuda_version", "")))
        return 0
    part = main_part if options.part == "main" else graphs_part
    part(runtime, model, options.rtol, options.seconds, step)
    return 0


if __name__ == "__main__":
    sys.exit(main())
