"""What the library launches for a call: every layout, pieces of large calls, memory that outputs may not have."""

from __future__ import annotations

import dataclasses
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxfuse.codegen import Shape, layout
from onnxfuse.codegen.container import CUBIN, PTX, Image, pack
from onnxfuse.program import Program
from onnxfuse.program.dtypes import NUMPY
from tests.codegen.host import HostModules
from tests.codegen.library import CudaLibrary, Refused
from tests.custom_ops.machine import equal_bits

Array = np.ndarray[Any, Any]


def program(*lines: str) -> Program:
    return Program.parse("".join(f"{line}\n" for line in ("onnxfuse 1", *lines)))


PROGRAMS = {
    "fma": program("in x0 f32", "in x1 f32", "in x2 f32", "t0 = mul.f32 x0 x1", "t1 = add.f32 t0 x2", "out t1"),
    "padded": program("in x0 f32", "in x1 f32 pad 2", "t0 = sub.f32 x0 x1", "out t0"),
    "mixed": program("in x0 u8", "in x1 f64", "in c0 f64", "t0 = cast.u8.f64 x0", "t1 = mul.f64 t0 c0",
                     "t2 = add.f64 t1 x1", "t3 = lt.f64.bool t2 x1", "out t2", "out t3"),
    "swap": program("in x0 f32", "in x1 f32", "t0 = sub.f32 x0 x1", "t1 = add.f32 x0 x1", "out t0", "out t1"),
}  # fmt: skip
NAMES = list(PROGRAMS)


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> HostModules:
    return HostModules(list(PROGRAMS.values()), tmp_path_factory.mktemp("launch"))


@pytest.fixture(scope="module")
def library(test_library: Path) -> CudaLibrary:
    return CudaLibrary(test_library)


