"""The instruction table: the one place that names every instruction of a fused program.

Python reads it directly; the C++ tables of `custom_ops/` are generated from it at build time
(`python onnxfuse/program/instructions.py --cpp FILE`), which is why this module imports the
standard library only.

Error bounds are in units in the last place (ULP) of the result type, measured from the true
result over the whole range of inputs; 0.5 means correctly rounded, 0 means exact.
"""

from __future__ import annotations

import dataclasses
import sys

FLOATS = ("f32", "f64")
HALVES = ("f16", "bf16")
SIGNED = ("i8", "i16", "i32", "i64")
UNSIGNED = ("u8", "u16", "u32", "u64")
INTS = SIGNED + UNSIGNED
NUMBERS = FLOATS + INTS
BOOL = ("bool",)
DTYPES = ("f32", "f64", "f16", "bf16", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool")
"""Every element type of the format, in the order of their numbers in the generated C++ table."""

BYTES = {"f32": 4, "f64": 8, "f16": 2, "bf16": 2, "i8": 1, "i16": 2, "i32": 4, "i64": 8,
         "u8": 1, "u16": 2, "u32": 4, "u64": 8, "bool": 1}

MAX_INPUTS = 64
MAX_OUTPUTS = 32
MAX_STATEMENTS = 4096
MAX_TEXT = 1 << 20
MAX_RANK = 8


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One row of the table.

    `form` gives the types of a statement `r = name.TYPES operands`:
    same    name.T          T, ... -> T
    compare name.T.bool     T, T -> bool
    select  select.bool.T   bool, T, T -> T
    cast    cast.S.D        S -> D        (`types` lists both S and D)
    const   const.T 0xBITS  -> T          (bit pattern of T, exactly two hex digits a byte)
    """

    name: str
    arity: int
    form: str
    types: tuple[str, ...]
    text: str
    ulp: float = 0.0
    """Largest error of the float32 result."""
    ulp64: float = 0.0
    """Largest error of the float64 result."""
    commutative: bool = False
    cost: float = 1.0
    """Estimated time an element of float32, in units of one addition."""


def _row(name: str, arity: int, types: tuple[str, ...], text: str, ulp: float = 0.0, ulp64: float | None = None,
         form: str = "same", commutative: bool = False, cost: float = 1.0) -> Instruction:
    return Instruction(name, arity, form, types, text, ulp, ulp if ulp64 is None else ulp64, commutative, cost)


_ALL = (
    # arithmetic; integers wrap modulo 2^bits
    _row("add", 2, NUMBERS, "a + b", 0.5, commutative=True),
    _row("sub", 2, NUMBERS, "a - b", 0.5),
    _row("mul", 2, NUMBERS, "a * b", 0.5, commutative=True),
    _row("div", 2, NUMBERS, "a / b; integers truncate toward zero, x/0 is 0, the lowest number / -1 wraps", 0.5,
         cost=5),
    _row("fmod", 2, NUMBERS, "remainder with the sign of a, exact (C fmod); integers: a % b of C, x % 0 is 0",
         cost=20),
    _row("mod", 2, INTS, "integer remainder with the sign of b; x mod 0 is 0", cost=20),
    _row("pow", 2, ("f32", "f64", "i32", "i64"),
         "a to the power b, special cases as C pow; integers wrap, and a negative exponent gives 1/a^|b| cut to "
         "an integer (0 for a = 0)", 2, 2, cost=30),
    _row("min", 2, NUMBERS, "the smaller; NaN if either is NaN; min(+0,-0) is -0", commutative=True),
    _row("max", 2, NUMBERS, "the larger; NaN if either is NaN; max(+0,-0) is +0", commutative=True),
    _row("neg", 1, NUMBERS, "-a (sign bit of a float flipped; integers wrap)"),
    _row("abs", 1, NUMBERS, "|a| (sign bit of a float cleared; the lowest signed integer stays)"),
    _row("sign", 1, NUMBERS, "-1, 0 or 1; 0 for both zeros of a float; NaN gives NaN", cost=2),
    _row("sqrt", 1, FLOATS, "square root", 0.5, cost=6),
    # functions
    _row("exp", 1, FLOATS, "e^a", 1.1, 2, cost=8),
    _row("log", 1, FLOATS, "natural logarithm", 1.1, 2, cost=10),
    _row("expm1", 1, FLOATS, "e^a - 1", 2, 2, cost=12),
    _row("log1p", 1, FLOATS, "log(1 + a)", 2, 2, cost=14),
    _row("erf", 1, FLOATS, "error function", 1.1, 2, cost=18),
    _row("tanh", 1, FLOATS, "hyperbolic tangent", 2.6, 2, cost=12),
    _row("sigmoid", 1, FLOATS, "1 / (1 + e^-a)", 2.6, 2, cost=11),
    _row("sin", 1, FLOATS, "sine, any finite a", 2, 2, cost=20),
    _row("cos", 1, FLOATS, "cosine, any finite a", 2, 2, cost=20),
    _row("tan", 1, FLOATS, "tangent, any finite a", 2, 2, cost=30),
    _row("asin", 1, FLOATS, "arc sine", 2, 2, cost=20),
    _row("acos", 1, FLOATS, "arc cosine", 2, 2, cost=20),
    _row("atan", 1, FLOATS, "arc tangent", 2, 2, cost=20),
    _row("sinh", 1, FLOATS, "hyperbolic sine", 2, 2, cost=20),
    _row("cosh", 1, FLOATS, "hyperbolic cosine", 2, 2, cost=20),
    _row("asinh", 1, FLOATS, "inverse hyperbolic sine", 2, 2, cost=25),
    _row("acosh", 1, FLOATS, "inverse hyperbolic cosine", 2, 2, cost=25),
    _row("atanh", 1, FLOATS, "inverse hyperbolic tangent", 2, 2, cost=25),
    _row("floor", 1, FLOATS, "largest whole number not above a"),
    _row("ceil", 1, FLOATS, "smallest whole number not below a"),
    _row("round", 1, FLOATS, "nearest whole number, halves to the even one"),
    # comparisons: false when an operand is NaN, but `ne`; bool operands for eq and ne too
    _row("eq", 2, NUMBERS + BOOL, "a == b", form="compare", commutative=True),
    _row("ne", 2, NUMBERS + BOOL, "a != b (true when an operand is NaN)", form="compare", commutative=True),
    _row("lt", 2, NUMBERS, "a < b", form="compare"),
    _row("le", 2, NUMBERS, "a <= b", form="compare"),
    # logic and bits
    _row("and", 2, BOOL, "a and b", commutative=True),
    _row("or", 2, BOOL, "a or b", commutative=True),
    _row("xor", 2, BOOL, "a or b, not both", commutative=True),
    _row("not", 1, BOOL, "not a"),
    _row("bitand", 2, INTS, "bitwise and", commutative=True),
    _row("bitor", 2, INTS, "bitwise or", commutative=True),
    _row("bitxor", 2, INTS, "bitwise exclusive or", commutative=True),
    _row("bitnot", 1, INTS, "every bit flipped"),
    _row("shl", 2, UNSIGNED, "a shifted left by b bits; 0 when b >= bits", cost=2),
    _row("shr", 2, UNSIGNED, "a shifted right by b bits; 0 when b >= bits", cost=2),
    # choice and types
    _row("select", 3, NUMBERS + BOOL, "b where a is true, else c", form="select"),
    _row("cast", 1, DTYPES,
         "float to a narrower float: to nearest even, overflow to infinity; float to integer: cut toward zero, out "
         "of range and NaN unspecified but defined in the code; integer to narrower integer: modulo 2^bits; to "
         "bool: a != 0 (NaN is true); from bool: 0 or 1; integer to float: to nearest even", 0.5, form="cast"),
    _row("const", 0, DTYPES, "the value with these bits", form="const", cost=0),
)

INSTRUCTIONS: dict[str, Instruction] = {row.name: row for row in _ALL}
"""Instruction by name, in the order of the table."""


def cpp_table() -> str:
    """The table as C++ X-macro rows: ONNXFUSE_DTYPE(name, bytes) and
    ONNXFUSE_INSTRUCTION(name, arity, form, type_mask, commutative, cost)."""
    lines = ["// Generated from onnxfuse/program/instructions.py; do not edit.",
             f"#define ONNXFUSE_MAX_INPUTS {MAX_INPUTS}", f"#define ONNXFUSE_MAX_OUTPUTS {MAX_OUTPUTS}",
             f"#define ONNXFUSE_MAX_STATEMENTS {MAX_STATEMENTS}", f"#define ONNXFUSE_MAX_TEXT {MAX_TEXT}",
             f"#define ONNXFUSE_MAX_RANK {MAX_RANK}", "#define ONNXFUSE_DTYPES(X) \\"]
    lines += [f"  X({d}, {BYTES[d]}) \\" for d in DTYPES]
    lines += ["", "#define ONNXFUSE_INSTRUCTIONS(X) \\"]
    for i in _ALL:
        mask = sum(1 << DTYPES.index(d) for d in i.types)
        lines.append(f"  X({i.name}, {i.arity}, {i.form}, 0x{mask:x}u, {int(i.commutative)}, {i.cost:g}) \\")
    return "\n".join(lines) + "\n\n"


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "--cpp":
        raise SystemExit("usage: instructions.py --cpp FILE")
    with open(sys.argv[2], "w", encoding="utf-8") as out:
        out.write(cpp_table())
