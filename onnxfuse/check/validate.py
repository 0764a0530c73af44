"""Validation of a fused model against the original, both run in ONNX Runtime on one seeded feed.

The original runs with the runtime's optimizations off. The fused model runs at the default optimization, without
the library (function bodies) and with it.

Where quantization is involved, a difference in the last bits may turn a rounding, and that the next ones. How far this
goes is measured on the original itself: what the runtime's own full optimization, or noise in the last bits of its
inputs, moves an output by, twice, is what fusing may move it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxfuse.check import feeds, sessions
from onnxfuse.check.classify import Profile, decision_inputs, profile, tolerance_for
from onnxfuse.check.compare import REPORTED, TOLERANT, Comparison, Tolerance, compare, is_float, largest_move
from onnxfuse.check.locate import first_differing_group
from onnxfuse.check.subject import Subject
from onnxfuse.errors import UsageError
from onnxfuse.library import find_library

__all__ = ["NoInputsFit", "RunReport", "Subject", "ValidationReport", "compare_models"]

Say = Callable[[str], None]
_NOISES = 4  # runs with noise in the inputs
WITHOUT = "without the library"
WITH = "with the library"
AS_ON_GPU = "with the nodes for the GPU"


class NoInputsFit(UsageError):
    """None of the made-up inputs is one that the original runs on."""


@dataclasses.dataclass(frozen=True)
class RunReport:
    """One run of the fused model: how, and each output against the original. `refused`: it did not run at all."""

    name: str
    outputs: tuple[Comparison, ...] = ()
    refused: str = ""

    @property
    def passed(self) -> bool:
        return not self.refused and all(output.passed for output in self.outputs)

    @property
    def failures(self) -> list[Comparison]:
        return [output for output in self.outputs if not output.passed]


@dataclasses.dataclass(frozen=True)
class ValidationReport:
    """What was run on what, and what came out.

    `method` is `runtime` (whole models compared) or `oracle` (groups one by one, where the runtime cannot run the
    original). `skipped`: outputs not compared, with the random op that is the reason. `first_group`: the first
    group in graph order whose own outputs differ, in words.
    """

    method: str
    runs: tuple[RunReport, ...]
    tolerance: Tolerance
    seed: int
    inputs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    skipped: Mapping[str, str] = dataclasses.field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    first_group: str = ""
    quantized: bool = False

    @property
    def passed(self) -> bool:
        return all(run.passed for run in self.runs)

    @property
    def largest_error(self) -> float:
        """Largest error of a float output relative to the largest magnitude of that output."""
        return max((o.relative for run in self.runs for o in run.outputs if o.limit), default=0.0)

    @property
    def widened(self) -> bool:
        """Whether some limit is what the model moves by itself, not the tolerance."""
        floats = [output for run in self.runs for output in run.outputs if output.rule == TOLERANT]
        return any(output.limit > 1.01 * self.tolerance.limit(output.largest) for output in floats)

    @property
    def reported(self) -> list[Comparison]:
        """Outputs in which a share differs that does not count as a failure."""
        return [o for run in self.runs for o in run.outputs if o.passed and (o.differing or o.problem)]

    def failure(self) -> str:
        """The first failure in one line; empty if all passed."""
        for run in self.runs:
            if run.refused:
                return f"the fused model does not run {run.name}: {run.refused}"
            for output in run.failures:
                where = f"; first group whose own outputs differ: {self.first_group}" if self.first_group else ""
                return f"{output.text()} {run.name}{where}"
        return ""


@dataclasses.dataclass
class _Reference:
    """The original's outputs on the feed that it accepted."""

    feed: dict[str, Any]
    outputs: dict[str, Any]
    moved: dict[str, float]


