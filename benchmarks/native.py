"""The compiled part of the benchmark through ctypes: loops written by hand, copy loops, the engine, and ONNX Runtime.

Each class is one thing on one set of arrays; `run(repeat)` does it `repeat` times without Python in between (and
without the lock of the interpreter). Arrays are C-contiguous and stay the caller's: outputs are written to them.
`threads` counts the calling one; the others wait by spinning, as ONNX Runtime's do.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxfuse.program import Program
from onnxfuse.program.dtypes import NUMPY

__all__ = ["ISAS", "Copy", "Engine", "Hand", "NativeError", "OrtSession", "aligned"]

ISAS = {"best": 0, "baseline": 1, "avx2": 2, "avx512": 3, "neon": 4}
"""Instruction sets; "best" is what the library itself would use (ONNXFUSE_ISA counts)."""

UNROLLS = (1, 2, 4)
LEVELS = {"disabled": 0, "basic": 1, "extended": 2, "all": 99}
_MESSAGE = 4096
_ALIGNMENT = 64
_SAME_TRAFFIC = 64  # tensors smaller than the largest by more than this factor are no traffic


class NativeError(Exception):
    """What the compiled part, or the runtime, says is wrong."""


class _Tensor(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("dims", ctypes.c_void_p), ("rank", ctypes.c_size_t))


class _Binding(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p), ("data", ctypes.c_void_p), ("bytes", ctypes.c_size_t), ("dims", ctypes.c_void_p),
        ("rank", ctypes.c_size_t), ("type", ctypes.c_int),
    )  # fmt: skip


class _SessionOptions(ctypes.Structure):
    _fields_ = (
        ("threads", ctypes.c_int), ("optimization_level", ctypes.c_int), ("library", ctypes.c_char_p),
        ("config", ctypes.c_void_p), ("config_entries", ctypes.c_size_t),
    )  # fmt: skip


def library_path() -> Path:
    """The compiled part: ONNXFUSE_BENCH_LIBRARY, or where `make` builds it. Raises NativeError where there is none."""
    suffix = {"darwin": "dylib", "win32": "dll"}.get(sys.platform, "so")
    built = Path(__file__).resolve().parent.parent / "build" / "test" / f"libonnxfuse_bench.{suffix}"
    path = Path(os.environ.get("ONNXFUSE_BENCH_LIBRARY") or built)
    if not path.is_file():
        raise NativeError(f"{path} is missing: make build-bench")
    return path


@functools.cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(library_path()))
    for name in ("hand", "copy", "engine", "ort"):
        getattr(library, f"bench_{name}").restype = ctypes.c_void_p
    return library


def aligned(shape: Sequence[int], dtype: np.typing.DTypeLike) -> np.ndarray:
    """Zeros whose memory begins at a multiple of 64 bytes, as ONNX Runtime's own do."""
    kind = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    memory = np.zeros(size + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    return memory[begin : begin + size].view(kind).reshape(tuple(shape))


class _Subject:
    """Something of the library that can be run; keeps what it works on alive."""

    _handle: int | None = None

    def __init__(self, make: str, *arguments: Any, keep: Sequence[object]) -> None:
        self._keep = keep
        message = ctypes.create_string_buffer(_MESSAGE)
        self._handle = getattr(_library(), make)(*arguments, message, ctypes.c_size_t(_MESSAGE))
        if not self._handle:
            raise NativeError(message.value.decode(errors="replace"))

    def run(self, repeat: int) -> None:
        """Runs `repeat` times. Raises NativeError."""
        message = ctypes.create_string_buffer(_MESSAGE)
        handle = ctypes.c_void_p(self._handle)
        if _library().bench_run(handle, ctypes.c_size_t(repeat), message, ctypes.c_size_t(_MESSAGE)):
            raise NativeError(message.value.decode(errors="replace"))

    def close(self) -> None:
        """Frees it; nothing may be called afterwards."""
        if self._handle:
            _library().bench_free(ctypes.c_void_p(self._handle))
        self._handle = None

    def __del__(self) -> None:
        self.close()


def _pointers(arrays: Sequence[np.ndarray]) -> ctypes.Array[ctypes.c_void_p]:
    for array in arrays:
        if not array.flags.c_contiguous:
            raise NativeError(f"an array of shape {array.shape} is not contiguous")
    return (ctypes.c_void_p * max(len(arrays), 1))(*[a.ctypes.data for a in arrays])


def _dims(array: np.ndarray) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * max(array.ndim, 1))(*array.shape)


