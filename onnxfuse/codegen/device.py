"""The device functions of device.cuh, section by section."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from pathlib import Path

_FILE = Path(__file__).with_name("device.cuh")


@functools.cache
def _sections() -> dict[str, tuple[tuple[str, ...], str]]:
    """Text of each section and the sections that have to stand before it, in the order of the file."""
    parts = re.split(r"^//# (\w+):(.*)\n", _FILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {
        name: (tuple(others.replace(",", " ").split()), text.strip())
        for name, others, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True)
    }


def sections(names: Iterable[str]) -> str:
    """The text of these sections and of those that they need, each once, in the order of the file."""
    known = _sections()
    wanted: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in wanted:
            wanted.add(name)
            waiting += known[name][0]
    return "\n\n".join(text for name, (_, text) in known.items() if name in wanted)