def compare_models(
    original: Subject,
    fused: Subject,
    *,
    library: str | os.PathLike[str] | None = None,
    use_library: bool = True,
    inputs: Mapping[str, Any] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
    threads: int = 0,
    say: Say = lambda text: None,
) -> ValidationReport:
    """Run both and compare every output; the report says what failed, nothing is raised for a difference.

    `library` is the compiled library (found in the package by default; `use_library=False` leaves it out).
    Raises SetupError (no runtime, or one too old for the opset), UsageError (inputs that do not fit, or none
    found that the original accepts), sessions.RunRefused if the runtime cannot load the original at all.
    """
    sessions.load_runtime()
    found = profile(original.model)
    tolerance = tolerance_for(found, rtol, atol)
    names = [value.name for value in original.model.graph.output if value.name not in found.random]
    warnings: list[str] = []
    say("running the original")
    reference = _run_original(original, found, names, inputs, shapes, seed, threads)
    runs = []
    lib = Path(library) if library is not None else find_library()
    modes: list[tuple[str, Path | None, str | None]] = [(WITHOUT, None, None)]
    if fused.is_fused and use_library:
        if lib is not None:
            modes.append((WITH, lib, None))
            if fused.has_gpu_groups:  # their kernels for the CPU run the same programs
                modes.append((AS_ON_GPU, lib, "cuda"))
        else:
            warnings.append("the compiled library is not in this installation: checked without it only")
    trial = _Trial(reference, names, found, tolerance, threads)
    broken: RunReport | None = None
    for title, path, device in modes:
        say(f"running the fused model {title}")
        run = trial.run(fused, title, path, device)
        if not run.passed:
            # is it the runtime's own optimizer that does it, to the original too?
            broken = broken or trial.run(original, "optimized", None)
            if not broken.passed:
                run = trial.run(fused, title, path, device, optimize=False)
            if not (broken.passed or broken.refused or run.passed) and title == AS_ON_GPU:
                # The model is one that roundings move: the new nodes may do so as far as twice what the optimizer does.
                moved = {output.name: output.error for output in broken.outputs}
                run = trial.run(fused, title, path, device, optimize=False, moved=moved)
        runs.append(trial.look_behind_decisions(original, fused, run, path, device))
    if broken is not None and not broken.passed:
        what = broken.refused or broken.failures[0].text()
        warnings.append(f"the runtime's own optimizations break the original ({what}): compared with them off")
    report = ValidationReport(
        "runtime", tuple(runs), tolerance, seed, {k: describe(v) for k, v in reference.feed.items()},
        dict(found.random), tuple(warnings), quantized=found.quantized,
    )
    failed = next((run for run in runs if run.failures), None)
    if failed is not None and fused.is_fused:
        say("looking for the group at fault")
        where = first_differing_group(
            original, fused, reference.feed, tolerance, None if failed.name == WITHOUT else lib,
            "cuda" if failed.name == AS_ON_GPU else None, threads,
        )
        report = dataclasses.replace(report, first_group=where)
    return report


def describe(value: Any) -> str:
    """Type and shape of a value in words, e.g. `float32[2, 3]`."""
    if isinstance(value, list):
        return f"sequence of {len(value)}"
    return "none" if value is None else f"{np.asarray(value).dtype}{list(np.shape(value))}"


def _run_original(
    original: Subject, found: Profile, names: list[str], inputs: Mapping[str, Any] | None,
    shapes: Mapping[str, Sequence[int]] | None, seed: int, threads: int,
) -> _Reference:
    session = original.session(optimize=False, threads=threads)
    first = ""
    chosen: tuple[dict[str, Any], dict[str, Any]] | None = None
    for feed in feeds.candidates(original.model, seed, shapes, given=inputs):
        try:
            chosen = (feed, sessions.run(session, feed, names))
            break
        except sessions.RunRefused as error:
            first = first or error.message
    if chosen is None:
        hint = "pass --inputs FILE.npz with real inputs, or --shape NAME:1,3,224,224"
        if inputs or shapes:
            raise UsageError(f"the runtime does not run the model on these inputs: {first}", path=original.path,
                             hint=hint)
        raise NoInputsFit(f"the runtime runs the model on no made-up inputs: {first}", path=original.path, hint=hint)
    chosen = _prefer_finite(original, session, chosen, names, inputs, shapes, seed)
    moved = _moved(original, session, chosen[0], chosen[1], seed, threads) if found.quantized else {}
    return _Reference(chosen[0], chosen[1], moved)


def _moved(
    original: Subject, session: Any, feed: Mapping[str, Any], outputs: Mapping[str, Any], seed: int, threads: int
) -> dict[str, float]:
    """How far a quantized model moves by itself, by output: optimized by the runtime, or by noise in its inputs (in its
    weights, where nothing but token numbers and the like come in)."""
    others = []
    with contextlib.suppress(sessions.RunRefused):  # a model that only loads unoptimized has no such bar
        others.append(sessions.run(original.session(optimize=True, threads=threads), feed, list(outputs)))
    rng = np.random.default_rng(seed)
    if any(_is_real(value) for value in feed.values()):
        for _ in range(_NOISES):
            noisy = {name: _last_bits(value, rng) if _is_real(value) else value for name, value in feed.items()}
            with contextlib.suppress(sessions.RunRefused):
                others.append(sessions.run(session, noisy, list(outputs)))
    else:
        for _ in range(_NOISES):
            with contextlib.suppress(sessions.RunRefused):
                noisy_session = _with_noisy_weights(original, rng).session(optimize=False, threads=threads)
                others.append(sessions.run(noisy_session, feed, list(outputs)))
    return {
        name: max((largest_move(other[name], value) for other in others), default=0.0)
        for name, value in outputs.items()
    }


