"""How speed is measured: ratios of things that run in one process in turn, never an absolute time as a mark.

Each round runs every subject once (several times if one run is too short for the clock); another one begins in each
round, and of three or more none follows itself. The figure is the median of the ratios within rounds, with its 10-90 %
range; the first subject takes part twice, and that ratio is the noise.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from onnxfuse.check import feeds, sessions
from onnxfuse.check.subject import Subject
from onnxfuse.errors import OnnxfuseError, SetupError, UsageError
from onnxfuse.library import find_library

__all__ = ["BenchReport", "Ratio", "Repeated", "Row", "interleave", "measure", "ratio"]

_SHORTEST = 200_000  # nanoseconds that one timed slice should last
_SHORTEST_AFTER_REST = 5_000_000  # where every slice has to wait for threads that spin
_MOMENT = 0.002  # seconds
_BUSY = 0.25  # share of a core
_LONGEST_SPIN = 0.3  # seconds that threads are waited for
_WARM_UP = 0.3  # seconds at least, for each subject
_MIN_ROUNDS = 5
_MOST_REPEATS = 1 << 20
_MAX_ROUNDS = 3000
_MOST_THREADS = 1024

Call = Callable[[], object]


@runtime_checkable
class Repeated(Protocol):
    """Something that repeats itself, in native code for instance, where a loop in Python would be most of the time."""

    def run(self, repeat: int) -> None:
        """Do the work `repeat` times."""


class _Wrapped:
    """A plain call as `Repeated`."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def run(self, repeat: int) -> None:
        for _ in range(repeat):
            self._call()


