"""Whole programs on the machine: random ones of mixed types, many values alive at once, the same bits everywhere."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.program import Builder, Program
from onnxfuse.program.instructions import DTYPES, INSTRUCTIONS
from tests.custom_ops.machine import MachineLibrary, assert_same
from tests.custom_ops.test_machine import numbers, specials


def random_program(seed: int, exact: bool) -> Program:
    """A program of up to 60 statements over a few types; `exact`: without the functions that have an error bound."""
    rng = np.random.default_rng(seed)
    narrow = [d for d in DTYPES if d not in ("f64", "i64", "u64")]
    pool = rng.choice(DTYPES if seed % 2 else narrow, rng.integers(1, 5), replace=False).tolist()
    builder = Builder()
    values: dict[str, list[str]] = {}

    def add(dtype: str, value: str) -> None:
        values.setdefault(dtype, []).append(value)

    for _ in range(rng.integers(1, 5)):
        dtype = str(rng.choice(pool))
        add(dtype, builder.input(dtype))
    for _ in range(rng.integers(0, 3)):
        dtype = str(rng.choice(pool))
        add(dtype, builder.scalar(dtype))

    def pick(dtype: str) -> str:
        """A value of this type: mostly a recent one, else a constant or a cast."""
        known = values.get(dtype, [])
        if known and rng.random() < 0.9:
            recent = known[-4:] if rng.random() < 0.6 else known
            return str(rng.choice(recent))
        if rng.random() < 0.3:
            value = builder.const(dtype, rng.choice(specials(dtype)[:12]))
        else:
            source = str(rng.choice(sorted(values)))
            if source == dtype:
                return str(rng.choice(values[source]))
            value = builder.emit("cast", str(rng.choice(values[source])), to=dtype)
        add(dtype, value)
        return value

    rows = [r for r in INSTRUCTIONS.values() if r.form not in ("const", "cast") and (not exact or r.ulp <= 0.5)]
    for _ in range(rng.integers(2, 60)):
        row = rows[rng.integers(len(rows))]
        types = [d for d in row.types if d in pool or d in values]
        if not types or rng.random() < 0.15:
            pick(str(rng.choice(pool)))
            continue
        dtype = str(rng.choice(types))
        wanted = ["bool", dtype, dtype] if row.form == "select" else [dtype] * row.arity
        names = [pick(d) for d in wanted]
        add("bool" if row.form == "compare" else dtype, builder.emit(row.name, *names))
    everything = [v for d in sorted(values) for v in values[d]]
    for _ in range(rng.integers(1, 5)):
        builder.output(str(rng.choice(everything)))
    return builder.build()


def tensors(program: Program, n: int, seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Random inputs with special values among them; the c inputs apart."""
    xs, cs = [], []
    for k, value in enumerate(program.inputs):
        array = numbers(value.dtype, n, seed + k).copy()
        some = np.random.default_rng(seed + k).integers(0, n, 20)
        array[some] = np.resize(specials(value.dtype), 20)
        if value.name.startswith("c"):
            cs.append(array[0].reshape(()))
        else:
            xs.append(array)
    return xs, cs


@pytest.mark.parametrize("seed", range(120))
def test_random_program(machine: MachineLibrary, isa: str, seed: int) -> None:
    program = random_program(seed, exact=True)
    n = int(np.random.default_rng(seed).choice([1, 7, 63, 64, 150, 385]))
    xs, cs = tensors(program, n, seed)
    want = program.evaluate(xs, cs)
    for scalars in (False, True):
        got = machine.run(program.text, [*xs, *cs], n, isa=isa, scalars=scalars)
        for k, (g, w) in enumerate(zip(got, want, strict=True)):
            assert_same(g, w, f"output {k} of\n{program.text}")


@pytest.mark.parametrize("seed", range(1000, 1060))
def test_same_bits(machine: MachineLibrary, seed: int) -> None:
    """AVX2 and AVX-512 agree in every bit, functions included; so does every way of cutting the work."""
    program = random_program(seed, exact=False)
    xs, cs = tensors(program, 385, seed)
    fma = [i for i in machine.isas if i != "baseline"]
    if not fma:
        pytest.skip("this processor has no AVX2")
    want = machine.run(program.text, [*xs, *cs], 385, isa=fma[0])
    for isa in fma[1:]:
        got = machine.run(program.text, [*xs, *cs], 385, isa=isa)
        for k, (g, w) in enumerate(zip(got, want, strict=True)):
            assert_same(g, w, f"output {k} of\n{program.text}")
    for begin, end in ((0, 1), (1, 130), (130, 385)):
        got = machine.run(program.text, [*[x[begin:end] for x in xs], *cs], end - begin, isa=fma[0])
        for k, (g, w) in enumerate(zip(got, want, strict=True)):
            assert_same(g, w[begin:end], f"elements {begin} to {end} of output {k} of\n{program.text}")


