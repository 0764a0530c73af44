"""CUDA C++ -> PTX -> cubins: NVRTC once for a text, nvJitLink once for each architecture. Twice as fast as NVRTC's own
cubins, which begin at the text each time, and the machine code comes from the very PTX that is stored beside it."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Sequence

from onnxfuse.codegen import nvjitlink, nvrtc
from onnxfuse.codegen.nvjitlink import NvJitLink
from onnxfuse.codegen.nvrtc import Nvrtc
from onnxfuse.errors import SetupError

LOWEST = 70
"""The kernels take their arguments in a way that older GPUs do not have."""
PTX_FOR = 75
PTX_VERSION = "6.3"
"""What the PTX says that it is written in: with less than NVRTC's own version, older drivers take it, too. The kernels
use nothing newer. It knows no GPU beyond PTX_FOR."""
_NEWER = r"^\s*\.pragma \"used_bytes_mask [^\"]*\";\n"
"""Hints, of PTX 8.3, which bytes of a load matter."""


@dataclasses.dataclass(frozen=True)
class Toolchain:
    """Both compilers."""

    nvrtc: Nvrtc
    nvjitlink: NvJitLink

    @functools.cached_property
    def version(self) -> str:
        """Of both, such as "NVRTC 12.9.86, nvJitLink 12.9.86"."""
        return f"NVRTC {self.nvrtc.release}, nvJitLink {self.nvjitlink.release}"

    @functools.cached_property
    def architectures(self) -> tuple[int, ...]:
        """Compute capabilities that both know, the lowest first."""
        return tuple(a for a in self._candidates if self._links(a))

    def supported(self, wanted: Sequence[int]) -> tuple[list[int], list[int]]:
        """Those of `wanted` that code can be made for, and the others."""
        known = [a for a in wanted if a in self._candidates and self._links(a)]
        return known, [a for a in wanted if a not in known]

    def ptx_architecture(self, architectures: Sequence[int]) -> int:
        """The virtual architecture of the PTX from which code for these is made: PTX_FOR, or what is nearest to it."""
        able = self._candidates
        return max((a for a in able if a <= min(PTX_FOR, *architectures)), default=able[0])

    def ptx(self, text: str, architecture: int) -> bytes:
        """PTX for a virtual architecture, with the zero byte at its end. Raises CompileError."""
        ptx = self.nvrtc.ptx(text, architecture)
        if architecture <= PTX_FOR:
            ptx = re.sub(r"^\.version .*$", f".version {PTX_VERSION}", ptx, count=1, flags=re.MULTILINE)
            ptx = re.sub(_NEWER, "", ptx, flags=re.MULTILINE)
        return ptx.encode() + b"\0"

    def cubin(self, ptx: bytes, architecture: int) -> bytes:
        """Machine code. Raises CompileError."""
        return self.nvjitlink.cubin(ptx, architecture)

    @functools.cached_property
    def _candidates(self) -> list[int]:
        """What NVRTC knows."""
        return sorted(a for a in self.nvrtc.architectures if a >= LOWEST)

    def _links(self, architecture: int) -> bool:
        """Whether nvJitLink knows an architecture that NVRTC knows; of one version they know the same."""
        return self.nvjitlink.version == self.nvrtc.version or self.nvjitlink.accepts(architecture)


def need() -> Toolchain:
    """Raises SetupError where one of the two is not installed or does not load."""
    return Toolchain(nvrtc.need(), nvjitlink.need())


def installed() -> bool:
    """Whether both are there and load. Raises SetupError for one that a variable names and that does not."""
    found = True
    for tool in (nvrtc, nvjitlink):
        try:
            found = tool.find() is not None and found
        except SetupError:
            if os.environ.get(tool.LIBRARY.variable):
                raise
            found = False
    return found
