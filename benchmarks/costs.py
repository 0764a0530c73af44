"""What fusing may cost elsewhere: memory, the creation of sessions, and the ops that run after a fused node.

Peak memory is taken in a process of its own for each model; the others interleave as everything here does.

    python -m benchmarks.costs peak MODEL FEED.npz [LIBRARY]     # for the parent: prints bytes
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import onnxfuse
from benchmarks.chains import Array, chain
from onnxfuse.check import sessions
from onnxfuse.timing import interleave, ratio

__all__ = ["creation", "layers", "many_groups", "peak", "unrelated_op"]

ROOT = Path(__file__).resolve().parents[1]
_OPSET = 17
# By default glibc decides from what was freed before whether a block of a megabyte, such as a weight, gets pages of its
# own: the same model takes 124 to 142 MiB from run to run. With a threshold it takes what it needs, to 0.1 MiB.
_STEADY = {"MALLOC_MMAP_THRESHOLD_": str(128 * 1024)}


# ---------------------------------------------------------------- models


def _model(name: str, nodes: Sequence[onnx.NodeProto], shape: Sequence[int], output: str,
           constants: Mapping[str, Array]) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, name, [value("x", TensorProto.FLOAT, shape)], [value(output, TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(array, key) for key, array in constants.items()],
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", _OPSET)])


def many_groups(count: int = 1000) -> onnx.ModelProto:
    """`count` groups of two ops with a Softmax after each: what it costs to load many small fused nodes."""
    nodes, value = [], "x"
    for i in range(count):
        nodes += [
            helper.make_node("Mul", [value, "half"], [f"m{i}"], name=f"mul{i}"),
            helper.make_node("Add", [f"m{i}", "x"], [f"a{i}"], name=f"add{i}"),
            helper.make_node("Softmax", [f"a{i}"], [f"s{i}"], name=f"softmax{i}"),
        ]
        value = f"s{i}"
    return _model("many_groups", nodes, [4, 16], value, {"half": np.array(0.5, np.float32)})


def layers(count: int = 12, rows: int = 512, width: int = 256, hidden: int = 1024) -> onnx.ModelProto:
    """Gated feed-forward layers as in language models: two MatMuls, SwiGLU, a MatMul, a residual."""
    generator = np.random.default_rng(0)
    constants: dict[str, Array] = {}
    nodes, value = [], "x"

    def weight(name: str, *shape: int) -> str:
        constants[name] = (generator.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32)
        return name

    for i in range(count):
        steps = (
            ("MatMul", [value, weight(f"gate{i}", width, hidden)], f"g{i}"),
            ("MatMul", [value, weight(f"up{i}", width, hidden)], f"u{i}"),
            ("Sigmoid", [f"g{i}"], f"s{i}"), ("Mul", [f"g{i}", f"s{i}"], f"t{i}"), ("Mul", [f"t{i}", f"u{i}"], f"h{i}"),
            ("MatMul", [f"h{i}", weight(f"down{i}", hidden, width)], f"d{i}"),
            ("Mul", [f"d{i}", "half"], f"q{i}"), ("Add", [value, f"q{i}"], f"r{i}"),
        )
        nodes += [helper.make_node(kind, takes, [gives], name=gives) for kind, takes, gives in steps]
        value = f"r{i}"
    return _model("layers", nodes, [rows, width], value, {**constants, "half": np.array(0.5, np.float32)})


def _followed_by_ops(elements: int) -> tuple[onnx.ModelProto, onnx.ModelProto, dict[str, Array], set[str]]:
    """HardSwish and then 16 ops of the runtime: unfused, with the HardSwish fused, a feed, and the 16 nodes' names."""
    first, then = chain("hardswish").case(elements), chain("arith16").case(elements)
    names = {"x": "out", "out": "last"}
    made = []
    for model in (first.model, onnxfuse.optimize(first.model, validate=False, targets=("cpu",)).model):
        model.graph.ClearField("output")
        for node in then.model.graph.node:
            copy = model.graph.node.add()
            copy.CopyFrom(node)
            copy.name = f"then_{node.name}"
            copy.input[:] = [names.get(name, name) for name in node.input]
            copy.output[:] = [names.get(name, name) for name in node.output]
        model.graph.initializer.extend(then.model.graph.initializer)
        model.graph.input.extend(value for value in then.model.graph.input if value.name != "x")
        model.graph.output.extend(then.model.graph.output)
        model.graph.output[0].name = "last"
        made.append(model)
    feed = {**first.feed, "y": then.feed["y"], "z": then.feed["z"]}
    return made[0], made[1], feed, {f"then_{node.name}" for node in then.model.graph.node}


# ---------------------------------------------------------------- ops after a fused node


