"""What the kernels do on a real GPU, and how fast: one command, some minutes, on a machine with PyTorch alone.

    python -m tests.gpu.prepare build/gpu                (elsewhere: compiles)
    python tests/gpu/check.py build/gpu --out FOLDER     (here: no onnx, no NVRTC, no network)

Every program is loaded through the driver from the container of the model, as the library does it, from the machine
code for this GPU and again from the PTX; launched with the arguments that the library computes; compared with the CPU
library, bit for bit where all is float32; and timed inside a CUDA graph against a copy of the same bytes, PyTorch and
torch.compile.
Then tests/gpu/sessions.py, if the folder has models and ONNX Runtime with CUDA is here or comes in `--pieces`.
Writes check.json and check.txt. Exit code 1 if a result is wrong.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import subprocess
import sys
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
Array = np.ndarray[Any, Any]
KERNELS = ("rows", "strided")
LAUNCH = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_uint), ctypes.POINTER(ctypes.c_uint), ctypes.c_void_p)
LARGEST = 1 << 20  # elements up to which results are compared with the CPU
ROUNDS, REPEATS = 15, 10


def _parts() -> None:
    """Makes the parts of the package that need numpy alone importable without the rest of what it needs."""
    sys.path.insert(0, str(ROOT))
    package = types.ModuleType("onnxfuse")
    package.__path__ = [str(ROOT / "onnxfuse")]
    sys.modules["onnxfuse"] = package


class Driver:
    """The few calls of the driver that are needed; torch has made its primary context current."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")

    def check(self, code: int, what: str) -> None:
        if code:
            text = ctypes.c_char_p()
            self.library.cuGetErrorString(code, ctypes.byref(text))
            raise RuntimeError(f"{what}: {code} {(text.value or b'').decode()}")

    def load(self, code: bytes) -> tuple[ctypes.c_void_p, ...]:
        """The kernels of a cubin or of PTX, in the order of KERNELS."""
        module = ctypes.c_void_p()
        self.check(self.library.cuModuleLoadData(ctypes.byref(module), code), "cuModuleLoadData")
        functions = []
        for name in KERNELS:
            function = ctypes.c_void_p()
            self.check(self.library.cuModuleGetFunction(ctypes.byref(function), module, name.encode()), name)
            functions.append(function)
        return tuple(functions)

    def launch(self, function: ctypes.c_void_p, launch: Launch, stream: int) -> None:
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(launch.arguments))
        code = self.library.cuLaunchKernel(function, *launch.blocks, 1, *launch.threads, 1, 0, ctypes.c_void_p(stream),
                                           parameters, None)  # fmt: skip
        self.check(code, "cuLaunchKernel")


class Launch:
    """One launch as the library plans it."""

    def __init__(self, kernel: int, blocks: Sequence[int], threads: Sequence[int], arguments: int) -> None:
        self.kernel, self.blocks, self.threads = kernel, tuple(blocks), tuple(threads)
        # more than any struct has; what lies behind it is not looked at
        self.arguments = ctypes.create_string_buffer(ctypes.string_at(arguments, 4096), 4096)


