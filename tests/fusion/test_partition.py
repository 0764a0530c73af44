"""Contraction against a check of all paths, on random graphs."""

from __future__ import annotations

import random

import pytest

from onnxfuse.fusion import partition as module
from onnxfuse.fusion.partition import Partition


def random_edges(rng: random.Random, count: int) -> list[list[int]]:
    return [sorted({rng.randrange(node + 1, count) for _ in range(rng.randrange(4))} if node + 1 < count else set())
            for node in range(count)]


def units_after(partition: Partition, edges: list[list[int]]) -> dict[int, set[int]]:
    """The contracted graph."""
    found: dict[int, set[int]] = {partition.find(node): set() for node in range(len(edges))}
    for node, followers in enumerate(edges):
        unit = partition.find(node)
        found[unit].update(partition.find(f) for f in followers if partition.find(f) != unit)
    return found


def closes_cycle(after: dict[int, set[int]], chosen: set[int]) -> bool:
    """Whether a path leaves the chosen units and comes back."""
    stack = [other for unit in chosen for other in after[unit] if other not in chosen]
    seen = set(stack)
    while stack:
        for other in after[stack.pop()]:
            if other in chosen:
                return True
            if other not in seen:
                seen.add(other)
                stack.append(other)
    return False


@pytest.mark.parametrize("seed", range(40))
def test_contracts_exactly_what_closes_no_cycle(seed: int) -> None:
    rng = random.Random(seed)
    edges = random_edges(rng, 40)
    partition = Partition(edges)
    for _ in range(60):
        after = units_after(partition, edges)
        units = sorted(after)
        chosen = set(rng.sample(units, min(len(units), rng.choice((2, 2, 2, 3, 4)))))
        if len(chosen) < 2:
            break
        merged = partition.contract(chosen)
        assert (merged is None) == closes_cycle(after, chosen)
        if merged is not None:
            assert {partition.find(unit) for unit in chosen} == {merged}
        after = units_after(partition, edges)
        for unit, followers in after.items():
            assert all(partition.at(unit) < partition.at(other) for other in followers)
        assert len({partition.at(unit) for unit in after}) == len(after)


def test_before_lists_the_latest_producer_first() -> None:
    partition = Partition([[1, 3], [2], [3], []])
    assert partition.before(3) == [2, 0]
    assert partition.contract([1, 2]) is not None
    assert [partition.find(u) for u in partition.before(3)] == [partition.find(2), 0]


@pytest.mark.parametrize("seed", range(20))
def test_groups_that_are_known_to_fit_are_contracted_without_a_search(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However wide they are; afterwards the units are in a topological order, and others contract as before."""
    rng = random.Random(seed)
    edges = random_edges(rng, 40)
    known = Partition(edges)
    for _ in range(30):
        known.contract({known.find(node) for node in rng.sample(range(40), 3)})
    groups: dict[int, list[int]] = {}
    for node in range(40):
        groups.setdefault(known.find(node), []).append(node)
    monkeypatch.setattr(module, "_WIDE", 0)
    again = Partition(edges)
    again.contract_all([members for members in groups.values() if len(members) > 1])
    monkeypatch.undo()
    after = units_after(again, edges)
    assert {frozenset(n for n in range(40) if again.find(n) == unit) for unit in after} == {
        frozenset(members) for members in groups.values()}
    assert all(again.at(unit) < again.at(f) for unit, followers in after.items() for f in followers)
    for _ in range(20):
        units = rng.sample(sorted(after), 2) if len(after) > 1 else sorted(after)
        assert (again.contract(units) is None) == closes_cycle(after, set(units))
        after = units_after(again, edges)


def test_groups_that_close_a_cycle() -> None:
    with pytest.raises(ValueError, match="cycle"):
        Partition([[1], [2], []]).contract_all([[0, 2]])


def test_a_search_that_is_too_wide_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 50
    edges: list[list[int]] = [list(range(1, count)), *[[count] for _ in range(count - 1)], []]
    assert Partition(edges).contract([0, 1]) is not None
    monkeypatch.setattr(module, "_WIDE", 20)
    assert Partition(edges).contract([0, 1]) is None
