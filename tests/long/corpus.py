"""Every model of the shared corpus through `optimize`, checked, and the table of them in docs/models.md.

    python -m tests.long.corpus --write docs/models.md        # what `make models` does
    python -m tests.long.corpus resnet50 bert_base            # some models, printed
    python -m tests.long.corpus --kind skeleton               # those that need no network

For each model: it is fused for CPU and GPU; its default feed and its second feed run through the fused model with and
without the library, and with the groups that are such on a GPU alone, and are compared with the original at the
runtime's optimizations off; and the runtime's fully optimized graphs of the original, of the fused model without the
library and with it are compared:

- without the library the graph has as many nodes of every op as that of the original;
- with it there are no more reorders or Transposes, and no op that the runtime fuses itself is lost (QuickGelu may be: a
  larger group takes it).

Each model runs in a process of its own; its result is a JSON file in the cache folder, so that an interrupted run goes
on where it stopped. Results of other sources, another library or another runtime are not used again. The models lie
in $ONNXFUSE_CACHE (default: onnxfuse/corpus in the user's cache folder); the corpus itself is $ONNXFUSE_CORPUS
(default ../shared/models).
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks import child

ROOT = Path(__file__).resolve().parents[2]
FULL = ("full",)
MAY_BE_LOST = frozenset({"QuickGelu"})
SECONDS = 3600


@dataclass
class Row:
    """What came out for one model. ``problems`` is empty if all is as it should be. What is fused on a GPU alone counts
    in ``gpu_groups`` and ``gpu_fused`` only."""

    name: str
    kind: str
    nodes: int = 0
    nodes_after: int = 0
    groups: int = 0
    programs: int = 0
    fused: int = 0
    gpu_groups: int = 0
    gpu_fused: int = 0
    left: dict[str, int] = field(default_factory=dict)
    error: float = 0.0
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0


def corpus_folder() -> Path:
    """The folder of the shared models."""
    return Path(os.environ.get("ONNXFUSE_CORPUS") or ROOT.parent / "shared" / "models").resolve()


def cache_folder() -> Path:
    """Where models, once materialized, and results are kept."""
    given, base = os.environ.get("ONNXFUSE_CACHE"), os.environ.get("XDG_CACHE_HOME")
    return Path(given) if given else (Path(base) if base else Path.home() / ".cache") / "onnxfuse" / "corpus"


def catalog(folder: Path) -> ModuleType:
    """The module ``models.py`` of the corpus."""
    spec = importlib.util.spec_from_file_location("onnxfuse_corpus_models", folder / "models.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ------------------------------------------------------------------------------------------------ one model


def examine(name: str, models: ModuleType, cache: Path) -> Row:
    """Fuse one model and check everything about it. Raises only where the model itself cannot be had."""
    row = Row(name, models.index()[name]["kind"])
    start = time.monotonic()
    path = Path(models.materialize(name, cache))
    from onnxfuse import api
    from onnxfuse.codegen import toolchain
    from onnxfuse.errors import OnnxfuseError

    with tempfile.TemporaryDirectory(prefix="onnxfuse-corpus-", ignore_cleanup_errors=True) as temporary:
        target = Path(temporary) / "fused.onnx"
        try:
            # with the groups that pay on a GPU alone, which must change nothing on the CPU; one architecture is enough
            targets = {"targets": api.TARGETS, "cuda_arch": 80} if toolchain.installed() else {"targets": ("cpu",)}
            report = api.optimize(path, target, validate=False, **targets).report
        except OnnxfuseError as error:
            row.problems.append(f"optimize: {error}")
            return row
        row.nodes, row.nodes_after = report.nodes_before, report.nodes_on_cpu
        groups = [group for group in report.groups if not group.on_gpu_alone]
        row.groups, row.fused = len(groups), sum(len(group.ops) for group in groups)
        row.programs = len({group.op for group in groups})
        row.gpu_groups, row.gpu_fused = len(report.gpu_groups), report.ops_fused - row.fused
        row.left = dict(report.left_counts)
        if report.note:
            row.notes.append(report.note)
        if report.groups:
            _check_values(row, path, target, models)
            _check_graphs(row, path, target)
        elif target.read_bytes() != path.read_bytes():
            row.problems.append("nothing fused, but the output differs from the input")
    row.seconds = round(time.monotonic() - start, 1)
    return row


def _check_values(row: Row, path: Path, target: Path, models: ModuleType) -> None:
    """Both feeds, with and without the library, against the original."""
    from onnxfuse.check import sessions
    from onnxfuse.check.oracle import check_groups
    from onnxfuse.check.subject import Subject
    from onnxfuse.check.validate import compare_models
    from onnxfuse.errors import OnnxfuseError
    from onnxfuse.library import find_library

    if find_library() is None:
        row.problems.append("the compiled library is not there: checked without it only")
    widened = False
    for alt in (False, True):
        title = "second feed" if alt else "feed"
        try:
            result = compare_models(Subject.of(path), Subject.of(target), inputs=models.feed(row.name, alt=alt))
        except (OnnxfuseError, sessions.RunRefused) as error:
            row.problems.append(f"{title}: {error}")
            continue
        row.error = max(row.error, result.largest_error)
        row.problems += [f"{title}: {result.failure()}"] if not result.passed else []
        row.notes += [f"{title}: {warning}" for warning in result.warnings]
        row.notes += [f"output {name} not compared ({op})" for name, op in result.skipped.items() if not alt]
        row.notes += [f"{title}: {output.text()}" for output in result.reported]
        widened = widened or (result.passed and result.widened)
    if widened:  # as `optimize` does: so wide a bar says little of a single group
        alone = check_groups(Subject.of(path), Subject.of(target), "")
        row.problems += [f"group by group: {alone.failure()}"] if not alone.passed else []
        row.notes.append("its own roundings move it: groups checked one by one too")


def _check_graphs(row: Row, path: Path, target: Path) -> None:
    """The runtime's fully optimized graphs: original, fused without the library, fused with it."""
    import onnx

    from onnxfuse import library
    from onnxfuse.fusion.ort_child import RuntimeRefused, optimized_graphs

    names = library.highest_names(onnx.load(target, load_external_data=False))
    config = {"onnxfuse.names": ",".join(f"{family}:{count}" for family, count in names.items())}
    try:
        before = ops_of(optimized_graphs(path, levels=FULL).full.walk())
        without = ops_of(optimized_graphs(target, levels=FULL).full.walk())
        row.problems += without_library(before, without)
        found = library.find_library()
        if found is not None:
            answer = optimized_graphs(target, levels=FULL, library=found, config=config)
            row.problems += with_library(before, ops_of(answer.full.walk()))
    except RuntimeRefused as refusal:
        row.problems.append(f"optimized graphs: {refusal}")