class Library:
    """The library's launcher and its container, through libonnxfuse_test."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))

    def unpack(self, data: bytes, text: bytes, major: int, minor: int) -> tuple[bytes, int, bool, Array]:
        """Code, its architecture, whether it is PTX, and the form of its loops."""
        code, size = ctypes.create_string_buffer(1 << 22), ctypes.c_size_t(1 << 22)
        form, architecture, ptx = np.zeros(3, np.uint32), ctypes.c_int(), ctypes.c_int()
        error = ctypes.create_string_buffer(1024)
        failed = self.library.onnxfuse_test_cuda_unpack(
            data, ctypes.c_size_t(len(data)), text, ctypes.c_size_t(len(text)), major, minor, code, ctypes.byref(size),
            ctypes.c_void_p(form.ctypes.data), ctypes.byref(architecture), ctypes.byref(ptx), error,
            ctypes.c_size_t(1024),
        )  # fmt: skip
        if failed:
            raise RuntimeError(error.value.decode())
        return code.raw[: size.value], architecture.value, bool(ptx.value), form

    def launches(self, text: bytes, form: Array, processors: int, inputs: Sequence[tuple[int, Sequence[int]]],
                 outputs: Sequence[int]) -> list[Launch]:  # fmt: skip
        """What a call with tensors (or scalars) at these addresses, of these shapes, becomes."""
        made: list[Launch] = []

        def record(kernel: int) -> Any:
            return LAUNCH(lambda b, t, a: made.append(Launch(kernel, b[0:2], t[0:2], a)))

        callbacks = [record(kernel) for kernel in range(len(KERNELS))]
        dims = [(ctypes.c_int64 * max(len(shape), 1))(*shape) for _, shape in inputs]
        error = ctypes.create_string_buffer(1024)
        shape, rank, counts = (ctypes.c_int64 * 64)(), ctypes.c_int(), (ctypes.c_int * len(KERNELS))()
        failed = self.library.onnxfuse_test_cuda_run(
            text, ctypes.c_size_t(len(text)), ctypes.c_void_p(form.ctypes.data), processors, ctypes.c_int64(1 << 30),
            (ctypes.c_void_p * len(inputs))(*(address for address, _ in inputs)),
            (ctypes.c_void_p * len(dims))(*map(ctypes.addressof, dims)),
            (ctypes.c_int * len(inputs))(*(len(shape) for _, shape in inputs)),
            (ctypes.c_void_p * len(outputs))(*outputs), shape, ctypes.byref(rank), (LAUNCH * len(KERNELS))(*callbacks),
            counts, error, ctypes.c_size_t(1024),
        )  # fmt: skip
        if failed:
            raise RuntimeError(error.value.decode())
        return made


def tensors_of(row: dict[str, Any], size: int, vectors: Any, torch: Any) -> dict[str, Any]:
    """The operands by name, on the GPU."""
    generator = torch.Generator(device="cuda").manual_seed(size)
    shape, made = row["shapes"][str(size)], {}
    for read in row["reads"]:
        name, kind = read["value"], read["drawn"]
        if kind is None:
            made[name] = torch.from_numpy(vectors[f"{row['chain']}.{row['dtype']}.{size}.{name}"]).cuda()
        elif kind == "bool":
            made[name] = torch.rand(shape, device="cuda", generator=generator) < 0.5
        elif kind == "uint8":
            made[name] = torch.randint(0, 256, shape, dtype=torch.uint8, device="cuda", generator=generator)
        else:
            made[name] = (torch.randn(shape, device="cuda", generator=generator) * 2).to(getattr(torch, kind))
    return made


def in_graph(call: Callable[[], object], torch: Any) -> Callable[[], object]:
    """The call, captured as often as REPEATS says: a replay costs the GPU's time and hardly more."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(REPEATS):
            call()
    return graph.replay  # type: ignore[no-any-return]


