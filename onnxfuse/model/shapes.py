"""Shapes as terms: what can be proved about a shape before its dims are known.

A term stands for a shape. Two values whose terms are equal have the same shape in every run. Broadcasting joins terms,
and since broadcasting is associative, commutative and idempotent, so is the join::

    x, Sigmoid(x), x * Sigmoid(x)      one term, even where the rank of x is unknown
    [N, 1] with [1, 4]                 [N, 4]
    [N] with [M]                       [N|M], the same for [M] with [N]

A dim is an int, or a sorted tuple of symbols (a join of several where it has more than one).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Dim", "Term", "fresh", "join", "known", "padded", "public_dims", "unnamed"]

Dim = int | tuple[str, ...]
_WIDEST = 16  # symbols or atoms in one join; wider ones become opaque, so that a chain of joins stays linear


@dataclass(frozen=True)
class Term:
    """The broadcast of a shape with these dims (right-aligned) and of the shapes named by ``atoms``, whose rank is
    unknown. Without atoms, ``dims`` is the whole shape."""

    dims: tuple[Dim, ...] = ()
    atoms: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        # compared all the time, and mostly with itself
        return self is other or (isinstance(other, Term) and self.dims == other.dims and self.atoms == other.atoms)

    @property
    def rank(self) -> int | None:
        """The rank, None where it is known at run time only."""
        return None if self.atoms else len(self.dims)

    @property
    def elements(self) -> int | None:
        """The number of elements if every dim is a number."""
        if self.atoms:
            return None
        count = 1
        for dim in self.dims:
            if not isinstance(dim, int):
                return None
            count *= dim
        return count


def known(dims: Iterable[int | str], where: str) -> Term:
    """The term of a shape of known rank; ``""`` is a dim without a name, told apart by ``where`` and its axis."""
    return Term(tuple(d if isinstance(d, int) else (d or unnamed(where, axis),) for axis, d in enumerate(dims)))


def unnamed(where: str, axis: int) -> str:
    """The symbol of a dim without a name."""
    return f"?{where}:{axis}"


def fresh(where: str) -> Term:
    """The term of a shape of unknown rank, equal to itself only."""
    return Term((), (f"?{where}",))


def padded(term: Term, pad: int) -> Term | None:
    """The term with ``pad`` dims of size 1 added behind its own; None if the rank is unknown."""
    if pad == 0:
        return term
    return None if term.atoms else Term(term.dims + (1,) * pad)


def join(terms: Iterable[Term]) -> Term:
    """The broadcast of shapes; where all are equal, the first itself."""
    terms = list(terms)
    if terms and terms.count(terms[0]) == len(terms):
        return terms[0]
    dims: tuple[Dim, ...] = ()
    atoms: tuple[str, ...] = ()
    for term in terms:
        dims = term.dims if not dims or term.dims == dims else _join_dims(dims, term.dims)
        if term.atoms and term.atoms != atoms:
            atoms = tuple(sorted({*atoms, *term.atoms}))
    if len(atoms) > _WIDEST:
        atoms = (_opaque(atoms),)
    if any(isinstance(d, tuple) and len(d) > _WIDEST for d in dims):
        dims = tuple((_opaque(d),) if isinstance(d, tuple) and len(d) > _WIDEST else d for d in dims)
    return Term(dims, atoms)


def _opaque(parts: tuple[str, ...]) -> str:
    """One name for a wide join, the same for the same parts."""
    return "?" + hashlib.sha1("\0".join(parts).encode()).hexdigest()


def _join_dims(a: tuple[Dim, ...], b: tuple[Dim, ...]) -> tuple[Dim, ...]:
    if len(a) < len(b):
        a, b = b, a
    lead = len(a) - len(b)
    return a[:lead] + tuple(_join_dim(x, y) for x, y in zip(a[lead:], b, strict=True))


def _join_dim(a: Dim, b: Dim) -> Dim:
    if a == b or b == 1:
        return a
    if a == 1:
        return b
    if isinstance(a, int):  # a number other than 1 decides: the other one is 1 or the same
        return a
    if isinstance(b, int):
        return b
    return tuple(sorted({*a, *b}))


def public_dims(term: Term) -> tuple[int | str, ...] | None:
    """The dims with one name each; None if the rank is unknown."""
    if term.atoms:
        return None
    return tuple(d if isinstance(d, int) else "|".join(d) for d in term.dims)