def unrelated_op(elements: int = 65536, rounds: int = 300) -> dict[str, Any]:
    """Time of 16 ops of the runtime that follow a fused node, over their time after the unfused ops.

    Both sessions run in turn on one thread; the times are those of the runtime's own profile.
    """
    plain, fused, feed, names = _followed_by_ops(elements)
    with tempfile.TemporaryDirectory(prefix="onnxfuse-bench-") as folder:
        before = os.getcwd()
        os.chdir(folder)  # the runtime writes its profiles there
        try:
            taken = [
                sessions.create(model, optimize=True, library=library, threads=1, profile=True)
                for model, library in ((plain, None), (fused, onnxfuse.library_path()), (plain, None))
            ]
            order = list(taken)
            for _ in range(rounds):
                for session in order:
                    sessions.run(session, feed)
                order.reverse()
            unfused, after_fused, again = (_profiled(Path(one.end_profiling()), names, rounds) for one in taken)
        finally:
            os.chdir(before)
    return {
        "microseconds": statistics.median(unfused),
        "ratio": asdict(ratio(after_fused, unfused)),
        "noise": asdict(ratio(again, unfused)),
    }


def _profiled(path: Path, names: set[str], rounds: int) -> list[float]:
    """Microseconds of the nodes of these names in each run of a profile, without the first tenth of the runs."""
    events = json.loads(path.read_text(encoding="utf-8"))
    nodes = [event for event in events if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")]
    times = [float(event["dur"]) for event in nodes if event["name"].removesuffix("_kernel_time") in names]
    if len(times) != rounds * len(names):
        raise RuntimeError(f"the profile has {len(times)} times, not those of {rounds} runs of {len(names)} nodes")
    runs = np.asarray(times).reshape(rounds, len(names)).sum(axis=1)
    return [float(value) for value in runs[rounds // 10 :]]


# ---------------------------------------------------------------- creation of sessions


def _session(model: bytes | str, library: str | None, all_names: bool = False) -> Any:
    """On one thread, the library registered as the README does, or (`all_names`) without a look at the model."""
    runtime = sessions.load_runtime()
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    if library is not None:
        onnxfuse.register(options, *([] if all_names else [model]), library=library)
    return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def creation(model: onnx.ModelProto, seconds: float) -> dict[str, Any]:
    """Milliseconds to create a session of a model and of the fused one, and how much faster the latter is.

    `slower_all_names_ms`: where the library is registered without a look at the model, as from other languages.
    """
    fused = onnxfuse.optimize(model, validate=False, targets=("cpu",)).model.SerializeToString()
    plain = model.SerializeToString()
    library = onnxfuse.library_path()
    calls = [
        lambda: _session(plain, None), lambda: _session(fused, library), lambda: _session(plain, None),
        lambda: _session(fused, library, all_names=True),
    ]
    before, after, again, all_names = interleave(calls, seconds, warm_up=min(0.3, seconds))
    return {
        "unfused_ms": statistics.median(before) / 1e6,
        "fused_ms": statistics.median(after) / 1e6,
        "slower_ms": statistics.median(b - a for a, b in zip(before, after, strict=True)) / 1e6,
        "slower_all_names_ms": statistics.median(b - a for a, b in zip(before, all_names, strict=True)) / 1e6,
        "speedup": asdict(ratio(before, after)),
        "noise": asdict(ratio(before, again)),
    }


# ---------------------------------------------------------------- peak memory


def peak(model: onnx.ModelProto, feed: Mapping[str, Array], repeats: int = 5) -> dict[str, Any]:
    """Peak memory in MiB of a process that runs the model, and of one that runs the fused model; medians.

    `with_library_mib`: the unfused model with the library loaded, which tells what the library itself takes.
    """
    fused = onnxfuse.optimize(model, validate=False, targets=("cpu",)).model
    library = [onnxfuse.library_path()]
    variants: tuple[tuple[str, onnx.ModelProto, list[str]], ...] = (
        ("unfused_mib", model, []), ("fused_mib", fused, library), ("with_library_mib", model, library),
    )
    found: dict[str, list[float]] = {name: [] for name, _, _ in variants}
    with tempfile.TemporaryDirectory(prefix="onnxfuse-bench-") as folder:
        values = Path(folder) / "feed.npz"
        np.savez(values, **dict(feed))  # type: ignore[arg-type]
        jobs = []
        for name, one, more in variants:
            path = Path(folder) / f"{name}.onnx"
            onnx.save(one, path)
            jobs.append((name, ["peak", str(path), str(values), *more]))
        for _ in range(repeats):
            for name, arguments in jobs:
                done = subprocess.run([sys.executable, "-m", "benchmarks.costs", *arguments], cwd=ROOT, check=True,
                                      capture_output=True, text=True, env={**os.environ, **_STEADY})
                found[name].append(int(done.stdout) / 2**20)
    return {name: statistics.median(values) for name, values in found.items()}


def _peak_here(model: str, feed: str, library: str | None = None) -> int:
    """Runs a model a few times; the most memory that this process ever had, in bytes."""
    session = _session(model, library)
    with np.load(feed) as file:
        values = dict(file)
    for _ in range(2):
        sessions.run(session, values)
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        import resource  # not on Windows

        factor = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * factor
    # Not ru_maxrss: a new process begins with that of its parent.
    return int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]) * 1024  # type: ignore[index]


if __name__ == "__main__":
    if sys.argv[1:2] != ["peak"] or len(sys.argv) not in (4, 5):
        sys.exit("usage: python -m benchmarks.costs peak MODEL FEED.npz [LIBRARY]")
    print(_peak_here(*sys.argv[2:]))
