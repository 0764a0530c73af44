"""Programs -> containers of machine code: every architecture that is asked for, two programs at once, from the cache
where they were made before."""

from __future__ import annotations

import dataclasses
import json
import struct
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from itertools import repeat

from onnxfuse.codegen import cache, container, cubin, nvrtc, toolchain
from onnxfuse.codegen.container import CUBIN, PTX, Image
from onnxfuse.codegen.kernels import RESIDENT, Shape, emit, shape_of
from onnxfuse.codegen.libraries import CompileError
from onnxfuse.errors import UsageError
from onnxfuse.program import Program

DEFAULT = (75, 80, 90, 100, 120)
"""Compute capabilities of the default list: each runs on those of its own generation with a higher second digit."""
SCHEMA = 1
"""Of what is stored in the cache, and of how it is made as far as the text of the kernels does not tell."""
AT_ONCE = 2
_LOOK = 0.2
"""Seconds after which one who waits looks up: a signal that another thread got wakes nobody."""
MOST_BYTES = 100_000 // 6
"""Of an image in a model, on the average, so that a program takes 100 KB with the default list. Beyond, its elements go
one by one, as those of programs of LONGEST do."""


@dataclasses.dataclass(frozen=True)
class Kernels:
    """The code of one program. `facts` has the kernels of each architecture; `shape` is how their loops are written."""

    text: str
    shape: Shape
    data: bytes
    facts: dict[int, dict[str, cubin.Kernel]]


class _InShape:
    """A program in one shape: its text, the PTX, and what it has been compiled to so far."""

    def __init__(self, program: Program, shape: Shape, ptx: Callable[[str], bytes]) -> None:
        self.text, self.shape = emit(program, shape), shape
        self.ptx = ptx(self.text)
        self.cubins: dict[int, bytes] = {}
        self.facts: dict[int, dict[str, cubin.Kernel]] = {}

    def frame(self, architecture: int) -> int:
        """Bytes of local memory of all kernels."""
        return sum(kernel.frame for kernel in self.facts[architecture].values())


class _Work:
    """The tools during one call of `Compiler.compile`. `stopped`: nobody waits for what they make any more."""

    def __init__(self, tools: toolchain.Toolchain, virtual: int, at_once: threading.BoundedSemaphore) -> None:
        self._tools, self._virtual, self._at_once = tools, virtual, at_once
        self.linking = ThreadPoolExecutor(AT_ONCE)
        self.stopped = False

    def ptx(self, text: str) -> bytes:
        with self._at_once:
            self._go_on()
            return self._tools.ptx(text, self._virtual)

    def link(self, made: _InShape, architectures: Sequence[int]) -> None:
        """Machine code for those of the architectures that it is not there for yet."""
        missing = [a for a in architectures if a not in made.cubins]
        for architecture, code in zip(missing, self.linking.map(self._cubin, repeat(made.ptx), missing), strict=True):
            try:
                made.facts[architecture] = cubin.kernels(code)
            except (LookupError, ValueError, struct.error) as error:
                raise CompileError(f"the machine code for sm_{architecture} cannot be read: {error!r}") from error
            made.cubins[architecture] = code

    def _cubin(self, ptx: bytes, architecture: int) -> bytes:
        with self._at_once:
            self._go_on()
            return self._tools.cubin(ptx, architecture)

    def _go_on(self) -> None:
        if self.stopped:
            raise CancelledError


