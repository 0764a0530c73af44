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
from onnxfuse.model import Term
from onnxfuse.model.shapes import join, padded
from onnxfuse.program.instructions import MAX_INPUTS, MAX_OUTPUTS, MAX_STATEMENTS

__all__ = ["Grower"]

_ALWAYS = 1 << 40  # readers of a value that must survive
_SIBLINGS_TRIED = 4


@dataclass
class _Group:
    """What counts of a group: ``reads`` enter it, ``leaving`` are its values with readers outside (their number),
    ``uses`` how many of its nodes read each value from outside, ``padded`` are values read with dims added behind,
    ``level`` says that all that leaves surely has its ``shape``."""

    members: list[int]
    reads: dict[tuple[str, int], None]
    padded: set[str]
    uses: dict[str, int]
    leaving: dict[str, int]
    shape: Term
    level: bool
    statements: int
    cost: float
    counting: int


@dataclass
class _Change:
    """What makes the ``largest`` of several groups their sum: what the ``others`` have, and for each value that stays
    inside how many readers outside are ``left``. It costs as much as the others are large, not as the sum is: most of
    the time a group grows by one node."""

    largest: _Group
    others: list[_Group]
    left: dict[str, int]
    shape: Term
    level: bool
    cost: float

    def applied(self) -> _Group:
        """The sum, made of the largest in place."""
        whole = self.largest
        uses, reads, leaving = whole.uses, whole.reads, whole.leaving
        for group in self.others:
            for name, count in group.uses.items():
                uses[name] = uses.get(name, 0) + count
            reads.update(group.reads)
            leaving.update(group.leaving)
            whole.padded |= group.padded
            whole.members.extend(group.members)
            whole.statements += group.statements
            whole.counting += group.counting
        for name, count in self.left.items():
            del uses[name]
            reads.pop((name, 0), None)
            if count:
                leaving[name] = count
            else:
                del leaving[name]
        whole.shape, whole.level, whole.cost = self.shape, self.level, self.cost
        return whole


class Grower:
    """The groups of one graph. Nodes are named by their place in the graph. ``made`` are groups of other nodes that are
    there already and close no cycle."""

    def __init__(self, context: Context, candidates: Mapping[int, Candidate], rules: worth.Rules = worth.CPU,
                 made: Iterable[Iterable[int]] = ()) -> None:
        self._context, self._candidates, self._rules = context, candidates, rules
        view = context.view
        self._order = view.order
        self._place = {index: place for place, index in enumerate(view.order)}
        self._partition = Partition(self._followers())
        self._refused: dict[tuple[int, ...], tuple[int, ...]] = {}
        self.smaller: set[int] = set()
        """Nodes that a group did not take in because it would compute them again and again."""
        self._groups = {self._place[index]: self._single(index) for index in candidates}
        self._partition.contract_all([self._place[index] for index in group] for group in made)

    def _followers(self) -> list[set[int]]:
        """For each place in the order the places of the nodes that read what is made there."""
        found: list[set[int]] = [set() for _ in self._order]
        for name, maker in self._context.view.producer.items():
            readers = self._context.view.readers.get(name)
            if readers:
                found[self._place[maker]].update([self._place[reader] for reader in readers])
        return found

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
        return _Group([index], dict.fromkeys(candidate.reads), {name for name, pad in candidate.reads if pad},
                      {n: 1 for n in node.input if n}, leaving, shape, self._level(leaving, shape),
                      candidate.statements, candidate.cost, int(candidate.counts))

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
        refused = self._refused.get(key)
        if refused and refused == self._sizes(key):  # as they are, and fusions elsewhere never open a way
            return None
        change = self._change([self._groups[u] for u in units])
        merged = None if change is None else self._partition.contract(units)
        if change is None or merged is None:
            self._refused[key] = self._sizes(key)
            return None
        for unit in units:
            del self._groups[unit]
        self._groups[merged] = change.applied()
        return merged

    def _sizes(self, units: tuple[int, ...]) -> tuple[int, ...]:
        return tuple([len(self._groups[u].members) for u in units])

    def _change(self, groups: list[_Group]) -> _Change | None:
        """What makes the largest of several groups their sum; None if that passes a limit or lacks a proof."""
        largest, statements, outputs = groups[0], 0, 0
        for group in groups:
            statements += group.statements
            outputs += len(group.leaving)
            if len(group.members) > len(largest.members):
                largest = group
        if statements > MAX_STATEMENTS:
            return None
        others = [g for g in groups if g is not largest]
        left = _inner(largest, others)  # readers outside that each value which stays inside still has
        for group in groups:
            if group.padded and not left.keys().isdisjoint(group.padded):
                return None  # a value of the group under another shape
        gone = [name for name, count in left.items() if not count]
        if gone and not self._all_read(gone, groups):
            return None
        outputs -= len(gone)
        entering = len(largest.reads)
        for name in left:
            entering -= (name, 0) in largest.reads
        for read in others[0].reads if len(others) == 1 else {read for group in others for read in group.reads}:
            entering += read not in largest.reads and read[0] not in left
        if entering > MAX_INPUTS or outputs > MAX_OUTPUTS:
            return None
        if statements + entering + outputs > MAX_STATEMENTS:  # those that widen and round half types included
            return None
        shape = join([g.shape for g in groups])
        level = all(g.level and g.shape == shape for g in groups) or self._level(
            (name for g in groups for name in g.leaving if left.get(name, 1)), shape)
        if outputs > 1 and not level:
            return None
        smaller = [g for g in groups if g.shape is not shape and worth.repeated(g.cost, g.shape, shape, self._rules)]
        if smaller:
            self.smaller.update(index for group in smaller for index in group.members)
            return None
        return _Change(largest, others, left, shape, level, sum([g.cost for g in groups]))

    def _all_read(self, inner: list[str], groups: list[_Group]) -> bool:
        """Whether the programs read every one of these values that the groups together keep to themselves. One that
        only gives a CastLike its type would leave operands in the group that have no part in the shape of what leaves.
        """
        unread = [name for name in inner if not any((name, 0) in group.reads for group in groups)]
        if not unread:
            return True
        members = {index for group in groups for index in group.members}
        return all(any((name, 0) in self._candidates[r].reads for r in self._context.view.readers[name] if r in members)
                   for name in unread)


def _inner(largest: _Group, others: list[_Group]) -> dict[str, int]:
    """The values that one of these groups makes and another one reads, with the number of readers outside all of them
    that are left. No order matters."""
    left: dict[str, int] = {}
    for group in others:
        for makes, reads in ((group.leaving, largest.uses), (largest.leaving, group.uses)):
            for name in makes.keys() & reads.keys():
                left[name] = left.get(name, makes[name]) - reads[name]
        if len(others) > 1:
            for other in others:
                if other is not group:
                    for name in group.leaving.keys() & other.uses.keys():
                        left[name] = left.get(name, group.leaving[name]) - other.uses[name]
    return left
