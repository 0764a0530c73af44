"""The container of kernels, and the cache of what was compiled."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from onnxfuse.codegen import cache
from onnxfuse.codegen.container import CUBIN, NO_CODE, PTX, ContainerError, Image, checksum_of, pack, unpack

PROGRAM, FORM = "onnxfuse 1\nin x0 f32\nt0 = neg.f32 x0\nout t0\n", (4, 2, 4)
IMAGES = [Image(CUBIN, 80, b"eighty" * 400), Image(PTX, 75, b".version 6.3\0"), Image(CUBIN, 75, b"")]


def packed(images: Sequence[Image] = IMAGES) -> bytes:
    return pack(images, PROGRAM, FORM)


def test_round_trip() -> None:
    data = packed()
    found = unpack(data)
    assert found is not None
    assert found.images == [IMAGES[2], IMAGES[0], IMAGES[1]]  # by architecture, PTX last
    assert (found.program, found.form) == (checksum_of(PROGRAM), FORM)
    assert data == packed(IMAGES[::-1])
    assert unpack(NO_CODE) is None


def test_changed_bytes() -> None:
    """No changed bit changes an image (some bits of a deflated stream are padding)."""
    data = packed()
    for at in range(len(data)):
        for flip in (1, 0x80):
            changed = bytearray(data)
            changed[at] ^= flip
            with contextlib.suppress(ContainerError):
                assert unpack(bytes(changed)) == unpack(data), at


def test_any_bytes() -> None:
    good, rng = packed(), np.random.default_rng(8)
    for size in range(len(good)):
        noise = rng.bytes(size)
        for data in (noise, good[:32] + noise, good[:size]):
            if data == NO_CODE:
                continue
            with pytest.raises(ContainerError):
                unpack(data)


def test_a_bomb() -> None:
    """An image that becomes more than it says costs no memory."""
    data = bytearray(packed([Image(CUBIN, 80, b"\0" * (1 << 20))]))
    data[32 + 24 : 32 + 28] = (5).to_bytes(4, "little")
    data[28:32] = zlib.crc32(data[:28] + data[32:64]).to_bytes(4, "little")
    with pytest.raises(ContainerError, match="image 0 of the container was changed"):
        unpack(bytes(data))


def test_cache(tmp_path: Path) -> None:
    store = cache.Cache(tmp_path / "new" / "folder")
    assert store.get("a") is None
    store.put("a", b"code")
    assert store.get("a") == b"code"
    (tmp_path / "new" / "folder" / "a").write_bytes(b"damaged")
    assert store.get("a") is None
    assert cache.Cache(None).get("a") is None
    cache.Cache(None).put("a", b"code")
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    cache.Cache(blocked / "x").put("a", b"code")  # no folder can be there
    assert cache.Cache(blocked / "x").get("a") is None


def test_limit_of_the_cache(tmp_path: Path) -> None:
    """What was used longest ago goes first."""
    for number in range(5):
        cache.Cache(tmp_path).put(f"k{number}", bytes(1000))
        os.utime(tmp_path / f"k{number}", (number, number))
    assert cache.Cache(tmp_path).get("k0") is not None
    cache.Cache(tmp_path, limit=3500).put("k5", bytes(1000))
    assert {f.name for f in tmp_path.iterdir()} == {"k5", "k4", "k0"}


def test_key() -> None:
    assert cache.key(["ab", "c"]) != cache.key(["a", "bc"])
    assert cache.key(["ab"]) == cache.key(["ab"])


def test_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ONNXFUSE_CUDA_CACHE", str(tmp_path))
    assert cache.folder() == tmp_path
    monkeypatch.setenv("ONNXFUSE_CUDA_CACHE", "")
    assert cache.folder() is None
    monkeypatch.delenv("ONNXFUSE_CUDA_CACHE")
    if sys.platform.startswith("linux"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert cache.folder() == tmp_path / "onnxfuse" / "cuda"


def test_many_processes(tmp_path: Path) -> None:
    """Readers see nothing or everything."""
    program = (
        "import sys; from pathlib import Path; from onnxfuse.codegen.cache import Cache\n"
        "store = Cache(Path(sys.argv[1]))\n"
        "for k in range(200):\n"
        "    store.put('same', bytes([k]) * 50000)\n"
        "    data = store.get('same')\n"
        "    assert data is not None and len(set(data)) == 1 and len(data) == 50000\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path)]) for _ in range(3)]
    assert [p.wait() for p in running] == [0, 0, 0]
    assert [f.name for f in tmp_path.iterdir()] == ["same"]
