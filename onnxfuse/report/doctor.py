"""What is installed, whether the library loads into this runtime, and what to do if not."""

from __future__ import annotations

import ctypes
import dataclasses
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx

from onnxfuse.check import sessions
from onnxfuse.codegen import cache, nvjitlink, nvrtc, toolchain
from onnxfuse.errors import OnnxfuseError
from onnxfuse.library import library_path
from onnxfuse.program.program import Program
from onnxfuse.report.machine import cpu_features
from onnxfuse.version import __version__

__all__ = ["Finding", "examine"]

RUNTIMES = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-directml", "onnxruntime-openvino", "onnxruntime-training")
_OLDEST = (1, 18)
_PROGRAM = "onnxfuse 1\nin x0 f32\nt0 = mul.f32 x0 x0\nt1 = add.f32 t0 x0\nout t1\n"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the table. `ok` False makes the command end with 4; `advice` says what to do, or what to know."""

    what: str
    found: str
    ok: bool = True
    advice: str = ""


def examine() -> list[Finding]:
    """All findings, in the order of the table. Never raises."""
    findings = [
        Finding("onnxfuse", f"{__version__} in {Path(__file__).resolve().parent.parent}"),
        Finding("Python", f"{platform.python_version()} ({platform.python_implementation()}) {sys.platform}"),
        Finding("onnx", f"{onnx.__version__}, opset up to {onnx.defs.onnx_opset_version()}"),
        Finding("processor", f"{platform.machine()}: {', '.join(cpu_features()) or 'no known vector extension'}"),
        _isa(),
        *_runtime(),
        _gpu(),
        _compiler(),
        *_library(),
    ]
    return findings


def _isa() -> Finding:
    override = os.environ.get("ONNXFUSE_ISA")
    if not override:
        return Finding("kernels", "the best that the processor has (ONNXFUSE_ISA is not set)")
    here = cpu_features()
    words = {"neon": "NEON"} if here == ["NEON"] else {"baseline": "SSE2", "avx2": "AVX2+FMA", "avx512": "AVX-512"}
    needed = words.get(override)
    advice = ""
    if needed is None:
        advice = f"use {' or '.join(words)}"
    elif here and needed not in here:
        advice = "this processor does not have it, and sessions fail: unset the variable"
    return Finding("kernels", f"ONNXFUSE_ISA={override}", not advice, advice)


def installed_runtimes() -> dict[str, str]:
    """Version of each installed package that brings the module onnxruntime."""
    found = {}
    for package in RUNTIMES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _runtime() -> list[Finding]:
    packages = installed_runtimes()
    named = ", ".join(f"{name} {version}" for name, version in packages.items())
    if len(packages) > 1:
        uninstall = " ".join(packages)
        return [Finding(
            "ONNX Runtime", f"{named}: they overwrite each other's files", False,
            f'run `pip uninstall {uninstall}`, then install one: pip install "onnxfuse[cpu]" or "onnxfuse[gpu]"',
        )]
    try:
        runtime = sessions.load_runtime()
    except OnnxfuseError as error:
        return [Finding("ONNX Runtime", error.message, False, error.hint or "")]
    version = str(runtime.__version__)
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    old = numbers < _OLDEST
    findings = [Finding(
        "ONNX Runtime", named or f"{version} (not installed by pip)", not old,
        "the library needs 1.18 or newer: pip install -U onnxruntime" if old else "",
    )]
    try:
        providers = [name.removesuffix("ExecutionProvider") for name in runtime.get_available_providers()]
        findings.append(Finding("providers", ", ".join(providers)))
    except Exception as error:
        findings.append(Finding("providers", f"cannot be listed: {error}", False, "reinstall the runtime"))
    return findings


def _gpu() -> Finding:
    """GPU and driver as the driver itself tells them; none is no fault."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=20, check=True,
        )
        return Finding("GPU", "; ".join(line.strip() for line in done.stdout.splitlines() if line.strip()) or "none")
    except (OSError, subprocess.SubprocessError):
        pass
    try:
        version = ctypes.c_int()
        driver = ctypes.CDLL("libcuda.so.1")
        if driver.cuDriverGetVersion(ctypes.byref(version)) == 0:
            newest = f"{version.value // 1000}.{version.value % 1000 // 10}"
            return Finding("GPU", f"driver for CUDA {newest}, nvidia-smi absent")
    except (OSError, AttributeError):
        pass
    return Finding("GPU", "none")