def chain(length: int) -> str:
    """One value through `length` statements."""
    body = [f"t{k} = {'add' if k % 2 else 'sub'}.f32 {f't{k - 1}' if k else 'x0'} x1" for k in range(length)]
    return "\n".join(["onnxfuse 1", "in x0 f32", "in x1 f32", *body, f"out t{length - 1}"]) + "\n"


def test_stages_do_not_grow_the_stack(machine: MachineLibrary, isa: str) -> None:
    """As calls instead of jumps, these eight million stages would take more stack than a thread has."""
    text = chain(4096)
    n = 2000 * machine.tile(text, isa)
    x = np.arange(n, dtype=np.float32) % 16
    assert_same(machine.run(text, [x, x], n, isa=isa)[0], x, "chain")


def test_many_values_alive(machine: MachineLibrary, isa: str) -> None:
    """2,000 values computed first and all used afterwards, in both widths."""
    for dtype in ("i32", "i64", "u8"):
        lines = [f"onnxfuse 1\nin x0 {dtype}\nin x1 {dtype}"]
        lines += [f"t0 = add.{dtype} x0 x1"]
        lines += [f"t{k} = {'add' if k % 3 else 'bitxor'}.{dtype} t{k - 1} x{k % 2}" for k in range(1, 2000)]
        lines += [f"t2000 = add.{dtype} t0 t1999"]
        lines += [f"t{2000 + k} = bitxor.{dtype} t{1999 + k} t{1999 - k}" for k in range(1, 1999)]
        text = "\n".join([*lines, "out t3998", "out t7", "out t1999"]) + "\n"
        xs = [numbers(dtype, 150, 1), numbers(dtype, 150, 2)]
        for g, w in zip(machine.run(text, xs, 150, isa=isa), Program.parse(text).evaluate(xs), strict=True):
            assert_same(g, w, f"many values of {dtype}")


def test_most_inputs_and_outputs(machine: MachineLibrary, isa: str) -> None:
    """64 inputs, 32 outputs: the limits of the format."""
    lines = ["onnxfuse 1", *[f"in x{k} f32" for k in range(64)], "t0 = sub.f32 x0 x63"]
    lines += [f"t{k} = sub.f32 t{k - 1} x{63 - k}" for k in range(1, 63)]
    text = "\n".join([*lines, *[f"out {'t' if k % 2 else 'x'}{2 * k}" for k in range(31)], "out t62"]) + "\n"
    xs = [numbers("f32", 200, k) for k in range(64)]
    for g, w in zip(machine.run(text, xs, 200, isa=isa), Program.parse(text).evaluate(xs), strict=True):
        assert_same(g, w, "many operands")


def test_mixed_widths(machine: MachineLibrary, isa: str) -> None:
    """Masks and 32-bit values among 64-bit ones, in each place of a choice."""
    text = (
        "onnxfuse 1\nin x0 f64\nin x1 i64\nin x2 f32\nin x3 u8\nin x4 bool\n"
        "t0 = cast.f32.f64 x2\nt1 = lt.f64.bool x0 t0\nt2 = select.bool.f64 t1 x0 t0\nt3 = cast.u8.i64 x3\n"
        "t4 = eq.i64.bool x1 t3\nt5 = or.bool t4 x4\nt6 = select.bool.i64 t5 t3 x1\nt7 = neg.f64 x0\n"
        "t8 = select.bool.f64 x4 t7 x0\nt9 = select.bool.f64 x4 x0 t7\nt10 = cast.f64.f32 t2\n"
        "t11 = select.bool.f32 t4 t10 x2\nt12 = not.bool x4\nt13 = select.bool.f64 t12 x0 t2\n"
        "out t2\nout t6\nout t8\nout t9\nout t11\nout t13\nout t5\n"
    )
    program = Program.parse(text)
    xs, _ = tensors(program, 777, 3)
    for g, w in zip(machine.run(text, xs, 777, isa=isa), program.evaluate(xs), strict=True):
        assert_same(g, w, "mixed widths")


def test_dead_values(machine: MachineLibrary, isa: str) -> None:
    """What no output needs is not computed: an unused 64-bit input does not halve the tile."""
    used = "onnxfuse 1\nin x0 f32\nin x1 f64\nt0 = neg.f64 x1\nt1 = neg.f32 x0\nout t1\n"
    assert machine.tile(used, isa) == 2 * machine.tile(used + "out t0\n", isa)


def test_random_programs_are_mixed() -> None:
    """The programs of these tests reach all element types."""
    seen = {d for s in range(80) for v in random_program(s, exact=True).statements for d in v.types}
    assert seen == set(DTYPES)