class Compiler:
    """Compiles for some architectures; without any, for those of DEFAULT that the tools know. Raises SetupError where
    NVRTC or nvJitLink is not there, UsageError for an architecture that they do not know."""

    def __init__(self, architectures: Sequence[int] | None = None, store: cache.Cache | None = None) -> None:
        self._tools = toolchain.need()
        self._store = cache.Cache(cache.folder()) if store is None else store
        known, unknown = self._tools.supported(DEFAULT if architectures is None else architectures)
        self.unknown = tuple(unknown)
        """Those of DEFAULT that are left out."""
        if unknown and (architectures is not None or not known):
            raise UsageError(f"{self.version.replace(', ', ' with ')} makes no code for {', '.join(map(str, unknown))}",
                             hint=f"it can be one of {', '.join(map(str, self._tools.architectures))}")  # fmt: skip
        if not known:
            raise UsageError("no architecture is given", hint="such as 80,90, or leave it out for all recent ones")
        self.architectures = tuple(sorted(set(known)))
        self._virtual = self._tools.ptx_architecture(self.architectures)
        self._at_once = threading.BoundedSemaphore(AT_ONCE)

    @property
    def version(self) -> str:
        """Of NVRTC and nvJitLink."""
        return self._tools.version

    def compile(
        self, programs: Sequence[Program], done: Callable[[], None] = lambda: None
    ) -> Generator[Kernels, None, None]:
        """The code of each program, in order; `done` is called, from other threads, after each. Raises CompileError for
        a program that the tools do not take."""
        # Of the pools one makes PTX and decides, the other makes machine code, so that a single program keeps both
        # processors busy; together they run AT_ONCE compilations.
        pool, work = ThreadPoolExecutor(AT_ONCE), _Work(self._tools, self._virtual, self._at_once)
        waiting = [pool.submit(self._program, program, work, done) for program in programs]
        try:
            for future in waiting:
                while not future.done():
                    wait([future], timeout=_LOOK)
                yield future.result()
        finally:  # when interrupted: what is under way cannot be stopped, nothing else begins
            work.stopped = not all(future.done() for future in waiting)
            pool.shutdown(wait=False, cancel_futures=True)
            work.linking.shutdown(wait=not work.stopped, cancel_futures=True)

    def _program(self, program: Program, work: _Work, done: Callable[[], None]) -> Kernels:
        first = shape_of(program)
        versions = [f"{SCHEMA}.{container.VERSION}", self.version, toolchain.PTX_VERSION, str(MOST_BYTES)]
        name = cache.key([emit(program, first), *nvrtc.OPTIONS, *versions, *map(str, self.architectures)])
        stored = self._store.get(name)
        made = _restored(stored, program) if stored is not None else None
        if made is None:
            made = self._compile(program, first, work)
            self._store.put(name, _stored(made))
        done()
        return made

    def _compile(self, program: Program, first: Shape, work: _Work) -> Kernels:
        shapes = _smaller(first)
        best = _InShape(program, next(shapes), work.ptx)
        work.link(best, self.architectures[:1])  # what takes local memory mostly does so everywhere
        while True:
            # Local memory costs more than what the shape gains. Some of it stays whatever the shape: CUDA's functions
            # of float64 have tables there for large angles.
            bad = next((a for a in best.facts if best.frame(a)), None)
            shape = next(shapes, None) if bad is not None else None
            if bad is not None and shape is not None:
                other = _InShape(program, shape, work.ptx)
                work.link(other, [bad])
                if other.frame(bad) < best.frame(bad):
                    best = other
                    continue
                shapes = iter(())
            if len(best.facts) == len(self.architectures):
                break
            work.link(best, self.architectures)
        images = [Image(PTX, self._virtual, best.ptx), *(Image(CUBIN, a, code) for a, code in best.cubins.items())]
        form = (best.shape.vector, best.shape.unroll, best.shape.resident)
        data = container.pack(images, program.text, form)
        if len(data) > MOST_BYTES * len(images) and best.shape.vector > 1:
            return self._compile(program, Shape(1, 1), work)
        facts = {a: best.facts[a] for a in self.architectures}
        return Kernels(best.text, best.shape, data, facts)


def _stored(made: Kernels) -> bytes:
    """The shape and the facts as a line of JSON, then the container."""
    facts = {a: {name: dataclasses.astuple(k) for name, k in some.items()} for a, some in made.facts.items()}
    return json.dumps([dataclasses.astuple(made.shape), facts]).encode() + b"\n" + made.data


def _restored(stored: bytes, program: Program) -> Kernels | None:
    """None for what another version has written."""
    line, _, data = stored.partition(b"\n")
    try:
        numbers, stored_facts = json.loads(line)
        shape = Shape(*numbers)
        facts = {int(a): {name: cubin.Kernel(*k) for name, k in some.items()} for a, some in stored_facts.items()}
    except (AttributeError, TypeError, ValueError):
        return None
    return Kernels(emit(program, shape), shape, data, facts)


def _smaller(shape: Shape) -> Iterator[Shape]:
    """The shape, and those to try where it takes local memory: fewer vectors at once, then more registers a thread."""
    yield shape
    if shape.unroll > 1:
        yield dataclasses.replace(shape, unroll=1)
    for resident in range(RESIDENT - 2, 0, -1):
        yield dataclasses.replace(shape, unroll=1, resident=resident)
