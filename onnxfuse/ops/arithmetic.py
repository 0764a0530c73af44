"""Arithmetic: operators that the instruction table has almost as they are."""

from __future__ import annotations

from onnxfuse.ops.reason import Reason, op_reason
from onnxfuse.ops.table import ANY_FLOAT, ANY_NUMBER, ANY_SIGNED, INTS, Call, Lowering, Op, binary, unary
from onnxfuse.program.instructions import FLOATS

FAMILY = "arithmetic"


def _reduce(c: Lowering, instruction: str) -> str:
    first, *others = c.operands()
    for other in others:
        first = c.do(instruction, first, other)
    return first


def _mean(c: Lowering) -> str:
    """The sum times 1/n, rounded to the type: what ORT computes, where it is one ULP from a division at most."""
    total = _reduce(c, "add")
    number = len(c.operands())
    return total if number == 1 else c.do("mul", total, 1.0 / number)


def _several(call: Call) -> bool:
    return len(call.inputs_given()) > 1


def _mod(c: Lowering) -> str:
    a, b = c.x(0), c.x(1)
    if c.call.integer("fmod", 0):
        return c.do("fmod", a, b)
    return _floor_mod(c, a, b) if c.kind(a) in FLOATS else c.do("mod", a, b)


def _floor_mod(c: Lowering, a: str, b: str) -> str:
    """a - floor(a / b) * b exactly: the remainder of C, moved by b where the signs differ; a zero has the sign of b."""
    rest = c.do("fmod", a, b)
    below = c.do("lt", b, 0.0)
    other_sign = c.do("xor", c.do("lt", rest, 0.0), below)
    zero = c.do("select", below, c.const(c.kind(a), -0.0), c.const(c.kind(a), 0.0))
    moved = c.do("select", other_sign, c.do("add", rest, b), rest)
    return c.do("select", c.do("eq", rest, 0.0), zero, moved)


def _check_mod(call: Call) -> Reason | None:
    fmod = call.integer("fmod", 0)
    if fmod not in (0, 1):
        return op_reason("bad-attribute", name="fmod", op="Mod", value=fmod)
    if call.dtype(0) in ANY_FLOAT and not fmod and call.opset < 28:
        return op_reason("float-modulo")
    return None


def _pow(c: Lowering) -> str:
    """The result has the base's type, whatever the exponent's.

    Float exponents of an integer base, and exponents that float32 cannot hold, are computed in float64, as ORT does;
    integers to the power of integers are exact modulo 2^bits.
    """
    base, exponent = c.x(0), c.x(1)
    result, other = c.kind(base), c.kind(exponent)
    if result in INTS and other in INTS:
        return c.cast(_integer_pow(c, base, exponent), result)
    wide = "f64" if result in INTS or "f64" in (result, other) or other in ("i32", "i64", "u32", "u64") else "f32"
    return c.cast(c.do("pow", c.cast(base, wide), c.cast(exponent, wide)), result)


def _integer_pow(c: Lowering, base: str, exponent: str) -> str:
    result, other = c.kind(base), c.kind(exponent)
    wide = "i64" if "i64" in (result, other) or other in ("u32", "u64") else "i32"
    if other == "u64":
        # b^e modulo 2^64 depends on e modulo 2^62 alone, once e is too large for an even base to leave anything.
        large = c.do("bitor", c.do("bitand", exponent, (1 << 62) - 1), 1 << 62)
        exponent = c.do("select", c.do("lt", exponent, 1 << 62), exponent, large)
    return c.do("pow", c.cast(base, wide), c.cast(exponent, wide))


def _op(name: str, text: str, signature: str, types: tuple[str, ...], versions: tuple[int, ...],
        instruction: str) -> Op:
    lower = binary(instruction) if signature == "TT->T" else unary(instruction)
    return Op(name, FAMILY, text, signature, {"T": types}, versions, lower)


OPS = (
    _op("Add", "a + b", "TT->T", ANY_NUMBER, (7, 13, 14), "add"),
    _op("Sub", "a - b", "TT->T", ANY_NUMBER, (7, 13, 14), "sub"),
    _op("Mul", "a * b", "TT->T", ANY_NUMBER, (7, 13, 14), "mul"),
    _op("Div", "a / b, integers cut toward zero", "TT->T", ANY_NUMBER, (7, 13, 14), "div"),
    Op("Mod", FAMILY, "remainder with the sign of b (fmod = 0) or of a (fmod = 1)", "TT->T", {"T": ANY_NUMBER},
       (10, 13, 28), _mod, check=_check_mod, example={"fmod": 1}, notes="fmod = 0 on floats from opset 28"),
    Op("Pow", FAMILY, "a to the power b", "TU->T", {"T": (*ANY_FLOAT, "i32", "i64"), "U": ANY_NUMBER}, (7, 12, 13, 15),
       _pow, notes="integer results wrap; computed in f64 where the exponent is f64 or a wide integer"),
    Op("Max", FAMILY, "the largest; NaN if any is NaN", "T*->T", {"T": ANY_NUMBER}, (6, 8, 12, 13),
       lambda c: _reduce(c, "max"), counts=_several, notes="zeros are ordered: max(-0, 0) is 0"),
    Op("Min", FAMILY, "the smallest; NaN if any is NaN", "T*->T", {"T": ANY_NUMBER}, (6, 8, 12, 13),
       lambda c: _reduce(c, "min"), counts=_several, notes="zeros are ordered: min(-0, 0) is -0"),
    Op("Sum", FAMILY, "a + b + …, from the left", "T*->T", {"T": ANY_FLOAT}, (6, 8, 13), lambda c: _reduce(c, "add"),
       counts=_several),
    Op("Mean", FAMILY, "(a + b + …) * (1 / n)", "T*->T", {"T": ANY_FLOAT}, (6, 8, 13), _mean, counts=_several),
    _op("Neg", "-a", "T->T", ANY_SIGNED, (6, 13), "neg"),
    _op("Abs", "|a|", "T->T", ANY_NUMBER, (6, 13), "abs"),
    _op("Sign", "-1, 0 or 1", "T->T", ANY_NUMBER, (9, 13), "sign"),
    Op("Reciprocal", FAMILY, "1 / a", "T->T", {"T": ANY_FLOAT}, (6, 13), lambda c: c.do("div", 1.0, c.x())),
    _op("Sqrt", "square root", "T->T", ANY_FLOAT, (6, 13), "sqrt"),
    _op("Floor", "largest whole number not above a", "T->T", ANY_FLOAT, (6, 13), "floor"),
    _op("Ceil", "smallest whole number not below a", "T->T", ANY_FLOAT, (6, 13), "ceil"),
    _op("Round", "nearest whole number, halves to the even one", "T->T", ANY_FLOAT, (11, 22), "round"),
)
