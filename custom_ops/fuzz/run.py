"""Runs the program fuzzer that a build with sanitizers has made, with several seeds: a crash or an error ends it.

    python custom_ops/fuzz/run.py --library build/sanitize [--seconds 60] [--seeds 4]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", type=Path, required=True, help="build folder")
    parser.add_argument("--seconds", type=int, default=60, help="of all seeds together")
    parser.add_argument("--seeds", type=int, default=4)
    options = parser.parse_args()
    program = options.library / "fuzz" / "onnxfuse_fuzz_program"
    if not program.is_file():
        print(f"{program} is missing: configure with -DONNXFUSE_SANITIZE=ON", file=sys.stderr)
        return 2
    each = max(1, options.seconds // options.seeds)
    lib_fuzzer = b"libFuzzer" in program.read_bytes()
    environment = {**os.environ, "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1"}
    with tempfile.TemporaryDirectory() as corpus:
        for seed in range(1, options.seeds + 1):
            arguments = (
                [f"-max_total_time={each}", f"-seed={seed}", "-max_len=65536", corpus]
                if lib_fuzzer
                else [str(each), str(seed)]
            )
            done = subprocess.run([str(program.resolve()), *arguments], env=environment, check=False)
            if done.returncode != 0:
                print(f"the fuzzer failed with seed {seed} (code {done.returncode})", file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