@dataclasses.dataclass(frozen=True)
class Ratio:
    """Median of ratios with its 10-90 % range."""

    median: float
    low: float
    high: float

    def text(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


@dataclasses.dataclass(frozen=True)
class Row:
    """One model at one number of threads: milliseconds of a run (median), and how much faster than the first model."""

    model: str
    threads: int
    with_library: bool
    milliseconds: float
    speedup: Ratio


@dataclasses.dataclass(frozen=True)
class BenchReport:
    """`noise` is the first model against itself, by number of threads; `rounds` likewise."""

    rows: tuple[Row, ...]
    noise: Mapping[int, Ratio]
    rounds: Mapping[int, int]
    inputs: Mapping[str, str]


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """Ratios pair by pair: median and 10-90 % range."""
    values = np.asarray(numerators, np.float64) / np.asarray(denominators, np.float64)
    low, median, high = np.percentile(values, (10, 50, 90))
    return Ratio(float(median), float(low), float(high))


def interleave(
    subjects: Sequence[Call | Repeated], seconds: float, *, warm_up: float = _WARM_UP
) -> list[list[float]]:
    """Nanoseconds a run, for each subject a list with one number a round, after warming up each of them.

    Takes about `seconds` after the warm-up; at least 5 rounds. A subject whose run is shorter than 0.2 ms is repeated
    within a round, each as often as it needs. Threads of a subject that go on looking for work in a busy loop (those of
    ONNX Runtime do for 50 ms) would take the processor from the next one: it is not begun until they have come to rest,
    and its first run is not counted then. Turns last 5 ms where there are such threads.
    """
    repeated = [subject if isinstance(subject, Repeated) else _Wrapped(subject) for subject in subjects]
    singles, spins = [], []
    for subject in repeated:
        singles.append(_warm(subject, warm_up))
        spins.append(_spins(subject, 3 if singles[-1] < _SHORTEST_AFTER_REST else 1))
        _settle(spins[-1])
    rested = any(spins)
    shortest = _SHORTEST_AFTER_REST if rested else _SHORTEST
    repeats = [min(max(1, round(shortest / max(single, 1.0))), _MOST_REPEATS) for single in singles]
    times: list[list[float]] = [[] for _ in repeated]
    order = list(range(len(repeated)))
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < _MAX_ROUNDS and (rounds < _MIN_ROUNDS or time.perf_counter() < end):
        for index in order:
            if rested and singles[index] < _SHORTEST_AFTER_REST:
                repeated[index].run(1)  # its own threads sleep too, and nothing is in the caches
            times[index].append(_time(repeated[index], repeats[index]))
            _settle(spins[index])
        order.append(order.pop(0))  # turned around, the first and the last would find their own data in the caches
        rounds += 1
    return times


def _spins(subject: Repeated, runs: int) -> bool:
    """Whether the process is busy although nothing was asked of it, after any of a few runs."""
    for _ in range(runs):
        subject.run(1)
        if _idle_share() > _BUSY:
            return True
    return False


def _settle(spins: bool) -> None:
    """Wait until the process is not busy any more, where the subject that has just run `spins`."""
    end = time.perf_counter() + _LONGEST_SPIN
    calm = 0 if spins else 2
    while calm < 2 and time.perf_counter() < end:
        calm = calm + 1 if _idle_share() < _BUSY else 0


def _idle_share() -> float:
    """Share of one core that the process uses while this thread sleeps for a moment."""
    start, used = time.perf_counter(), time.process_time()
    time.sleep(_MOMENT)
    return (time.process_time() - used) / (time.perf_counter() - start)


def _time(subject: Repeated, repeat: int) -> float:
    start = time.perf_counter_ns()
    subject.run(repeat)
    return (time.perf_counter_ns() - start) / repeat


def _warm(subject: Repeated, seconds: float) -> float:
    """Run until the time is over and the last runs are no faster than those before; nanoseconds of the fastest."""
    best, calm, repeat = float("inf"), 0, 1
    end = time.perf_counter() + seconds
    while calm < 3 or time.perf_counter() < end:
        took = _time(subject, repeat)
        if took * repeat < _SHORTEST / 2 and repeat < _MOST_REPEATS:
            repeat *= 2  # too short for the clock and for the way into native code
        calm = 0 if took < 0.95 * best else calm + 1
        best = min(best, took)
        if time.perf_counter() > end + 10 * seconds:
            break
    return best


def measure(
    subjects: Sequence[Subject],
    inputs: Mapping[str, Any] | None,
    shapes: Mapping[str, Sequence[int]] | None,
    seed: int,
    threads: Sequence[int],
    seconds: float,
    say: Callable[[str], None] = lambda text: None,
) -> BenchReport:
    """Latency of models on one feed that the first accepts; fused models run with the library where there is one.

    Raises UsageError if no feed fits, SetupError if the runtime does not load a model.
    """
    wrong = next((count for count in threads if not 1 <= count <= _MOST_THREADS), None)
    if wrong is not None:
        raise UsageError(f"--threads must be from 1 to {_MOST_THREADS}, not {wrong}")
    if not 0 <= seconds < float("inf"):
        raise UsageError(f"--seconds must be a number from 0 up, not {seconds}")
    sessions.load_runtime()
    library = find_library()
    feed = _choose_feed(subjects[0], inputs, shapes, seed)
    rows: list[Row] = []
    noise, rounds = {}, {}
    for count in threads:
        say(f"measuring with {count} thread{'s' if count > 1 else ''}")
        bound = []
        for subject in (*subjects, subjects[0]):
            lib = library if subject.is_fused else None
            bound.append((subject, lib is not None, bind(_open(subject, lib, count), feed)))
        times = interleave([call for _, _, call in bound], seconds)
        for (subject, has_library, _), own in zip(bound[:-1], times, strict=False):
            rows.append(Row(subject.path or "model", count, has_library, float(np.median(own)) / 1e6,
                            ratio(times[0], own)))
        noise[count] = ratio(times[0], times[-1])
        rounds[count] = len(times[0])
    described = {name: f"{np.asarray(value).dtype}{list(np.shape(value))}" for name, value in feed.items()}
    return BenchReport(tuple(rows), noise, rounds, described)


def _open(subject: Subject, library: Any, threads: int) -> Any:
    try:
        return subject.session(optimize=True, library=library, threads=threads)
    except sessions.RunRefused as error:
        raise _refused(subject, error) from error


def _refused(subject: Subject, error: sessions.RunRefused) -> OnnxfuseError:
    newer = sessions.too_new(error)
    message = newer.message if newer is not None else f"the runtime does not load it: {error.message}"
    return SetupError(message, path=subject.path)


def _choose_feed(
    subject: Subject, inputs: Mapping[str, Any] | None, shapes: Mapping[str, Sequence[int]] | None, seed: int
) -> dict[str, Any]:
    session = _open(subject, None, 0)
    first = ""
    for feed in feeds.candidates(subject.model, seed, shapes, given=inputs):
        try:
            sessions.run(session, feed)
            return feed
        except sessions.RunRefused as error:
            first = first or error.message
    raise UsageError(
        f"the runtime does not run the model on made-up inputs: {first}", path=subject.path,
        hint="pass --inputs FILE.npz with real inputs, or --shape NAME:1,3,224,224",
    )


def bind(session: Any, feed: Mapping[str, Any]) -> Call:
    """A call that runs the session on `feed` with inputs bound once and outputs in memory allocated once.

    Where a value cannot be bound (strings, sequences) plain `run` is called.
    """
    plain = {k: v for k, v in feed.items() if isinstance(v, np.ndarray) and v.dtype.kind in "fiub"}
    if len(plain) == len(feed):
        with contextlib.suppress(Exception):  # no OrtValue of this type, or outputs without a fixed shape
            return _bind_all(session, plain)
    return lambda: sessions.run(session, feed)


def _bind_all(session: Any, feed: Mapping[str, Any]) -> Call:
    value = sessions.load_runtime().OrtValue
    binding = session.io_binding()
    for name, array in feed.items():
        binding.bind_ortvalue_input(name, value.ortvalue_from_numpy(np.ascontiguousarray(array)))
    names = [output.name for output in session.get_outputs()]
    for name, result in zip(names, session.run(names, dict(feed)), strict=True):
        binding.bind_ortvalue_output(name, value.ortvalue_from_numpy(np.array(result, order="C", copy=True)))
    session.run_with_iobinding(binding)
    return lambda: session.run_with_iobinding(binding)
