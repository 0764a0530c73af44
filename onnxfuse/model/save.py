"""Writing a model: all or nothing, external data as the place of the result demands.

OUT in the folder of IN keeps the references to data files as they are. Elsewhere the data of all external tensors goes
to one file ``OUT.data`` beside OUT. Both files are written under other names and renamed when they are complete, so
that a failure leaves what was there before.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from google.protobuf.message import EncodeError  # type: ignore[import-untyped]
from onnx import ModelProto, TensorProto

from onnxfuse.errors import ModelError, SetupError
from onnxfuse.model.external import DataRange, external_tensors, locate
from onnxfuse.model.load import Model

__all__ = ["save"]

_PIECE = 8 << 20
_PAGE, _LINE = 4096, 64  # alignment of large tensors (can be mapped into memory) and of small ones
_numbers = itertools.count()


def save(proto: ModelProto, out: str | os.PathLike[str], source: Model) -> None:
    """Writes ``proto``, made from ``source``, to ``out``.

    If it is ``source.proto`` itself, nothing was changed and the file is copied byte for byte. Raises SetupError if it
    cannot be written (what was at ``out`` is then still there), ModelError if external data cannot be read.
    """
    target = Path(out)
    if target.is_dir():
        raise SetupError("is a folder, cannot be written as a file", path=target)
    moved = [] if _same_folder(source.folder, target.absolute().parent) else list(external_tensors(proto))
    try:
        if moved:
            _save_with_data(proto, target, source)
        elif proto is source.proto and source.path is not None:
            if not (target.exists() and os.path.samefile(source.path, target)):
                with _replacing(target) as file:
                    _copy_all(source.path, file)
        else:
            with _replacing(target) as file:
                file.write(_serialized(proto, target))
    except OSError as error:
        raise _unwritable(error, target) from None


def _same_folder(a: Path | None, b: Path) -> bool:
    return a is not None and os.path.realpath(a) == os.path.realpath(b)


def _unwritable(error: OSError, target: Path) -> SetupError:
    hint = None
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = "free some space, or write to another disk"
    elif not target.absolute().parent.is_dir():
        hint = f"create the folder {str(target.parent)!r} first"
    return SetupError(f"cannot be written: {error.strerror or error}", path=target, hint=hint)


def _serialized(proto: ModelProto, target: Path) -> bytes:
    try:
        return bytes(proto.SerializeToString())
    except (EncodeError, ValueError):
        raise SetupError("cannot be written: the model is larger than 2 GiB", path=target,
                         hint="store its weights as external data first") from None


@contextmanager
def _replacing(target: Path) -> Iterator[BinaryIO]:
    """A file to write that takes the place of ``target`` when the block ends without an exception."""
    with _temporary(target) as (file, done):
        yield file
        done()


@contextmanager
def _temporary(target: Path) -> Iterator[tuple[BinaryIO, Callable[[], None]]]:
    """A file beside ``target``, and what moves it there; if that is not called, the file disappears."""
    if target.exists() and not target.is_file():  # a device or a pipe: nothing to replace
        with open(target, "wb") as file:
            yield file, lambda: None
        return
    path = target.absolute().parent / f".onnxfuse-{os.getpid()}-{next(_numbers)}.tmp"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)

    def done() -> None:
        file.flush()
        os.fsync(file.fileno())
        file.close()
        if target.exists():
            os.chmod(path, target.stat().st_mode & 0o7777)
        os.replace(path, target)

    file = os.fdopen(descriptor, "wb")
    try:
        yield file, done
    finally:
        try:
            file.close()
        except OSError:  # a full disk shows again when the rest of the buffer is written
            pass
        path.unlink(missing_ok=True)


def _save_with_data(proto: ModelProto, target: Path, source: Model) -> None:
    """Writes ``OUT.data`` and the model that refers to it; both are moved into place when both are complete."""
    copy = ModelProto()
    copy.CopyFrom(proto)
    tensors = list(external_tensors(copy))
    ranges = [locate(tensor, source.folder) for tensor in tensors]
    data_target = _data_path(target, ranges)
    with _temporary(data_target) as (data, move_data), _temporary(target) as (file, move_file):
        places, digest = _copy_ranges(ranges, data)
        for tensor, piece in zip(tensors, ranges, strict=True):
            _refer(tensor, data_target.name, places[piece], piece.length, digest)
        file.write(_serialized(copy, target))
        file.flush()
        move_data()
        move_file()


def _data_path(target: Path, ranges: list[DataRange]) -> Path:
    """``OUT.data``; another name if that is a data file of the original."""
    taken = {os.path.realpath(piece.file) for piece in ranges}
    path, number = target.with_name(target.name + ".data"), 0
    while os.path.realpath(path) in taken:
        number += 1
        path = target.with_name(f"{target.name}.data{number}")
    return path


def _copy_ranges(ranges: list[DataRange], data: BinaryIO) -> tuple[dict[DataRange, int], str]:
    """Appends each distinct range once; returns their offsets, and the SHA-1 of the whole file."""
    places: dict[DataRange, int] = {}
    digest, end = hashlib.sha1(), 0
    for piece in ranges:
        if piece in places:
            continue
        gap = -end % (_PAGE if piece.length >= _PAGE else _LINE)
        data.write(bytes(gap))
        digest.update(bytes(gap))
        places[piece] = end + gap
        end += gap + piece.length
        for block in _blocks(piece):
            data.write(block)
            digest.update(block)
    return places, digest.hexdigest()


def _blocks(piece: DataRange) -> Iterator[bytes]:
    left = piece.length
    try:
        with open(piece.file, "rb") as file:
            file.seek(piece.offset)
            while left:
                block = file.read(min(left, _PIECE))
                if not block:
                    raise ModelError(f"external data {piece.file.name!r} became shorter while it was read")
                left -= len(block)
                yield block
    except OSError as error:
        raise ModelError(f"external data {piece.file.name!r} cannot be read: {error.strerror}") from None


def _refer(tensor: TensorProto, location: str, offset: int, length: int, digest: str) -> None:
    """Makes a tensor refer to a range; a checksum (it is one of the whole file) is brought up to date."""
    values = {"location": location, "offset": str(offset), "length": str(length), "checksum": digest}
    entries = {entry.key: entry for entry in tensor.external_data}
    for key, value in values.items():
        if key in entries:
            entries[key].value = value
        elif key != "checksum":
            tensor.external_data.add(key=key, value=value)


def _copy_all(source: Path, file: BinaryIO) -> None:
    with open(source, "rb") as original:
        while block := original.read(_PIECE):
            file.write(block)
