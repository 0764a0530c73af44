"""Reference evaluation of a program in numpy: the oracle of all tests.

Works on whole arrays with broadcasting. Functions of float32 are computed in float64 and rounded once, so their
error is 0.5 ULP (double rounding aside); functions of float64 have the error of the C library and numpy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from onnxfuse.program.convert import cast
from onnxfuse.program.dtypes import NUMPY, from_bits, name_of
from onnxfuse.program.parts import Input, ProgramError, Statement

Array = np.ndarray


def evaluate(inputs: Sequence[Input], statements: Sequence[Statement], outputs: Sequence[str],
             xs: Sequence[Array], cs: Sequence[Array]) -> list[Array]:
    """One array per output, each of the iteration shape (see Program.evaluate)."""
    values = _bind(inputs, xs, cs)
    shape = np.broadcast_shapes(*(v.shape for v in values.values()))
    last = _last_uses(statements)
    kept = set(outputs)
    with np.errstate(all="ignore"):
        for number, statement in enumerate(statements):
            values[statement.result] = run(statement, [values[o] for o in statement.operands])
            for operand in set(statement.operands):
                # Long programs on large tensors: keep no array longer than it is needed.
                if last[operand] == number and operand not in kept:
                    del values[operand]
    return [np.array(np.broadcast_to(values[name], shape)) for name in outputs]


def run(statement: Statement, operands: Sequence[Array]) -> Array:
    """The value of one statement; the result has the broadcast shape of the operands."""
    if statement.name == "const":
        return from_bits(statement.dtype, statement.bits or 0)
    if statement.name == "cast":
        return cast(operands[0], statement.types[0], statement.types[1])
    dtype = NUMPY[statement.dtype]
    if statement.name in _FUNCTIONS and statement.types[0] == "f32":
        wide = [np.asarray(o, np.float64) for o in operands]
        return np.asarray(_FUNCTIONS[statement.name](*wide)).astype(dtype)
    function = _FUNCTIONS.get(statement.name) or _EXACT[statement.name]
    return np.asarray(function(*operands)).astype(dtype, copy=False)


def _bind(inputs: Sequence[Input], xs: Sequence[Array], cs: Sequence[Array]) -> dict[str, Array]:
    given = {f"x{k}": np.asarray(v) for k, v in enumerate(xs)} | {f"c{k}": np.asarray(v) for k, v in enumerate(cs)}
    if [i.name for i in inputs] != list(given):
        raise ProgramError(f"the program takes {[i.name for i in inputs]}, {list(given)} were given")
    values = {}
    for declared in inputs:
        array = given[declared.name]
        if name_of(array.dtype) != declared.dtype:
            raise ProgramError(f"{declared.name} is {declared.dtype}, a tensor of {array.dtype} was given")
        if declared.name.startswith("c"):
            if array.size != 1:
                raise ProgramError(f"{declared.name} takes one element, {array.size} were given")
            array = array.reshape(())
        values[declared.name] = array.reshape(array.shape + (1,) * declared.pad)
    return values


def _last_uses(statements: Sequence[Statement]) -> dict[str, int]:
    return {operand: number for number, s in enumerate(statements) for operand in s.operands}


# --- exact instructions -------------------------------------------------------------------------------------------


def _is_float(a: Array) -> bool:
    return bool(a.dtype.kind == "f")


def _bits_of(a: Array) -> int:
    return int(a.dtype.itemsize) * 8


def _div(a: Array, b: Array) -> Array:
    if _is_float(a):
        return np.asarray(a / b)
    safe = np.where(b == 0, b.dtype.type(1), b)
    quotient = np.floor_divide(a, safe)
    # numpy rounds down; where a remainder is left and the signs differ, truncation is one more.
    up = ((a < 0) != (safe < 0)) & (quotient * safe != a)
    return np.asarray(np.where(b == 0, a.dtype.type(0), quotient + up.astype(a.dtype)))


def _remainder(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    def apply(a: Array, b: Array) -> Array:
        if _is_float(a):
            return np.asarray(function(a, b))
        safe = np.where(b == 0, b.dtype.type(1), b)
        return np.asarray(np.where(b == 0, a.dtype.type(0), function(a, safe)))
    return apply


def _minimum(a: Array, b: Array) -> Array:
    least = np.minimum(a, b)
    return np.where(a == b, np.where(np.signbit(a), a, b), least) if _is_float(a) else np.asarray(least)


def _maximum(a: Array, b: Array) -> Array:
    most = np.maximum(a, b)
    return np.where(a == b, np.where(np.signbit(a), b, a), most) if _is_float(a) else most


def _shift(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    def apply(a: Array, b: Array) -> Array:
        inside = b < _bits_of(a)
        return np.where(inside, function(a, np.where(inside, b, b.dtype.type(0))), a.dtype.type(0))
    return apply


def _integer_power(base: Array, exponent: Array) -> Array:
    """base ** exponent modulo 2^bits by squaring; negative exponents leave 1, -1 or 0."""
    base, exponent = (np.array(v) for v in np.broadcast_arrays(base, exponent))
    one = base.dtype.type(1)
    odd = (exponent & one) != 0
    inverse = np.where(base == 1, one, np.where(base == -1, np.where(odd, -one, one), base.dtype.type(0)))
    negative = exponent < 0
    rest = np.where(negative, base.dtype.type(0), exponent)
    result = np.ones_like(base)
    square = base
    while np.any(rest > 0):
        result = np.where((rest & one) != 0, result * square, result)
        square = square * square
        rest = rest >> one
    return np.where(negative, inverse, result)


# --- functions: float64 in, float64 out ---------------------------------------------------------------------------


def _power(a: Array, b: Array) -> Array:
    return np.asarray(np.power(a, b)) if _is_float(a) else _integer_power(a, b)


def _erf(a: Array) -> Array:
    return np.fromiter(map(math.erf, a.ravel().tolist()), np.float64, a.size).reshape(a.shape)


def _sigmoid(a: Array) -> Array:
    small = np.exp(-np.abs(a))
    return np.asarray(np.where(a < 0, small, 1.0) / (1.0 + small))


_FUNCTIONS: dict[str, Callable[..., Array]] = {
    "pow": _power, "exp": np.exp, "log": np.log, "expm1": np.expm1, "log1p": np.log1p, "erf": _erf, "tanh": np.tanh,
    "sigmoid": _sigmoid, "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh,
}

_EXACT: dict[str, Callable[..., Array]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _div, "fmod": _remainder(np.fmod),
    "mod": _remainder(np.mod), "min": _minimum, "max": _maximum, "neg": np.negative, "abs": np.abs, "sign": np.sign,
    "sqrt": np.sqrt, "floor": np.floor, "ceil": np.ceil, "round": np.rint,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor, "not": np.logical_not,
    "bitand": np.bitwise_and, "bitor": np.bitwise_or, "bitxor": np.bitwise_xor, "bitnot": np.bitwise_not,
    "shl": _shift(np.left_shift), "shr": _shift(np.right_shift), "select": np.where,
}
