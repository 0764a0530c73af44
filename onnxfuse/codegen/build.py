"""Programs -> containers of machine code: every architecture that is asked for, two programs at once, from the cache
where they were made before."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor

from onnxfuse.codegen import cache, container, cubin, nvrtc, toolchain
from onnxfuse.codegen.container import CUBIN, PTX, Image
from onnxfuse.codegen.kernels import RESIDENT, Shape, emit, shape_of
from onnxfuse.errors import UsageError
from onnxfuse.program import Program

DEFAULT = (75, 80, 90, 100, 120)
"""Compute capabilities of the default list: each runs on those of its own generation with a higher second digit."""
SCHEMA = 1
"""Of what is stored in the cache."""
AT_ONCE = 2


@dataclasses.dataclass(frozen=True)
class Kernels:
    """The code of one program. `facts` has the kernels of each architecture; `shape` is how their loops are written."""

    text: str
    shape: Shape
    data: bytes
    facts: dict[int, dict[str, cubin.Kernel]]


@dataclasses.dataclass(frozen=True)
class _Compiled:
    """A program compiled in one shape: the images of all cubins, and of the PTX that they were made from."""

    text: str
    shape: Shape
    images: list[Image]
    facts: dict[int, dict[str, cubin.Kernel]]

    @property
    def frame(self) -> int:
        """Bytes of local memory of all kernels."""
        return sum(kernel.frame for kernels in self.facts.values() for kernel in kernels.values())


class Compiler:
    """Compiles for some architectures. Raises SetupError where NVRTC or nvJitLink is not there, UsageError for an
    architecture that they do not know."""

    def __init__(self, architectures: Sequence[int] = DEFAULT, store: cache.Cache | None = None) -> None:
        self._tools = toolchain.need()
        self._store = cache.Cache(cache.folder()) if store is None else store
        known, unknown = self._tools.supported(architectures)
        if unknown:
            raise UsageError(f"{self.version.replace(', ', ' with ')} makes no code for {', '.join(map(str, unknown))}",
                             hint=f"it can be one of {', '.join(map(str, self._tools.architectures))}")  # fmt: skip
        if not known:
            raise UsageError("no architecture is given", hint="such as 80,90, or leave it out for all recent ones")
        self.architectures = tuple(sorted(set(known)))
        self._stopped = False

    @property
    def version(self) -> str:
        """Of NVRTC and nvJitLink."""
        return self._tools.version

    def compile(
        self, programs: Sequence[Program], done: Callable[[], None] = lambda: None
    ) -> Generator[Kernels, None, None]:
        """The code of each program, in order; `done` is called, from other threads, after each."""
        pool = ThreadPoolExecutor(AT_ONCE)
        waiting = [pool.submit(self._program, program, done) for program in programs]
        try:
            for future in waiting:
                yield future.result()
        finally:  # when interrupted, after the compilations that are under way at most
            self._stopped = not all(future.done() for future in waiting)
            pool.shutdown(wait=False, cancel_futures=True)

    def _program(self, program: Program, done: Callable[[], None]) -> Kernels:
        first = shape_of(program)
        versions = [f"{SCHEMA}.{container.VERSION}", self.version, toolchain.PTX_VERSION]
        name = cache.key([emit(program, first), *nvrtc.OPTIONS, *versions, *map(str, self.architectures)])
        stored = self._store.get(name)
        made = _restored(stored, program) if stored is not None else None
        if made is None:
            made = self._compile(program, first)
            self._store.put(name, _stored(made))
        done()
        return made

    def _compile(self, program: Program, first: Shape) -> Kernels:
        shapes = _smaller(first)
        best = self._in_shape(program, next(shapes))
        for shape in shapes:
            # Local memory costs more than what the shape gains. Some of it stays whatever the shape: CUDA's functions
            # of float64 have tables there for large angles.
            if best.frame == 0:
                break
            other = self._in_shape(program, shape)
            if other.frame >= best.frame:
                break
            best = other
        form = (best.shape.vector, best.shape.unroll, best.shape.resident)
        return Kernels(best.text, best.shape, container.pack(best.images, program.text, form), best.facts)

    def _in_shape(self, program: Program, shape: Shape) -> _Compiled:
        self._go_on()
        text, virtual = emit(program, shape), self._tools.ptx_architecture(self.architectures)
        ptx = self._tools.ptx(text, virtual)
        images, facts = [Image(PTX, virtual, ptx)], {}
        for architecture in self.architectures:
            self._go_on()
            code = self._tools.cubin(ptx, architecture)
            images.append(Image(CUBIN, architecture, code))
            facts[architecture] = cubin.kernels(code)
        return _Compiled(text, shape, images, facts)

    def _go_on(self) -> None:
        """Ends the work on a program that nobody waits for any more."""
        if self._stopped:
            raise CancelledError


def _stored(made: Kernels) -> bytes:
    """The shape and the facts as a line of JSON, then the container."""
    facts = {a: {name: dataclasses.astuple(k) for name, k in some.items()} for a, some in made.facts.items()}
    return json.dumps([dataclasses.astuple(made.shape), facts]).encode() + b"\n" + made.data


def _restored(stored: bytes, program: Program) -> Kernels | None:
    """None for what another version has written."""
    line, _, data = stored.partition(b"\n")
    try:
        numbers, facts = json.loads(line)
        shape = Shape(*numbers)
    except (TypeError, ValueError):
        return None
    return Kernels(emit(program, shape), shape, data, {
        int(a): {name: cubin.Kernel(*k) for name, k in some.items()} for a, some in facts.items()
    })  # fmt: skip


def _smaller(shape: Shape) -> Iterator[Shape]:
    """The shape, and those to try where it takes local memory: fewer vectors at once, then more registers a thread."""
    yield shape
    if shape.unroll > 1:
        yield dataclasses.replace(shape, unroll=1)
    for resident in range(RESIDENT - 2, 0, -1):
        yield dataclasses.replace(shape, unroll=1, resident=resident)
