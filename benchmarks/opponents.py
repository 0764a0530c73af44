"""What else could run the chains: torch.compile and numexpr, both optional.

Each function of torch is what its users write; numexpr gets the expression that its users would have to write, in
float32 throughout. Both work on the arrays of the case without a copy; torch allocates its outputs anew in every run,
as it does for its users, numexpr writes into given memory.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchmarks.chains import Array, Case, arith16

__all__ = ["NAMES", "numexpr_call", "numexpr_threads", "torch_call", "torch_threads", "versions"]

NAMES = ("torch", "numexpr")

Call = Callable[[], object]
Outputs = dict[str, Array]


def versions() -> dict[str, str | None]:
    """Versions of the opponents; None for one that is not installed."""
    found: dict[str, str | None] = {}
    for name in NAMES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


# ---------------------------------------------------------------- torch


def _functions() -> Mapping[str, Callable[..., Any]]:
    """What each chain is in torch, operands by name."""
    import torch
    from torch.nn import functional as F

    def larger(a: Any, b: Any) -> Any:
        return torch.clamp_min(a, b) if isinstance(b, float) else torch.maximum(a, b)

    def lstm(i: Any, f: Any, g: Any, o: Any, c: Any) -> Any:
        cell = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return cell, torch.sigmoid(o) * torch.tanh(cell)

    return {
        "swiglu": lambda a, b: F.silu(a) * b,
        "mish": lambda x: F.mish(x),
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "gelu_erf": lambda x: F.gelu(x),
        "bias_residual": lambda x, r, bias, scale: torch.clamp(torch.relu(x + bias) * scale + r, -3.0, 6.0),
        "arith16": lambda x, y, z: arith16(x, y, z, larger),
        "gate": lambda x, g: torch.tanh(torch.log(torch.exp(x) + 1.0) / (torch.exp(-g) + 1.0)),
        "hardswish": lambda x: torch.clamp(x + 3.0, 0.0, 6.0) * x / 6.0,
        "lstm": lstm,
        "channel_silu": lambda x, scale, bias: F.silu(x * scale + bias),
        "where_mask": lambda x, y, m: torch.where((x > y) & m, x * 2.0, y - x),
        "normalize_u8": lambda x, mean, std: (x.float() - mean) / std,
    }


def torch_call(case: Case) -> tuple[Call, Outputs]:
    """torch.compile of a chain for exactly this shape (dynamic=False), under no_grad, and its results, as arrays.

    Compiles here, which takes seconds and needs a C++ compiler. Raises what torch raises.
    """
    torch: Any = importlib.import_module("torch")
    torch.compiler.reset()
    compiled = torch.compile(_functions()[case.chain.name], dynamic=False)
    tensors = {name: torch.from_numpy(value) for name, value in case.operands.items()}

    def call() -> Any:
        with torch.no_grad():
            return compiled(**tensors)

    made = call()
    results = made if isinstance(made, tuple) else (made,)
    return call, {name: result.numpy() for name, result in zip(case.chain.outputs, results, strict=True)}


@contextlib.contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """torch with `count` threads; it compiles for the number that it has."""
    torch: Any = importlib.import_module("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# ---------------------------------------------------------------- numexpr


def _larger(a: str, b: str) -> str:
    """numexpr's own minimum and maximum know float64 only."""
    return f"where(({a}) > ({b}), {a}, {b})"


def _clip(a: str, low: str, high: str) -> str:
    return f"where(({a}) < {low}, {low}, where(({a}) > {high}, {high}, {a}))"


def _arith16() -> str:
    t = f"({_larger('x * y + z', 'x')} * k125 - y + k50) * z"
    t = f"(({_larger(t, 'low')} + x) * k75 - z) * y + k12"
    return f"({_larger(t, 'y')} - x) * k50"


# One expression an output, in order; a later one may read an earlier output. Scalars that are no integers stand in
# variables: a literal would turn everything into float64. There is no erf.
_EXPRESSIONS: Mapping[str, tuple[str, ...]] = {
    "swiglu": ("a / (1 + exp(-a)) * b",),
    "mish": ("x * tanh(log1p(exp(x)))",),
    "gelu_tanh": ("half * x * (1 + tanh(beta * (x + kappa * x * x * x)))",),
    "bias_residual": (_clip(f"{_larger('x + bias', '0')} * scale + r", "-3", "6"),),
    "arith16": (_arith16(),),
    "gate": ("tanh(log(exp(x) + 1) / (exp(-g) + 1))",),
    "hardswish": (_clip("x + 3", "0", "6") + " * x / 6",),
    "lstm": ("c / (1 + exp(-f)) + tanh(g) / (1 + exp(-i))", "tanh(cell) / (1 + exp(-o))"),
    "channel_silu": ("(x * scale + bias) / (1 + exp(-(x * scale + bias)))",),
    "where_mask": ("where((x > y) & m, x * 2, y - x)",),
    "normalize_u8": ("(x - mean) / std",),
}


def numexpr_call(case: Case) -> tuple[Call, Outputs] | None:
    """The compiled expressions of a chain and the memory that a run writes; None where numexpr lacks a function."""
    texts = _EXPRESSIONS.get(case.chain.name)
    if texts is None:
        return None
    numexpr: Any = importlib.import_module("numexpr")
    kind = importlib.import_module("numexpr.necompiler").getType
    outputs = case.outputs()
    known = {**case.operands, **case.scalars, **outputs}
    jobs = []
    for name, text in zip(outputs, texts, strict=True):
        used = sorted(set(known) & set(re.findall(r"\w+", text)))
        expression = numexpr.NumExpr(text, [(one, kind(known[one])) for one in used])
        jobs.append((expression, [known[one] for one in used], outputs[name]))

    def call() -> None:
        for expression, arguments, out in jobs:
            expression(*arguments, out=out, order="K", casting="safe", ex_uses_vml=False)

    call()
    return call, outputs


@contextlib.contextmanager
def numexpr_threads(count: int) -> Iterator[None]:
    """numexpr with `count` threads."""
    numexpr: Any = importlib.import_module("numexpr")
    before = numexpr.set_num_threads(count)
    try:
        yield
    finally:
        numexpr.set_num_threads(before)
