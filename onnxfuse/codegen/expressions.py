"""Instructions as CUDA C++ expressions. Values of f16 and bf16 are f32 in registers, rounded by the casts to them."""

from __future__ import annotations

import dataclasses
import math
import struct

from onnxfuse.program.instructions import BYTES, FLOATS, HALVES, INTS, SIGNED, UNSIGNED
from onnxfuse.program.parts import Statement

REGISTER = {**{t: t for t in (*FLOATS, *INTS, "bool")}, **dict.fromkeys(HALVES, "f32")}
"""The C++ type of a value of each element type while it is computed with."""


@dataclasses.dataclass(frozen=True)
class Expression:
    """C++ text and the sections of device.cuh that it needs."""

    text: str
    sections: tuple[str, ...] = ()


def _wrapping(dtype: str) -> str:
    return "u64" if BYTES[dtype] == 8 else "u32"


_INFIX = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "and": "&&", "or": "||", "xor": "!=", "bitand": "&",
          "bitor": "|", "bitxor": "^"}
_ARITHMETIC = {"add": "+", "sub": "-", "mul": "*"}
_ROUNDINGS = {"floor": "floor", "ceil": "ceil", "round": "rint", "sqrt": "sqrt", "fmod": "fmod", "abs": "fabs"}
_SAME_NAME = ("exp", "log", "expm1", "log1p", "erf", "tanh", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
              "cosh", "asinh", "acosh", "atanh", "pow")


def expression(statement: Statement, operands: tuple[str, ...]) -> Expression:
    """The value of a statement; `operands` are names of values in registers."""
    name, dtype = statement.name, statement.types[0]
    if name == "const":
        return constant(dtype, statement.bits or 0)
    if name == "cast":
        return cast(operands[0], dtype, statement.types[1])
    if name == "select":
        return Expression("{} ? {} : {}".format(*operands))
    if name in _INFIX:
        text = f"{operands[0]} {_INFIX[name]} {operands[1]}"
        return Expression(f"({dtype})({text})" if name.startswith("bit") else text)
    if name == "not":
        return Expression(f"!{operands[0]}")
    return (_of_float if dtype in FLOATS else _of_integer)(name, dtype, operands)


def _of_float(name: str, dtype: str, operands: tuple[str, ...]) -> Expression:
    a = operands[0]
    if name in _ARITHMETIC or name == "div":
        return Expression(f"{a} {_ARITHMETIC.get(name, '/')} {operands[1]}")
    if name == "neg":
        return Expression(f"-{a}")
    if name == "sign":
        return Expression(f"sign_of({a})", ("signs",))
    if name in ("min", "max"):
        return Expression(f"{name}imum({a}, {operands[1]})", ("extremes",))
    arguments = ", ".join(operands)
    if name in _ROUNDINGS:
        return Expression(f"{_ROUNDINGS[name]}{'f' if dtype == 'f32' else ''}({arguments})")
    if dtype == "f32" or name == "sigmoid":
        return Expression(f"{name}_{dtype}({arguments})", (name if dtype == "f32" else f"{name}64",))
    assert name in _SAME_NAME, name
    return Expression(f"{name}({arguments})")


def _of_integer(name: str, dtype: str, operands: tuple[str, ...]) -> Expression:
    a, b = operands[0], operands[-1]
    wide = _wrapping(dtype)
    if name in _ARITHMETIC:
        return Expression(f"({dtype})(({wide}){a} {_ARITHMETIC[name]} ({wide}){b})")
    if name == "neg":
        return Expression(f"({dtype})(({wide})0 - ({wide}){a})")
    if name == "abs":
        return Expression(f"{a} < 0 ? ({dtype})(({wide})0 - ({wide}){a}) : {a}" if dtype in SIGNED else a)
    if name == "sign":
        return (Expression(f"sign_of({a})", ("signs",)) if dtype in SIGNED else Expression(f"({dtype})({a} != 0)"))
    if name in ("min", "max"):
        return Expression(f"{a} {'<' if name == 'min' else '>'} {b} ? {a} : {b}")
    if name == "bitnot":
        return Expression(f"({dtype})~{a}")
    if name in ("shl", "shr"):
        return Expression(f"shift_{'left' if name == 'shl' else 'right'}({a}, {b})", ("shifts",))
    if name == "pow":
        return Expression(f"power_of<{dtype}, {wide}>({a}, {b})", ("integer_power",))
    function = {"div": "divide", "fmod": "remainder_of", "mod": "modulo" if dtype in SIGNED else "remainder_of"}[name]
    return Expression(f"{function}({a}, {b})", ("integer_division",))


