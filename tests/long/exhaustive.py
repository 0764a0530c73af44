"""Errors of every float instruction on the instruction sets of this machine, and their table in docs/accuracy.md.

    python -m tests.long.exhaustive --write docs/accuracy.md                        # what `make exhaustive` does
    python -m tests.long.exhaustive --instructions tanh --write docs/accuracy.md    # only its rows anew
    python -m tests.long.exhaustive --step 1009                                     # every 1009th float32, printed

Unary instructions of float32 and its casts are run on all 2^32 floats, those of float16 and bfloat16 on all numbers;
float64 and instructions of two operands on special values and random ones. What is run is the machine of a program of
one instruction, or of several that the library joins into one function (silu, tanh_softplus, mish), from the build
folder (--build) that the library is taken from. The exit status is 1 when an error is above the bound or AVX2 and
AVX-512 do not agree in every bit.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mpmath
import numpy as np

from onnxfuse.program.dtypes import NUMPY
from onnxfuse.program.instructions import BYTES, DTYPES, HALVES, INSTRUCTIONS, Instruction
from onnxfuse.report.machine import machine
from tests.custom_ops import accuracy_samples as samples
from tests.custom_ops.accuracy import WRONG, Accuracy, Error

Operands = tuple[np.ndarray[Any, Any], ...]
Place = tuple[float, tuple[int, ...]]

ROOT = Path(__file__).resolve().parents[2]
TRUSTED = 0.01
"""ULP that the reference may be off."""
CHECKED = 100
"""So many of the worst places of a row, and as many random ones, are computed again with mpmath."""
# Measured on all floats and rounded up. The parts' bounds promise less: the error of a factor counts up to twice in ULP
# of the product, so sigmoid's 2.6 would allow 2 * 2.6 + 0.5.
SILU_ULP, TANH_SOFTPLUS_ULP, MISH_ULP = 3.2, 4.2, 5.0
JOINED = {
    name: replace(INSTRUCTIONS[last], name=name, types=("f32",), text=text, ulp=ulp)
    for name, last, text, ulp in (("silu", "sigmoid", "a / (1 + e^-a)", SILU_ULP),
                                  ("tanh_softplus", "tanh", "tanh(log(1 + e^a))", TANH_SOFTPLUS_ULP),
                                  ("mish", "tanh", "a tanh(log(1 + e^a))", MISH_ULP))
}  # fmt: skip
"""Rows of what the library joins from several instructions."""
TITLES = {"avx512": "AVX-512", "avx2": "AVX2", "neon": "NEON", "baseline": "baseline"}
TRUE: dict[str, Callable[..., Any]] = {
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)), "pow": mpmath.power,
    "silu": lambda x: x / (1 + mpmath.exp(-x)), "tanh_softplus": lambda x: mpmath.tanh(mpmath.log1p(mpmath.exp(x))),
    "mish": lambda x: x * mpmath.tanh(mpmath.log1p(mpmath.exp(x))),
    **{name: getattr(mpmath, name) for name in ("exp", "log", "expm1", "log1p", "erf", "tanh", "sin", "cos", "tan",
       "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh")},
}  # fmt: skip


@dataclass(frozen=True)
class Question:
    """One row of the table: an instruction of a type; `to` is the type of the result of a cast."""

    name: str
    dtype: str
    to: str

    @property
    def row(self) -> Instruction:
        return JOINED.get(self.name) or INSTRUCTIONS[self.name]

    @property
    def label(self) -> str:
        return f"{self.name}.{self.dtype}" + (f".{self.to}" if self.name == "cast" else "")

    @property
    def exact(self) -> bool:
        """Whether there is one right result."""
        return self.row.ulp <= 0.5

    @property
    def complete(self) -> bool:
        """Whether all operands are tried."""
        return self.row.arity == 1 and self.dtype != "f64"

    @property
    def bound(self) -> float:
        """In ULP of the result. A half type rounds a float32 that may be off by the bound of float32."""
        if self.exact:
            return 0.0
        if self.dtype in HALVES:
            narrower = samples.FORMATS["f32"][0] - samples.FORMATS[self.dtype][0]
            return 0.5 + math.ldexp(self.row.ulp, -narrower)
        return self.row.ulp64 if self.dtype == "f64" else self.row.ulp


@dataclass
class Answer:
    """What came out for a question: errors by instruction set, how many operands were tried, how far the reference is
    off at the places that were checked (ULP), and what is wrong."""

    question: Question
    count: int = 0
    errors: dict[str, Error] = field(default_factory=dict)
    reference: float = 0.0
    problems: list[str] = field(default_factory=list)


def questions() -> list[Question]:
    """All rows, in the order of the document."""
    rows = [r for r in INSTRUCTIONS.values() if r.form == "same" and "f32" in r.types]
    result = []
    for arity in (1, 2):
        result += [Question(r.name, "f32", "f32") for r in rows if r.arity == arity]
        if arity == 1:
            result += [Question("cast", "f32", to) for to in DTYPES if to != "f32"]
            result += [Question(name, "f32", "f32") for name in JOINED]
    for dtype in ("f64", *HALVES):
        result += [Question(r.name, dtype, dtype) for arity in (1, 2) for r in rows if r.arity == arity]
    return result + [Question("cast", "f64", to) for to in ("f32", "f16", "bf16")]


# ---- measuring


def operands_of(question: Question, options: argparse.Namespace) -> list[Callable[[], Operands]]:
    """The blocks of operands, each made where it is measured."""
    block, step = options.block, options.step
    if question.complete and question.dtype == "f32":
        total = -(-(1 << 32) // step)
        special: list[Callable[[], Operands]] = [] if step == 1 else [lambda: (samples.special("f32"),)]
        return special + [partial(_floats, k, min(block, total - k), step) for k in range(0, total, block)]
    if question.complete:
        return [lambda: (samples.all_of(question.dtype),)]
    return [partial(_sample, question, block, seed) for seed in range(-(-options.samples // block))]


def _floats(first: int, count: int, step: int) -> Operands:
    bits = np.arange(count, dtype=np.uint32)
    bits *= np.uint32(step)
    bits += np.uint32(first * step)
    return (bits.view(np.float32),)


def _sample(question: Question, count: int, seed: int) -> Operands:
    if question.name == "cast":
        return (samples.ties(question.to, count, seed),)
    if question.row.arity == 1:
        return (samples.unary(question.name, question.dtype, count, seed),)
    return samples.binary(question.name, question.dtype, count, seed)


def ask(question: Question, accuracy: Accuracy, options: argparse.Namespace) -> Answer:
    """Measures a row."""
    answer = Answer(question)
    isas = [isa for isa in accuracy.isas if options.isa in (None, isa)]
    worst: dict[str, list[Place]] = {isa: [] for isa in isas}

    def measure(make: Callable[[], Operands]) -> tuple[int, dict[str, Error]]:
        operands = make()
        return operands[0].size, accuracy.measure(question.name, operands, question.dtype, to=question.to, isas=isas)

    blocks = operands_of(question, options)
    with ThreadPoolExecutor(options.threads) as pool:
        for done, (count, errors) in enumerate(pool.map(measure, blocks), 1):
            answer.count += count
            for isa, error in errors.items():
                answer.errors[isa] = answer.errors.get(isa, Error()).joined(error)
                worst[isa].append((error.ulp, error.at))
            _progress(f"{question.label}: {done * 100 // len(blocks)} %")
    _progress("")
    if not question.exact:
        answer.reference = check_reference(question, accuracy, worst)
    _judge(answer, accuracy)
    return answer


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _judge(answer: Answer, accuracy: Accuracy) -> None:
    if answer.reference > TRUSTED:
        answer.problems.append(f"the reference itself is off by {_ulp(answer.reference)}")
    for isa, error in answer.errors.items():
        if error.ulp > 0 and error.ulp + answer.reference > answer.question.bound:
            answer.problems.append(f"{TITLES[isa]} has {_ulp(error.ulp)} at {_place(error.at, answer.question.dtype)}")
    first, other = accuracy.isas[0], answer.errors.get("avx512")
    if first == "avx2" and other is not None and other.differences:
        place = _place(other.difference, answer.question.dtype)
        answer.problems.append(f"AVX2 and AVX-512 differ for {other.differences} operands, the first {place}")


def check_reference(question: Question, accuracy: Accuracy, worst: dict[str, list[Place]]) -> float:
    """How far the reference is off where the errors are largest, and at random places; in ULP of the result."""
    places = {at for found in worst.values() for _, at in sorted(found, reverse=True)[:CHECKED] if at}
    operands = tuple(_numbers([at[k] for at in places], question.dtype) for k in range(question.row.arity))
    random = _sample(question, CHECKED, 1)
    operands = tuple(np.concatenate(pair) for pair in zip(operands, random, strict=True))
    found = accuracy.reference(question.name, operands, question.dtype)
    (precision, lowest, highest), largest = samples.FORMATS[question.dtype], 0.0
    with mpmath.workprec(250):
        top = mpmath.ldexp(1, highest + 1)
        for (high, low), *x in zip(found, *(o.astype(np.float64).tolist() for o in operands), strict=True):
            # Beyond that it need not be right, or is NaN; two doubles do not hold it near the smallest double.
            if 2.0**-900 < abs(mpmath.mpf(high)) < top:
                true = TRUE[question.name](*(mpmath.mpf(v) for v in x))
                unit = mpmath.ldexp(1, max(mpmath.frexp(true)[1] - 1, lowest) - precision + 1)
                largest = max(largest, float(abs(mpmath.mpf(high) + low - true) / unit))
    return largest


def _numbers(bits: Sequence[int], dtype: str) -> np.ndarray[Any, Any]:
    return np.array(bits, f"u{BYTES[dtype]}").view(NUMPY[dtype])


# ---- the table

HEADS: dict[str, Callable[[Question], bool]] = {
    "float32, all floats": lambda q: q.dtype == "f32" and q.row.arity == 1 and q.name not in JOINED,
    "float32, several instructions joined, all floats": lambda q: q.name in JOINED,
    "float32, two operands": lambda q: q.dtype == "f32" and q.row.arity == 2,
    "float64": lambda q: q.dtype == "f64",
    "float16, computed in float32": lambda q: q.dtype == "f16",
    "bfloat16, computed in float32": lambda q: q.dtype == "bf16",
}


def _ulp(ulp: float) -> str:
    return "another result" if ulp >= WRONG else f"{ulp:.4f}"


def _place(bits: tuple[int, ...], dtype: str) -> str:
    digits = 2 * BYTES[dtype]
    return ", ".join(f"{float(_numbers([b], dtype)[0]):.{9 if digits < 16 else 17}g} (0x{b:0{digits}x})" for b in bits)


def _count(answer: Answer) -> str:
    question = answer.question
    if question.complete and answer.count == 1 << 8 * BYTES[question.dtype]:
        return "all"
    return f"{answer.count:,}"


def columns(accuracy: Accuracy) -> list[str]:
    sets = [TITLES[isa] + " (emulated)" * (isa == "avx512" and accuracy.emulated) for isa in _order(accuracy)]
    pair = ["AVX2 and AVX-512 differ"] if {"avx2", "avx512"} <= set(accuracy.isas) else []
    return ["instruction", "operands", "bound", *sets, *pair, "reference", "largest at"]


def _order(accuracy: Accuracy) -> list[str]:
    return [isa for isa in TITLES if isa in accuracy.isas]


def cells(answer: Answer, accuracy: Accuracy) -> list[str]:
    """A row of the table, in the order of `columns`."""
    question = answer.question
    errors = [answer.errors.get(isa) for isa in _order(accuracy)]
    bound = "exact" if question.exact else f"{question.bound:.5g}"
    wide = answer.errors.get("avx512")
    pair = ["" if wide is None else str(wide.differences)] if {"avx2", "avx512"} <= set(accuracy.isas) else []
    reference = "" if question.exact else f"{answer.reference:.0e}"
    places = {_place(e.at, question.dtype): None for e in errors if e is not None and e.at}
    sizes = [_size(question, error) for error in errors]
    return [f"`{question.label}`", _count(answer), bound, *sizes, *pair, reference, "; ".join(places)]


def _size(question: Question, error: Error | None) -> str:
    if error is None:
        return ""
    if question.exact and error.ulp == 0:
        return "exact"
    return _ulp(error.ulp) if error.ulp <= question.bound else f"**{_ulp(error.ulp)}**"


def document(lines: dict[str, str], accuracy: Accuracy, text: str) -> str:
    """docs/accuracy.md: `lines` are rows by label, `text` stands above them."""
    head = columns(accuracy)
    dashes = ["---", *["---:"] * (len(head) - 2), "---"]
    parts = [text.rstrip()]
    for title, belongs in HEADS.items():
        rows = [lines[q.label] for q in questions() if belongs(q) and q.label in lines]
        parts += ["", f"## {title}", "", f"| {' | '.join(head)} |", f"|{'|'.join(dashes)}|", *rows]
    return "\n".join(parts) + "\n"


def save(path: Path, answers: Sequence[Answer], accuracy: Accuracy, partly: bool) -> None:
    """Writes the document. What was measured `partly` replaces its rows in the one that is there."""
    old = path.read_text(encoding="utf-8") if partly and path.is_file() else ""
    lines = {label: line for line, label in re.findall(r"^(\| `([a-z0-9_.]+)` \|.*)$", old, re.MULTILINE)}
    for answer in answers:
        lines[answer.question.label] = f"| {' | '.join(cells(answer, accuracy))} |"
    text = old.partition("\n## ")[0] if old else introduction(accuracy)
    path.write_text(document(lines, accuracy, text), encoding="utf-8")


INTRODUCTION = """# Accuracy

