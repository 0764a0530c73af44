"""What a cubin says about its kernels, read from the ELF file: registers, stack frame, bytes of code and arguments."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator

_REGISTERS, _FRAME, _STACK, _PARAMETERS = 0x2F, 0x11, 0x12, 0x19
"""Attributes; the frame is a function's own, the stack is that of a kernel with all that it calls."""
_INFO = ".nv.info"


@dataclasses.dataclass(frozen=True)
class Kernel:
    """`registers` of a thread; `frame` bytes of local memory (above 0: values are spilled or indexed there), also of
    functions that are called; bytes of `code`; bytes of `parameters`."""

    registers: int
    frame: int
    code: int
    parameters: int


@dataclasses.dataclass(frozen=True)
class _Section:
    name: str
    data: bytes
    link: int


def _sections(data: bytes) -> list[_Section]:
    if data[:4] != b"\x7fELF" or data[4] != 2:
        raise ValueError("not a 64-bit ELF file")
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, table + k * size) for k in range(count)]
    strings = headers[names][4]

    def text(at: int) -> str:
        return data[strings + at : data.index(b"\0", strings + at)].decode()

    # A section of type 8 has no bytes in the file.
    return [_Section(text(h[0]), b"" if h[1] == 8 else data[h[4] : h[4] + h[5]], h[6]) for h in headers]


def _records(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Attributes of an info section: number and value."""
    at = 0
    while at + 4 <= len(data):
        form, attribute = data[at], data[at + 1]
        (size,) = struct.unpack_from("<H", data, at + 2)
        if form == 4:
            yield attribute, data[at + 4 : at + 4 + size]
            at += 4 + size
        else:
            yield attribute, data[at + 2 : at + 4]
            at += 4


def kernels(cubin: bytes) -> dict[str, Kernel]:
    """The kernels by name. Raises ValueError (or struct.error) for what is no cubin."""
    sections = _sections(cubin)
    by_name = {s.name: s for s in sections}
    symbols = by_name[".symtab"]
    strings = sections[symbols.link].data

    def symbol(number: int) -> str:
        (at,) = struct.unpack_from("<I", symbols.data, number * 24)
        return strings[at : strings.index(b"\0", at)].decode()

    registers: dict[str, int] = {}
    frames: dict[str, int] = {}
    for attribute, value in _records(by_name[_INFO].data):
        if attribute in (_REGISTERS, _FRAME, _STACK) and len(value) == 8:
            number, count = struct.unpack("<II", value)
            table, name = registers if attribute == _REGISTERS else frames, symbol(number)
            table[name] = max(count, table.get(name, 0))
    found = {}
    for name, section in by_name.items():
        if name.startswith(f"{_INFO}."):
            kernel = name[len(_INFO) + 1 :]
            parameters = [struct.unpack("<H", v[-2:])[0] for a, v in _records(section.data) if a == _PARAMETERS]
            if f".text.{kernel}" in by_name and parameters:
                found[kernel] = Kernel(registers[kernel], frames.get(kernel, 0), len(by_name[f".text.{kernel}"].data),
                                       parameters[0])  # fmt: skip
    return found


def architecture(cubin: bytes) -> int:
    """The compute capability that it was made for, such as 80."""
    (flags,) = struct.unpack_from("<I", cubin, 48)
    # The new form of the file (ABI 8) has the number one byte further on.
    return int(flags >> 8 & 0xFF if cubin[8] >= 8 else flags & 0xFF)