def _with_noisy_weights(original: Subject, rng: np.random.Generator) -> Subject:
    """The model with noise in the last bits of its float32 weights, those in external files aside."""
    model = onnx.ModelProto()
    model.CopyFrom(original.model)
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and tensor.data_location != onnx.TensorProto.EXTERNAL:
            noisy = _last_bits(onnx.numpy_helper.to_array(tensor), rng)
            tensor.CopyFrom(onnx.numpy_helper.from_array(noisy, tensor.name))
    return dataclasses.replace(original, model=model, path=None)


def _is_real(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"


def _last_bits(value: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """Each element up to four units in the last place away: what a few layers of float32 arithmetic leave."""
    noise = rng.uniform(-4, 4, value.shape) * np.finfo(value.dtype).eps
    return np.asarray((value * (1 + noise)).astype(value.dtype))


def _prefer_finite(
    original: Subject, session: Any, chosen: tuple[dict[str, Any], dict[str, Any]], names: list[str],
    inputs: Mapping[str, Any] | None, shapes: Mapping[str, Sequence[int]] | None, seed: int,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Where outputs are not finite, try positive inputs: NaN everywhere would hide every difference."""
    wrong = _not_finite(chosen[1])
    if not wrong:
        return chosen
    same = {**{k: v.shape for k, v in chosen[0].items() if isinstance(v, np.ndarray)}, **(shapes or {})}
    given = dict(inputs or {})
    fixed = {name: shape for name, shape in same.items() if name not in given}
    with contextlib.suppress(sessions.RunRefused, StopIteration, UsageError):
        feed = next(feeds.candidates(original.model, seed, fixed, given=given, positive=True))
        outputs = sessions.run(session, feed, names)
        if _not_finite(outputs) < wrong:
            return feed, outputs
    return chosen


def _not_finite(outputs: Mapping[str, Any]) -> int:
    count = 0
    for value in outputs.values():
        if isinstance(value, np.ndarray) and value.dtype.kind not in "OUSiub":
            count += int(np.size(value) - np.isfinite(value.astype(np.float64)).sum())
    return count


@dataclasses.dataclass(frozen=True)
class _Trial:
    """Everything that a run is measured with."""

    reference: _Reference
    names: list[str]
    found: Profile
    tolerance: Tolerance
    threads: int

    def look_behind_decisions(
        self, original: Subject, fused: Subject, run: RunReport, library: Path | None, device: str | None
    ) -> RunReport:
        """Where decisions differ, the floats that they are made from must agree: then it was a near tie.

        Looks at those that exist in both models; the ones that do not are added to the run as failures.
        """
        if not any(output.rule == REPORTED and output.differing for output in run.outputs):
            return run
        made = [{name for node in subject.model.graph.node for name in node.output} for subject in (original, fused)]
        names = [name for name in decision_inputs(original.model) if name in made[0] & made[1]]
        if not names:
            return run
        feed = self.reference.feed
        try:
            want = sessions.run(original.with_outputs(names).session(optimize=False, threads=self.threads), feed, names)
            session = fused.with_outputs(names).session(
                optimize=True, library=library, device=device, threads=self.threads
            )
            got = sessions.run(session, feed, names)
        except sessions.RunRefused:
            return run
        behind = [
            result
            for name in names
            if isinstance(want[name], np.ndarray) and is_float(want[name].dtype)
            for result in compare(name, got[name], want[name], self.tolerance)
            if not result.passed
        ]
        return dataclasses.replace(run, outputs=(*run.outputs, *behind))

    def run(
        self, subject: Subject, title: str, library: Path | None, device: str | None = None, *, optimize: bool = True,
        moved: Mapping[str, float] | None = None,
    ) -> RunReport:
        """One run on the feed of the reference, compared with its outputs; `moved` in place of what the reference says
        of how far the model moves by itself."""
        own = self.reference.moved if moved is None else moved
        try:
            session = subject.session(optimize=optimize, library=library, device=device, threads=self.threads)
            outputs = sessions.run(session, self.reference.feed, self.names)
        except sessions.RunRefused as error:
            return RunReport(title, refused=error.message)
        results: list[Comparison] = []
        for name in self.names:
            want = self.reference.outputs[name]
            rule = self.found.rules[name] if isinstance(want, np.ndarray) and want.dtype != object else None
            results += compare(
                name, outputs[name], want, self.tolerance, rule=rule, moved=own.get(name, 0.0),
                free_shape=name in self.found.free_size,
            )
        return RunReport(title, tuple(results))
