"""The machine on which something was measured."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any

__all__ = ["cpu_features", "machine"]

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def machine() -> dict[str, Any]:
    """For JSON: processor, vector extensions, cores that this process may use, caches, memory in GiB, system.

    What cannot be found out is null, an empty list or an empty dict. `isa` is the instruction set that ONNXFUSE_ISA
    asks for, null where it is not set.
    """
    return {
        "processor": _cpuinfo("model name") or platform.processor() or platform.machine(),
        "extensions": cpu_features(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "caches": _caches(),
        "memory_gib": _memory(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "isa": os.environ.get("ONNXFUSE_ISA") or None,
    }


def cpu_features() -> list[str]:
    """Vector extensions of this processor that the library has kernels for, best first."""
    if platform.machine().lower() in ("aarch64", "arm64"):
        return ["NEON"]
    flags = set(_cpuinfo("flags").split())
    found = []
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags:
        found.append("AVX-512")
    if {"avx2", "fma"} <= flags:
        found.append("AVX2+FMA")
    return [*found, "SSE2"] if "sse2" in flags else found


def _cpuinfo(key: str) -> str:
    """A field of the first processor in /proc/cpuinfo, "" where there is none."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    found = next((line for line in text.splitlines() if line.partition(":")[0].strip() == key), "")
    return found.partition(":")[2].strip()


def _caches() -> dict[str, str]:
    """Sizes of the data caches of the first core as the system writes them, e.g. {"L1": "32K", "L2": "512K"}."""
    found = {}
    for folder in sorted(_CACHES.glob("index*")):
        try:
            kind, level, size = ((folder / name).read_text().strip() for name in ("type", "level", "size"))
        except OSError:
            continue
        if kind != "Instruction":
            found[f"L{level}"] = size
    return found


def _memory() -> float | None:
    if sys.platform == "win32":
        return None
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (OSError, ValueError):
        return None
