"""Elements in memory: how each element type is read from and written to one element, and a 16-byte block of several."""

from __future__ import annotations

from onnxfuse.program.instructions import BYTES, HALVES

RAW = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}
"""The unsigned type as which an element of so many bytes is moved."""


def decode(dtype: str, raw: str) -> str:
    """The value of an element whose bits are `raw`."""
    if dtype in ("f32", "f64"):
        return f"as_{dtype}({raw})"
    if dtype in HALVES:
        return f"from_{dtype}({raw})"
    return f"{raw} != 0" if dtype == "bool" else f"({dtype}){raw}"


def encode(dtype: str, value: str) -> str:
    """The bits of a value, as the unsigned type of its size."""
    if dtype in ("f32", "f64"):
        return f"bits({value})"
    if dtype in HALVES:
        return f"to_{dtype}({value})"
    return f"({RAW[BYTES[dtype]]}){value}"


def sections(dtype: str) -> tuple[str, ...]:
    """What `decode` and `encode` need of device.cuh."""
    return {"f16": ("halves",), "bf16": ("bfloats",)}.get(dtype, ("bits",))
