"""What was compiled before, in the user's cache folder: files named by the hash of all that the result depends on.

Safe for any number of processes: a file appears whole, by a rename, and one that is damaged is as good as none. The
folder is kept under LIMIT bytes by dropping what was used longest ago. ONNXFUSE_CUDA_CACHE names another folder; empty,
nothing is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

LIMIT = 256 << 20
_SWEEP = 64
"""Writes between two looks at the size of the folder."""
_DIGEST = 32


def folder() -> Path | None:
    """Where compiled code is kept; None where the user wants none or has no home."""
    named = os.environ.get("ONNXFUSE_CUDA_CACHE")
    if named is not None:
        return Path(named) if named else None
    try:
        home = Path.home()
    except RuntimeError:
        return None
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = home / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    return base / "onnxfuse" / "cuda"


def key(parts: Iterable[str]) -> str:
    """The hash of all of them, in order."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


class Cache:
    """The files of one folder, or nothing at all."""

    def __init__(self, path: Path | None, limit: int = LIMIT) -> None:
        self._path, self._limit, self._writes = path, limit, 0

    def get(self, name: str) -> bytes | None:
        """What was stored under this name; None if nothing was, or not whole."""
        if self._path is None:
            return None
        file = self._path / name
        try:
            data = file.read_bytes()
        except OSError:
            return None
        if hashlib.sha256(data[_DIGEST:]).digest() != data[:_DIGEST]:
            return None
        with contextlib.suppress(OSError):
            os.utime(file)
        return data[_DIGEST:]

    def put(self, name: str, data: bytes) -> None:
        """Stores it, if the folder can be written; a cache that cannot is no reason to fail."""
        if self._path is None:
            return
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self._path, prefix=".new-")
        except OSError:
            return
        try:
            with os.fdopen(handle, "wb") as out:
                out.write(hashlib.sha256(data).digest() + data)
            os.replace(temporary, self._path / name)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            return
        if self._writes % _SWEEP == 0:
            self._sweep()
        self._writes += 1

    def _sweep(self) -> None:
        """Drops what was used longest ago until the folder is under its limit."""
        assert self._path is not None
        found: list[tuple[float, int, Path]] = []
        with contextlib.suppress(OSError):  # another process may tidy up, too
            for file in list(self._path.iterdir()):
                with contextlib.suppress(OSError):
                    facts = file.stat()
                    found.append((facts.st_mtime, facts.st_size, file))
        left = sum(size for _, size, _ in found)
        for _, size, file in sorted(found, key=lambda f: f[0]):
            if left <= self._limit:
                return
            with contextlib.suppress(OSError):
                file.unlink()
            left -= size
