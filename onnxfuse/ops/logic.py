"""Logic on bools and on the bits of integers."""

from __future__ import annotations

from onnxfuse.ops.reason import Reason, op_reason
from onnxfuse.ops.table import INTS, Call, Lowering, Op, binary, unary
from onnxfuse.program.instructions import SIGNED

FAMILY = "logic"


def _shift(c: Lowering) -> str:
    """Bits shifted out are lost; a negative amount, or one of the width or more, leaves the sign's bits alone.

    Signed types take the unsigned instructions: a negative amount is then a large one, and ~(~x >> n) fills with ones.
    """
    x, amount = c.x(0), c.x(1)
    dtype = c.kind(x)
    name = "shl" if c.call.word("direction", "") == "LEFT" else "shr"
    if dtype not in SIGNED:
        return c.do(name, x, amount)
    unsigned = "u" + dtype[1:]
    amount = c.cast(amount, unsigned)
    if name == "shl":
        return c.cast(c.do(name, c.cast(x, unsigned), amount), dtype)
    sign = c.do("select", c.do("lt", x, 0), c.const(dtype, -1), c.const(dtype, 0))
    bits = c.cast(c.do("bitxor", x, sign), unsigned)
    return c.do("bitxor", c.cast(c.do(name, bits, amount), dtype), sign)


def _check_shift(call: Call) -> Reason | None:
    word = call.word("direction", "")
    if word not in ("LEFT", "RIGHT"):
        return op_reason("bad-attribute", name="direction", op="BitShift", value=word or "missing")
    if call.dtype(0) in SIGNED and call.opset < 28:
        return op_reason("unsupported-dtype", op="BitShift before opset 28", dtype=call.dtype(0), value=call.inputs[0])
    return None


_INT = {"T": INTS}

OPS = (
    Op("And", FAMILY, "a and b", "BB->B", {}, (7,), binary("and")),
    Op("Or", FAMILY, "a or b", "BB->B", {}, (7,), binary("or")),
    Op("Xor", FAMILY, "a or b, not both", "BB->B", {}, (7,), binary("xor")),
    Op("Not", FAMILY, "not a", "B->B", {}, (1,), unary("not")),
    Op("BitwiseAnd", FAMILY, "a & b", "TT->T", _INT, (18,), binary("bitand")),
    Op("BitwiseOr", FAMILY, "a | b", "TT->T", _INT, (18,), binary("bitor")),
    Op("BitwiseXor", FAMILY, "a ^ b", "TT->T", _INT, (18,), binary("bitxor")),
    Op("BitwiseNot", FAMILY, "~a", "T->T", _INT, (18,), unary("bitnot")),
    Op("BitShift", FAMILY, "a << b (direction LEFT) or a >> b (RIGHT)", "TT->T", _INT, (11, 28), _shift,
       check=_check_shift, example={"direction": "LEFT"}, notes="signed types from opset 28"),
)
