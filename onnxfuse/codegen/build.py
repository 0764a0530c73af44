"""Programs -> containers of machine code: every architecture that is asked for, two programs at once, from the cache
where they were made before."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from onnxfuse.codegen import cache, container, cubin, nvrtc
from onnxfuse.codegen.container import CUBIN, PTX, Image
from onnxfuse.codegen.kernels import RESIDENT, Shape, emit, shape_of
from onnxfuse.errors import UsageError
from onnxfuse.program import Program

DEFAULT = (75, 80, 90, 100, 120)
"""Compute capabilities of the default list: each runs on those of its own generation with a higher second digit."""
PTX_FOR = 75
PTX_VERSION = "6.3"
"""What the PTX says that it is written in: with less than NVRTC's own version, older drivers take it, too. The kernels
use nothing newer."""
AT_ONCE = 2


@dataclasses.dataclass(frozen=True)
class Kernels:
    """The code of one program. `facts` has the kernels of each architecture; `shape` is how their loops are written."""

    text: str
    shape: Shape
    data: bytes
    facts: dict[int, dict[str, cubin.Kernel]]


class Compiler:
    """Compiles for some architectures. Raises SetupError where there is no NVRTC, UsageError for an architecture that
    it does not know."""

    def __init__(self, architectures: Sequence[int] = DEFAULT, store: cache.Cache | None = None) -> None:
        self._nvrtc = nvrtc.need()
        self._store = cache.Cache(cache.folder()) if store is None else store
        known, unknown = nvrtc.supported(self._nvrtc, architectures)
        if unknown:
            some = ", ".join(str(a) for a in self._nvrtc.architectures)
            raise UsageError(f"NVRTC {self._nvrtc.version} makes no code for {', '.join(map(str, unknown))}",
                             hint=f"it knows {some}")  # fmt: skip
        self.architectures = tuple(sorted(set(known)))

    @property
    def version(self) -> str:
        """Of NVRTC."""
        return self._nvrtc.version

    def compile(self, programs: Sequence[Program], done: Callable[[], None] = lambda: None) -> Iterator[Kernels]:
        """The code of each program, in order; `done` is called after each compilation (there are `steps` a program)."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            waiting = [pool.submit(self._program, program, done) for program in programs]
            try:
                for future in waiting:
                    yield future.result()
            finally:
                for future in waiting:
                    future.cancel()

    @property
    def steps(self) -> int:
        """Compilations a program."""
        return len(self.architectures) + 1

    def _program(self, program: Program, done: Callable[[], None]) -> Kernels:
        for shape in _smaller(shape_of(program)):
            text = emit(program, shape)
            images = [Image(CUBIN, a, self._code(text, a, done)) for a in self.architectures]
            facts = {image.architecture: cubin.kernels(image.code) for image in images}
            # Local memory costs more than what the shape gains.
            if not any(kernel.frame for kernels in facts.values() for kernel in kernels.values()):
                break
        images.append(Image(PTX, PTX_FOR, self._portable(text, done)))
        return Kernels(text, shape, container.pack(images), facts)

    def _code(self, text: str, architecture: int, done: Callable[[], None]) -> bytes:
        name = self._key(text, f"sm_{architecture}")
        code = self._store.get(name)
        if code is None:
            code = self._nvrtc.cubin(text, architecture)
            self._store.put(name, code)
        done()
        return code

    def _portable(self, text: str, done: Callable[[], None]) -> bytes:
        name = self._key(text, f"compute_{PTX_FOR}")
        code = self._store.get(name)
        if code is None:
            ptx = self._nvrtc.ptx(text, PTX_FOR)
            ptx = re.sub(r"^\.version .*$", f".version {PTX_VERSION}", ptx, count=1, flags=re.MULTILINE)
            code = ptx.encode() + b"\0"
            self._store.put(name, code)
        done()
        return code

    def _key(self, text: str, target: str) -> str:
        return cache.key([text, *nvrtc.OPTIONS, self._nvrtc.version, target, PTX_VERSION])


def _smaller(shape: Shape) -> Iterator[Shape]:
    """The shape, and those to try where it takes local memory: fewer vectors at once, then more registers a thread."""
    yield shape
    if shape.unroll > 1:
        yield dataclasses.replace(shape, unroll=1)
    for resident in range(RESIDENT - 2, 0, -1):
        yield dataclasses.replace(shape, unroll=1, resident=resident)
