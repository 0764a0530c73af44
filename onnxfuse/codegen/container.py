"""The `kernels` initializer of a fused node: machine code of one program for several architectures.

All numbers are little-endian. A head of 32 bytes: the magic, the version of the container, how many images follow, the
CRC-32 of the program's text, how the loops of the kernels are written (elements of a vector, vectors at once, resident
blocks), and the CRC-32 of all that and of the table that follows. Then
32 bytes for each image: kind, compute capability, how its bytes are stored, where they begin, how many there are, how
many they become, and a checksum: the CRC-32 of these fields, a zero in its own place, and of what the bytes become.
Then the bytes. A node without GPU code has one byte instead.
"""

from __future__ import annotations

import dataclasses
import struct
import zlib
from collections.abc import Sequence

MAGIC = b"onnxfuse"
VERSION = 1
CUBIN, PTX = 0, 1
"""Kinds of images. PTX ends in a zero byte, as the driver wants it, and comes last."""
DEFLATED = 1
"""How the bytes are stored: as zlib does it."""
MOST_IMAGES = 64
MOST_BYTES = 1 << 26
NO_CODE = b"\0"
_HEAD, _IMAGE = struct.Struct("<8sIIIHHHH"), struct.Struct("<HHIQQII")
_HEAD_BYTES = _HEAD.size + 4


class ContainerError(ValueError):
    """The bytes are no container of a version that is known, or were changed."""


@dataclasses.dataclass(frozen=True)
class Image:
    """Code for one architecture: a cubin, or PTX with the lowest architecture that it runs on."""

    kind: int
    architecture: int
    code: bytes


@dataclasses.dataclass(frozen=True)
class Container:
    """What `pack` packs: code of one program, whose loops are written in a form (vector, unroll, resident)."""

    program: int
    """CRC-32 of the program's text."""
    form: tuple[int, int, int]
    images: list[Image]


def checksum_of(program: str) -> int:
    """What tells the code of one program from that of another."""
    return zlib.crc32(program.encode())


def _checksum(fields: tuple[int, ...], code: bytes) -> int:
    return zlib.crc32(code, zlib.crc32(_IMAGE.pack(*fields, 0)))


def pack(images: Sequence[Image], program: str, form: tuple[int, int, int]) -> bytes:
    """The container; the same images give the same bytes. `program` is the program's text."""
    ordered = sorted(images, key=lambda i: (i.kind, i.architecture))
    stored = [zlib.compress(i.code, 9) for i in ordered]
    at = _HEAD_BYTES + _IMAGE.size * len(ordered)
    head = _HEAD.pack(MAGIC, VERSION, len(ordered), checksum_of(program), *form, 0)
    table = b""
    for image, data in zip(ordered, stored, strict=True):
        fields = (image.kind, image.architecture, DEFLATED, at, len(data), len(image.code))
        table += _IMAGE.pack(*fields, _checksum(fields, image.code))
        at += len(data)
    return b"".join([head, struct.pack("<I", zlib.crc32(head + table)), table, *stored])


def unpack(data: bytes) -> Container | None:
    """What is in it; None of a node without GPU code. Raises ContainerError."""
    if data == NO_CODE:
        return None
    if len(data) < _HEAD_BYTES or data[:8] != MAGIC:
        raise ContainerError("not a container of kernels")
    _, version, count, program, *form, _ = _HEAD.unpack_from(data)
    if version != VERSION:
        raise ContainerError(f"a container of version {version}; this onnxfuse knows version {VERSION}")
    end = _HEAD_BYTES + count * _IMAGE.size
    if count > MOST_IMAGES or end > len(data):
        raise ContainerError("a container that ends early")
    checksum = zlib.crc32(data[: _HEAD.size] + data[_HEAD_BYTES:end])
    if data[_HEAD.size : _HEAD_BYTES] != struct.pack("<I", checksum):
        raise ContainerError("a container whose head was changed")
    images = []
    for number in range(count):
        place = _HEAD_BYTES + number * _IMAGE.size
        kind, architecture, codec, at, size, full, checksum = _IMAGE.unpack_from(data, place)
        if kind not in (CUBIN, PTX) or codec != DEFLATED or at != end or full > MOST_BYTES:
            raise ContainerError(f"image {number} of the container is not as it should be")
        end += size
        inflate = zlib.decompressobj()
        try:
            code = inflate.decompress(data[at : at + size], full + 1)
        except zlib.error as error:
            raise ContainerError(f"image {number} of the container: {error}") from None
        right = _checksum((kind, architecture, codec, at, size, full), code)
        if len(code) != full or not inflate.eof or inflate.unused_data or checksum != right:
            raise ContainerError(f"image {number} of the container was changed")
        images.append(Image(kind, architecture, code))
    if end != len(data):
        raise ContainerError("a container with more bytes than it says")
    return Container(program, (form[0], form[1], form[2]), images)