Written by `make exhaustive`. Every float instruction of `onnxfuse/program/instructions.py` is run as users run it, a
program of this one instruction on the machine, for each instruction set. The largest error is given in units in the
last place (ULP) of the result type, from the true result; *exact* means that every result has the right bits (NaN that
it is one). An error above the bound of the instruction table stands in bold, and the command fails.

{machine}

- {emulation}
- AVX2 and AVX-512 promise the same bits: *AVX2 and AVX-512 differ* counts the operands for which they have not (NaN
  apart). baseline (SSE2, no FMA) has bits of its own.
- float32: unary instructions and casts on all 2^32 floats; float16 and bfloat16: unary instructions on all 65,536
  numbers. The rest on special values (zeros, denormals, powers of two, whole numbers and halves, multiples of pi/2,
  ends of ranges, all with their neighbours; ties of a rounding; NaN and infinities) and random ones, as many as the
  column says.
- The reference of float32 and of the half types is the C library's double function (that of libmvec where it has one),
  of float64 its long double function. At the worst places of each row and at random ones it was computed again with
  mpmath: *reference* is how far it is off there, in ULP.
- Instructions that have one right result are compared with scalar code. Casts to integers are compared with it in
  range; out of range all instruction sets agree.
- Instructions that are joined: a program of these instructions, against the true value of the whole expression (from
  numpy's double exp), by the bounds of `tests/long/exhaustive.py`. At -infinity silu and mish are NaN, as their
  instructions are. Their bits are those of x times the rounded factor (sigmoid, tanh), so where that is denormal, below
  -87.3, the unit of the product is |x| 2^-149, not less: there they are up to 52.01 ULP off, of denormal results, at
  -103.97.
- float16 and bfloat16 compute in float32 and round once. The bound is that of one rounding, 0.5, and what the float32
  result may be off, in ULP of the half type.

After a function was changed, its rows alone: `make exhaustive ARGS="--instructions tanh"`.
"""


def introduction(accuracy: Accuracy) -> str:
    emulation = "All instruction sets of the table ran natively."
    if accuracy.emulated:
        emulation = ("This processor has no AVX-512: its code ran with emulated intrinsics\n"
                     "  (`custom_ops/tools/avx512_emulation.h`). AVX2 and baseline ran natively.")  # fmt: skip
    return INTRODUCTION.format(machine=environment(), emulation=emulation)


def environment() -> str:
    """Machine and versions."""
    compiler = subprocess.run([os.environ.get("CXX", "c++"), "--version"], capture_output=True, text=True, check=False)
    here = machine()
    words = [f"{here['processor']} ({', '.join(here['extensions'])}), {here['cores']} cores",
             compiler.stdout.partition("\n")[0], " ".join(platform.libc_ver()),
             f"mpmath {version('mpmath')}"]  # fmt: skip
    return "; ".join(word for word in words if word) + "."


def chosen(names: Sequence[str]) -> list[Question]:
    """Rows by name of the instruction (exp) or by label (exp.f32)."""
    if not names:
        return questions()
    found = [q for q in questions() if q.name in names or q.label in names]
    known = {q.name for q in found} | {q.label for q in found}
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"no such float instruction: {', '.join(unknown)}")
    return found


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(description="Errors of every float instruction.")
    result.add_argument("--instructions", nargs="+", default=[], metavar="NAME", help="only these, as exp or exp.f32")
    result.add_argument("--isa", choices=TITLES, help="only this instruction set")
    result.add_argument("--step", type=int, default=1, help="every so many floats, and special ones (default: 1)")
    result.add_argument("--samples", type=int, default=1 << 22, help="operands where all are too many (default: 2^22)")
    result.add_argument("--threads", type=int, default=os.cpu_count(), help="default: one for each core")
    result.add_argument("--block", type=int, default=1 << 21, help="operands that are made at a time (default: 2^21)")
    result.add_argument("--build", type=Path, default=ROOT / "build" / "exhaustive", help="folder of accuracy_probe.so")
    result.add_argument("--write", type=Path, metavar="FILE", help="put the rows into this document")
    return result


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.write and options.isa:
        parser().error("--write wants all instruction sets")
    accuracy, begin = Accuracy(options.build), time.monotonic()
    answers = []
    print(" | ".join(columns(accuracy)))
    for question in chosen(options.instructions):
        answers.append(ask(question, accuracy, options))
        print(" | ".join(cells(answers[-1], accuracy)), flush=True)
        if options.write:
            save(options.write, answers, accuracy, bool(options.instructions))
    problems = [f"{a.question.label}: {problem}" for a in answers for problem in a.problems]
    seconds = time.monotonic() - begin
    print(f"{len(answers)} rows in {seconds:.0f} s; {'NOT as promised:' if problems else 'all as promised'}")
    print(*problems, sep="\n", end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