def _compiler() -> Finding:
    """What `--target cuda` compiles with; none, or a part of it, is no fault."""
    what, there, absent = "GPU compiler", [], []
    for library, find in ((nvrtc.LIBRARY, nvrtc.find), (nvjitlink.LIBRARY, nvjitlink.find)):
        try:
            found = find()
        except OnnxfuseError as error:
            return Finding(what, str(error), False, f"reinstall it, or unset {library.variable}")
        if found is None:
            absent.append(library.name)
        else:
            there.append(f"{library.name} {found.version}")
    if absent:
        found_words = f"{there[0]} without {absent[0]}" if there else "none"
        return Finding(what, found_words, advice='for --target cuda: pip install "onnxfuse[cuda]"')
    tools, kept = toolchain.need(), cache.folder() or "no folder"
    if not tools.architectures:
        return Finding(what, f"{tools.version} have no architecture in common", False, "reinstall both")
    return Finding(what, f"{tools.version}, up to sm_{tools.architectures[-1]}; compiled code is kept in {kept}")


def _library() -> list[Finding]:
    try:
        path = library_path()
    except OnnxfuseError as error:
        return [Finding("library", error.message if error.path is None else str(error), False, error.hint or "")]
    findings = [Finding("library", path)]
    try:
        sessions.load_runtime()
    except OnnxfuseError:
        return [*findings, Finding("library loads", "not tried: no runtime", False, "install the runtime first")]
    findings.append(_trial(path))
    return findings


def _trial(path: str) -> Finding:
    """A fused node run with the library, and compared with its program evaluated in numpy."""
    try:
        session = sessions.create(_trial_model(), optimize=True, library=path)
        x = np.linspace(-2, 2, 1000, dtype=np.float32)
        got = sessions.run(session, {"x": x})["y"]
    except sessions.RunRefused as error:
        return Finding("library loads", f"a fused node does not run: {error.message}", False,
                       "update the runtime, or report it; fused models run without the library meanwhile")
    except OnnxfuseError as error:
        return Finding("library loads", error.message, False, _advice(path, error.message))
    if not np.array_equal(got, Program.parse(_PROGRAM).evaluate([x])[0]):
        return Finding("library loads", "it loads but computes wrongly", False, "please report this with this table")
    return Finding("library loads", "yes, and a fused node computes what it should")


def _advice(path: str, message: str) -> str:
    if "GLIBC" in message:
        return "the library was built for a newer system: build it here with `pip install .`"
    if "ELF" in message or "architecture" in message or "file too short" in message:
        return f"{path} is damaged or made for another machine: reinstall onnxfuse"
    if os.environ.get("ONNXFUSE_LIBRARY"):
        return "ONNXFUSE_LIBRARY is set: is it the library of this version?"
    return "reinstall onnxfuse; fused models run without the library meanwhile"


def _trial_model() -> onnx.ModelProto:
    """A model of one fused node, y = x * x + x, whose body says something else: only the kernel is right."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "onnxfuse" : 1]>
        trial (float[N] x) => (float[N] y) <uint8[1] kernels = {0}> { y = onnxfuse.FusedElementwise1(kernels, x) }
        <opset_import: ["" : 17], domain: "onnxfuse">
        FusedElementwise1 <program> (kernels, x) => (y) { y = Neg(x) }
    """)
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("program", _PROGRAM))
    return model

