"""Optimized models on released ONNX Runtimes, each in an environment of its own, with and without the library.

    python tests/long/ort_versions.py [--versions 1.18.1,1.27.0] [--library FILE] [--only NAME]

The shared cases (ONNXFUSE_CASES) and hand-made models are optimized once, here. Then, for each version, a child process
of that environment runs the original (optimizations off) and the optimized model six times (without the library, with
it, with it as on a GPU; optimizations off and on) and compares; where it differs from this runtime's results, those
that the case expects are right too (older runtimes lose NaN in Max, say), and optimizations that break the original are
left out.
Models with a tampered program have to be refused by the library, with an error that names the node.
The environments stay in the user's cache folder. Ends with 1 if anything differs, does not load, or loads and should
not, with 2 if an environment cannot be made.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import onnxfuse  # noqa: E402
from onnxfuse.codegen import toolchain  # noqa: E402
from tests.custom_ops import handmade  # noqa: E402
from tests.custom_ops.test_session import TAMPERED, one_node  # noqa: E402

VERSIONS = ("1.18.1", "1.20.1", "1.22.1", "1.23.2", "1.27.0", "1.31.1", "1.32.0")
PYTHONS = ("python3.12", "python3.11", "python3.10", sys.executable)  # the oldest wheels end at 3.12
TARGETS = ("cpu", "cuda") if toolchain.installed() else ("cpu",)
CUDA: dict[str, Any] = {"targets": TARGETS, **({"cuda_arch": (80,)} if "cuda" in TARGETS else {})}
"""The models have GPU code where it can be made: the CPU must not mind."""
Feeds = list[dict[str, np.ndarray]]


def environment(version: str) -> Path | None:
    """The interpreter of an environment with this onnxruntime; made if absent. None where no Python will do."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onnxfuse" / "ort"
    folder = base / version
    python = folder / "bin" / "python"
    done = folder / ".complete"
    if done.is_file():
        return python
    numpy = "numpy<2" if version.startswith("1.18.") else "numpy"
    for candidate in PYTHONS:
        try:
            subprocess.run([candidate, "-m", "venv", "--clear", folder], check=True, capture_output=True)
            command = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
            subprocess.run([*command, f"onnxruntime=={version}", numpy], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        done.touch()
        return python
    return None


def cases() -> Iterator[tuple[str, onnx.ModelProto, Feeds, Feeds]]:
    """The shared cases that are to be optimized and run: name, model, feeds, expected outputs."""
    folder = Path(os.environ.get("ONNXFUSE_CASES") or ROOT / "../shared/cases")
    if not folder.is_dir():
        print("no folder of shared cases (ONNXFUSE_CASES): only the hand-made models are run")
    for path in sorted(folder.glob("[0-9][0-9][0-9]_*.py")):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        case: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(case)
        skipped = ("ORT_CANNOT", "ORT_REFUSES", "ORT_DIFFERS", "SLOW")
        if any(getattr(case, name, None) for name in skipped) or not hasattr(case, "model"):
            continue
        if getattr(case, "MUST", {}).get("exit", 0) == 0 and hasattr(case, "inputs"):
            feeds = case.inputs()
            expected = [case.expected(dict(feed)) for feed in feeds] if hasattr(case, "expected") else []
            yield path.stem, case.model(), feeds, expected


def residual() -> onnx.ModelProto:
    """What is fused on a GPU alone: a sum and Relu that the CPU runs in the blocked layout, and a normalization by
    channel; in the main graph and in a branch."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 13]>
        g (float[1, 16, 9, 9] x, bool c) => (float[1, 16, N, M] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w) s = Add(a, x) r = Relu(s)
            b = Conv <pads = [1, 1, 1, 1]> (r, w) p = MaxPool <kernel_shape = [2, 2]> (b)
            n = BatchNormalization(p, k, k, k, k) q = Relu(n)
            y = If (c) <
                then_branch = t () => (float[1, 16, N, M] u) { m = BatchNormalization(q, k, k, k, k) u = Abs(m) },
                else_branch = e () => (float[1, 16, N, M] v) { v = Neg(q) }
            >
        }"""
    )
    random = np.random.default_rng(1)
    for name, shape in (("w", (16, 16, 3, 3)), ("k", (16,))):
        value = (random.random(shape) / 8 + (name == "k")).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return model


