"""Everything that the check needs on a machine with a GPU but without onnx and NVRTC, in one folder: the twelve chains
of the bench as compiled programs with their data and the test library (tests/gpu/check.py), and some of the shared
models, fused, with the library (tests/gpu/sessions.py).

    python -m tests.gpu.prepare build/gpu          (after `make build`)
    python -m tests.gpu.prepare --wheel FILE --pieces build/pieces          (ONNX Runtime for that machine, in pieces)
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import numpy_helper

from benchmarks.chains import CHAINS, Case
from onnxfuse.codegen import DEFAULT, Compiler
from onnxfuse.fusion.plan import Group, make_plan
from onnxfuse.model import from_proto
from onnxfuse.program.dtypes import to_bits
from tests.gpu.prepare_sessions import LIMIT, MODELS, Models, add_shared, cut, size_of

SIZES = (65536, 1 << 20, 1 << 26)
LIBRARY = "libonnxfuse_test.so"


def group_of(case: Case) -> Group:
    """The whole chain as one group, whatever the runtime would rather do itself."""
    groups = make_plan(from_proto(case.model)).groups
    if len(groups) != 1:
        raise SystemExit(f"{case.chain.name}: {len(groups)} groups instead of one")
    return groups[0]


def describe(case: Case, group: Group) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """The program with its operands in order, and the vectors of every size."""
    constants = {t.name: numpy_helper.to_array(t) for t in case.model.graph.initializer}
    drawn = {name: str(np.dtype(kind or case.dtype)) for name, kind in case.chain.inputs.items()}
    reads = [{"value": r.value, "drawn": drawn.get(r.value)} for r in group.reads if not r.is_scalar]
    scalars = [to_bits(group.program.scalars[k].dtype, constants[r.value].reshape(()))
               for k, r in enumerate(r for r in group.reads if r.is_scalar)]  # fmt: skip
    shapes, vectors = {}, {}
    for size in SIZES:
        sized = case.chain.case(size, str(case.dtype))
        shapes[str(size)] = list(sized.shape)
        for name, value in sized.vectors.items():
            vectors[f"{case.chain.name}.{case.dtype}.{size}.{name}"] = value
    made = {
        "chain": case.chain.name, "dtype": str(case.dtype), "program": group.program.text, "reads": reads,
        "scalars": scalars, "outputs": list(group.outputs), "wanted": list(case.chain.outputs), "shapes": shapes,
    }  # fmt: skip
    return made, vectors


def chains(folder: Path, library: Path, architectures: Sequence[int]) -> int:
    """Writes what tests/gpu/check.py takes; the number of programs."""
    cases = [chain.case(SIZES[0], dtype) for dtype in ("float32", "float16") for chain in CHAINS
             if dtype == "float32" or "uint8" not in chain.inputs.values()]
    groups = [group_of(case) for case in cases]
    compiler = Compiler(architectures)
    rows: list[dict[str, Any]] = []
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for case, group, kernels in zip(cases, groups, compiler.compile([g.program for g in groups]), strict=True):
        row, vectors = describe(case, group)
        (folder / f"{row['chain']}.{row['dtype']}.bin").write_bytes(kernels.data)
        row["facts"] = {a: {n: [k.registers, k.frame] for n, k in some.items()} for a, some in kernels.facts.items()}
        rows.append(row)
        arrays |= vectors
    (folder / "chains.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    np.savez(folder / "vectors.npz", allow_pickle=False, **arrays)
    shutil.copy2(library, folder / LIBRARY)
    return len(rows)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.prepare", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--library", type=Path, default=Path("build/test") / LIBRARY)
    parser.add_argument("--cuda-arch", default=",".join(map(str, DEFAULT)))
    parser.add_argument("--models", default=",".join(MODELS), metavar="NAME,NAME", help="shared models; none if empty")
    parser.add_argument("--limit-mb", type=float, default=LIMIT, help="of the folder; models beyond it are left out")
    parser.add_argument("--wheel", type=Path, help="a wheel of onnxruntime-gpu that is to be cut into pieces")
    parser.add_argument("--pieces", type=Path, default=Path("build/pieces"), help="the folder for them")
    parser.add_argument("--piece-mb", type=float, default=45.0)
    options = parser.parse_args(arguments)
    if options.folder is None and options.wheel is None:
        parser.error("a folder or --wheel is needed")
    if options.wheel is not None:
        number = cut(options.wheel, options.pieces, int(options.piece_mb * 1e6))
        print(f"{number} pieces in {options.pieces}, {size_of(options.pieces) / 1e6:.1f} MB")
    if options.folder is None:
        return 0
    architectures = [int(a) for a in options.cuda_arch.split(",")]
    options.folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(options.folder / "models", ignore_errors=True)
    print(f"{chains(options.folder, options.library, architectures)} programs")
    if options.models:
        add_shared(Models(options.folder, int(options.limit_mb * 1e6), architectures), options.models.split(","))
    print(f"{options.folder}: {size_of(options.folder) / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
