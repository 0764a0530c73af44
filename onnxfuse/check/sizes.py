"""Sizes for symbolic dims: the role of a dim is guessed from names and position, one size a role and attempt.

Equal symbols get equal sizes; an arithmetic symbol (`past_length + 1`) is computed from its parts. No guess
fits every model, so there is a list of attempts: whoever runs the model takes the first that it accepts.
"""

from __future__ import annotations

import ast
import dataclasses
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence

from onnxfuse.check.inputs import Dim, InputSpec
from onnxfuse.errors import UsageError

__all__ = ["ATTEMPTS", "Attempt", "assign", "bind"]


@dataclasses.dataclass(frozen=True)
class Attempt:
    """Sizes by role, and the rank of inputs whose rank is unknown."""

    batch: int
    sequence: int
    side: int
    samples: int
    other: int
    rank: int
    past: int = 8
    channels: int = 3


LARGEST = 1 << 24
"""Elements of an input; guessed sizes that make more are halved, the longest first."""
ATTEMPTS: tuple[Attempt, ...] = (
    Attempt(batch=2, sequence=19, side=128, samples=16000, other=259, rank=2),
    Attempt(batch=1, sequence=19, side=128, samples=16000, other=259, rank=4),
    Attempt(batch=2, sequence=16, side=128, samples=16000, other=8, rank=2),
    Attempt(batch=2, sequence=64, side=224, samples=16000, other=64, rank=3),
    Attempt(batch=2, sequence=512, side=48, samples=512, other=512, rank=1),
    Attempt(batch=1, sequence=64, side=224, samples=512, other=32, rank=1),
    Attempt(batch=1, sequence=512, side=48, samples=4096, other=128, rank=2),
    Attempt(batch=1, sequence=256, side=256, samples=48000, other=256, rank=2),
    Attempt(batch=1, sequence=1, side=320, samples=512, other=1, rank=0, past=1, channels=1),
    Attempt(batch=1, sequence=128, side=416, samples=65536, other=512, rank=2),
    Attempt(batch=8, sequence=8, side=8, samples=8, other=8, rank=2, past=8, channels=8),
    Attempt(batch=1, sequence=1, side=1, samples=1, other=1, rank=4, past=1, channels=1),
)
"""Cheap and general first, odd so that kernels have tails; then a batch of one, even sizes, larger pictures, sounds of
other lengths, all sizes equal, all one."""

_WORDS: tuple[tuple[str, str], ...] = (
    (r"batch|^bs?$|^n$", "batch"),
    (r"total|mask|kv|\+", "total"),
    (r"past|cache|prev", "past"),
    (r"height|width|^h$|^w$|^(in|out|img|image)_?[hw]$", "side"),
    (r"sample|audio|wave|pcm", "samples"),
    (r"chan|^c$", "channels"),
    (r"seq|len|time|frame|token|step|^[tsl]$|words|chars", "sequence"),
)
_SOUND = frozenset(("audio", "wave", "waveform", "pcm", "speech", "sound", "wav", "signal"))
_STATE = frozenset(("state", "hidden", "cell", "h", "c", "hn", "cn"))
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
}


def bind(spec: InputSpec, shape: Sequence[int], sizes: dict[str, int], source: str) -> None:
    """Note in `sizes` what a given shape says of the symbols. UsageError where it does not fit the input."""
    if spec.dims is None:
        return
    text = f"[{', '.join(str(d) if not str(d).startswith('?') else '?' for d in spec.dims)}]"
    if len(shape) != len(spec.dims):
        raise UsageError(
            f"{source} for input {spec.name!r} has {len(shape)} dims, the model wants {len(spec.dims)}: {text}"
        )
    for size, dim in zip(shape, spec.dims, strict=True):
        if isinstance(dim, int):
            if size != dim:
                raise UsageError(f"{source} for input {spec.name!r} is {list(shape)}, the model wants {text}")
        elif _is_plain(dim) and sizes.setdefault(dim, size) != size:
            raise UsageError(
                f"{source} for input {spec.name!r} is {list(shape)}, but {dim!r} is {sizes[dim]} in another input"
            )