def ops_of(nodes: Iterable[Any]) -> Counter[tuple[str, str]]:
    """(domain, op) of all nodes, counted."""
    return Counter((node.domain, node.op_type) for node in nodes)


def without_library(before: Mapping[tuple[str, str], int], after: Mapping[tuple[str, str], int]) -> list[str]:
    """Where the runtime's graph of the fused model is not that of the original."""
    moved = {key: after.get(key, 0) - before.get(key, 0) for key in sorted({*before, *after})}
    text = ", ".join(f"{op} {count:+d}" for (_, op), count in moved.items() if count)
    return [f"without the library ORT's graph differs: {text}"] if text else []


def with_library(before: Mapping[tuple[str, str], int], after: Mapping[tuple[str, str], int]) -> list[str]:
    """Reorders and Transposes that came, and fused ops of the runtime that went (normalizations are counted together:
    where a Transpose is not moved, the runtime may see the whole of one of which it saw a part before)."""
    found = []
    sums: dict[str, list[int]] = {}
    for domain, op in sorted({*before, *after}):
        name = "normalizations" if op.endswith("LayerNormalization") else op
        if domain.startswith("com.microsoft") or name == "normalizations" or op.startswith("QLinear"):
            counts = sums.setdefault(name, [0, 0])
            counts[0] += before.get((domain, op), 0)
            counts[1] += after.get((domain, op), 0)
    key = "", "Transpose"
    sums["Transpose"] = [before.get(key, 0), after.get(key, 0)]
    for name, (then, now) in sums.items():
        more = name in ("ReorderInput", "ReorderOutput", "Transpose")
        if (now > then) if more else (now < then and name not in MAY_BE_LOST):
            found.append(f"with the library {name} {then} -> {now}")
    return found


# ------------------------------------------------------------------------------------------------ all models


def fingerprint() -> str:
    """Changes with the sources of the package, the library and the versions of the runtime and onnx."""
    from onnxfuse.library import find_library

    digest = hashlib.sha256()
    files = sorted((ROOT / "onnxfuse").rglob("*.py")) + [Path(__file__)]
    library = find_library()
    for path in [*files, *([library] if library else [])]:
        digest.update(path.read_bytes())
    for package in ("onnx", "onnxruntime", "onnxruntime-gpu", "numpy"):
        try:
            digest.update(f"{package} {importlib.metadata.version(package)}".encode())
        except importlib.metadata.PackageNotFoundError:
            continue
    return digest.hexdigest()[:16]


def run_one(name: str, kind: str, key: str, cache: Path, again: bool) -> Row:
    """The row of a model: an earlier one with the same key, or a new one from a process of its own."""
    store = cache / "results" / f"{name}.json"
    if store.exists() and not again:
        saved = json.loads(store.read_text(encoding="utf-8"))
        if saved["key"] == key:
            return Row(**saved["row"])
    try:
        row = Row(**child.answer("tests.long.corpus", ["--one", name, "--result"], SECONDS))
    except child.Problem as problem:
        return Row(name, kind, problems=[str(problem)])
    store.parent.mkdir(parents=True, exist_ok=True)
    store.write_text(json.dumps({"key": key, "row": asdict(row)}, indent=1), encoding="utf-8")
    return row


