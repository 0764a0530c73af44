"""From the rows of `make bench` to the figures that were to be reached, and to tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks import opponents
from benchmarks.chains import ARITHMETIC, TRANSCENDENTAL
from benchmarks.table import Figure, View, figures_view, geometric_mean, number, ratio_text

__all__ = ["BEYOND_CACHES", "OPPONENTS_FROM", "figures", "size_text", "threads_text", "views"]

OPPONENTS_FROM = 65536  # elements; below, calling torch or numexpr is all that is seen
BEYOND_CACHES = 16777216

Data = dict[str, Any]


# ---------------------------------------------------------------- figures


def _rows(rows: Sequence[Data], **wanted: Any) -> list[Data]:
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def _medians(rows: Sequence[Data], key: str) -> list[float]:
    return [row[key]["median"] for row in rows if row[key] is not None]


def _extreme(rows: Sequence[Data], key: str, choose: Callable[..., Data]) -> tuple[float | None, str]:
    """The largest or smallest ratio and the row it comes from in words."""
    known = [row for row in rows if row[key] is not None]
    if not known:
        return None, ""
    row = choose(known, key=lambda one: one[key]["median"])
    return row[key]["median"], f" ({row['chain']}, {size_text(row['size'])}, {threads_text(row['threads'])})"


def size_text(size: int) -> str:
    """`256`, `64 K`, `16 M`."""
    for unit, factor in (("M", 1 << 20), ("K", 1 << 10)):
        if size >= factor:
            return f"{size // factor} {unit}"
    return str(size)


def threads_text(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"


MEANS = {256: (2.0, 2.0), 65536: (3.0, 2.2), 1048576: (3.5, 2.5), 16777216: (3.5, 2.5)}  # all; without the best two


def figures(rows: Sequence[Data], extras: Mapping[str, Any]) -> list[Figure]:
    """What the chains are to reach, from the rows of a result."""
    single = _rows(rows, dtype="float32")
    found = []
    for size, threads in sorted({(row["size"], row["threads"]) for row in single}):
        ratios = sorted(_medians(_rows(single, size=size, threads=threads), "speedup"))
        where = f"{size_text(size)}, {threads_text(threads)}"
        for name, values, target in zip(
            (f"all {len(ratios)} chains", "without the best two"), (ratios, ratios[:-2]), MEANS.get(size, (1.0, 1.0)),
            strict=True,
        ):
            found.append(Figure(f"geometric mean, {where}, {name}", geometric_mean(values), target))
    several = [row for row in single if len(row["runtime_ops"]) >= 2]
    lowest, where = _extreme(several, "speedup", min)
    found.append(Figure(f"lowest of the chains that the runtime runs as two nodes or more{where}", lowest, 1.1))
    half = _medians(_rows(rows, dtype="float16"), "speedup")
    found.append(Figure("geometric mean in float16, all sizes and threads", geometric_mean(half), 4.0))
    for kind, target in ((TRANSCENDENTAL, 1.2), (ARITHMETIC, 1.6)):
        worst, where = _extreme(_rows(single, size=65536, threads=1, kind=kind), "engine_over_hand", max)
        name = "transcendental" if kind == TRANSCENDENTAL else "arithmetic, broadcast and mask"
        found.append(Figure(f"engine over hand-written loop at 64 K, one thread, {name}{where}", worst, target, True))
    return found + _figures_of_copy(single) + _figures_of_opponents(single) + _figures_of_costs(extras)


def _figures_of_copy(rows: Sequence[Data]) -> list[Figure]:
    found = []
    for threads in sorted({row["threads"] for row in rows}):
        there = _rows(rows, size=BEYOND_CACHES, threads=threads)
        share, where = _extreme(_rows(there, cheap=True), "share_of_copy", min)
        found.append(Figure(f"share of a copy at 16 M, {threads_text(threads)}, cheap chains{where}", share, 0.8))
        border, where = _extreme(_rows(there, chain="swiglu"), "share_of_copy", min)
        found.append(Figure(f"share of a copy at 16 M, {threads_text(threads)}, on the border{where}", border, 0.8))
    return found


def _figures_of_opponents(rows: Sequence[Data]) -> list[Figure]:
    found = []
    for name in opponents.NAMES:
        lowest, where = _extreme([row for row in rows if row["size"] >= OPPONENTS_FROM], f"{name}_over_fused", min)
        found.append(Figure(f"{name} over fused at 64 K and above, lowest{where}", lowest, 1.0))
    return found


def _figures_of_costs(extras: Mapping[str, Any]) -> list[Figure]:
    def of(*path: str) -> float | None:
        value: Any = extras
        for key in path:
            value = value.get(key) if value is not None else None
        return value  # type: ignore[no-any-return]

    def share(name: str) -> float | None:
        fused, unfused = of("peak", name, "fused_mib"), of("peak", name, "unfused_mib")
        return None if fused is None or unfused is None else fused / unfused

    return [
        Figure("time of ops of the runtime after a fused node over after unfused ones", of("unrelated_op", "ratio",
               "median"), 1.05, True),
        Figure("peak memory, fused over unfused: arith16 at 16 M", share("chain"), 1.0, True),
        Figure("peak memory, fused over unfused: 12 feed-forward layers", share("layers"), 1.0, True),
        Figure("session of a small model: slower by", of("creation", "small", "slower_ms"), 3.0, True, " ms"),
        Figure("the same with the usual 16 names registered", of("creation", "small", "slower_all_names_ms"), 3.0, True,
               " ms"),
        Figure("session of 1,000 groups of two ops: times faster", of("creation", "many", "speedup", "median"), 1.0),
    ]


# ---------------------------------------------------------------- tables

_COLUMNS = (
    "chain", "threads", "ORT's nodes", "fused", "ORT µs", "fused µs", "times faster (10-90 %)", "noise",
    "engine / hand", "fused / hand", "share of copy", "torch / fused", "numexpr / fused",
)


def views(data: Mapping[str, Any]) -> list[View]:
    """The tables of a result: the figures, each size, float16, other costs."""
    rows = data["rows"]
    found = [figures_view([Figure.of(one) for one in data["figures"]])]
    for dtype in ("float32", "float16"):
        for size in sorted({row["size"] for row in _rows(rows, dtype=dtype)}):
            found.append(_size_view(_rows(rows, dtype=dtype, size=size), f"{size_text(size)} elements, {dtype}"))
    if data["extras"]:
        found.append(_costs_view(data["extras"]))
    return found


def _size_view(rows: Sequence[Data], title: str) -> View:
    cells = [
        [
            row["chain"], str(row["threads"]), str(len(row["runtime_ops"])), "no" if row["left_alone"] else "yes",
            number(row["microseconds"]["ort"]), number(row["microseconds"]["fused"]),
            ratio_text(row["speedup"], True), ratio_text(row["noise"], True), ratio_text(row["engine_over_hand"]),
            ratio_text(row["fused_over_hand"]), ratio_text(row["share_of_copy"]), ratio_text(row["torch_over_fused"]),
            ratio_text(row["numexpr_over_fused"]),
        ]
        for row in rows
    ]
    left = {row["chain"]: f"{row['chain']} is left alone: {row['left_alone']}." for row in rows if row["left_alone"]}
    problems = [f"{row['chain']}, {threads_text(row['threads'])}: {text}" for row in rows for text in row["problems"]]
    means = [
        f"{threads_text(threads)} {number(geometric_mean(_medians(_rows(rows, threads=threads), 'speedup')))}"
        for threads in sorted({row["threads"] for row in rows})
    ]
    mean = f"Geometric mean of times faster: {', '.join(means)}."
    return View(title, _COLUMNS, cells, [mean, *left.values(), *problems])


def _costs_view(extras: Mapping[str, Any]) -> View:
    cells = []
    if "unrelated_op" in extras:
        one = extras["unrelated_op"]
        cells.append(["16 ops of the runtime after a fused node, 64 K, over after unfused ones",
                      f"{number(one['microseconds'])} µs", ratio_text(one["ratio"], True),
                      ratio_text(one["noise"], True)])
    for name, about in (("small", "session of SwiGLU, unfused and fused"),
                        ("many", "session of 1,000 groups of two ops, unfused and fused")):
        one = extras.get("creation", {}).get(name)
        if one:
            cells.append([about, f"{number(one['unfused_ms'])} and {number(one['fused_ms'])} ms",
                          ratio_text(one["speedup"], True), ratio_text(one["noise"], True)])
    for name, about in (("chain", "peak memory of arith16 at 16 M"), ("layers", "peak memory of 12 layers")):
        one = extras.get("peak", {}).get(name)
        if one:
            said = f"{number(one['unfused_mib'])} and {number(one['fused_mib'])} MiB"
            loaded = f"{number(one['with_library_mib'])} MiB unfused with the library loaded"
            cells.append([f"{about}, unfused and fused ({loaded})", said, number(one["fused_mib"] / one["unfused_mib"]),
                          ""])
    return View("Other costs", ("what", "measured", "ratio (10-90 %)", "noise"), cells)