def assign(
    specs: Sequence[InputSpec], attempt: Attempt, known: Mapping[str, int], shapes: Mapping[str, Sequence[int]], *,
    hints: bool = True,
) -> dict[str, tuple[int, ...]]:
    """Shape of each input. `known` are sizes of symbols already bound, `shapes` whole shapes by input name; `hints`:
    take sizes of features and channels from the weights that an input meets."""
    sizes = dict(known)
    for spec in specs if hints else ():
        for axis, size in spec.hints:
            dim = spec.dims[axis] if spec.dims and -len(spec.dims) <= axis < len(spec.dims) else size
            if isinstance(dim, str) and _is_plain(dim):
                sizes.setdefault(dim, size)
    guessed = set()
    for spec in specs:
        for axis, dim in enumerate(spec.dims or ()):
            if isinstance(dim, str) and dim not in sizes and _is_plain(dim):
                role = _role(spec, axis, dim)
                alone = all(len(s.dims or ()) == 1 for s in specs if dim in (s.dims or ()))
                sizes[dim] = _size("other" if role == "batch" and alone else role, attempt)
                guessed.add(dim)
    while True:
        result = _shapes(specs, attempt, sizes, shapes)
        large = [s for s in specs if s.name not in shapes and math.prod(result[s.name]) > LARGEST]
        mine = {name for spec in large for dim in spec.dims or () for name in _names(dim) & guessed}
        longest = max((sizes[name] for name in mine), default=1)
        if longest == 1:
            return result
        # All of that size together: an attempt may be that all sizes are equal.
        sizes |= {name: longest // 2 for name in guessed if sizes[name] == longest}


def _shapes(
    specs: Sequence[InputSpec], attempt: Attempt, sizes: Mapping[str, int], shapes: Mapping[str, Sequence[int]]
) -> dict[str, tuple[int, ...]]:
    result: dict[str, tuple[int, ...]] = {}
    for spec in specs:
        if spec.name in shapes:
            result[spec.name] = tuple(shapes[spec.name])
        elif spec.dims is None:
            ones = (attempt.batch, attempt.channels, attempt.other, attempt.other)
            result[spec.name] = ones[: attempt.rank]
        else:
            result[spec.name] = tuple(_evaluate(dim, sizes, spec, attempt) for dim in spec.dims)
    return result


def _names(dim: Dim) -> set[str]:
    """The symbols of a dim."""
    if isinstance(dim, int):
        return set()
    return {dim} if _is_plain(dim) else set(re.findall(r"[A-Za-z_]\w*", dim))


def _is_plain(dim: str) -> bool:
    return dim.startswith("?") or not re.search(r"[-+*/]", dim)


def _size(role: str, attempt: Attempt) -> int:
    if role == "total":
        return attempt.past + attempt.sequence
    if role == "latent":
        return max(1, attempt.side // 4)
    return int(getattr(attempt, role))


def _role(spec: InputSpec, axis: int, dim: str) -> str:
    if not dim.startswith("?"):
        for pattern, role in _WORDS:
            if re.search(pattern, dim.lower()):
                if role == "total" and not re.search(r"total|\+", dim.lower()) and "mask" not in spec.words:
                    continue
                if role == "batch" and axis and "batch" not in dim.lower():
                    continue  # n as a number of things
                return _picture_or_latent(spec) if role == "side" else role
    return _role_by_place(spec, axis)


def _picture_or_latent(spec: InputSpec) -> str:
    """Feature maps (neither 1 nor 3 channels) are small: attention over 128 x 128 places takes gigabytes."""
    dims = spec.dims or ()
    channels = [dim for dim in (dims[1:2] + dims[-1:]) if isinstance(dim, int)]
    return "latent" if len(dims) == 4 and channels and not {1, 3} & set(channels) else "side"


def _role_by_place(spec: InputSpec, axis: int) -> str:
    """Pictures are [N, C, H, W] or [N, H, W, C], sounds end in samples, else [batch, sequence, …]."""
    dims = spec.dims or ()
    rank = len(dims)
    if rank >= 4:
        last_is_channel = isinstance(dims[-1], int) and dims[-1] <= 4 and not isinstance(dims[1], int)
        spatial = range(1, rank - 1) if last_is_channel else range(2, rank)
        if axis in spatial:
            past = spec.words & {"past", "cache", "key", "value"}
            return "past" if past else _picture_or_latent(spec)
        return "batch" if axis == 0 else "channels"
    if spec.words & _SOUND and axis == rank - 1:
        return "samples"
    if axis == 0:
        return "batch" if rank > 1 else "other"
    if rank == 3 and axis == 1 and isinstance(dims[0], int) and isinstance(dims[2], int):
        if 1 < dims[0] <= 8 or spec.words & _STATE:
            return "batch"  # the state of a recurrent cell: [layers, batch, hidden]
    return "sequence" if axis == 1 or rank == 3 else "other"


def _evaluate(dim: Dim, sizes: Mapping[str, int], spec: InputSpec, attempt: Attempt) -> int:
    if isinstance(dim, int):
        return dim
    if dim in sizes:
        return sizes[dim]
    try:
        value = _compute(ast.parse(dim, mode="eval").body, sizes, attempt)
    except (SyntaxError, ValueError, ZeroDivisionError):
        value = attempt.other
    return max(1, value)


def _compute(node: ast.expr, sizes: Mapping[str, int], attempt: Attempt) -> int:
    """Value of an arithmetic symbol. ValueError for anything but names, whole numbers and + - * /."""
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_compute(node.left, sizes, attempt), _compute(node.right, sizes, attempt))
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name):
        if node.id in sizes:
            return sizes[node.id]
        return _size(next((role for pattern, role in _WORDS if re.search(pattern, node.id.lower())), "other"), attempt)
    raise ValueError("not arithmetic")