def filled(name: str, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """Numbers of these shapes, and one for each scalar."""
    rng = np.random.default_rng(sum(map(len, shapes)) + 7)
    kinds = [i.dtype for i in PROGRAMS[name].inputs]
    shapes = [*shapes, *[()] * (len(kinds) - len(shapes))]
    return [np.asarray(rng.integers(0, 100, s)).astype(NUMPY[t]) for s, t in zip(shapes, kinds, strict=True)]


def oracle(name: str, inputs: Sequence[Array]) -> list[Array]:
    tensors = len(PROGRAMS[name].tensors)
    return PROGRAMS[name].evaluate(inputs[:tensors], inputs[tensors:])


def check(library: CudaLibrary, modules: HostModules, name: str, inputs: Sequence[Array], **how: Any) -> dict[str, int]:
    """Runs and compares with the oracle; the launches by kernel."""
    got = library.run(modules, NAMES.index(name), inputs, **how)
    for mine, right in zip(got, oracle(name, inputs), strict=True):
        assert mine.shape == right.shape
        assert equal_bits(mine, right).all()
    return {kernel: count for kernel, count in library.launches.items() if count}


LAYOUTS: list[tuple[str, list[tuple[int, ...]], str]] = [
    ("fma", [(4, 300)] * 3, "rows"),
    ("fma", [(1000,), (), (1, 1)], "rows"),
    ("fma", [(), (), ()], "rows"),
    ("fma", [(1, 1), (1,), ()], "rows"),
    ("fma", [(6, 300), (300,), (6, 300)], "rows"),                      # bias
    ("fma", [(2, 5, 9, 31), (5, 1, 1), (1, 5, 1, 1)], "rows"),          # channels of NCHW
    ("fma", [(70, 1), (1, 130), (1,)], "rows"),                         # outer product
    ("fma", [(3, 1, 5, 1, 64), (1, 4, 1, 6, 64), (64,)], "rows"),
    ("fma", [(40, 3), (3,), (40, 1)], "strided"),                       # channels last
    ("fma", [(3, 1, 5, 1, 2), (1, 4, 1, 6, 2), (2,)], "strided"),
    ("fma", [(2, 1, 2, 1, 2, 1, 2, 1), (1, 3, 1, 3, 1, 3, 1, 3), (1,)], "strided"),
    ("fma", [(2, 3, 2, 3, 2, 3, 2, 3), (2, 1, 2, 1, 2, 1, 2, 1), (3, 1, 3, 1, 3, 1, 3)], "strided"),
    ("padded", [(2, 5, 9, 31), (5,)], "rows"),
    ("padded", [(2, 5, 3, 3), (2, 5)], "strided"),
    ("padded", [(7, 2, 35), (7,)], "rows"),
    ("mixed", [(5, 333), (5, 333)], "rows"),
    ("mixed", [(5, 333), (333,)], "rows"),
    ("mixed", [(9, 1), (9, 7)], "strided"),
    ("mixed", [(3, 320), (3, 1)], "rows"),
    ("swap", [(1, 257), (257,)], "rows"),
]  # fmt: skip


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize(("name", "shapes", "kernel"), LAYOUTS)
def test_layouts(
    library: CudaLibrary, modules: HostModules, name: str, shapes: list[tuple[int, ...]], kernel: str, offset: int
) -> None:
    """One launch of the right kernel, at any alignment."""
    assert check(library, modules, name, filled(name, shapes), offset=offset) == {kernel: 1}


@pytest.mark.parametrize("shapes", [[(0,), (), ()], [(4, 0, 3), (3,), (1,)], [(0, 1), (1, 5), ()]])
def test_nothing_to_do(library: CudaLibrary, modules: HostModules, shapes: list[tuple[int, ...]]) -> None:
    assert check(library, modules, "fma", filled("fma", shapes)) == {}


@pytest.mark.parametrize("most", [1, 7, 64, 1000])
@pytest.mark.parametrize(("name", "shapes", "kernel"), LAYOUTS)
def test_pieces(
    library: CudaLibrary, modules: HostModules, name: str, shapes: list[tuple[int, ...]], kernel: str, most: int
) -> None:
    """Calls of more elements than one launch takes."""
    inputs = filled(name, shapes)
    total = oracle(name, inputs)[0].size
    launches = sum(check(library, modules, name, inputs, most=most).values())
    assert launches == 1 if total <= most else launches >= total / most


@pytest.mark.parametrize("processors", [1, 2, 132])
def test_any_number_of_processors(library: CudaLibrary, modules: HostModules, processors: int) -> None:
    for shapes in ([(70000,)] * 3, [(130, 257), (257,), (130, 1)], [(20000, 3), (3,), (20000, 1)]):
        check(library, modules, "fma", filled("fma", shapes), processors=processors)


@pytest.mark.parametrize("rank", [9, 10, 12])
def test_more_dims_than_the_kernels_have(library: CudaLibrary, modules: HostModules, rank: int) -> None:
    """Dims that do not merge: a launch for each step of those that are too many."""
    first = tuple(2 if d % 2 else 1 for d in range(rank))
    second = tuple(1 if d % 2 else 2 for d in range(rank))
    launches = check(library, modules, "fma", filled("fma", [first, second, ()]))
    assert sum(launches.values()) == 2 ** (rank - 8)


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> HostModules:
    """The same programs as if they were long: without vectors."""
    return HostModules(list(PROGRAMS.values()), tmp_path_factory.mktemp("single"), shapes=[Shape(1, 1)] * len(PROGRAMS))


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize(("name", "shapes"), [(name, shapes) for name, shapes, _ in LAYOUTS])
def test_without_vectors(
    library: CudaLibrary, single: HostModules, name: str, shapes: list[tuple[int, ...]], offset: int
) -> None:
    """One kernel serves all layouts, whole and in pieces."""
    inputs = filled(name, shapes)
    assert check(library, single, name, inputs, offset=offset) == {"strided": 1}
    assert set(check(library, single, name, inputs, most=64, processors=2)) == {"strided"}


def test_random_shapes(library: CudaLibrary, modules: HostModules) -> None:
    rng = np.random.default_rng(3)
    for _ in range(300):
        shape = rng.choice([1, 2, 3, 5, 8, 64, 65], rng.integers(0, 5))
        shapes = []
        for _ in range(3):
            own = np.where(rng.random(len(shape)) < 0.4, 1, shape)[rng.integers(0, len(shape) + 1):]
            shapes.append(tuple(map(int, own)))
        check(library, modules, "fma", filled("fma", shapes), most=int(rng.choice([50, 1 << 30])),
              offset=int(rng.integers(0, 3)), processors=int(rng.integers(1, 9)))  # fmt: skip


def test_shapes_that_do_not_broadcast(library: CudaLibrary, modules: HostModules) -> None:
    with pytest.raises(Refused, match=r"x0\) of shape \[3\].*x1\) of shape \[4\].*do not broadcast"):
        library.run(modules, NAMES.index("swap"), filled("swap", [(3,), (4,)]))


@pytest.mark.parametrize("over", [{0: 0}, {0: 1}, {0: 0, 1: 1}, {0: 1, 1: 0}])
def test_outputs_in_place_of_inputs(library: CudaLibrary, modules: HostModules, over: dict[int, int]) -> None:
    """Every element is read before it is written."""
    check(library, modules, "swap", filled("swap", [(70, 30), (70, 30)]), over=over)


def test_memory_that_an_output_may_not_have(library: CudaLibrary, modules: HostModules) -> None:
    """That of an input which is read again and again, or whose elements have another length."""
    with pytest.raises(Refused, match=r"output 0 is bound to memory of input 2 \(x1\)"):
        library.run(modules, NAMES.index("swap"), filled("swap", [(70, 30), (30,)]), over={0: 1})
    with pytest.raises(Refused, match="output 1 is bound to memory of input 2"):
        library.run(modules, NAMES.index("mixed"), filled("mixed", [(50,), (50,)]), over={1: 1})


# ---- containers


TEXT, FORM = PROGRAMS["fma"].text, (4, 2, 4)
RNG = np.random.default_rng(5)
IMAGES = [
    Image(CUBIN, 75, RNG.bytes(30_000)), Image(CUBIN, 80, b"eighty" * 4000), Image(CUBIN, 90, b""),
    Image(CUBIN, 86, bytes(RNG.integers(0, 4, 50_000, np.uint8))), Image(PTX, 75, b".version 6.3\n" * 900 + b"\0"),
]  # fmt: skip
GOOD = pack(IMAGES, TEXT, FORM)


@pytest.mark.parametrize(("device", "want"), [
    ((7, 5), (75, False)), ((8, 0), (80, False)), ((8, 6), (86, False)), ((8, 9), (86, False)), ((9, 0), (90, False)),
    ((10, 0), (75, True)), ((12, 1), (75, True)),
])  # fmt: skip
def test_image_for_a_device(library: CudaLibrary, device: tuple[int, int], want: tuple[int, bool]) -> None:
    """The latest of the device's own generation, else PTX; all that compression does comes back."""
    found = library.unpack(GOOD, TEXT, *device)
    assert (found.architecture, found.ptx) == want
    assert found.form == FORM
    assert found.code == next(i.code for i in IMAGES if (i.architecture, i.kind == PTX) == want)


def test_no_image_for_a_device(library: CudaLibrary) -> None:
    """The message says what there is, what the device is, and what to do."""
    with pytest.raises(Refused, match=r"sm_75, sm_80, sm_86, sm_90, PTX for compute_75.*sm_70.*--cuda-arch 70"):
        library.unpack(GOOD, TEXT, 7, 0)


def test_code_of_another_program(library: CudaLibrary) -> None:
    with pytest.raises(Refused, match="another program"):
        library.unpack(GOOD, TEXT + "# x\n", 8, 0)


def test_bytes_that_were_changed(library: CudaLibrary) -> None:
    """Nothing that was changed becomes other code."""
    small = pack([dataclasses.replace(IMAGES[1], code=b"eighty" * 40 + RNG.bytes(40))], TEXT, FORM)
    right = library.unpack(small, TEXT, 8, 0)
    refused = 0
    for at in range(len(small)):
        for flip in (1, 0x80):
            changed = bytearray(small)
            changed[at] ^= flip
            try:
                assert library.unpack(bytes(changed), TEXT, 8, 0) == right, at
            except Refused:
                refused += 1
    assert refused > 1.9 * len(small)
    for size in range(len(small)):
        with pytest.raises(Refused):
            library.unpack(small[:size], TEXT, 8, 0)
    with pytest.raises(Refused, match="more bytes"):
        library.unpack(small + b"x", TEXT, 8, 0)


def _with_stream(stream: bytes, code: bytes) -> bytes:
    """A container of one cubin whose stored bytes are these."""
    plain = bytearray(pack([Image(CUBIN, 80, code)], TEXT, FORM)[:64])
    plain[32 + 16 : 32 + 24] = struct.pack("<Q", len(stream))
    plain[60:64] = bytes(4)
    plain[60:64] = struct.pack("<I", zlib.crc32(code, zlib.crc32(plain[32:64])))
    plain[28:32] = struct.pack("<I", zlib.crc32(plain[:28] + plain[32:64]))
    return bytes(plain) + stream


@pytest.mark.parametrize("level", [0, 1, 6, 9])
@pytest.mark.parametrize("strategy", [zlib.Z_DEFAULT_STRATEGY, zlib.Z_FIXED, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE])
@pytest.mark.parametrize("size", [0, 1, 2, 300, 70_000])
def test_every_way_of_compressing(library: CudaLibrary, level: int, strategy: int, size: int) -> None:
    """Stored, fixed and dynamic blocks, of text, noise and runs."""
    rng = np.random.default_rng(size)
    for code in (rng.bytes(size), bytes(size), bytes(rng.choice([3, 3, 3, 7, 250], size).astype(np.uint8))):
        packer = zlib.compressobj(level, zlib.DEFLATED, 15, 8, strategy)
        stream = packer.compress(code) + packer.flush()
        assert library.unpack(_with_stream(stream, code), TEXT, 8, 0).code == code


def test_streams_that_are_none(library: CudaLibrary) -> None:
    """Damaged compressed data is refused, whatever its checksums say, and costs no memory."""
    rng, code = np.random.default_rng(6), b"some code, some more code, and code again" * 20
    stream = zlib.compress(code, 9)
    for _ in range(3000):
        changed = bytearray(stream)
        for at in rng.integers(2, len(stream), rng.integers(1, 4)):
            changed[at] = rng.integers(256)
        try:
            assert library.unpack(_with_stream(bytes(changed), code), TEXT, 8, 0).code == code
        except Refused:
            pass
    for _ in range(300):
        with pytest.raises(Refused):
            library.unpack(_with_stream(b"\x78\xda" + rng.bytes(int(rng.integers(0, 200))), code), TEXT, 8, 0)


# ---- the arguments


def test_one_description_for_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    """A field that is added moves what stands behind it, in the CUDA text and in the library's header."""
    before = layout.declaration("Rows", 2, 0, 1), layout.cpp_header(), layout.offsets("Rows", 2, 0, 1)
    fields = list(layout.STRUCTS["Rows"])
    fields.insert(3, layout.Field("extra", 4, "", 1, "something new"))
    monkeypatch.setitem(layout.STRUCTS, "Rows", tuple(fields))
    after = layout.declaration("Rows", 2, 0, 1), layout.cpp_header(), layout.offsets("Rows", 2, 0, 1)
    assert "u32 extra;" in after[0]
    assert "u32 extra;" not in before[0]
    assert "extra = scalars + 8 * c;" in after[1]
    assert "rows = extra + 4 * 1;" in after[1]
    assert after[2]["rows"] == before[2]["rows"] + 4
