"""NVIDIA's run-time compiler through ctypes: CUDA C++ -> cubin or PTX, with no GPU, driver or toolkit.

The library comes from PyPI (`pip install "onnxfuse[cuda]"`: nvidia-cuda-nvrtc-cu12) and is looked for in the packages
that may bring it; ONNXFUSE_NVRTC names another file.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from onnxfuse.errors import SetupError

OPTIONS = ("--std=c++17", "-default-device", "--fmad=false")
"""One set of options in a process: with others before, NVRTC gives other bytes for these."""
LOWEST = 70
"""The kernels take their arguments in a way that older GPUs do not have."""
_PLACES = (("nvidia.cuda_nvrtc", ("lib", "bin")), ("nvidia.cu13", ("lib", "bin/x86_64", "bin")))
_HARMLESS = "nvrtc: warning: Architectures prior to"
_BUILTINS = "*nvrtc-builtins*"


class CompileError(Exception):
    """What the compiler says; the text is at fault, which is ours."""


def _files() -> Iterator[Path]:
    named = os.environ.get("ONNXFUSE_NVRTC")
    if named:
        yield Path(named)
        return
    pattern = "nvrtc64_*.dll" if sys.platform == "win32" else "libnvrtc.so.*"
    for package, folders in _PLACES:
        try:
            spec = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            continue
        for root in spec.submodule_search_locations or () if spec else ():
            for folder in folders:
                yield from (f for f in sorted(Path(root, folder).glob(pattern)) if "alt" not in f.name)


class Nvrtc:
    """The loaded compiler. Compilations may run side by side in threads: ctypes lets go of the interpreter's lock."""

    def __init__(self, path: Path) -> None:
        # 13.0 does not find its own part by itself.
        for builtins in path.parent.glob(_BUILTINS):
            if "alt" not in builtins.name:
                ctypes.CDLL(str(builtins))
        self._library = ctypes.CDLL(str(path))
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p

    @functools.cached_property
    def version(self) -> str:
        """Such as "12.9"."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        return f"{major.value}.{minor.value}"

    @functools.cached_property
    def architectures(self) -> tuple[int, ...]:
        """Compute capabilities that it makes code for, as numbers such as 80."""
        count = ctypes.c_int()
        self._check(self._library.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
        found = (ctypes.c_int * count.value)()
        self._check(self._library.nvrtcGetSupportedArchs(found))
        return tuple(found)

    def cubin(self, text: str, architecture: int) -> bytes:
        """Machine code. Raises CompileError with the compiler's log."""
        return self._compile(text, f"sm_{architecture}", "CUBIN")

    def ptx(self, text: str, architecture: int) -> str:
        """PTX for this virtual architecture. Raises CompileError."""
        return self._compile(text, f"compute_{architecture}", "PTX").rstrip(b"\0").decode()

    def _compile(self, text: str, target: str, kind: str) -> bytes:
        library, program = self._library, ctypes.c_void_p()
        self._check(library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"onnxfuse.cu", 0, None, None))
        try:
            options = [option.encode() for option in (*OPTIONS, f"--gpu-architecture={target}")]
            failed = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
            said = self._get(program, "ProgramLog").rstrip(b"\0").decode(errors="replace").splitlines()
            log = "\n".join(line for line in said if line and not line.startswith(_HARMLESS))
            if failed or log:  # a warning is a fault, too
                raise CompileError(f"NVRTC {self.version}, {target}: {log or self._message(failed)}")
            return self._get(program, kind)
        finally:
            library.nvrtcDestroyProgram(ctypes.byref(program))

    def _get(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{what}")(program, buffer))
        return buffer.raw[: size.value]

    def _message(self, code: int) -> str:
        return str(self._library.nvrtcGetErrorString(code).decode())

    def _check(self, code: int) -> None:
        if code:
            raise CompileError(f"NVRTC: {self._message(code)}")


@functools.cache
def find() -> Nvrtc | None:
    """The compiler, or None where it is not installed. Raises SetupError for one that does not load."""
    for path in _files():
        try:
            compiler = Nvrtc(path)
            compiler.version, compiler.architectures  # noqa: B018  # a library that is no NVRTC has no such functions
            return compiler
        except (AttributeError, OSError, CompileError) as error:
            raise SetupError(f"{path} does not load: {error}") from None
    return None


def need() -> Nvrtc:
    """The compiler. Raises SetupError where it is not installed."""
    found = find()
    if found is None:
        raise SetupError("NVRTC, which compiles for CUDA, is not installed",
                               hint='pip install "onnxfuse[cuda]", or --target cpu')  # fmt: skip
    return found


def supported(compiler: Nvrtc, wanted: Sequence[int]) -> tuple[list[int], list[int]]:
    """Those of `wanted` that the compiler knows, and the others."""
    known = [a for a in wanted if a >= LOWEST and a in compiler.architectures]
    return known, [a for a in wanted if a not in known]
