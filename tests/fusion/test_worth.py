"""What a group is worth: thresholds at their edges. Whole plans stand in plans/: alone, short_rows, smaller_shape."""

from __future__ import annotations

import pytest

from onnxfuse.fusion import worth
from onnxfuse.fusion.worth import CPU, SHORT_ROW, SOME
from onnxfuse.model import Term
from tests.fusion.planning import plan_of

ADDITION = 1.0
ENOUGH = int(CPU.node_ns / CPU.cost_ns)  # elements whose additions cost as much as a node


def repeated(cost: float, own: Term, whole: Term) -> bool:
    return worth.repeated(cost, own, whole, CPU)


def test_work_is_repeated_until_a_node_costs_less() -> None:
    assert not repeated(ADDITION, Term((1,)), Term((ENOUGH,)))
    assert repeated(ADDITION, Term((1,)), Term((ENOUGH + 2,)))
    assert repeated(2 * ADDITION, Term(()), Term((2, ENOUGH // 2)))


def test_only_dims_of_one_count() -> None:
    many = 100 * ENOUGH
    assert repeated(ADDITION, Term((8, 1, 1)), Term((2, 8, many, many)))
    assert not repeated(ADDITION, Term((8, many)), Term((8, many)))
    assert not repeated(ADDITION, Term((("N",), many)), Term((("M", "N"), many)))  # N may be M, or 1
    assert not repeated(0.0, Term((1,)), Term((many,)))


def test_a_dim_without_a_number_is_taken_for_some() -> None:
    least = CPU.node_ns / CPU.cost_ns / (SOME * SOME - 1)
    whole = Term((("N",), ("S",)))
    assert not repeated(0.9 * least, Term(()), whole)
    assert repeated(1.1 * least, Term(()), whole)


def test_of_an_unknown_rank_nothing_is_known() -> None:
    assert not repeated(1e9, Term((), ("u",)), Term((1000, 1000), ("u",)))
    assert repeated(1e9, Term((1,)), Term((1000, 1000), ("u",)))


@pytest.mark.parametrize(("row", "alone"), [(1, False), (2, True), (SHORT_ROW, True), (SHORT_ROW + 1, False)])
def test_a_short_row_pays_alone(row: int, alone: bool) -> None:
    _, plan = plan_of(f"g (float[N, {row}] x, float[N, 1] w) => (float[N, {row}] y) {{ y = Add (x, w) }}")
    assert bool(plan.groups) == alone
    assert alone or plan.left[0].reason is worth.SINGLE


@pytest.mark.parametrize(("last", "alone"), [(4, True), (5, False)])
def test_axes_that_go_together_are_one_row(last: int, alone: bool) -> None:
    shape = f"4, {last}"
    _, plan = plan_of(f"g (float[N, {shape}] x, float[{shape}] w) => (float[N, {shape}] y) {{ y = Add (x, w) }}")
    assert bool(plan.groups) == alone


@pytest.mark.parametrize("op", sorted(worth.ALONE))
def test_ops_that_pay_alone_pay_in_float32_only(op: str) -> None:
    operands = {"PRelu": "x, x", "Pow": "x, x", "Where": "m, x, x"}.get(op, "x")
    kinds = [("float", True), ("double", False)]
    for kind, paying in kinds[: 1 if op == "Celu" else 2]:  # Celu takes float32 only
        text = f'<ir_version: 10, opset_import: ["" : 22]> g ({kind}[N, M] x, bool[N, M] m) => ({kind}[N, M] y) ' \
               f"{{ y = {op} ({operands}) }}"
        _, plan = plan_of(text)
        assert bool(plan.groups) == paying


def test_what_is_left_for_its_smaller_shape_says_so() -> None:
    _, plan = plan_of("g (float[64, 1] t, float[64, 4096] x) => (float[64, 4096] y) { e = Erf (t)  k = Sub (x, e)"
                      "  y = Abs (k) }")
    assert [group.op_types for group in plan.groups] == [("Sub", "Abs")]
    assert [(left.op, left.reason.code) for left in plan.left] == [("Erf", "smaller-shape")]
