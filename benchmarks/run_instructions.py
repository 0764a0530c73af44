"""Machine instructions of the engine and of the loops written by hand, counted by valgrind: a figure without noise.

    python -m benchmarks.run_instructions                      # half a minute; wants valgrind
    python -m benchmarks.run_instructions --chains where_mask,arith16 --size 65536

The counts are of one call on one thread, shared by the vectors of eight floats. Against `make bench` they tell apart
what the engine executes beyond the loop (jumps from stage to stage, addresses of operands, values that wait in memory)
and what the processor makes of it. valgrind has no AVX-512: with it the library falls back to AVX2.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import table
from benchmarks.chains import CHAINS, Case, chain
from benchmarks.native import UNROLLS, Hand
from benchmarks.run_chains import Fusion, engine
from benchmarks.table import View
from onnxfuse.timing import Repeated

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "run-output" / "instructions.json"
VECTOR = 8
RUN = "onnxfuse::bench::*::run(unsigned long)"  # of the engine and of the loops
NAMES = tuple(one.name for one in CHAINS)


def run_each(names: Sequence[str], size: int, folder: Path) -> None:
    """Under valgrind: each subject of each chain once, in a fork of its own, so that valgrind counts it by itself.
    Prints the numbers of the processes. The models lie fused in `folder`."""
    import onnx

    for name in names:
        case = chain(name).case(size)
        outputs = case.outputs()
        node = onnx.load(folder / f"{name}.onnx").graph.node[0]
        subjects: list[Repeated] = [engine(case, node, outputs, 1)]
        subjects += [Hand(name, list(case.operands.values()), list(outputs.values()), unroll=u) for u in UNROLLS]
        for subject in subjects:
            process = os.fork()
            if process == 0:
                subject.run(1)
                os._exit(0)
            os.waitpid(process, 0)
            print(process, flush=True)


def fuse(case: Case, folder: Path) -> bool:
    """Writes the fused model, if it is one node."""
    import onnx

    fusion = Fusion.of(case.model)
    if fusion.node is not None:
        onnx.save(fusion.model, folder / f"{case.chain.name}.onnx")
    return fusion.node is not None


def count(names: Sequence[str], size: int, folder: Path) -> list[int]:
    """Instructions of every subject, in the order of `run_each`. Raises RuntimeError with the last words."""
    command = ["valgrind", "--tool=callgrind", f"--toggle-collect={RUN}", f"--callgrind-out-file={folder}/%p",
               sys.executable, "-m", "benchmarks.run_instructions", "--folder", str(folder), "--chains",
               ",".join(names), "--size", str(size)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    processes = done.stdout.split()
    if done.returncode or len(processes) != len(names) * (1 + len(UNROLLS)):
        raise RuntimeError("\n".join(done.stderr.strip().splitlines()[-3:]))
    texts = [(folder / process).read_text(encoding="utf-8") for process in processes]
    return [int(re.search(r"^summary: (\d+)", text, re.MULTILINE)[1]) for text in texts]  # type: ignore[index]


def views(data: Mapping[str, Any]) -> list[View]:
    """The table of a result."""
    size, counts = data["options"]["size"], data["counts"]
    vectors, step = size / VECTOR, 1 + len(UNROLLS)
    rows = []
    for place, name in enumerate(data["names"]):
        ours, *hands = counts[place * step : (place + 1) * step]
        best = min(hands)
        rows.append([name, f"{ours / vectors:.1f}", f"{best / vectors:.1f}", f"{ours / best:.2f}",
                     f"{(ours - best) / vectors:.1f}"])
    columns = ["chain", "engine", "hand", "engine / hand", "more"]
    return [View(f"Instructions for eight elements of {size:,}, one thread", columns, rows)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Instructions of the engine and of the loops written by hand.")
    parser.add_argument("--chains", default=",".join(NAMES), help="some chains (default: all that are fused)")
    parser.add_argument("--size", type=int, default=65536, help="elements (default: %(default)s)")
    parser.add_argument("--json", type=Path, default=OUTPUT, help="result (default: run-output/instructions.json)")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    names = options.chains.split(",")
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        parser.error(f"no such chain: {', '.join(unknown)}")
    if options.folder:
        run_each(names, options.size, options.folder)
        return 0
    if shutil.which("valgrind") is None:
        print("valgrind is not there (Debian, Ubuntu: apt install valgrind)", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="onnxfuse-bench-") as temporary:
        folder = Path(temporary)
        names = [name for name in names if fuse(chain(name).case(options.size), folder)]
        if not names:
            print(f"nothing is fused in {options.chains}", file=sys.stderr)
            return 2
        counts = count(names, options.size, folder)
    data = table.record("instructions", {"size": options.size}, {"names": names, "counts": counts})
    table.write(options.json, data)
    table.show(views(data), data)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
