"""Comparison of two values of one output: numbers within a tolerance, everything else equal.

For floats the promise is |got - want| <= atol + rtol * max|want| over the finite elements; NaN and infinities
must stand in the same places, infinities with the same sign.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

__all__ = [
    "EXACT", "REPORTED", "STEPS", "TOLERANT", "Comparison", "Tolerance", "compare", "is_float", "largest_move",
]

EXACT = "exact"
"""Integers, bools, strings: equal."""
TOLERANT = "tolerant"
"""Floats: within the tolerance."""
STEPS = "steps"
"""Integers rounded from floats: within the tolerance, at least one step."""
REPORTED = "reported"
"""Integers and bools downstream of ArgMax, TopK and comparisons: the share that differs is reported."""


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """`rtol` is relative to the largest magnitude of the output, not to each element."""

    rtol: float
    atol: float

    def limit(self, largest: float) -> float:
        return self.atol + self.rtol * largest


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What came out for one output.

    `error` and `limit` are absolute, `largest` is max|want|; `differing` of `total` elements are outside of
    the limit (for `reported`: differ at all). `index`, `want` and `got` are of the worst element, as text, if
    any differs. `problem` is the reason in words where the values cannot be compared element by element.
    """

    name: str
    rule: str
    passed: bool
    dtype: str
    shape: tuple[int, ...]
    error: float = 0.0
    limit: float = 0.0
    largest: float = 0.0
    differing: int = 0
    total: int = 0
    index: tuple[int, ...] | None = None
    want: str = ""
    got: str = ""
    problem: str = ""

    @property
    def relative(self) -> float:
        """`error` as a part of the largest magnitude (0 if all is zero and equal)."""
        return self.error / self.largest if self.largest else self.error

    @property
    def share(self) -> float:
        return self.differing / self.total if self.total else 0.0

    def text(self) -> str:
        """One line for a person: what differs, where, and both values."""
        if self.problem:
            return f"output {self.name!r}: {self.problem}"
        if self.index is None:
            return f"output {self.name!r}: " + (f"within {self.limit:.3g}" if self.error else "equal")
        where = f" at [{', '.join(map(str, self.index))}]" if self.index else ""
        what = f"output {self.name!r} differs{where}: got {self.got}, expected {self.want}"
        bar = f", error {self.error:.3g}, allowed {self.limit:.3g}" if self.rule in (TOLERANT, STEPS) else ""
        return f"{what} ({self.differing} of {self.total} elements{bar})"


def compare(
    name: str, got: Any, want: Any, tolerance: Tolerance, *, rule: str | None = None, moved: float = 0.0,
    free_shape: bool = False,
) -> list[Comparison]:
    """Compare one output; several results for a sequence or a map (`name[2]`), else one.

    `rule` overrides what the dtype implies. `moved` widens the limit to twice what the runtime's own
    optimizations move this output (quantized models). `free_shape`: another shape is reported, not failed
    (what NonZero or NonMaxSuppression select may differ by one element on a tie).
    """
    if isinstance(want, dict) or isinstance(got, dict):
        return _compare_maps(name, got, want, tolerance, rule, moved)
    if isinstance(want, list | tuple) or isinstance(got, list | tuple):
        return _compare_sequences(name, got, want, tolerance, rule, moved)
    if want is None or got is None:
        problem = "" if want is None and got is None else f"got {_kind(got)}, expected {_kind(want)}"
        return [Comparison(name, EXACT, not problem, "none", (), problem=problem)]
    g, w = np.asarray(got), np.asarray(want)
    rule = rule or (TOLERANT if is_float(w.dtype) else EXACT)
    if g.dtype != w.dtype and not (g.dtype.kind in "OUS" and w.dtype.kind in "OUS"):
        return [_unlike(name, rule, w, f"element type is {g.dtype}, expected {w.dtype}")]
    if g.shape != w.shape:
        result = _unlike(name, rule, w, f"shape is {list(g.shape)}, expected {list(w.shape)}")
        return [dataclasses.replace(result, passed=free_shape)]
    if rule in (TOLERANT, STEPS) and w.dtype.kind not in "OUSb":
        return [_compare_numbers(name, rule, g, w, tolerance, moved)]
    return [_compare_equal(name, rule, g, w)]


def is_float(dtype: np.dtype[Any]) -> bool:
    """True for real and complex floats, those of ml_dtypes (bfloat16, float8) included."""
    return bool(dtype.kind in "fc" or dtype == ml_dtypes.bfloat16 or "float" in dtype.name)