class Hand(_Subject):
    """The loop written by hand for a chain, with the bits of the library's results.

    Inputs and outputs by chain; shapes are equal but where one is named:
    swiglu a, b; mish, gelu_tanh, gelu_erf, hardswish x; bias_residual x [..., K], bias [K], scale [K], residual;
    arith16 x, y, z; gate x, g; lstm i, f, g, o, c -> c', h; channel_silu x [N, C, ...], scale [C, 1, 1], bias
    [C, 1, 1]; where_mask x, y, m (bool); normalize_u8 x [..., 3] (uint8), mean [3], std [3] -> float32.
    float32, or float16 for swiglu, gelu_tanh, bias_residual and arith16.

    arith16 is, op by op: t = x * y, t + z, max(t, x), t * 1.25, t - y, t + 0.5, t * z, max(t, -1), t + x, t * 0.75,
    t - z, t * y, t + 0.125, max(t, y), t - x, t * 0.5.

    `unroll`: vectors side by side, 1, 2 or 4; without it the fastest of them here is taken.
    """

    def __init__(
        self, chain: str, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], *, isa: str = "best",
        threads: int = 1, unroll: int | None = None,
    ) -> None:  # fmt: skip
        self.unroll = unroll or _fastest_unroll(chain, inputs, outputs, isa)
        dtype = next(name for name, kind in NUMPY.items() if kind == inputs[0].dtype)
        rows, row, channels = _layout(chain, inputs)
        for output in outputs:
            if output.size != inputs[0].size:
                raise NativeError(f"an output has {output.size} elements, not {inputs[0].size}")
        super().__init__(
            "bench_hand", chain.encode(), dtype.encode(), ISAS[isa], self.unroll, ctypes.c_size_t(threads),
            _pointers(inputs), ctypes.c_size_t(len(inputs)), _pointers(outputs), ctypes.c_size_t(len(outputs)),
            ctypes.c_size_t(rows), ctypes.c_size_t(row), ctypes.c_size_t(channels), keep=[*inputs, *outputs],
        )  # fmt: skip


def _layout(chain: str, inputs: Sequence[np.ndarray]) -> tuple[int, int, int]:
    """Rows, elements a row, and how many rows there are before the operands of channels repeat. Checks the sizes."""
    x = inputs[0]
    row, channels = x.size, 1
    sizes: tuple[int, ...] = (x.size,) * len(inputs)
    if chain == "bias_residual":
        row = inputs[1].size
        sizes = (x.size, row, row, x.size)
    elif chain == "channel_silu":
        channels = inputs[1].size
        row, sizes = x.size // (x.shape[0] * channels), (x.size, channels, channels)
    elif chain == "normalize_u8":
        sizes = (x.size, 3, 3)
    if tuple(a.size for a in inputs) != sizes or x.size % max(row, 1):
        raise NativeError(f"{chain} does not take shapes {[a.shape for a in inputs]}")
    return x.size // max(row, 1), row, channels


def _fastest_unroll(chain: str, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], isa: str) -> int:
    """The fastest of 1, 2 and 4 vectors on these arrays, on one thread: the least of the times of many short runs."""
    loops = {unroll: Hand(chain, inputs, outputs, isa=isa, unroll=unroll) for unroll in UNROLLS}
    best = dict.fromkeys(UNROLLS, float("inf"))
    repeat = max(1, 65536 // max(inputs[0].size, 1))
    for _, (unroll, loop) in itertools.product(range(30), loops.items()):
        start = time.perf_counter_ns()
        loop.run(repeat)
        best[unroll] = min(best[unroll], time.perf_counter_ns() - start)
    return min(UNROLLS, key=lambda unroll: best[unroll])


class Copy(_Subject):
    """Reads every input once and writes every output once, with no work between: the limit that memory sets.

    `inputs` (at most 5 of a size that counts) of any dtype, `outputs` (1 or 2) of the same number of bytes each, none
    smaller than an input. Tensors of less than 1/64 of an output are left out: they stay in the caches. `streaming`:
    stores that pass the caches by, to outputs made by `aligned`.
    """

    def __init__(
        self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], *, streaming: bool = False,
        isa: str = "best", threads: int = 1,
    ) -> None:  # fmt: skip
        bytes_ = outputs[0].nbytes
        if any(output.nbytes != bytes_ for output in outputs):
            raise NativeError("outputs of a copy have one size")
        inputs = [a for a in inputs if a.nbytes * _SAME_TRAFFIC >= bytes_]
        sizes = (ctypes.c_size_t * max(len(inputs), 1))(*[a.nbytes for a in inputs])
        super().__init__(
            "bench_copy", ISAS[isa], int(streaming), ctypes.c_size_t(threads), _pointers(inputs), sizes,
            ctypes.c_size_t(len(inputs)), _pointers(outputs), ctypes.c_size_t(len(outputs)), ctypes.c_size_t(bytes_),
            keep=[*inputs, *outputs],
        )  # fmt: skip


