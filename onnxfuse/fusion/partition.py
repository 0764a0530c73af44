"""Contraction of an acyclic graph: which nodes may become one without closing a cycle.

A unit is a node or several nodes made one. The units always form an acyclic graph (not only each unit a convex set),
and ``at`` is a topological order of them that contraction mends locally: only units between the first and the last of
the set are looked at, in the manner of dynamic topological sorting (Pearce and Kelly). A search that grows too wide
gives up, which costs a fusion, never correctness.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

__all__ = ["Partition"]

_WIDE = 2000  # edges that one attempt may look at
_NARROW = 100  # the same when the whole search has used up its budget
_BUDGET = 60  # edges a node, for all attempts together


class Partition:
    """Units over nodes 0 … n-1, which are numbered in topological order; ``edges`` lists the followers of each."""

    def __init__(self, edges: Sequence[Iterable[int]]) -> None:
        count = len(edges)
        self._root = list(range(count))
        self._at = list(range(count))
        self._after: list[set[int]] = [set(followers) for followers in edges]
        self._before: list[set[int]] = [set() for _ in range(count)]
        for node, followers in enumerate(self._after):
            for follower in followers:
                self._before[follower].add(node)
        self._gone: set[int] = set()  # units that became part of another
        self._budget = _BUDGET * count + 200_000

    def find(self, node: int) -> int:
        """The unit of a node."""
        root = self._root
        while root[node] != node:
            root[node] = root[root[node]]
            node = root[node]
        return node

    def at(self, unit: int) -> int:
        """Place of a unit in the order."""
        return self._at[unit]

    def before(self, unit: int) -> list[int]:
        """The units that feed a unit directly, latest first."""
        return sorted(self._neighbours(self._before, unit), key=self._at.__getitem__, reverse=True)

    def contract(self, units: Iterable[int]) -> int | None:
        """Makes several units one if no path leads from one of them through another unit back to one of them, and
        returns it; else, or when the search is too wide, changes nothing and returns None."""
        chosen = set(units)
        low = min(self._at[u] for u in chosen)
        high = max(self._at[u] for u in chosen)
        later = self._reach(self._after, chosen, low, high)
        if later is None:
            return None
        earlier: set[int] | None = set()
        if later:
            earlier = self._reach(self._before, chosen, low, high)
            if earlier is None:
                return None
        return self._merge(chosen, earlier or set(), later, high)

    def contract_all(self, groups: Iterable[Iterable[int]]) -> None:
        """Makes each group of units one. All together must close no cycle: it is not looked for, however wide the
        groups are. ValueError if they do."""
        for group in groups:
            self._unite(set(group))
        units = sorted((u for u in range(len(self._root)) if u not in self._gone), key=self._at.__getitem__)
        missing = {unit: len(self._neighbours(self._before, unit)) for unit in units}
        ready = [(self._at[unit], unit) for unit in units if not missing[unit]]
        heapq.heapify(ready)
        done = 0
        while ready:
            _, unit = heapq.heappop(ready)
            self._at[unit] = done
            done += 1
            for follower in self._neighbours(self._after, unit):
                missing[follower] -= 1
                if not missing[follower]:
                    heapq.heappush(ready, (self._at[follower], follower))
        if done < len(units):
            raise ValueError("the groups close a cycle")

    def _neighbours(self, sides: list[set[int]], unit: int) -> set[int]:
        """Units on one side of a unit; brings the stored set up to date."""
        side = sides[unit]
        if not side.isdisjoint(self._gone):
            side = sides[unit] = {self.find(v) for v in side}
        side.discard(unit)
        return side

    def _reach(self, sides: list[set[int]], chosen: set[int], low: int, high: int) -> set[int] | None:
        """Units strictly between that the chosen ones reach; None if a path comes back to a chosen one, or if more
        edges than allowed would have to be looked at."""
        given = left = _WIDE if self._budget > 0 else _NARROW
        seen: set[int] = set()
        stack = list(chosen)
        at, gone, find = self._at, self._gone, self.find
        while stack:
            unit = stack.pop()
            side = sides[unit]
            left -= len(side)
            if left < 0:
                break
            if not side.isdisjoint(gone):  # as `_neighbours`: this is the innermost loop of planning
                side = sides[unit] = {find(v) for v in side}
            side.discard(unit)
            for other in side:
                if other in chosen:
                    if unit not in chosen:  # an edge from one chosen unit to another is no path
                        self._budget -= given - left
                        return None
                elif other not in seen and low < at[other] < high:
                    seen.add(other)
                    stack.append(other)
        self._budget -= given - left
        return None if left < 0 else seen

    def _merge(self, chosen: set[int], earlier: set[int], later: set[int], high: int) -> int:
        at = self._at
        target = self._largest(chosen)
        if later:
            places = sorted(at[u] for u in (*chosen, *earlier, *later))
            for place, unit in zip(places, sorted(earlier, key=at.__getitem__), strict=False):
                at[unit] = place
            moved = sorted(later, key=at.__getitem__)
            for place, unit in zip(places[-len(moved):], moved, strict=True):
                at[unit] = place
            at[target] = places[len(earlier) + len(chosen) - 1]
        else:
            at[target] = high
        return self._unite(chosen, target)

    def _largest(self, chosen: set[int]) -> int:
        """The unit with most edges, which others are cheapest to be made part of."""
        return max(chosen, key=lambda u: (len(self._after[u]) + len(self._before[u]), u))

    def _unite(self, chosen: set[int], target: int | None = None) -> int:
        target = self._largest(chosen) if target is None else target
        for unit in chosen:
            if unit != target:
                self._root[unit] = target
                self._gone.add(unit)
                for sides in (self._after, self._before):
                    sides[target] |= sides[unit]
                    sides[unit] = set()
        for sides in (self._after, self._before):
            sides[target] -= chosen
        return target