def largest_move(a: Any, b: Any) -> float:
    """The largest |a - b| over elements that are finite in both (0.0 where shapes or types do not fit)."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.shape == b.shape and a.dtype.kind not in "OUS":
        x, y = _wide(a), _wide(b)
        both = np.isfinite(x) & np.isfinite(y)
        return float(np.abs(x[both] - y[both]).max(initial=0.0))
    return 0.0


def _kind(value: Any) -> str:
    if value is None:
        return "an empty optional"
    if isinstance(value, dict):
        return "a map"
    return f"a sequence of {len(value)}" if isinstance(value, list | tuple) else "a tensor"


def _unlike(name: str, rule: str, want: NDArray[Any], problem: str) -> Comparison:
    return Comparison(name, rule, False, str(want.dtype), want.shape, total=want.size, problem=problem)


def _compare_sequences(
    name: str, got: Any, want: Any, tolerance: Tolerance, rule: str | None, moved: float
) -> list[Comparison]:
    if not isinstance(got, list | tuple) or not isinstance(want, list | tuple) or len(got) != len(want):
        return [Comparison(name, EXACT, False, "sequence", (), problem=f"got {_kind(got)}, expected {_kind(want)}")]
    results = [Comparison(name, EXACT, True, "sequence", (len(want),))] if not want else []
    for index, (g, w) in enumerate(zip(got, want, strict=True)):
        results += compare(f"{name}[{index}]", g, w, tolerance, rule=rule, moved=moved)
    return results


def _compare_maps(
    name: str, got: Any, want: Any, tolerance: Tolerance, rule: str | None, moved: float
) -> list[Comparison]:
    if not isinstance(got, dict) or not isinstance(want, dict) or list(got) != list(want):
        return [Comparison(name, EXACT, False, "map", (), problem="the keys of the map differ")]
    values = [np.asarray(list(v.values())) for v in (got, want)]
    return compare(name, values[0], values[1], tolerance, rule=rule, moved=moved)


def _wide(a: NDArray[Any]) -> NDArray[Any]:
    """As float64 (complex128 for complex): room for the difference of any two elements."""
    return a.astype(np.complex128 if a.dtype.kind == "c" else np.float64)


def _compare_numbers(
    name: str, rule: str, got: NDArray[Any], want: NDArray[Any], tolerance: Tolerance, moved: float
) -> Comparison:
    g, w = _wide(got), _wide(want)
    finite = np.isfinite(g) & np.isfinite(w)
    largest = float(np.abs(w[np.isfinite(w)]).max(initial=0.0))
    limit = max(tolerance.limit(largest), 2 * moved, 1.0 if rule == STEPS else 0.0)
    with np.errstate(all="ignore"):
        error = np.where(finite, np.abs(g - w), 0.0)
        special = ~finite & ~((np.isnan(g) & np.isnan(w)) | (g == w))  # NaN or infinity in other places
    bad = (error > limit) | special
    worst = float(error.max(initial=0.0))
    result = Comparison(name, rule, not bad.any(), str(want.dtype), want.shape, worst, limit, largest,
                        int(bad.sum()), want.size)
    if result.passed:
        return result
    rank = np.where(special, np.inf, np.where(bad, error, -1.0))
    return _with_example(result, int(np.argmax(rank)), got, want)


def _compare_equal(name: str, rule: str, got: NDArray[Any], want: NDArray[Any]) -> Comparison:
    bad = np.asarray(got.astype(str) != want.astype(str) if want.dtype.kind in "OUS" else got != want)
    if is_float(want.dtype):
        bad &= ~(np.isnan(_wide(got)) & np.isnan(_wide(want)))
    count = int(bad.sum())
    passed = count == 0 or rule == REPORTED
    error = largest_move(got, want) if count and want.dtype.kind not in "OUS" else 0.0
    largest = float(np.abs(_wide(want)).max(initial=0.0)) if want.dtype.kind in "iub" else 0.0
    result = Comparison(name, rule, passed, str(want.dtype), want.shape, error, 0.0, largest, count, want.size)
    return _with_example(result, int(np.argmax(bad.reshape(-1))), got, want) if count else result


def _with_example(result: Comparison, flat: int, got: NDArray[Any], want: NDArray[Any]) -> Comparison:
    index = tuple(int(i) for i in np.unravel_index(flat, want.shape))
    return dataclasses.replace(result, index=index, want=_show(want[index]), got=_show(got[index]))


def _show(value: Any) -> str:
    """A value with as many digits as its type has, without the name of the type."""
    if isinstance(value, str | bytes):
        return repr(value)
    return str(value)
