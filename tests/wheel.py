"""Looks at a built wheel: python tests/wheel.py FILE. Run by .ci/run; ends with 1 and a line if something is wrong.

The wheel has to work for every Python (tag py3-none-PLATFORM), bring the compiled library and the type marker, and
nothing that belongs to the repository alone.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path


def faults(path: Path) -> list[str]:
    """What is wrong with the wheel at `path`, one line each."""
    found: list[str] = []
    if "-py3-none-" not in path.name or path.name.endswith("-any.whl"):
        found.append(f"{path.name}: the tag should be py3-none-PLATFORM")
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
    libraries = [n for n in names if n.startswith("onnxfuse/_lib/")]
    if len(libraries) != 1:
        found.append(f"one library expected in onnxfuse/_lib/, found {libraries}")
    for needed in ("onnxfuse/__init__.py", "onnxfuse/cli.py", "onnxfuse/py.typed"):
        if needed not in names:
            found.append(f"{needed} is missing")
    strange = [n for n in names if not n.startswith(("onnxfuse/", "onnxfuse-"))]
    if strange:
        found.append(f"files outside the package: {strange[:5]}")
    return found


def main(arguments: list[str]) -> int:
    """Print the faults of every wheel named; 1 if there are any or no wheel is named."""
    found = [line for name in arguments for line in faults(Path(name))]
    for line in found or ([] if arguments else ["no wheel named"]):
        print(f"wheel: {line}", file=sys.stderr)
    return 1 if found or not arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