def table(rows: Iterable[Row]) -> str:
    """The rows in Markdown."""
    lines = [
        "| model | nodes | after | fused nodes | distinct | ops in them | ops left | mostly because "
        "| on a GPU alone | largest error | notes |",
        "|---|---:|---:|---:|---:|---:|---:|---|---:|---:|---|",
    ]
    for row in rows:
        left = sum(row.left.values())
        reason = next((f"{code} {count}" for code, count in row.left.items()), "")
        error = f"{row.error:.1e}" if row.error else "0" if row.groups or row.gpu_groups else ""
        gpu = f"{row.gpu_fused} in {row.gpu_groups}" if row.gpu_groups else ""
        notes = "; ".join([*(f"**{p}**" for p in row.problems), *row.notes]).replace("|", "\\|").replace("\n", " ")
        cells = [row.name, row.nodes, row.nodes_after, row.groups, row.programs, row.fused, left, reason, gpu, error,
                 notes]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def document(rows: list[Row]) -> str:
    """The text of docs/models.md."""
    from onnxfuse.report.summary import versions

    used = versions()
    fused, left = sum(r.fused for r in rows), sum(sum(r.left.values()) for r in rows)
    gpu_fused, gpu_groups = sum(r.gpu_fused for r in rows), sum(r.gpu_groups for r in rows)
    with_groups = sum(bool(row.groups) for row in rows)
    codes: Counter[str] = Counter()
    for row in rows:
        codes.update(row.left)
    reasons = "\n".join(f"| {code} | {count} |" for code, count in sorted(codes.items(), key=lambda i: (-i[1], i[0])))
    return f"""# Real models

Written by `make models`: every model of the shared corpus (published models and architectures with seeded weights)
goes through `onnxfuse optimize`, and its two feeds run without the library, with it, and with it and the nodes that
are such on a GPU alone (their programs, on the CPU), and are compared with the original at the runtime's optimizations
off. *Largest error* is the largest difference of any output in these runs, as a part of the largest magnitude of that
output. Without the library ONNX Runtime's fully optimized graph has as many nodes of every op as that of the original;
with it no model gains a reorder of the blocked layout or a Transpose, and no op that the runtime fuses itself is lost
but QuickGelu. What is not so stands in bold in the last column. *On a GPU alone*: ops that are fused there in addition,
and left on the CPU.

onnxruntime {used["onnxruntime"]}, onnx {used["onnx"]}. {len(rows)} models, {with_groups} of them with
fused nodes: {fused:,} ops in {sum(r.groups for r in rows):,} fused nodes, {left:,} elementwise ops left alone.
On a GPU alone {gpu_fused:,} of those are fused, too, into {gpu_groups:,} nodes.

{table(rows)}
Why elementwise ops were left alone, over all models (`onnxfuse explain MODEL` tells it node by node):

| reason | ops |
|---|---:|
{reasons}
"""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Optimize and check the models of the corpus.")
    parser.add_argument("names", nargs="*", help="models (default: all)")
    parser.add_argument("--kind", choices=("package", "skeleton"), help="only models of this kind")
    parser.add_argument("--write", metavar="FILE", help="write the table of all models")
    parser.add_argument("--again", action="store_true", help="do not use earlier results")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    folder, cache = corpus_folder(), cache_folder()
    if not (folder / "index.tsv").exists():
        print(f"no corpus at {folder}: set ONNXFUSE_CORPUS", file=sys.stderr)
        return 2
    models = catalog(folder)
    if options.one:
        row = examine(options.one, models, cache)
        Path(options.result).write_text(json.dumps(asdict(row)), encoding="utf-8")
        return 0
    index = models.index()
    names = options.names or [n for n, entry in index.items() if options.kind in (None, entry["kind"])]
    unknown = [name for name in names if name not in index]
    if unknown:
        print(f"no such model in the corpus: {', '.join(unknown)}", file=sys.stderr)
        return 2
    key, rows = fingerprint(), []
    for place, name in enumerate(names, 1):
        row = run_one(name, index[name]["kind"], key, cache, options.again)
        rows.append(row)
        state = "; ".join(row.problems) or "ok"
        print(
            f"[{place}/{len(names)}] {name}: {row.groups} fused nodes, {row.fused} ops, {row.seconds} s: {state}",
            flush=True,
        )
    if options.write:
        Path(options.write).write_text(document(rows), encoding="utf-8")
    bad = [row.name for row in rows if row.problems]
    print(
        f"{len(rows) - len(bad)} of {len(rows)} models as they should be" + (f"; not: {', '.join(bad)}" if bad else "")
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
