"""The models that `make run` takes: where each comes from, what it is, and inputs on which it has something to do.

Every model is shipped by a package on PyPI under the MIT or Apache-2.0 licence. Package file and model are both pinned
by sha256, so that what is run is what was looked at; models/README.md says the same for people.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Feed = dict[str, np.ndarray]


@dataclass(frozen=True)
class Package:
    """One file of a package on PyPI. `platform` names the wheel's platform where the file is not for all of them."""

    name: str
    version: str
    sha256: str
    licence: str
    platform: str | None = None


@dataclass(frozen=True)
class Entry:
    """A model inside a package: `member` is its path in the wheel, `feed` makes inputs from a random generator."""

    name: str
    package: Package
    member: str
    sha256: str
    about: str
    feed: Callable[[np.random.Generator], Feed]


def _strokes(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """A picture [1, 3, height, width] float32 of dark strokes on white, scaled to -1 … 1, like a line of text."""
    page = np.ones((height, width), np.float32)
    for _ in range(width // 6):
        y, x = int(rng.integers(2, height - 10)), int(rng.integers(2, width - 10))
        if rng.random() < 0.5:
            page[y : y + 2, x : x + int(rng.integers(3, 9))] = -1
        else:
            page[y : y + int(rng.integers(3, 9)), x : x + 2] = -1
    picture = np.empty((1, 3, height, width), np.float32)
    picture[:] = page
    return picture


def _tone(rng: np.random.Generator, samples: int) -> np.ndarray:
    """Audio [1, samples] float32 at 16 kHz: a tone with two overtones and a little noise, within -1 … 1."""
    time = np.arange(samples) / 16000
    wave = sum(np.sin(2 * np.pi * 220 * k * time) * 0.3 / k for k in (1, 2, 3)) + rng.normal(0, 0.01, samples)
    return np.asarray(wave, np.float32)[None]


def _text_line(rng: np.random.Generator) -> Feed:
    return {"x": _strokes(rng, 48, 320)}


def _page(rng: np.random.Generator) -> Feed:
    return {"x": _strokes(rng, 320, 480)}


def _crop(rng: np.random.Generator) -> Feed:
    return {"x": _strokes(rng, 48, 192)}


def _file_bytes(rng: np.random.Generator) -> Feed:
    return {"bytes": rng.integers(0, 256, (1, 2048)).astype(np.int32)}


def _speech(rng: np.random.Generator) -> Feed:
    state = rng.normal(0, 0.1, (2, 1, 128)).astype(np.float32)
    return {"input": _tone(rng, 512), "sr": np.array(16000, np.int64), "state": state}


def _pitch(rng: np.random.Generator) -> Feed:
    return {"audio": _tone(rng, 16000), "fmin": np.array(46.9, np.float32), "fmax": np.array(2094.0, np.float32)}


RAPIDOCR = Package(
    "rapidocr-onnxruntime",
    "1.4.4",
    "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf",
    "Apache-2.0",
)
MAGIKA = Package(
    "magika",
    "1.0.3",
    "3e9b49134e8116ee40b431664dcbed9e199413efddcce1a173c734b4e0521529",
    "Apache-2.0",
    platform="manylinux_2_28_x86_64",
)
SILERO = Package("silero-vad", "6.2.3", "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8", "MIT")
SWIFT_F0 = Package("swift-f0", "0.3.0", "d7240c7c94b1d3e8f0e0cd2701b79be89a0f23a19cd5f944895a6518ecad72f3", "MIT")

ENTRIES = (
    Entry(
        "ppocr_cls",
        RAPIDOCR,
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
        "tells whether a line of text stands upright (PP-OCR, MobileNetV3)",
        _crop,
    ),
    Entry(
        "ppocr_v4_det",
        RAPIDOCR,
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
        "finds lines of text in a picture (PP-OCRv4)",
        _page,
    ),
    Entry(
        "ppocr_v4_rec",
        RAPIDOCR,
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
        "reads a line of text (PP-OCRv4, convolutions and a small transformer)",
        _text_line,
    ),
    Entry(
        "magika",
        MAGIKA,
        "magika/models/standard_v3_3/model.onnx",
        "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
        "tells the type of a file from its bytes",
        _file_bytes,
    ),
    Entry(
        "silero_vad",
        SILERO,
        "silero_vad/data/silero_vad_op18_ifless.onnx",
        "7671cd04b004e9076da0d4a7b1a5aec36adf161c39230c1cb94a4fd5db6bbd28",
        "finds speech in audio, 32 ms at a time (a recurrent cell inside If branches)",
        _speech,
    ),
    Entry(
        "swift_f0",
        SWIFT_F0,
        "swift_f0/model.onnx",
        "6385e8c2ebc3872e82c9ff5946228de44cd3be77a750ea53698b7dbfe94b0a22",
        "follows the pitch of a voice (a Fourier transform written out)",
        _pitch,
    ),
)