def constant(dtype: str, bits: int) -> Expression:
    """The value with these bits, exactly; floats as hexadecimal floats with the decimal beside it."""
    if dtype == "bool":
        return Expression("true" if bits else "false")
    if dtype in INTS:
        return Expression(_integer(dtype, bits))
    if dtype == "f64":
        value: float = struct.unpack("<d", bits.to_bytes(8, "little"))[0]
        suffix, raw = "", Expression(f"as_f64(0x{bits:016x}ull)", ("bits",))
    else:
        word = bits << 16 if dtype == "bf16" else bits
        value = struct.unpack("<e", bits.to_bytes(2, "little"))[0] if dtype == "f16" else (
            struct.unpack("<f", word.to_bytes(4, "little"))[0])
        if dtype == "f16" and not math.isfinite(value):
            word = (bits >> 15) << 31 | (0x7F800000 if math.isinf(value) else 0x7FC00000)
        suffix, raw = "f", Expression(f"as_f32(0x{word:08x}u)", ("bits",))
    if not math.isfinite(value):
        return raw
    short = f"{value:.9g}"
    exact = f"{short}{'' if any(c in short for c in '.e') else '.0'}{suffix}"
    if float(short) == value and abs(value) < 1 << 24:
        return Expression(exact)
    return Expression(f"{value.hex()}{suffix} /* {short} */")


def _integer(dtype: str, bits: int) -> str:
    size = 8 * BYTES[dtype]
    if dtype in UNSIGNED:
        return f"({dtype}){bits}ull"
    value = bits - (1 << size) if bits >> (size - 1) else bits
    # The lowest number has no literal of its own.
    return f"({dtype})(-{-value - 1}ll - 1)" if value < 0 else f"({dtype}){value}ll"


def cast(a: str, source: str, target: str) -> Expression:
    """`a`, of element type `source`, as `target`."""
    float_like = source in (*FLOATS, *HALVES)
    zero = "0.0" if source == "f64" else "0.0f" if float_like else f"({source})0"
    if target == "bool":
        return Expression(a if source == "bool" else f"{a} != {zero}")
    if target in FLOATS or target in HALVES:
        return _to_float(a, source, target)
    if not float_like:
        return Expression(f"({target}){a}")
    through = target if BYTES[target] == 8 or target == "u32" else "i32"
    text = f"to_{through}({a})"
    return Expression(text if through == target else f"({target}){text}", ("truncation",))


def _to_float(a: str, source: str, target: str) -> Expression:
    register = REGISTER[target]
    value = f"({register}){a}"
    if target in FLOATS:
        return Expression(a if REGISTER[source] == register else value)
    section = "halves" if target == "f16" else "bfloats"
    if source in (*FLOATS, *HALVES):
        return Expression(f"round_{target}({a})", (section,))
    # Rounding to f32 first is harmless for f16, which ends below 2^16; for bf16 it is not where an integer is longer.
    if target == "f16" or source == "bool" or BYTES[source] <= 2:
        return Expression(f"round_{target}({value})", (section,))
    if BYTES[source] == 4:
        return Expression(f"round_{target}((f64){a})", (section,))
    return Expression(f"round_{target}(sticky({a}))", (section, "sticky"))
