"""Programs as models have them: the twelve chains of the benchmark's kind, for what is slow to compile."""

from __future__ import annotations

from onnxfuse.program import Program


def _program(inputs: str, statements: str) -> Program:
    """`inputs` "x0 f32, c0 f32"; `statements` separated by "; ", the last ones "out t1"."""
    declared = "".join(f"in {i}\n" for i in inputs.split(", "))
    return Program.parse(f"onnxfuse 1\n{declared}" + "".join(f"{line}\n" for line in statements.split("; ")))


CHAINS: dict[str, Program] = {
    "swiglu": _program("x0 f32, x1 f32",
                       "t0 = sigmoid.f32 x0; t1 = mul.f32 x0 t0; t2 = mul.f32 t1 x1; out t2"),
    "swiglu_f16": _program("x0 f16, x1 f16",
                           "t0 = cast.f16.f32 x0; t1 = sigmoid.f32 t0; t2 = mul.f32 t0 t1; t3 = cast.f16.f32 x1; "
                           "t4 = mul.f32 t2 t3; t5 = cast.f32.f16 t4; out t5"),
    "mish": _program("x0 f32",
                     "t0 = const.f32 0x00000000; t1 = max.f32 x0 t0; t2 = abs.f32 x0; t3 = neg.f32 t2; "
                     "t4 = exp.f32 t3; t5 = log1p.f32 t4; t6 = add.f32 t1 t5; t7 = tanh.f32 t6; t8 = mul.f32 x0 t7; "
                     "out t8"),
    "gelu": _program("x0 f32, c0 f32, c1 f32, c2 f32",
                     "t0 = div.f32 x0 c0; t1 = erf.f32 t0; t2 = add.f32 t1 c1; t3 = mul.f32 x0 t2; "
                     "t4 = mul.f32 t3 c2; out t4"),
    "lstm": _program("x0 f32, x1 f32, x2 f32, x3 f32, x4 f32",
                     "t0 = sigmoid.f32 x1; t1 = mul.f32 t0 x4; t2 = sigmoid.f32 x0; t3 = tanh.f32 x2; "
                     "t4 = mul.f32 t2 t3; t5 = add.f32 t1 t4; t6 = sigmoid.f32 x3; t7 = tanh.f32 t5; "
                     "t8 = mul.f32 t6 t7; out t5; out t8"),
    "where_mask": _program("x0 f32, x1 f32, x2 bool, c0 f32",
                           "t0 = lt.f32.bool x1 x0; t1 = and.bool t0 x2; t2 = mul.f32 x0 c0; t3 = sub.f32 x1 x0; "
                           "t4 = select.bool.f32 t1 t2 t3; out t4"),
    "normalize_u8": _program("x0 u8, x1 f32, x2 f32",
                             "t0 = cast.u8.f32 x0; t1 = sub.f32 t0 x1; t2 = div.f32 t1 x2; out t2"),
    "angles": _program("x0 f32", "t0 = sin.f32 x0; t1 = cos.f32 x0; t2 = tan.f32 x0; t3 = mul.f32 t0 t1; "
                                 "t4 = add.f32 t3 t2; out t4"),
    "double": _program("x0 f64, x1 f64", "t0 = exp.f64 x0; t1 = mul.f64 t0 x1; t2 = sigmoid.f64 t1; out t2"),
    "bytes": _program("x0 i64, x1 u8, x2 bf16",
                      "t0 = cast.u8.i64 x1; t1 = add.i64 x0 t0; t2 = cast.bf16.f32 x2; t3 = cast.f32.i64 t2; "
                      "t4 = lt.i64.bool t1 t3; out t1; out t4"),
}  # fmt: skip


def long_program(dtype: str, cost: int) -> Program:
    """Sums and differences in float32, so many that they cost this much: long to run and quick to compile."""
    lines = [f"in x0 {dtype}", f"in x1 {dtype}"]
    a, b = "x0", "x1"
    if dtype != "f32":
        lines += [f"t0 = cast.{dtype}.f32 x0", f"t1 = cast.{dtype}.f32 x1"]
        a, b = "t0", "t1"
    count = len(lines) - 2
    for k in range(cost):
        lines.append(f"t{count} = {('add', 'sub')[k % 2]}.f32 {a} {b}")
        a, count = f"t{count}", count + 1
    if dtype != "f32":
        lines.append(f"t{count} = cast.f32.{dtype} {a}")
        a = f"t{count}"
    return Program.parse("".join(f"{line}\n" for line in ("onnxfuse 1", *lines, f"out {a}")))
