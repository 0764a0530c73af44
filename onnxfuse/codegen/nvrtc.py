"""NVIDIA's run-time compiler through ctypes: CUDA C++ -> PTX, with no GPU, driver or toolkit.

Its package is nvidia-cuda-nvrtc-cu12, or nvidia-cuda-nvrtc from CUDA 13 on; ONNXFUSE_NVRTC names another file.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

from onnxfuse.codegen.libraries import CompileError, Library, complaints

OPTIONS = ("--std=c++17", "-default-device", "--fmad=false")
"""One set of options in a process: with others before, NVRTC gives other bytes for these."""
LIBRARY = Library(
    "NVRTC", "compiles for CUDA", "ONNXFUSE_NVRTC",
    (("nvidia.cuda_nvrtc", ("lib", "bin"), "nvidia-cuda-nvrtc-cu12"),
     ("nvidia.cu13", ("lib", "bin/x86_64", "bin"), "nvidia-cuda-nvrtc")),
    linux="libnvrtc.so.*", windows="nvrtc64_*.dll",
)  # fmt: skip
_BUILTINS = "*nvrtc-builtins*"


class Nvrtc:
    """The loaded compiler. Compilations may run side by side in threads: ctypes lets go of the interpreter's lock."""

    def __init__(self, path: Path) -> None:
        # 13.0 does not find its own part by itself.
        for builtins in path.parent.glob(_BUILTINS):
            if "alt" not in builtins.name:
                ctypes.CDLL(str(builtins))
        self._path, self._library = path, ctypes.CDLL(str(path))
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p

    @functools.cached_property
    def version(self) -> str:
        """Such as "12.9"."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        return f"{major.value}.{minor.value}"

    @functools.cached_property
    def release(self) -> str:
        """Such as "12.9.86"."""
        return LIBRARY.release(self._path, self.version)

    @functools.cached_property
    def architectures(self) -> tuple[int, ...]:
        """Compute capabilities that it knows, as numbers such as 80."""
        count = ctypes.c_int()
        self._check(self._library.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
        found = (ctypes.c_int * count.value)()
        self._check(self._library.nvrtcGetSupportedArchs(found))
        return tuple(found)

    def ptx(self, text: str, architecture: int) -> str:
        """PTX for this virtual architecture. Raises CompileError with the compiler's log, also for a warning."""
        library, program = self._library, ctypes.c_void_p()
        self._check(library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"onnxfuse.cu", 0, None, None))
        try:
            target = f"compute_{architecture}"
            options = [option.encode() for option in (*OPTIONS, f"--gpu-architecture={target}")]
            failed = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
            log = complaints(self._get(program, "ProgramLog"))
            if failed or log:
                raise CompileError(f"NVRTC {self.version}, {target}: {log or self._message(failed)}")
            return self._get(program, "PTX")
        finally:
            library.nvrtcDestroyProgram(ctypes.byref(program))

    def _get(self, program: ctypes.c_void_p, what: str) -> str:
        size = ctypes.c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{what}")(program, buffer))
        return buffer.value.decode(errors="replace")

    def _message(self, code: int) -> str:
        return str(self._library.nvrtcGetErrorString(code).decode())

    def _check(self, code: int) -> None:
        if code:
            raise CompileError(f"NVRTC: {self._message(code)}")


def _open(path: Path) -> Nvrtc:
    compiler = Nvrtc(path)
    compiler.version, compiler.architectures  # noqa: B018  # a library that is no NVRTC has no such functions
    return compiler


@functools.cache
def find() -> Nvrtc | None:
    """The compiler, or None where it is not installed. Raises SetupError for one that does not load."""
    return LIBRARY.load(_open)


def need() -> Nvrtc:
    """The compiler. Raises SetupError where it is not installed."""
    found = find()
    if found is None:
        raise LIBRARY.missing()
    return found
