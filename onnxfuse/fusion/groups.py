"""Growing groups: which candidates of one graph become one fused node.

Nodes are taken in topological order; each tries to join all groups that feed it at once, then one by one, latest first.
A second pass over the edges catches what became possible later (a value whose readers have meanwhile all come
together), and groups that read one value side by side are joined last. Every step keeps what `Partition` promises (the
graph of groups has no cycle) and what the format demands: limits, and one shape for all values that leave. No group is
joined with a larger shape for which all of it would be computed again and again (`worth.repeated`).

A group from which one value leaves needs no proof about shapes: that value has the broadcast shape of all that enters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from onnxfuse.fusion import worth
from onnxfuse.fusion.candidates import Candidate
from onnxfuse.fusion.context import Context
from onnxfuse.fusion.partition import Partition
from onnxfuse.fusion.surgeon import followers, surgeon_graph
from onnxfuse.model import Term
from onnxfuse.model.shapes import join, padded
from onnxfuse.program.instructions import MAX_INPUTS, MAX_OUTPUTS, MAX_STATEMENTS

__all__ = ["Grower"]

_ALWAYS = 1 << 40  # readers of a value that must survive
_SIBLINGS_TRIED = 4


@dataclass
class _Group:
    """What counts of a group: ``reads`` enter it, ``leaving`` are its values with readers outside (their number),
    ``uses`` how many of its nodes read each value from outside, ``level`` says that all that leaves surely has its
    ``shape``."""

    members: list[int]
    reads: dict[tuple[str, int], None]
    uses: dict[str, int]
    leaving: dict[str, int]
    shape: Term
    level: bool
    statements: int
    cost: float
    counting: int


class Grower:
    """The groups of one graph. Nodes are named by their place in the graph."""

    def __init__(self, context: Context, candidates: Mapping[int, Candidate]) -> None:
        self._context, self._candidates = context, candidates
        view = context.view
        self._order = view.order
        self._place = {index: place for place, index in enumerate(view.order)}
        self._partition = Partition(followers(surgeon_graph(view)))
        self._refused: dict[tuple[int, ...], tuple[int, ...]] = {}
        self.smaller: set[int] = set()
        """Nodes that a group did not take in because it would compute them again and again."""
        self._groups = {self._place[index]: self._single(index) for index in candidates}

    def grow(self) -> None:
        """Chains, trees and diamonds."""
        for place in range(len(self._order)):
            if place in self._groups:
                self._join_producers(place)
        self.edges()

    def edges(self) -> None:
        """Passes over the edges between groups until nothing more joins."""
        for _ in range(3):
            joined = [place for place in range(len(self._order)) if self._join_edges(place)]
            if not joined:
                break

    def siblings(self) -> None:
        """Joins groups that read one value of the shape that they work on, and give values of that shape."""
        view, joined = self._context.view, False
        for name in dict.fromkeys(n for index in self._order for n in view.graph.node[index].input if n):
            if len(view.readers.get(name, ())) > 1 and view.constant(name) is None:
                joined = self._join_readers(name) or joined
        if joined:
            self.edges()

    def groups(self) -> list[list[int]]:
        """Members of every group with an op that counts, in topological order; groups by their first member."""
        return sorted((sorted(g.members, key=self._place.__getitem__) for g in self._groups.values() if g.counting),
                      key=lambda members: self._place[members[0]])

    def members(self, index: int) -> list[int]:
        """Members of the group that a node is in."""
        return sorted(self._groups[self._partition.find(self._place[index])].members, key=self._place.__getitem__)

    def release(self, index: int) -> None:
        """Takes the group that a node is in out of the game: its nodes stay as they are."""
        del self._groups[self._partition.find(self._place[index])]

    def _single(self, index: int) -> _Group:
        node, view, candidate = self._context.view.graph.node[index], self._context.view, self._candidates[index]
        made = [o for o in node.output if o]
        leaving = {o: len(view.readers.get(o, ())) + (_ALWAYS if o in view.kept else 0) for o in made}
        leaving = {o: count for o, count in leaving.items() if count}
        shape = self._shape(candidate.reads)
        return _Group([index], dict.fromkeys(candidate.reads), {n: 1 for n in node.input if n}, leaving, shape,
                      self._level(leaving, shape), candidate.statements, candidate.cost, int(candidate.counts))

    def _level(self, names: Iterable[str], shape: Term) -> bool:
        return all(self._context.term(name) == shape for name in names)

    def _shape(self, reads: Iterable[tuple[str, int]]) -> Term:
        terms = []
        for name, pad in reads:
            term = padded(self._context.term(name), pad)
            terms.append(term if term is not None else Term((), (f"?{name}+{pad}",)))
        return join(terms)

    def _join_producers(self, place: int) -> bool:
        feeding = [u for u in self._partition.before(place) if u in self._groups]
        if not feeding:
            return False
        if len(feeding) > 1 and self._join([*feeding, place]) is not None:
            return True
        joined = False
        for unit in feeding:
            unit, own = self._partition.find(unit), self._partition.find(place)
            if unit != own:
                joined = self._join([unit, own]) is not None or joined
        return joined

    def _join_edges(self, place: int) -> bool:
        unit = self._partition.find(place)
        # once for each unit, at its own number, and for nodes that stand alone
        return unit == place and unit in self._groups and self._join_producers(unit)

    def _join_readers(self, name: str) -> bool:
        """Joins groups that read ``name`` pairwise, each with one of the latest few that it fits."""
        shape = self._context.term(name)
        heads: list[int] = []
        joined = False
        for reader in self._context.view.readers[name]:
            unit = self._partition.find(self._place[reader])
            group = self._groups.get(unit)
            if group is None or unit in heads or (name, 0) not in group.reads or not group.counting:
                continue
            if group.shape != shape or not group.level:
                continue
            for place, head in enumerate(reversed(heads[-_SIBLINGS_TRIED:])):
                merged = self._join([head, unit])
                if merged is not None:
                    heads[len(heads) - 1 - place] = merged
                    joined = True
                    break
            else:
                heads.append(unit)
        return joined

    def _join(self, units: list[int]) -> int | None:
        """Makes several units one group if format, shapes and graph allow; returns the unit."""
        key = tuple(sorted(units))
        sizes = tuple(len(self._groups[u].members) for u in key)
        if self._refused.get(key) == sizes:  # as they are, and fusions elsewhere never open a way
            return None
        group = self._combined([self._groups[u] for u in units])
        merged = None if group is None else self._partition.contract(units)
        if group is None or merged is None:
            self._refused[key] = sizes
            return None
        # the largest list takes the others in
        largest = max((self._groups[u] for u in units), key=lambda g: len(g.members))
        for unit in units:
            other = self._groups.pop(unit)
            if other is not largest:
                largest.members.extend(other.members)
        group.members = largest.members
        self._groups[merged] = group
        return merged

    def _combined(self, groups: list[_Group]) -> _Group | None:
        """The sum of several groups without its members; None if it passes a limit or lacks a proof."""
        statements = sum(g.statements for g in groups)
        if statements > MAX_STATEMENTS:
            return None
        uses: dict[str, int] = {}
        leaving: dict[str, int] = {}
        for group in groups:
            for name, count in group.uses.items():
                uses[name] = uses.get(name, 0) + count
            leaving.update(group.leaving)
        inner = {name for name in uses if name in leaving}
        for name in inner:  # no order matters: counts only
            leaving[name] -= uses.pop(name)
            if not leaving[name]:
                del leaving[name]
        reads: dict[tuple[str, int], None] = {}
        for group in groups:
            for read in group.reads:
                if read[0] not in inner:
                    reads[read] = None
                elif read[1]:
                    return None  # a value of the group under another shape
        if not self._all_read(inner - leaving.keys(), groups):
            return None
        if len(reads) > MAX_INPUTS or len(leaving) > MAX_OUTPUTS:
            return None
        if statements + len(reads) + len(leaving) > MAX_STATEMENTS:  # those that widen and round half types included
            return None
        shape = join([g.shape for g in groups])
        level = all(g.level and g.shape == shape for g in groups) or self._level(leaving, shape)
        if len(leaving) > 1 and not level:
            return None
        smaller = [group for group in groups if worth.repeated(group.cost, group.shape, shape)]
        if smaller:
            self.smaller.update(index for group in smaller for index in group.members)
            return None
        return _Group([], reads, uses, leaving, shape, level, statements, sum(g.cost for g in groups),
                      sum(g.counting for g in groups))

    def _all_read(self, inner: set[str], groups: list[_Group]) -> bool:
        """Whether the programs read every one of these values that the groups together keep to themselves. One that
        only gives a CastLike its type would leave operands in the group that have no part in the shape of what leaves.
        """
        unread = inner - {name for group in groups for name, _ in group.reads}
        if not unread:
            return True
        members = {index for group in groups for index in group.members}
        return all(any((name, 0) in self._candidates[r].reads for r in self._context.view.readers[name] if r in members)
                   for name in unread)