class Engine(_Subject):
    """The library's engine on a program (its text), without ONNX Runtime; made once.

    `xs` and `cs`: its inputs, of its own types; a `c` has one element. `outputs`: arrays of the iteration shape. Raises
    ProgramError for a text that is no program.
    """

    def __init__(
        self, program: str, xs: Sequence[np.ndarray], cs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], *,
        isa: str = "best", threads: int = 1,
    ) -> None:  # fmt: skip
        arrays = [*xs, *cs]
        _check_types(program, arrays, outputs)
        dims = [_dims(a) for a in arrays]
        tensors = (_Tensor * max(len(arrays), 1))(
            *[_Tensor(p, ctypes.addressof(d), a.ndim)
              for p, d, a in zip(_pointers(arrays), dims, arrays, strict=False)]
        )  # fmt: skip
        data = program.encode()
        super().__init__(
            "bench_engine", data, ctypes.c_size_t(len(data)), ISAS[isa], ctypes.c_size_t(threads), tensors,
            ctypes.c_size_t(len(arrays)), _pointers(outputs), ctypes.c_size_t(len(outputs)), keep=[*arrays, *outputs],
        )  # fmt: skip


def _check_types(program: str, arrays: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
    parsed = Program.parse(program)
    declared = [value.dtype for value in parsed.inputs] + [parsed.dtype_of(name) for name in parsed.outputs]
    given = [*arrays, *outputs]
    if len(parsed.inputs) != len(arrays) or len(parsed.outputs) != len(outputs):
        raise NativeError(f"the program has {len(parsed.inputs)} inputs and {len(parsed.outputs)} outputs")
    if [NUMPY[name] for name in declared] != [a.dtype for a in given]:
        raise NativeError(f"the program takes {declared}, not {[str(a.dtype) for a in given]}")
    try:
        shape = np.broadcast_shapes(*[a.shape for a in arrays])
    except ValueError:
        return  # a shape is to be padded, or the engine refuses it
    for output in outputs:
        if output.size != int(np.prod(shape, dtype=np.int64)):
            raise NativeError(f"an output has shape {output.shape}, not {shape}")


class OrtSession(_Subject):
    """A session of the ONNX Runtime that Python has loaded, driven through its C API, with inputs and outputs bound.

    `model`: bytes. `feed` and `outputs`: arrays by name, in the shapes of a run. `library`: path of a library of
    operators, with `config` (session configuration entries) for its names. `optimization`: disabled, basic, extended
    or all. Everything else is as the runtime has it. Raises NativeError with the runtime's words.
    """

    def __init__(
        self, model: bytes, feed: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray], *, threads: int = 1,
        library: str | os.PathLike[str] | None = None, optimization: str = "all",
        config: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        _meet_runtime()
        keep: list[object] = [*feed.values(), *outputs.values()]
        words = [text.encode() for entry in (config or {}).items() for text in entry]
        entries = (ctypes.c_char_p * max(len(words), 1))(*words)
        path = os.fsencode(os.path.abspath(library)) if library is not None else None
        options = _SessionOptions(
            threads, LEVELS[optimization], path, ctypes.addressof(entries), len(words) // 2
        )
        super().__init__(
            "bench_ort", model, ctypes.c_size_t(len(model)), ctypes.byref(options), _bindings(feed, keep),
            ctypes.c_size_t(len(feed)), _bindings(outputs, keep), ctypes.c_size_t(len(outputs)), keep=keep,
        )  # fmt: skip


def _bindings(arrays: Mapping[str, np.ndarray], keep: list[object]) -> ctypes.Array[_Binding]:
    bindings = (_Binding * max(len(arrays), 1))()
    for binding, (name, array) in zip(bindings, arrays.items(), strict=False):
        dims = _dims(array)
        keep.append(dims)
        (pointer,) = _pointers([array])
        binding.name, binding.data, binding.bytes = name.encode(), pointer, array.nbytes
        binding.dims, binding.rank = ctypes.addressof(dims), array.ndim
        binding.type = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    return bindings


@functools.cache
def _meet_runtime() -> None:
    """The runtime tells the library where its functions are when the library is registered with it."""
    import onnxruntime

    library = _library()  # first, or the runtime may unload it with the options, and what it was told is lost
    onnxruntime.SessionOptions().register_custom_ops_library(str(library_path().resolve()))
    if not library.bench_has_runtime():
        raise NativeError("ONNX Runtime did not call the library back: it is older than 1.18")
