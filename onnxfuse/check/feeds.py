"""Seeded inputs for any model.

Floats are normal(0, 1); pictures of bytes use the full range; integers stay in a range that works as an index or a
token (below the fewest rows of the tables that the input indexes); masks are ones with a few zeros, lengths are
the size of the sequence, both by name. Each input has its own random stream, keyed by seed and name, so that
values do not depend on the other inputs.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfuse.check.inputs import InputSpec, describe_inputs, is_integer, numpy_dtype
from onnxfuse.check.sizes import ATTEMPTS, Attempt, assign, bind
from onnxfuse.errors import UsageError

__all__ = ["candidates", "load_npz", "make", "parse_shapes", "verify"]

Feed = dict[str, Any]
Shape = tuple[int, ...]

_MASK = frozenset(("mask", "masks", "padding", "valid"))
_LENGTH = frozenset(("length", "lengths", "len", "lens", "seqlen"))
_RATE = frozenset(("sr", "samplerate", "rate", "fs"))
_IMAGE = frozenset(("image", "images", "img", "pixel", "pixels", "picture", "frame", "rgb", "bgr"))
_POSITION = frozenset(("position", "positions", "pos"))
_SIZE = frozenset(("size", "sizes", "shape", "shapes", "resolution"))
_TOKEN = frozenset(("id", "ids", "token", "tokens", "word", "words", "input"))
_TEXT = ("7", "-4", "1e2", "0", "42")  # readable as numbers too: a model may cast them
_MAX_BYTES = 1 << 30
_LARGEST_DIM = 1 << 31


def make(
    model: onnx.ModelProto | str | os.PathLike[str],
    seed: int = 0,
    shapes: Mapping[str, Sequence[int]] | None = None,
    *,
    given: Mapping[str, Any] | None = None,
) -> Feed:
    """Inputs for a model: {name: array}, the first and cheapest choice of sizes.

    `shapes` fixes whole shapes by input name, `given` values; the rest is made, with symbols that they fix.
    UsageError for names or shapes that the model does not have.
    """
    return next(candidates(model, seed, shapes, given=given))


def verify(
    model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]] | None, given: Mapping[str, Any] | None
) -> None:
    """UsageError if names, shapes or types of what a caller gives do not fit the inputs of the model."""
    if shapes or given:
        specs = describe_inputs(model)
        known: dict[str, int] = {}
        _check_shapes(specs, shapes or {}, known)
        _check_given(specs, model, given or {}, known)


def candidates(
    model: onnx.ModelProto | str | os.PathLike[str],
    seed: int = 0,
    shapes: Mapping[str, Sequence[int]] | None = None,
    *,
    given: Mapping[str, Any] | None = None,
    positive: bool = False,
) -> Iterator[Feed]:
    """The choices of `make`, one for each attempt at sizes, without repetitions of equal shapes.

    With `positive` floats are uniform in (0.05, 1.05): for models that take roots or logarithms.
    """
    proto = model if isinstance(model, onnx.ModelProto) else onnx.load(os.fspath(model), load_external_data=False)
    specs = describe_inputs(proto)
    known: dict[str, int] = {}
    wanted = _check_shapes(specs, shapes or {}, known)
    values = _check_given(specs, proto, given or {}, known)
    wanted.update((name, np.shape(value)) for name, value in values.items() if isinstance(value, np.ndarray))
    seen: set[tuple[tuple[str, Shape], ...]] = set()
    plans = [(attempt, True) for attempt in ATTEMPTS]
    plans += [(attempt, False) for attempt in ATTEMPTS if any(spec.hints for spec in specs)]
    for attempt, hints in plans:
        chosen = assign(specs, attempt, known, wanted, hints=hints)
        key = tuple(chosen.items())
        total = sum(int(np.prod(shape, dtype=np.int64)) for shape in chosen.values())
        if key in seen or (total * 4 > _MAX_BYTES and seen):
            continue
        seen.add(key)
        context = _Context(chosen, attempt, positive)
        feed = {spec.name: _value(spec, seed, context) for spec in specs if spec.name not in values}
        yield {spec.name: values.get(spec.name, feed.get(spec.name)) for spec in specs} | values


# ---------------------------------------------------------------- what the caller gives


def parse_shapes(texts: Sequence[str]) -> dict[str, Shape]:
    """`NAME:1,3,224,224` (names may hold colons) as {name: shape}. UsageError for anything else."""
    shapes = {}
    for text in texts:
        name, colon, dims = text.rpartition(":")
        try:
            shape = tuple(int(part) for part in dims.split(",")) if dims.strip() else ()
        except ValueError:
            shape = (-1,)
        if not colon or not name or not all(0 <= size < _LARGEST_DIM for size in shape):
            raise UsageError(f"--shape {text!r} is not of the form NAME:1,3,224,224")
        shapes[name] = shape
    return shapes


def load_npz(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file by name. UsageError if it is none."""
    try:
        archive = np.load(os.fspath(path), allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise UsageError("is one array, not an .npz archive", path=path, hint="write it with numpy.savez")
        with archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise UsageError("no such file", path=path) from None
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise UsageError(
            f"cannot be read as an .npz file of inputs: {error}", path=path, hint="write it with numpy.savez"
        ) from error


def _unknown(names: list[str], specs: Sequence[InputSpec], what: str) -> UsageError:
    have = ", ".join(repr(spec.name) for spec in specs) or "none"
    return UsageError(f"{what}: the model has no input {', '.join(map(repr, names))}", hint=f"its inputs are: {have}")


def _check_shapes(
    specs: Sequence[InputSpec], shapes: Mapping[str, Sequence[int]], known: dict[str, int]
) -> dict[str, Shape]:
    by_name = {spec.name: spec for spec in specs}
    wrong = [name for name in shapes if name not in by_name]
    if wrong:
        raise _unknown(wrong, specs, "--shape")
    for name, shape in shapes.items():
        bind(by_name[name], shape, known, "the shape")
    return {name: tuple(shape) for name, shape in shapes.items()}


def _check_given(
    specs: Sequence[InputSpec], model: onnx.ModelProto, given: Mapping[str, Any], known: dict[str, int]
) -> Feed:
    by_name = {spec.name: spec for spec in specs}
    defaults = {value.name for value in model.graph.input} - set(by_name)
    wrong = [name for name in given if name not in by_name and name not in defaults]
    if wrong:
        raise _unknown(wrong, specs, "inputs")
    values: Feed = {}
    for name, value in given.items():
        spec = by_name.get(name)
        if spec is None or spec.kind != "tensor" or value is None or isinstance(value, list):
            values[name] = value
            continue
        array = _fit_dtype(spec, np.asarray(value))
        bind(spec, array.shape, known, "the array")
        values[name] = array
    return values


def _fit_dtype(spec: InputSpec, array: NDArray[Any]) -> NDArray[Any]:
    want = numpy_dtype(spec.elem)
    if want.kind == "O" and array.dtype.kind in "OUS":
        return array.astype(object)
    if want == ml_dtypes.bfloat16 and array.dtype == np.dtype("V2"):  # how numpy.savez stores it
        return array.view(ml_dtypes.bfloat16)
    if array.dtype != want:
        raise UsageError(f"the array for input {spec.name!r} is {array.dtype}, the model wants {want}")
    return array


# ---------------------------------------------------------------- values


class _Context:
    """What values depend on besides their own input: the shapes of all, and the attempt."""

    def __init__(self, shapes: Mapping[str, Shape], attempt: Attempt, positive: bool) -> None:
        self.shapes = shapes
        self.positive = positive
        long = [shape[1] for shape in shapes.values() if len(shape) >= 2]
        self.sequence = max(1, long[0]) if long else attempt.sequence
        sizes = [size for shape in shapes.values() for size in shape if size > 0]
        self.smallest = min(sizes, default=1)


def _value(spec: InputSpec, seed: int, context: _Context) -> Any:
    rng = np.random.default_rng([seed & 0xFFFFFFFF, zlib.crc32(spec.name.encode())])
    shape = context.shapes[spec.name]
    if spec.kind in ("map", "sparse", "unknown"):
        raise UsageError(
            f"no values can be made for input {spec.name!r} (a {spec.kind} value)",
            hint="use --no-validate to write without checking",
        )
    if spec.kind in ("sequence", "optional_sequence"):
        return [_array(spec, rng, shape, context) for _ in range(2)]
    return _array(spec, rng, shape, context)


def _array(spec: InputSpec, rng: np.random.Generator, shape: Shape, context: _Context) -> NDArray[Any]:
    dtype = numpy_dtype(spec.elem)
    if dtype.kind == "O":
        words = [_TEXT[i] for i in rng.integers(0, len(_TEXT), int(np.prod(shape, dtype=np.int64)))]
        return np.array(words, dtype=object).reshape(shape)
    if spec.words & _MASK:
        return _mask(shape).astype(dtype)
    if dtype == np.bool_:
        return np.asarray(rng.random(shape) < 0.5)
    if is_integer(spec.elem):
        return _integers(spec, rng, shape, context).astype(dtype)
    return _floats(spec, rng, shape, context).astype(dtype)


def _mask(shape: Shape) -> NDArray[Any]:
    """Ones; the last quarter of the first row is zero where rows are long enough."""
    mask = np.ones(shape)
    if len(shape) >= 2 and shape[-1] >= 4 and shape[0] >= 1:
        mask[0, ..., -(shape[-1] // 4) :] = 0
    return mask


def _floats(spec: InputSpec, rng: np.random.Generator, shape: Shape, context: _Context) -> NDArray[Any]:
    if context.positive or spec.positive:
        return rng.random(shape) + 0.05
    if len(shape) == 0:
        return np.asarray(spec.choices[0] if spec.choices else rng.random() * 0.75 + 0.25)
    if spec.words & _IMAGE and len(shape) >= 3:
        return rng.random(shape)
    return rng.standard_normal(shape)


def _integers(spec: InputSpec, rng: np.random.Generator, shape: Shape, context: _Context) -> NDArray[Any]:
    info: Any = np.iinfo(numpy_dtype(spec.elem).name)
    bound = spec.bound if spec.bound else (context.smallest if spec.bound == 0 else None)
    if spec.shape_of:
        return np.array([-1] + [1] * max(0, shape[0] - 1)) if spec.shape_of == "Reshape" else np.ones(shape)
    if spec.words & _RATE and len(shape) <= 1 and bound is None:
        rates = [c for c in spec.choices if c >= 8000]
        return np.full(shape, int(max(rates, default=16000)))
    if spec.choices and len(shape) <= 1 and bound is None:
        return np.full(shape, int(spec.choices[0]))
    if spec.words & _LENGTH and len(shape) <= 1:
        return np.full(shape, min(context.sequence, bound or context.sequence))
    if bound is None and info.bits == 8:
        return rng.integers(info.min, info.max + 1, shape)
    if spec.words & _POSITION and len(shape) >= 1:
        return np.broadcast_to(np.arange(shape[-1]) % (bound or max(1, shape[-1])), shape)
    if spec.words & _SIZE and len(shape) <= 1 and bound is None:
        return np.full(shape, 32)
    if spec.words & _IMAGE and len(shape) >= 3 and bound is None:
        return rng.integers(0, 256, shape)
    high = bound or (100 if spec.words & _TOKEN else 10)
    return rng.integers(0, max(1, min(high, info.max)), shape)
