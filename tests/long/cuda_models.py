"""GPU code of every model of the shared corpus, for every architecture of the default list, and what it is like.

    python -m tests.long.cuda_models                       # a step of `make test-long`
    python -m tests.long.cuda_models resnet50 gpt2         # some models
    python -m tests.long.cuda_models --kind skeleton       # those that need no network

Each model is planned, and each program that no model before had is compiled. A finding, and the exit code 1, is where

- the compiler warns of a program;
- a kernel takes local memory, unless a function of float64 with a table in it is called (LOCAL);
- a thread takes more registers than the shape of its loops says that there are (`Shape.resident`);
- the code of a program takes more than LARGEST bytes in the model;
- `rows` does not move every tensor in blocks of 16 bytes, as many at once as the shape of its loops says.

The models lie where tests/long/corpus.py says. `--cache` names a folder for what was compiled, for a run that is to go
on later; without it everything is compiled.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from onnxfuse import api
from onnxfuse.codegen import Compiler, Kernels, Shape, container
from onnxfuse.codegen.cache import Cache
from onnxfuse.codegen.kernels import BLOCK, THREADS
from onnxfuse.codegen.libraries import CompileError
from onnxfuse.errors import OnnxfuseError
from onnxfuse.program import Program
from onnxfuse.program.instructions import BYTES
from tests.long.corpus import cache_folder, catalog, corpus_folder

LARGEST = 100_000
REGISTERS = 65536
"""Of a multiprocessor, which the thread blocks of `Shape.resident` share."""
LOCAL = frozenset({"sin", "cos", "tan"})
"""Instructions whose function of float64 in CUDA keeps a product of many words in local memory, for large angles."""
_WHOLE = r"\b{}\.global(?:\.nc)?\.(?:v4\.[ubf]32|v2\.[ubf]64)\b"


@dataclasses.dataclass(frozen=True)
class Facts:
    """What is to be said of the code of one program. `local`: bytes of local memory that its functions need."""

    bytes: int = 0
    registers: int = 0
    local: int = 0
    findings: tuple[str, ...] = ()


# ------------------------------------------------------------------------------------------------ one program


def needs_local_memory(program: Program) -> bool:
    """Whether a statement calls a function of float64 that has local memory of its own."""
    return any(s.name in LOCAL and s.types[0] == "f64" for s in program.statements)


def blocks(program: Program, shape: Shape) -> tuple[int, int]:
    """Blocks of 16 bytes that the vector loop of `rows` loads and stores in the text: those of a vector of every tensor
    that a result depends on, times the vectors that it takes at once. None where it has no vectors."""
    if shape.vector == 1:
        return 0, 0
    read = set(program.outputs)
    for statement in reversed(program.statements):
        if statement.result in read:
            read.update(statement.operands)
    inputs = [i.dtype for i in program.tensors if i.name in read]
    outputs = [program.dtype_of(name) for name in program.outputs]
    loads, stores = (sum(shape.vector * BYTES[t] // BLOCK for t in some) for some in (inputs, outputs))
    return loads * shape.unroll, stores * shape.unroll


def ptx_of(kernels: Kernels) -> str:
    """The PTX in its container."""
    found = container.unpack(kernels.data)
    assert found is not None
    return next(image.code for image in found.images if image.kind == container.PTX).rstrip(b"\0").decode()


def movement(ptx: str) -> tuple[int, int]:
    """Loads and stores of 16 bytes in the text of `rows`; none where there is no such kernel. A tensor that stands
    still along a row is loaded as one element, which is none of them."""
    kernels = {part.split("(")[0]: part for part in ptx.split(".entry ")[1:]}
    body = kernels.get("rows", "")
    return len(re.findall(_WHOLE.format("ld"), body)), len(re.findall(_WHOLE.format("st"), body))


def examine(program: Program, kernels: Kernels) -> Facts:
    """What the code of a program is like."""
    every = [(f"sm_{a} {name}", k) for a, some in sorted(kernels.facts.items()) for name, k in some.items()]
    findings = []
    local = max(k.frame for _, k in every)
    if local and not needs_local_memory(program):
        findings.append(", ".join(f"{where} {k.frame} bytes of local memory" for where, k in every if k.frame))
    registers, most = max(k.registers for _, k in every), REGISTERS // (THREADS * kernels.shape.resident)
    if registers > most:
        findings.append(", ".join(f"{where} {k.registers} registers" for where, k in every if k.registers > most))
    if len(kernels.data) > LARGEST:
        findings.append(f"{len(kernels.data)} bytes")
    wanted, found = blocks(program, kernels.shape), movement(ptx_of(kernels))
    if wanted != found:
        findings.append(f"{found[0]} loads and {found[1]} stores of 16 bytes instead of {wanted[0]} and {wanted[1]}")
    return Facts(len(kernels.data), registers, local, tuple(findings))


# ------------------------------------------------------------------------------------------------ all models


class Corpus:
    """Models one by one; a program of several is compiled once."""

    def __init__(self, compiler: Compiler) -> None:
        self.compiler, self.facts = compiler, dict[str, Facts]()

    def model(self, path: Path) -> tuple[str, list[str]]:
        """A line about a model, and the findings of its programs that no model before had."""
        start = time.monotonic()
        report = api.explain(path, targets=("cpu", "cuda"), code=False)
        texts = list(dict.fromkeys(group.program for group in report.groups))
        planned = time.monotonic()
        new = [text for text in texts if text not in self.facts]
        self.compile(new)
        own = [self.facts[text] for text in texts]
        line = f"{len(report.groups)} fused nodes, {len(texts)} programs, {len(new)} of them new"
        if own:
            line += (f"; at most {max(f.bytes for f in own) / 1000:.1f} KB, {max(f.registers for f in own)} registers, "
                     f"{max(f.local for f in own)} bytes of local memory")  # fmt: skip
        line += f"; {planned - start:.1f} s to plan, {time.monotonic() - planned:.1f} s to compile"
        return line, [f"{finding}\n{_indented(text)}" for text in new for finding in self.facts[text].findings]

    def compile(self, texts: Sequence[str]) -> None:
        programs = [Program.parse(text) for text in texts]
        try:
            for text, program, kernels in zip(texts, programs, self.compiler.compile(programs), strict=True):
                self.facts[text] = examine(program, kernels)
        except CompileError:  # one of them is at fault
            for text, program in zip(texts, programs, strict=True):
                try:
                    self.facts[text] = examine(program, *self.compiler.compile([program]))
                except CompileError as error:
                    self.facts[text] = Facts(findings=(str(error),))


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def summary(facts: Iterable[tuple[str, Facts]]) -> str:
    """A few lines about all programs."""
    every = list(facts)
    if not every:
        return "no programs"
    sizes = sorted(f.bytes for _, f in every)
    with_local = [text for text, f in every if f.local]
    lines = [
        f"{len(every)} distinct programs, {sum(sizes) / 1e6:.1f} MB; a program: median "
        f"{sizes[len(sizes) // 2] / 1000:.1f} KB, at most {sizes[-1] / 1000:.1f} KB, at most "
        f"{max(f.registers for _, f in every)} registers",
        f"with local memory: {len(with_local)}",
    ]  # fmt: skip
    for text in with_local:
        called = sorted({f"{s.name}.{s.types[0]}" for s in Program.parse(text).statements
                         if s.name in LOCAL and s.types[0] == "f64"})  # fmt: skip
        lines.append(f"  {dict(every)[text].local} bytes: {', '.join(called) or 'none of the functions that need it'}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """1 if there is a finding; 2 without the corpus."""
    parser = argparse.ArgumentParser(prog="python -m tests.long.cuda_models", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="models (default: all)")
    parser.add_argument("--kind", choices=("package", "skeleton"), help="only models of this kind")
    parser.add_argument("--cache", type=Path, metavar="FOLDER", help="keep what was compiled")
    options = parser.parse_args(arguments)
    folder = corpus_folder()
    if not (folder / "index.tsv").exists():
        print(f"no corpus at {folder}: set ONNXFUSE_CORPUS", file=sys.stderr)
        return 2
    models = catalog(folder)
    index = models.index()
    if set(options.names) - set(index):
        parser.error(f"no such model in the corpus: {', '.join(sorted(set(options.names) - set(index)))}")
    names = options.names or [name for name, entry in index.items() if options.kind in (None, entry["kind"])]
    corpus = Corpus(Compiler(store=Cache(options.cache)))
    bad = 0
    for place, name in enumerate(names, 1):
        try:
            line, findings = corpus.model(Path(models.materialize(name, cache_folder())))
        except OnnxfuseError as error:
            line, findings = "no plan", [str(error)]
        print("\n".join([f"[{place}/{len(names)}] {name}: {line}", *(f"  FINDING {f}" for f in findings)]), flush=True)
        bad += len(findings)
    print(f"{len(names)} models, {bad} findings\n{summary(corpus.facts.items())}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