def interleaved(calls: dict[str, Callable[[], object]], torch: Any) -> dict[str, float]:
    """Microseconds of one call of each, the median of rounds in which they run in turn."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    torch.cuda.synchronize()
    for _ in range(ROUNDS):
        for name, call in calls.items():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            call()
            end.record()
            end.synchronize()
            times[name].append(begin.elapsed_time(end) * 1000 / REPEATS)
    return {name: statistics.median(values) for name, values in times.items()}


def torch_functions(torch: Any) -> dict[str, Callable[..., Any]]:
    """The chains as users of PyTorch write them."""
    F = torch.nn.functional

    def larger(a: Any, b: Any) -> Any:
        return torch.clamp_min(a, b) if isinstance(b, float) else torch.maximum(a, b)

    def arith16(x: Any, y: Any, z: Any) -> Any:
        t = larger(x * y + z, x) * 1.25 - y
        t = larger((t + 0.5) * z, -1.0) + x
        t = (t * 0.75 - z) * y + 0.125
        return (larger(t, y) - x) * 0.5

    def lstm(i: Any, f: Any, g: Any, o: Any, c: Any) -> Any:
        cell = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return cell, torch.sigmoid(o) * torch.tanh(cell)

    return {
        "swiglu": lambda a, b: F.silu(a) * b, "mish": F.mish, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "gelu_erf": F.gelu, "arith16": arith16, "lstm": lstm,
        "bias_residual": lambda x, r, bias, scale: torch.clamp(torch.relu(x + bias) * scale + r, -3.0, 6.0),
        "gate": lambda x, g: torch.tanh(torch.log(torch.exp(x) + 1.0) / (torch.exp(-g) + 1.0)),
        "hardswish": lambda x: torch.clamp(x + 3.0, 0.0, 6.0) * x / 6.0,
        "channel_silu": lambda x, scale, bias: F.silu(x * scale + bias),
        "where_mask": lambda x, y, m: torch.where((x > y) & m, x * 2.0, y - x),
        "normalize_u8": lambda x, mean, std: (x.to(mean.dtype) - mean) / std,
    }  # fmt: skip


def positional(function: Callable[..., Any], name: str, tensors: dict[str, Any]) -> Callable[[], Any]:
    """The function on the operands: by name where it has names, else the only one."""
    if len(tensors) == 1:
        (value,) = tensors.values()
        return lambda: function(value)
    return lambda: function(**tensors)


def compare(got: Array, want: Array, exact: bool) -> dict[str, Any]:
    """Whether the results are right: equal bits (or both NaN), or within 2^-9 of the largest value for float16."""
    same = (got.view(f"u{got.itemsize}") == want.view(f"u{want.itemsize}")) | ((got != got) & (want != want))
    finite = np.isfinite(want)
    error = float(np.abs(got.astype(np.float64) - want.astype(np.float64))[finite].max(initial=0.0))
    scale = float(np.abs(want[finite].astype(np.float64)).max(initial=1.0))
    share = float(same.mean())
    return {"equal": share, "error": error / scale, "right": share == 1.0 if exact else error <= scale * 2.0**-9}


def one(row: dict[str, Any], size: int, folder: Path, vectors: Any, library: Library, driver: Driver,
        torch: Any, deadline: float) -> dict[str, Any]:  # fmt: skip
    """Results and times of one chain at one size."""
    from onnxfuse.program import Program
    from tests.custom_ops.library import TestLibrary

    text, program = row["program"].encode(), Program.parse(row["program"])
    device = torch.cuda.get_device_properties(0)
    data = (folder / f"{row['chain']}.{row['dtype']}.bin").read_bytes()
    tensors = tensors_of(row, size, vectors, torch)
    kind = getattr(torch, row["dtype"])
    results = {name: torch.empty(row["shapes"][str(size)], dtype=kind, device="cuda") for name in row["outputs"]}
    scalars = [np.array([bits], np.uint64) for bits in row["scalars"]]
    code, architecture, ptx, form = library.unpack(data, text, device.major, device.minor)
    launches = library.launches(
        text, form, device.multi_processor_count,
        [*((tensors[r["value"]].data_ptr(), tuple(tensors[r["value"]].shape)) for r in row["reads"]),
         *((s.ctypes.data, ()) for s in scalars)],
        [value.data_ptr() for value in results.values()],
    )  # fmt: skip
    found: dict[str, Any] = {
        "chain": row["chain"], "dtype": row["dtype"], "size": size, "architecture": architecture, "ptx": ptx,
        "launches": [[KERNELS[launch.kernel], *launch.blocks, *launch.threads] for launch in launches],
    }  # fmt: skip
    functions = driver.load(code)

    def fused(which: Any = None) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        for launch in launches:
            driver.launch((which or functions)[launch.kernel], launch, stream)

    if size <= LARGEST:
        xs = [tensors[r["value"]].cpu().numpy() for r in row["reads"]]
        cs = [s.view(np.uint8)[: {"f32": 4, "f16": 2}.get(program.scalars[k].dtype, 8)].view(
            {"f32": np.float32, "f16": np.float16}.get(program.scalars[k].dtype, np.float64)).reshape(())
            for k, s in enumerate(scalars)]  # fmt: skip
        want = TestLibrary(folder / "libonnxfuse_test.so").run(row["program"], xs, cs)
        ways = {"cubin": functions}
        ptx_code = _ptx_of(data)
        if ptx_code is not None:
            ways["ptx"] = driver.load(ptx_code)
        for way, kernels in ways.items():
            for value in results.values():
                value.zero_()
            fused(kernels)
            torch.cuda.synchronize()
            found[way] = [
                compare(value.cpu().numpy(), right, row["dtype"] == "float32")
                for value, right in zip(results.values(), want, strict=True)
            ]
    moved = sum(t.numel() * t.element_size() for t in (*tensors.values(), *results.values()))
    source, target = (torch.empty(moved // 2, dtype=torch.uint8, device="cuda") for _ in range(2))
    calls = {"fused": in_graph(fused, torch), "copy": in_graph(lambda: target.copy_(source), torch)}
    eager = torch_functions(torch)[row["chain"]]
    named = {r["value"]: tensors[r["value"]] for r in row["reads"]}
    try:
        calls["torch"] = in_graph(positional(eager, row["chain"], named), torch)
        if time.monotonic() < deadline:
            torch.compiler.reset()
            compiled = torch.compile(eager, dynamic=False)
            positional(compiled, row["chain"], named)()
            calls["compiled"] = in_graph(positional(compiled, row["chain"], named), torch)
    except Exception as error:  # an opponent that does not run is a fact of the table
        found["opponent"] = f"{type(error).__name__}: {error}"[:300]
    found["microseconds"] = interleaved(calls, torch)
    found["bytes"] = moved
    return found


def _ptx_of(data: bytes) -> bytes | None:
    from onnxfuse.codegen import container

    found = container.unpack(data)
    return next((i.code for i in found.images if i.kind == container.PTX), None) if found else None


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as text."""
    lines = [f"{'chain':14s} {'dtype':8s} {'elements':>9s} {'kernel':10s} {'µs':>8s} {'of copy':>8s} {'torch/':>7s} "
             f"{'compile/':>8s} result"]  # fmt: skip
    for row in rows:
        if "problem" in row:
            lines.append(f"{row['chain']:14s} {row['dtype']:8s} {row['size']:9d} {row['problem']}")
            continue
        times = row["microseconds"]

        def against(name: str, times: dict[str, float] = times) -> str:
            return f"{times[name] / times['fused']:.2f}" if name in times else "-"

        results = [r for way in ("cubin", "ptx") for r in row.get(way, [])]
        verdict = f"error {max((r['error'] for r in results), default=0.0):.1e}"
        if not results:
            verdict = "not compared"
        elif not all(r["right"] for r in results):
            verdict = "WRONG"
        elif all(r["equal"] == 1.0 for r in results):
            verdict = "equal bits"
        lines.append(f"{row['chain']:14s} {row['dtype']:8s} {row['size']:9d} {row['launches'][0][0]:10s} "
                     f"{times['fused']:8.2f} {against('copy'):>8s} {against('torch'):>7s} {against('compiled'):>8s} "
                     f"{verdict}")  # fmt: skip
    return "\n".join(lines) + "\n"


