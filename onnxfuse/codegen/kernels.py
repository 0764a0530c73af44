"""Program -> CUDA C++: one module with two kernels, which cover every shape up to rank 8. A long program has the second
one alone.

`rows`     long rows along which every tensor moves or stands still: tensors of one shape (one row), biases, channels,
           outer products. Where a row begins in each tensor is found once a row
`strided`  anything else, by a division an element and dim

All indices have 32 bits: the launcher cuts what is larger. The text depends on the program and `Shape` alone.
"""

from __future__ import annotations

import dataclasses

from onnxfuse.codegen import device, lanes, layout
from onnxfuse.codegen.expressions import REGISTER, expression
from onnxfuse.program import Program
from onnxfuse.program.instructions import BYTES, INSTRUCTIONS

THREADS = 256
BLOCK = 16
"""Bytes of a load or store."""
IN_FLIGHT = 4
"""Blocks that a thread should have asked for before it waits: what hides the latency of memory."""
LARGEST = 256
"""Cost, in units of the instruction table, of all elements that one pass of a loop works on: beyond, a kernel computes
longer than memory takes anyway, and its code only grows."""
LONGEST = 1024
"""Cost of a vector beyond which elements go one by one, in a single kernel. On any GPU such a program computes longer
than memory takes, and each further copy of it costs the compiler more than the one before."""
STEPPED = 4
"""Where elements differ by this factor in size, tensors of the longest go block by block: whole vectors of them would
take too many registers."""
RESIDENT = 4
"""Thread blocks that a multiprocessor has room for. Left alone the compiler spills values to make room for eight; with
several loads under way in each thread, so many threads hide nothing more."""
KERNELS = {"rows": "Rows", "strided": "Strided"}
"""Name of each kernel and of its struct (layout.STRUCTS)."""


@dataclasses.dataclass(frozen=True)
class Shape:
    """How loops are written: elements of a vector (1: there are none), vectors that a thread takes at once, and
    RESIDENT."""

    vector: int
    unroll: int
    resident: int = RESIDENT

    @property
    def kernels(self) -> tuple[str, ...]:
        """Those of KERNELS that are written: `rows` is there for its vectors."""
        return tuple(KERNELS) if self.vector > 1 else ("strided",)


