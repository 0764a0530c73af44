"""What tests/gpu/sessions.py needs on a machine without onnx: models with their fused form and their feeds, small
patterns, the library, and ONNX Runtime itself as a wheel in pieces."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxfuse import api
from onnxfuse.codegen import DEFAULT
from onnxfuse.errors import OnnxfuseError
from onnxfuse.library import GPU_FAMILY, highest_names, library_path
from tests.gpu.patterns import DTYPES, PATTERNS, pattern

__all__ = ["LIMIT", "MODELS", "Models", "add_shared", "cut", "size_of"]

LIBRARY = "libonnxfuse.so"
LIMIT = 60  # MB, all of a folder
# Small, and of different kinds: convolutions with activations that the CPU keeps in its blocked layout, convolutions
# with groups, attention, elementwise alone, branches and loops. The largest is last.
MODELS = (
    "ppocr_v4_det", "ft_transformer", "patchtsmixer", "egnn", "nerf_render", "if_early_exit", "scan_ema_rnn",
    "neural_ode_rk4", "color_grade", "yolo_silu",
)  # fmt: skip
LARGEST_ALT = 1 << 20  # bytes of a second feed; without one the first is halved
Array = np.ndarray[Any, Any]
Say = Callable[[str], None]


def size_of(folder: Path) -> int:
    """Bytes of all files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


class Models:
    """The part `models` of a folder, which as a whole stays below `limit` bytes."""

    def __init__(self, folder: Path, limit: int, architectures: Sequence[int] = DEFAULT, say: Say = print) -> None:
        self.root, self.folder, self.limit, self.say = folder, folder / "models", limit, say
        self.architectures, self.rows = list(architectures), list[dict[str, Any]]()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        shutil.copy2(library_path(), folder / LIBRARY)
        self.patterns = self._patterns()
        self._write()

    def add(self, name: str, path: Path, feed: Mapping[str, Any], alt: Mapping[str, Any]) -> bool:
        """One model, optimized here; False, with a line, if it is left out."""
        if not all(_plain(value) for value in feed.values()):
            self.say(f"{name} left out: an input is no plain array")
            return False
        made = {end: self.folder / f"{name}{end}" for end in (".onnx", ".fused.onnx", ".npz", ".alt.npz")}
        try:
            report = api.optimize(path, made[".fused.onnx"], targets=api.TARGETS, cuda_arch=self.architectures,
                                  validate=False).report  # fmt: skip
        except OnnxfuseError as error:
            self.say(f"{name} left out: {error}")
            return False
        shutil.copyfile(path, made[".onnx"])
        np.savez_compressed(made[".npz"], allow_pickle=False, **feed)
        names: dict[str, int] = {}
        if report.groups:
            names = highest_names(onnx.load(made[".fused.onnx"], load_external_data=False))
            names.setdefault(GPU_FAMILY, 0)
            if sum(value.nbytes for value in alt.values()) <= LARGEST_ALT:
                np.savez_compressed(made[".alt.npz"], allow_pickle=False, **alt)
        else:
            made[".fused.onnx"].unlink()
        total = size_of(self.root)
        if total > self.limit:
            for file in made.values():
                file.unlink(missing_ok=True)
            self.say(f"{name} left out: with it the folder would have {total / 1e6:.1f} MB")
            return False
        alone = sum(group.op.startswith(GPU_FAMILY) for group in report.groups)
        wanted = ",".join(f"{family}:{number}" for family, number in sorted(names.items()))
        self.rows.append({"name": name, "groups": len(report.groups), "gpu_alone": alone, "names": wanted})
        self._write()
        self.say(f"{name}: {len(report.groups)} groups, {alone} of them on a GPU alone")
        return True

    def _patterns(self) -> list[dict[str, Any]]:
        rows = []
        for place, name in enumerate(PATTERNS):
            for dtype in DTYPES:
                model, inputs = pattern(name, dtype)
                file = f"pattern{place}.{dtype}.onnx"
                onnx.save(model, self.folder / file)
                rows.append({"name": f"{name}, {dtype}", "file": file, "dtype": dtype, "inputs": inputs})
        return rows

    def _write(self) -> None:
        text = json.dumps({"models": self.rows, "patterns": self.patterns}, indent=1)
        (self.folder / "models.json").write_text(text, encoding="utf-8")


def _plain(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "fiub"


def add_shared(models: Models, names: Iterable[str]) -> None:
    """Models of the shared corpus, by name, with a line where they cannot be had."""
    from tests.long.corpus import cache_folder, catalog, corpus_folder

    folder = corpus_folder()
    if not (folder / "index.tsv").exists():
        models.say("models left out: no shared models here (ONNXFUSE_CORPUS)")
        return
    shared = catalog(folder)
    for name in names:
        try:
            path = Path(shared.materialize(name, cache_folder()))
        except Exception as error:  # no such name, no network, another checksum
            models.say(f"{name} left out: {error}")
            continue
        models.add(name, path, shared.feed(name), shared.feed(name, alt=True))


def cut(wheel: Path, folder: Path, piece: int) -> int:
    """The wheel as files of at most `piece` bytes, and pieces.json, which says how to join them; number of pieces."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rows: list[dict[str, Any]] = []
    whole = hashlib.sha256()
    with wheel.open("rb") as file:
        while data := file.read(piece):
            whole.update(data)
            name = f"piece{len(rows):02d}"
            (folder / name).write_bytes(data)
            rows.append({"file": name, "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)})
    facts = {"wheel": wheel.name, "sha256": whole.hexdigest(), "pieces": rows}
    (folder / "pieces.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
    return len(rows)