def tampered(folder: Path, only: str) -> list[str]:
    """Writes models whose session the library has to refuse; their paths."""
    paths = []
    for name, (changes, _) in TAMPERED.items():
        if only in name:
            paths.append(str(folder / f"tampered-{name}.onnx"))
            onnx.save(one_node(**changes), paths[-1])
    return paths


def pairs(folder: Path, only: str) -> list[dict[str, Any]]:
    """Writes original, optimized model and feeds of everything that is to be run; the jobs of the children."""
    jobs = []
    for name, original, fused, feeds in handmade.models():
        if only in name:
            before, after = folder / f"{name}.onnx", folder / f"{name}.fused.onnx"
            onnx.save(original, before)
            onnx.save(fused, after)
            jobs.append(job(folder, name, before, after, feeds, []))
    x = np.random.default_rng(2).standard_normal((1, 16, 9, 9)).astype(np.float32)
    own: Feeds = [{"x": x, "c": np.array(taken)} for taken in (True, False)]
    for name, model, feeds, expected in [("on_a_gpu_alone", residual(), own, []), *cases()]:
        if only not in name:
            continue
        before, after = folder / f"{name}.onnx", folder / f"{name}.fused.onnx"
        onnx.save(model, before)
        try:
            onnxfuse.optimize(before, after, validate=False, **CUDA)
        except onnxfuse.OnnxfuseError as error:
            print(f"{name}: not optimized: {error}")
            jobs.append({"name": name, "failed": True})
            continue
        jobs.append(job(folder, name, before, after, feeds, expected))
    return jobs


def job(folder: Path, name: str, before: Path, after: Path, feeds: Feeds, expected: Feeds) -> dict[str, Any]:
    """One entry of the children's list. float16 anywhere in the model widens the tolerance."""

    def save(kind: str, arrays: Feeds) -> list[str]:
        files = []
        for k, named in enumerate(arrays):
            path = folder / f"{name}.{kind}{k}.npz"
            values: dict[str, Any] = {key: np.asarray(value) for key, value in named.items()}
            np.savez(path, **values)
            files.append(str(path))
        return files

    half = b"float16" in onnx.printer.to_text(onnx.load(before, load_external_data=False)).encode()
    return {
        "name": name, "original": str(before), "fused": str(after), "feeds": save("in", feeds),
        "expected": save("out", expected), "rtol": 4e-3 if half else 1e-4, "atol": 4e-3 if half else 1e-6,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", default=",".join(VERSIONS))
    parser.add_argument("--library", help="default: that of the installed package")
    parser.add_argument("--only", default="", help="models with this in their name")
    options = parser.parse_args()
    if options.library is None:
        from onnxfuse.library import library_path

        options.library = library_path()
    wrong = False
    with tempfile.TemporaryDirectory() as folder:
        jobs = pairs(Path(folder), options.only)
        wrong = any(entry.get("failed") for entry in jobs)
        jobs = [entry for entry in jobs if not entry.get("failed")]
        work = {"library": str(Path(options.library).resolve()), "jobs": jobs,
                "tampered": tampered(Path(folder), options.only)}  # fmt: skip
        (Path(folder) / "jobs.json").write_text(json.dumps(work), encoding="utf-8")
        for version in options.versions.split(","):
            python = environment(version)
            if python is None:
                print(f"onnxruntime {version}: no environment could be made", file=sys.stderr)
                return 2
            command = [str(python), str(ROOT / "tests/long/ort_child.py"), str(Path(folder) / "jobs.json")]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            print(done.stdout, end="")
            noise = [line for line in done.stderr.splitlines() if "API version" in line or "onnxfuse" in line]
            if noise or done.returncode != 0:
                wrong = True
                print(f"  onnxruntime {version} ended with {done.returncode}")
                print("   ", "\n    ".join(noise) or done.stderr[-2000:])
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
