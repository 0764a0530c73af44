"""The shared libraries that NVIDIA's compilers are, each loaded from the package of PyPI that brings it
(`pip install "onnxfuse[cuda]"`) or from the file that an environment variable names."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from onnxfuse.errors import SetupError

_Loaded = TypeVar("_Loaded")
_HARMLESS = "Architectures prior to"


class CompileError(Exception):
    """What a compiler says; the text is at fault, which is ours."""


@dataclasses.dataclass(frozen=True)
class Library:
    """`places` are Python packages, folders in them, and what they are called on PyPI; `variable` names a file to be
    taken instead."""

    name: str
    does: str
    variable: str
    places: tuple[tuple[str, tuple[str, ...], str], ...]
    linux: str
    windows: str

    def files(self) -> Iterator[Path]:
        """Where it is installed, what is to be taken first."""
        named = os.environ.get(self.variable)
        if named:
            yield Path(named)
            return
        pattern = self.windows if sys.platform == "win32" else self.linux
        for package, folders, _ in self.places:
            try:
                spec = importlib.util.find_spec(package)
            except ModuleNotFoundError:
                continue
            for root in spec.submodule_search_locations or () if spec else ():
                for folder in folders:
                    yield from (f for f in sorted(Path(root, folder).glob(pattern)) if "alt" not in f.name)

    def load(self, open_file: Callable[[Path], _Loaded]) -> _Loaded | None:
        """The first of the files, opened; None where there is none. Raises SetupError for one that does not load."""
        for path in self.files():
            try:
                return open_file(path)
            except (AttributeError, OSError, CompileError) as error:
                hint = "--target cpu does without"
                if os.environ.get(self.variable):
                    hint = f"{self.variable} names it: unset that, or --target cpu"
                raise SetupError(f"{path} does not load: {error}", hint=hint) from None
        return None

    def release(self, path: Path, version: str) -> str:
        """The whole version of the file, such as "12.9.86", of which it only says the first two numbers itself. Where
        its package does not tell, its size stands for the rest."""
        for package, _, distribution in self.places:
            if not os.environ.get(self.variable) and package.replace(".", "/") in path.as_posix():
                with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                    found = importlib.metadata.version(distribution)
                    if found.startswith(f"{version}."):
                        return found
        return f"{version} ({path.stat().st_size} bytes)"

    def missing(self) -> SetupError:
        """It is not installed, and what to do."""
        return SetupError(f"{self.name}, which {self.does}, is not installed",
                          hint='pip install "onnxfuse[cuda]", or --target cpu')  # fmt: skip


def complaints(log: str) -> str:
    """The lines of a log that are a reason not to use what was made: all but the news that old GPUs are on their way
    out."""
    return "\n".join(line for line in log.splitlines() if line.strip() and _HARMLESS not in line)
