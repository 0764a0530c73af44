"""NVIDIA's linker through ctypes: PTX -> cubin, with no GPU, driver or toolkit.

Its package is nvidia-nvjitlink-cu12, or nvidia-nvjitlink from CUDA 13 on; ONNXFUSE_NVJITLINK names another file.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

from onnxfuse.codegen.libraries import CompileError, Library, complaints

LIBRARY = Library(
    "nvJitLink", "makes machine code for NVIDIA's GPUs", "ONNXFUSE_NVJITLINK",
    (("nvidia.nvjitlink", ("lib", "bin"), "nvidia-nvjitlink-cu12"),
     ("nvidia.cu13", ("lib", "bin/x86_64", "bin"), "nvidia-nvjitlink")),
    linux="libnvJitLink.so.*", windows="nvJitLink_*.dll",
)  # fmt: skip
_PTX = 2
"""The kind of what is linked."""
_EMPTY = b".version 6.3\n.target sm_70\n.address_size 64\n\0"


class NvJitLink:
    """The loaded linker. Links may run side by side in threads: ctypes lets go of the interpreter's lock."""

    def __init__(self, path: Path) -> None:
        self._path, self._library = path, ctypes.CDLL(str(path))

    @functools.cached_property
    def version(self) -> str:
        """Such as "12.9"."""
        major, minor = ctypes.c_uint(), ctypes.c_uint()
        failed = self._library.nvJitLinkVersion(ctypes.byref(major), ctypes.byref(minor))
        if failed:
            raise CompileError(f"nvJitLink: error {failed}")
        return f"{major.value}.{minor.value}"

    @functools.cached_property
    def release(self) -> str:
        """Such as "12.9.86"."""
        return LIBRARY.release(self._path, self.version)

    def accepts(self, architecture: int) -> bool:
        """Whether it makes code for this compute capability. Asked by linking nothing: some versions look at the
        number only then."""
        try:
            self.cubin(_EMPTY, architecture)
        except CompileError:
            return False
        return True

    def cubin(self, ptx: bytes, architecture: int) -> bytes:
        """Machine code of PTX that ends in a zero byte. Raises CompileError with the linker's logs, also for a
        warning."""
        library, link = self._library, ctypes.c_void_p()
        what = f"nvJitLink {self.version}, sm_{architecture}"
        options = (ctypes.c_char_p * 1)(f"-arch=sm_{architecture}".encode())
        failed = library.nvJitLinkCreate(ctypes.byref(link), len(options), options)
        if failed:
            raise CompileError(f"{what}: error {failed}")
        try:
            failed = library.nvJitLinkAddData(link, _PTX, ptx, ctypes.c_size_t(len(ptx)), b"onnxfuse.ptx")
            failed = failed or library.nvJitLinkComplete(link)
            log = complaints(self._log(link, "Error") + "\n" + self._log(link, "Info"))
            if failed or log:
                raise CompileError(f"{what}: {log or f'error {failed}'}")
            size = ctypes.c_size_t()
            failed = library.nvJitLinkGetLinkedCubinSize(link, ctypes.byref(size))
            code = ctypes.create_string_buffer(size.value)
            failed = failed or library.nvJitLinkGetLinkedCubin(link, code)
            if failed:
                raise CompileError(f"{what}: error {failed}")
            return code.raw
        finally:
            library.nvJitLinkDestroy(ctypes.byref(link))

    def _log(self, link: ctypes.c_void_p, which: str) -> str:
        size = ctypes.c_size_t()
        if getattr(self._library, f"nvJitLinkGet{which}LogSize")(link, ctypes.byref(size)):
            return ""
        text = ctypes.create_string_buffer(size.value + 1)
        failed = getattr(self._library, f"nvJitLinkGet{which}Log")(link, text)
        return "" if failed else text.value.decode(errors="replace")


def _open(path: Path) -> NvJitLink:
    linker = NvJitLink(path)
    linker.version  # noqa: B018  # a library that is no nvJitLink has no such function
    return linker


@functools.cache
def find() -> NvJitLink | None:
    """The linker, or None where it is not installed. Raises SetupError for one that does not load."""
    return LIBRARY.load(_open)


def need() -> NvJitLink:
    """The linker. Raises SetupError where it is not installed."""
    found = find()
    if found is None:
        raise LIBRARY.missing()
    return found