def shape_of(program: Program) -> Shape:
    """A vector fills a block of the narrowest tensor; vectors at once as IN_FLIGHT asks and LARGEST allows. None at all
    beyond LONGEST."""
    vector = BLOCK // min(_sizes(program))
    blocks = sum(vector * BYTES[i.dtype] // BLOCK for i in program.tensors)
    at_once = 1 if blocks >= IN_FLIGHT or _stepped_size(program) else 2 if blocks > 1 else IN_FLIGHT
    cost = vector * sum(INSTRUCTIONS[s.name].cost for s in program.statements)
    if cost > LONGEST:
        return Shape(1, 1)
    while at_once > 1 and at_once * cost > LARGEST:
        at_once //= 2
    return Shape(vector, at_once)


def _sizes(program: Program) -> list[int]:
    """Bytes of an element of each tensor and output."""
    return [BYTES[t] for t in (*(i.dtype for i in program.tensors), *map(program.dtype_of, program.outputs))]


def _stepped_size(program: Program) -> int:
    """Bytes of an element of the tensors that go block by block; 0 where none do."""
    sizes = _sizes(program)
    return max(sizes) if max(sizes) >= STEPPED * min(sizes) else 0


class _Text:
    """The text of one module."""

    def __init__(self, program: Program, shape: Shape) -> None:
        self.program, self.shape = program, shape
        self.scalars = program.scalars
        self.outputs = [(f"y{k}", program.dtype_of(name)) for k, name in enumerate(program.outputs)]
        read = set(program.outputs)
        needed = []
        for statement in reversed(program.statements):
            if statement.result in read:
                read.update(statement.operands)
                needed.append(statement)
        self.statements = needed[::-1]
        self.read = [(k, i) for k, i in enumerate(program.tensors) if i.name in read]
        self.longest = _stepped_size(program)
        self.needs = {"types", "bits", "division"} | ({"blocks"} if shape.vector > 1 else set())
        for dtype in (*(i.dtype for i in program.inputs), *(t for _, t in self.outputs)):
            self.needs.update(lanes.sections(dtype))

    def module(self) -> str:
        counts = layout.counts(self.program)
        body = self.compute()
        kernels = {"rows": self.rows, "strided": self.strided}
        heading = ["// A fused program and its kernels, written by onnxfuse. Options: --std=c++17 --fmad=false", "//"]
        return "\n\n".join([
            "\n".join([*heading, *(f"//   {line}" for line in self.program.text.splitlines())]),
            device.sections(self.needs), body,
            *(text for name in self.shape.kernels
              for text in (layout.declaration(KERNELS[name], *counts), kernels[name]())),
        ]) + "\n"  # fmt: skip

    # ---- the program

    def compute(self) -> str:
        """The function that computes one element."""
        given = [f"{REGISTER[i.dtype]} {i.name}" for _, i in self.read]
        given += [f"{REGISTER[i.dtype]} {i.name}" for i in self.scalars]
        given += [f"{REGISTER[dtype]}& {name}" for name, dtype in self.outputs]
        lines = [f"__device__ __forceinline__ void compute({', '.join(given)}) {{"]
        for statement in self.statements:
            made = expression(statement, statement.operands)
            self.needs.update(made.sections)
            lines.append(f"  const {REGISTER[statement.dtype]} {statement.result} = {made.text};")
        lines += [f"  {name} = {value};" for (name, _), value in zip(self.outputs, self.program.outputs, strict=True)]
        return "\n".join([*lines, "}"])

    # ---- pieces of the kernels

    def head(self, kernel: str) -> list[str]:
        """Begin of a kernel: its scalars as values."""
        lines = [
            f'extern "C" __global__ void __launch_bounds__({THREADS}, {self.shape.resident}) {kernel}('
            f"const __grid_constant__ {KERNELS[kernel]} a) {{"
        ]
        for k, scalar in enumerate(self.scalars):
            raw = f"({lanes.RAW[BYTES[scalar.dtype]]})a.scalars[{k}]"
            lines.append(f"  const {REGISTER[scalar.dtype]} {scalar.name} = {lanes.decode(scalar.dtype, raw)};")
        return lines

    def call(self) -> str:
        values = [i.name for _, i in self.read] + [i.name for i in self.scalars] + [name for name, _ in self.outputs]
        return f"compute({', '.join(values)});"

    def results(self, indent: str) -> list[str]:
        return [f"{indent}{REGISTER[dtype]} {name};" for name, dtype in self.outputs]

    def single(self, indent: str, place: dict[int, str], to: str) -> list[str]:
        """One element: tensor k is read at `place[k]`, the results are written at `to`."""
        lines = []
        for k, tensor in self.read:
            raw = lanes.RAW[BYTES[tensor.dtype]]
            value = lanes.decode(tensor.dtype, f"((const {raw}*)a.inputs[{k}])[{place[k]}]")
            lines.append(f"{indent}const {REGISTER[tensor.dtype]} {tensor.name} = {value};")
        lines += [*self.results(indent), indent + self.call()]
        for k, (name, dtype) in enumerate(self.outputs):
            raw = lanes.RAW[BYTES[dtype]]
            lines.append(f"{indent}(({raw}*)a.outputs[{k}])[{to}] = {lanes.encode(dtype, name)};")
        return lines

    def stepped(self, dtype: str) -> bool:
        """Whether a tensor goes block by block through the elements of a vector."""
        return BYTES[dtype] == self.longest

    def loads(self, indent: str, at: str, index: str, begin: dict[int, str], *, stepped: bool) -> list[str]:
        """Loads of the tensors that are stepped, or of the others. `at` picks the vector's arrays, `index` is the
        number of the vector, or of the block, from the address `begin[k]` on."""
        return [
            f"{indent}fetch<{lanes.RAW[BYTES[i.dtype]]}>(b{i.name}{at}, {begin[k]}, {index}, a.moves[{k}] != 0u);"
            for k, i in self.read if self.stepped(i.dtype) == stepped
        ]  # fmt: skip

    def arrays(self, indent: str, times: int, *, stepped: bool) -> list[str]:
        """Blocks in registers, for each tensor and output that is stepped or not."""
        more = f"[{times}]" if times > 1 else ""
        return [
            f"{indent}Block b{name}{more}[{1 if stepped else self.shape.vector * BYTES[dtype] // BLOCK}];"
            for name, dtype in [*((i.name, i.dtype) for _, i in self.read), *self.outputs]
            if self.stepped(dtype) == stepped
        ]

    def stores(self, indent: str, at: str, index: str, begin: list[str], *, stepped: bool) -> list[str]:
        """Stores, as `loads`."""
        return [
            f"{indent}write({begin[k]}, b{name}{at}, {index});"
            for k, (name, dtype) in enumerate(self.outputs) if self.stepped(dtype) == stepped
        ]  # fmt: skip

    def work(self, indent: str, at: str, index: str, begin: dict[int, str], out: list[str]) -> list[str]:
        """Computes and stores vector number `index`; the loads of what is not stepped are done."""
        count = BLOCK // self.longest if self.longest else self.shape.vector
        lines = []
        inner, element = indent, "e"

        def lane(name: str, dtype: str) -> str:
            """The blocks of a tensor and the place of the element in them."""
            return f"b{name}, e" if self.stepped(dtype) else f"b{name}{at}, {element}"

        if self.longest:
            steps, element, inner = self.shape.vector // count, f"s * {count}u + e", indent + "  "
            number = f"({index}) * {steps}u + s"
            lines += ["#pragma unroll", f"{indent}for (u32 s = 0u; s < {steps}u; ++s) {{"]
            lines += self.arrays(inner, 1, stepped=True) + self.loads(inner, "", number, begin, stepped=True)
        lines += ["#pragma unroll", f"{inner}for (u32 e = 0u; e < {count}u; ++e) {{"]
        for _, tensor in self.read:
            dtype = tensor.dtype
            value = lanes.decode(dtype, f"get{BYTES[dtype]}({lane(tensor.name, dtype)})")
            lines.append(f"{inner}  const {REGISTER[dtype]} {tensor.name} = {value};")
        lines += [*self.results(inner + "  "), f"{inner}  {self.call()}"]
        lines += [f"{inner}  put({lane(name, dtype)}, {lanes.encode(dtype, name)});" for name, dtype in self.outputs]
        lines.append(f"{inner}}}")
        if self.longest:
            lines += [*self.stores(inner, "", number, out, stepped=True), f"{indent}}}"]
        return [*lines, *self.stores(indent, at, index, out, stepped=False)]

    # ---- the kernels

    def places(self, indent: str, number: str, rank: str) -> list[str]:
        """`atK`, the element of tensor K that belongs to `number`."""
        if not self.read:
            return []
        lines = [f"{indent}u32 left = {number}{''.join(f', at{k} = 0u' for k, _ in self.read)};", "#pragma unroll 1",
                 f"{indent}for (u32 d = 0u; d < {rank}; ++d) {{",
                 f"{indent}  const u32 next = quotient(left, a.multiplier[d], a.shift[d]);",
                 f"{indent}  const u32 index = left - next * a.size[d];", f"{indent}  left = next;"]  # fmt: skip
        lines += [f"{indent}  at{k} += index * a.stride[{k}][d];" for k, _ in self.read]
        return [*lines, f"{indent}}}"]

    def rows(self) -> str:
        begin = {k: f"a.inputs[{k}] + at{k} * {BYTES[i.dtype]}ull" for k, i in self.read}
        out = [f"a.outputs[{k}] + out * {BYTES[dtype]}ull" for k, (_, dtype) in enumerate(self.outputs)]
        unroll = self.shape.unroll
        lines = self.head("rows")
        lines += [
            "  const u32 thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;",
            "#pragma unroll 1",
            "  for (u32 row = blockIdx.y * blockDim.y + threadIdx.y; row < a.rows; row += gridDim.y * blockDim.y) {",
            *self.places("    ", "row", "a.outer"),
            "    const u32 out = row * a.columns;",
            "#pragma unroll 1",
            f"    for (u32 v = thread; v < a.vectors; v += {_times(unroll)}threads) {{",
        ]  # fmt: skip
        if unroll > 1:  # all loads before the first of them is waited for
            index = "v + u * threads"
            each = ["#pragma unroll", f"      for (u32 u = 0u; u < {unroll}u; ++u) {{",
                    f"        if ({index} >= a.vectors) break;"]  # fmt: skip
            lines += [
                *self.arrays("      ", unroll, stepped=False),
                *each, *self.loads("        ", "[u]", index, begin, stepped=False), "      }",
                *each, *self.work("        ", "[u]", index, begin, out), "      }",
            ]  # fmt: skip
        else:
            lines += [
                *self.arrays("      ", 1, stepped=False), *self.loads("      ", "", "v", begin, stepped=False),
                *self.work("      ", "", "v", begin, out),
            ]  # fmt: skip
        lines += [
            "    }", "#pragma unroll 1",
            f"    for (u32 i = a.vectors * {self.shape.vector}u + thread; i < a.columns; i += threads) {{",
            *self.single("      ", {k: f"at{k} + i * a.moves[{k}]" for k, _ in self.read}, "out + i"),
            "    }", "  }", "}",
        ]  # fmt: skip
        return "\n".join(lines)

    def strided(self) -> str:
        lines = self.head("strided")
        lines += [
            "#pragma unroll 1",
            f"  for (u32 i = blockIdx.x * {THREADS}u + threadIdx.x; i < a.elements; i += gridDim.x * {THREADS}u) {{",
            *self.places("    ", "i", "a.rank"), *self.single("    ", {k: f"at{k}" for k, _ in self.read}, "i"),
            "  }", "}",
        ]  # fmt: skip
        return "\n".join(lines)


def _times(count: int) -> str:
    """A factor before a number."""
    return f"{count}u * " if count > 1 else ""


def emit(program: Program, shape: Shape | None = None) -> str:
    """The CUDA C++ of a verified program; `shape` (default: `shape_of`) where its kernels should be smaller."""
    return _Text(program, shape or shape_of(program)).module()
