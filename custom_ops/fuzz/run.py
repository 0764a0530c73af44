"""Runs the fuzzers that a build with sanitizers has made, of programs and of containers of GPU code, with several
seeds: a crash or an error ends it.

    python custom_ops/fuzz/run.py --library build/sanitize [--targets program,container] [--seconds 60] [--seeds 4]
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from onnxfuse.codegen.container import CUBIN, PTX, Image, pack

FUZZ = Path(__file__).resolve().parent
TARGETS = ("program", "container")


def containers(folder: Path) -> None:
    """Right containers, small, whose images are packed in each way that there is: as they are, with the fixed code,
    with one of their own, with copies from near and far."""
    constant = re.search(r'kProgram = "(.*)";', (FUZZ / "container.h").read_text(encoding="utf-8"))
    assert constant is not None
    program = constant[1].replace("\\n", "\n")
    draw = random.Random(1)
    noise = draw.randbytes(300)
    lines = [b"add.f32 %%f%d, %%f%d, %%f%d;\n" % tuple(draw.choices(range(90), k=3)) for _ in range(80)]
    ptx = b".version 6.3\n.target sm_75\n.visible .entry rows(){ret;}\n" + b"".join(lines)
    few = bytes(draw.choice(b"abcd") for _ in range(900))
    far = noise + bytes(33000) + noise
    seeds = {
        "all": [Image(CUBIN, 75, noise), Image(CUBIN, 80, few), Image(CUBIN, 90, far), Image(PTX, 75, ptx + b"\0")],
        "ptx": [Image(PTX, 75, ptx[:70] + b"\0")],
        "two": [Image(CUBIN, 80, b"eighty" * 40), Image(CUBIN, 86, noise[:20])],
        "empty": [Image(CUBIN, 90, b""), Image(PTX, 80, b"\0")],
        "few": [Image(CUBIN, 120, few[:400])],
    }  # fmt: skip
    for name, images in seeds.items():
        (folder / name).write_bytes(pack(images, program, (4, 2, 4)))


def fuzz(target: str, library: Path, seconds: int, seeds: int) -> int:
    """0 where nothing was found."""
    program = library / "fuzz" / f"onnxfuse_fuzz_{target}"
    if not program.is_file():
        print(f"{program} is missing: configure with -DONNXFUSE_SANITIZE=ON", file=sys.stderr)
        return 2
    each = max(1, seconds // seeds)
    lib_fuzzer = b"libFuzzer" in program.read_bytes()
    environment = {**os.environ, "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1"}
    with tempfile.TemporaryDirectory() as corpus:
        if target == "container":
            containers(Path(corpus))
        for seed in range(1, seeds + 1):
            own = [corpus] if target == "container" else []
            arguments = (
                [f"-max_total_time={each}", f"-seed={seed}", "-max_len=65536", corpus]
                if lib_fuzzer
                else [*own, str(each), str(seed)]
            )
            done = subprocess.run([str(program.resolve()), *arguments], env=environment, check=False)
            if done.returncode != 0:
                print(f"the fuzzer of {target}s failed with seed {seed} (code {done.returncode})", file=sys.stderr)
                return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", type=Path, required=True, help="build folder")
    parser.add_argument("--targets", default=",".join(TARGETS), help="some of %(default)s")
    parser.add_argument("--seconds", type=int, default=60, help="of all seeds of a target together")
    parser.add_argument("--seeds", type=int, default=4)
    options = parser.parse_args()
    targets = options.targets.split(",")
    if set(targets) - set(TARGETS):
        parser.error(f"no such target: {', '.join(sorted(set(targets) - set(TARGETS)))}")
    return max(fuzz(target, options.library, options.seconds, options.seeds) for target in targets)


if __name__ == "__main__":
    sys.exit(main())