def sessions(folder: Path, out: Path, pieces: Path | None, minutes: float) -> dict[str, Any]:
    """Runs tests/gpu/sessions.py: its exit code (2: nothing could be run), and why it was left out if it was."""
    command = [sys.executable, str(Path(__file__).with_name("sessions.py")), str(folder), "--out", str(out),
               "--minutes", str(minutes), *(["--pieces", str(pieces)] if pieces is not None else [])]  # fmt: skip
    result = out / "sessions.json"
    result.unlink(missing_ok=True)
    code = subprocess.run(command, check=False).returncode
    found = json.loads(result.read_text(encoding="utf-8")) if result.exists() else {"left_out": f"ended with {code}"}
    return {"exit_code": code} | {key: found[key] for key in ("left_out",) if key in found}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="check.py", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="what tests.gpu.prepare has made")
    parser.add_argument("--out", type=Path, default=Path("run-output"))
    parser.add_argument("--minutes", type=float, default=7.0, help="opponents are left out when these are over")
    parser.add_argument("--pieces", type=Path, help="onnxruntime-gpu in pieces, for the sessions")
    parser.add_argument("--session-minutes", type=float, default=4.0, help="no model is begun when these are over")
    options = parser.parse_args(arguments)
    _parts()
    import torch

    torch.zeros(1, device="cuda")
    deadline = time.monotonic() + 60 * options.minutes
    driver, library = Driver(), Library(options.folder / "libonnxfuse_test.so")
    version = ctypes.c_int()
    driver.library.cuDriverGetVersion(ctypes.byref(version))
    device = torch.cuda.get_device_properties(0)
    about = {"card": device.name, "architecture": f"{device.major}.{device.minor}", "driver": version.value,
             "torch": torch.__version__, "cuda": torch.version.cuda, "date": time.strftime("%Y-%m-%d")}  # fmt: skip
    vectors = np.load(options.folder / "vectors.npz")
    rows = []
    options.out.mkdir(parents=True, exist_ok=True)
    for row in json.loads((options.folder / "chains.json").read_text(encoding="utf-8")):
        for size in map(int, row["shapes"]):
            try:
                rows.append(one(row, size, options.folder, vectors, library, driver, torch, deadline))
            except Exception as error:  # one that fails costs its row alone
                rows.append({"chain": row["chain"], "dtype": row["dtype"], "size": size,
                             "problem": f"{type(error).__name__}: {error}"[:500]})  # fmt: skip
            (options.out / "check.json").write_text(json.dumps({"machine": about, "rows": rows}, indent=1))
    text = f"{about}\n\n{table(rows)}"
    (options.out / "check.txt").write_text(text, encoding="utf-8")
    print(text, flush=True)
    torch.cuda.empty_cache()
    whole = sessions(options.folder, options.out, options.pieces, options.session_minutes)
    found = {"machine": about, "rows": rows, "sessions": whole}
    (options.out / "check.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    wrong = [r for r in rows if "problem" in r or not all(c["right"] for w in ("cubin", "ptx") for c in r.get(w, []))]
    return 1 if wrong or whole["exit_code"] not in (0, 2) else 0


if __name__ == "__main__":
    sys.exit(main())
