"""The same verbs as the command line: optimize, validate, explain, bench, library_path, register."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import gc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from onnxfuse.check import feeds, sessions
from onnxfuse.check.oracle import check_groups
from onnxfuse.check.subject import Subject
from onnxfuse.check.validate import NoInputsFit, ValidationReport, compare_models
from onnxfuse.codegen import Compiler, architecture_of_this_machine, toolchain
from onnxfuse.codegen.libraries import CompileError
from onnxfuse.errors import CheckFailed, ModelError, OnnxfuseError, SetupError, UsageError
from onnxfuse.fusion.ort_child import Child
from onnxfuse.fusion.plan import PlanOptions, make_plan
from onnxfuse.fusion.reserved import Reserved, asked, started
from onnxfuse.library import library_path, register
from onnxfuse.model.load import Model, from_proto, load
from onnxfuse.model.save import save
from onnxfuse.program import Program, ProgramError
from onnxfuse.report import schema
from onnxfuse.report.summary import Code, Report, collect_groups, collect_left, count_nodes
from onnxfuse.rewrite import apply
from onnxfuse.rewrite.kernels import has_code
from onnxfuse.timing import BenchReport, measure

__all__ = ["Result", "bench", "check_report", "default_targets", "explain", "library_path", "optimize", "register",
           "validate"]

Source = onnx.ModelProto | str | os.PathLike[str]
Inputs = Mapping[str, Any] | str | os.PathLike[str] | None
Progress = Callable[[str], None]
TARGETS = ("cpu", "cuda")
TARGET_VARIABLE = "ONNXFUSE_TARGET"
"""Names the default targets, such as "cpu"."""


@dataclasses.dataclass(frozen=True)
class Result:
    """What `optimize` gives: the fused model (external data not in it) and the record of the run."""

    model: onnx.ModelProto
    report: Report


def optimize(
    model: Source,
    out: str | os.PathLike[str] | None = None,
    *,
    targets: Sequence[str] | None = None,
    cuda_arch: Sequence[int] | int | str | None = None,
    validate: bool = True,
    inputs: Inputs = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    seed: int = 0,
    half_math: str = "float32",
    max_fusions: int | None = None,
    report: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
    folder: str | os.PathLike[str] | None = None,
    verify: bool = False,
    progress: Progress = lambda text: None,
) -> Result:
    """Fuse, validate and write a model; nothing is written unless all of it succeeded.

    `model` is a path or a ModelProto (`folder`: where its external data lie), `out` the path to write, which may be
    `model` itself; without it, or with `dry_run`, nothing is written. `targets` are "cpu" and "cuda" (default:
    `default_targets()`); for the latter each program is compiled for the compute capabilities `cuda_arch` (such as 80;
    "native" is that of the first GPU here; default: `onnxfuse.codegen.DEFAULT`), and as PTX for later ones. `inputs`
    (arrays by name, or an .npz file) and `shapes` replace made-up ones in validation; `rtol` and `atol` its defaults.
    `half_math` is "float32" or "strict". `max_fusions` stops after so many groups. `report` is a JSON file, written
    also when the check fails. `verify` checks the finished plan for errors of our own. `progress` is called with the
    name of each step.

    Raises ModelError (the input), UsageError (an argument), CheckFailed (outputs differ), SetupError (no runtime, one
    that is too old, no compiler for the GPU, or the output cannot be written).
    """
    targets = _targets(targets, cuda_arch)
    _check_options(half_math, rtol, atol, max_fusions)
    compiler = _compiler(targets, cuda_arch)
    target = None if dry_run or out is None else Path(out)
    progress("reading")
    with _no_collection(), started() as child:  # meanwhile the model is read
        source = _load(model, folder, check=False)
        with _naming(source):
            if target is not None:
                _check_target(target)
                if target.resolve() in source.data_files:
                    raise UsageError("OUT would take the place of the external data of the model", path=target,
                                     hint="give OUT another name")
            if report is not None:
                check_report(report, source.path, target, inputs, *source.data_files)
            given = _inputs(inputs)
            feeds.verify(source.proto, shapes, given)
            if validate:
                _check_runtime(source.proto)
            options = {
                "targets": list(targets), "half_math": half_math, "max_fusions": max_fusions,
                "cuda_arch": None if compiler is None else list(compiler.architectures),
                "validate": validate, "seed": seed, "rtol": rtol, "atol": atol,
                "shapes": {name: list(shape) for name, shape in (shapes or {}).items()}, "dry_run": dry_run,
            }
            fused, record = _fuse(source, child, "optimize", options, compiler, verify, progress)
    with _naming(source):
        if validate:
            check = _validate(source, fused, record, given, shapes, seed, rtol, atol, progress)
            record = dataclasses.replace(record, validation=check)
        if target is not None and record.passed:
            progress("writing")
            _write(fused, target, source)
            record = dataclasses.replace(record, output=os.fspath(out) if out is not None else None)
        if report is not None:
            write_text(report, schema.to_json(schema.to_dict(record)))
        if record.validation is not None and not record.passed:
            raise CheckFailed(
                record.validation.failure(),
                hint="nothing was written; --max-fusions N narrows down which group is at fault",
            )
    return Result(fused, record)


def explain(
    model: Source, *, half_math: str = "float32", targets: Sequence[str] | None = None,
    cuda_arch: Sequence[int] | int | str | None = None, code: bool = False, max_fusions: int | None = None,
    folder: str | os.PathLike[str] | None = None, verify: bool = False, progress: Progress = lambda text: None,
) -> Report:
    """What `optimize` would fuse, into what, and for every elementwise node left alone the reason.

    With `code` the GPU code is made, too."""
    targets = _targets(targets, cuda_arch)
    _check_options(half_math, None, None, max_fusions)
    compiler = _compiler(targets, cuda_arch) if code else None
    progress("reading")
    options: dict[str, Any] = {"targets": list(targets), "half_math": half_math, "max_fusions": max_fusions}
    with _no_collection(), started() as child:  # meanwhile the model is read
        source = _load(model, folder, check=False)
        with _naming(source):
            return _fuse(source, child, "explain", options, compiler, verify, progress)[1]


def validate(
    original: Source,
    fused: Source,
    *,
    inputs: Inputs = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
    progress: Progress = lambda text: None,
) -> ValidationReport:
    """Run two models on the same inputs and compare every output; differences are in the report, not raised.

    The first runs with the runtime's optimizations off, the second at its default, without our library and with it.
    """
    _check_options("float32", rtol, atol, None)
    first, second = _load(original, None), _load(fused, None)
    _check_interface(first, second)
    given = _inputs(inputs)
    feeds.verify(first.proto, shapes, given)
    for source in (first, second):
        try:
            _check_runtime(source.proto)
        except SetupError as error:
            raise _with_path(error, source) from error.__cause__
    try:
        return compare_models(
            _subject(first), _subject(second), inputs=given, shapes=shapes, seed=seed, rtol=rtol, atol=atol,
            say=progress,
        )
    except sessions.RunRefused as error:
        raise SetupError(f"the runtime cannot load it: {error.message}", path=first.path) from error
    except OnnxfuseError as error:
        raise _with_path(error, first) from error.__cause__


def bench(
    *models: str | os.PathLike[str],
    inputs: Inputs = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    threads: Sequence[int] = (1, 2),
    seconds: float = 5.0,
    progress: Progress = lambda text: None,
) -> BenchReport:
    """Latency of models side by side on the same inputs, interleaved; the first is what the others are compared with.

    Fused models run with the library where it is installed. `seconds` is the time for one number of threads.
    """
    if not models:
        raise UsageError("no model given")
    sources = [_load(model, None) for model in models]
    for other in sources[1:]:
        _check_interface(sources[0], other)
    try:
        given = _inputs(inputs)
        feeds.verify(sources[0].proto, shapes, given)
        return measure([_subject(source) for source in sources], given, shapes, seed, threads, seconds, progress)
    except OnnxfuseError as error:
        raise _with_path(error, sources[0]) from error.__cause__


# ---------------------------------------------------------------- steps


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """No search for garbage in cycles meanwhile: with millions of small objects that all stay until the end it takes a
    quarter of the time of a large model."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _compiler(targets: Sequence[str], cuda_arch: Sequence[int] | int | str | None) -> Compiler | None:
    """What makes GPU code; None where none is asked for."""
    if "cuda" not in targets:
        if cuda_arch is not None:
            raise UsageError("architectures of GPUs are given, but the model will not run on one",
                             hint="--target cpu,cuda")
        return None
    if isinstance(cuda_arch, int):
        cuda_arch = (cuda_arch,)
    if isinstance(cuda_arch, str):
        if cuda_arch != "native":
            raise UsageError(f"unknown architecture {cuda_arch!r}", hint='numbers such as 80, or "native"')
        cuda_arch = (architecture_of_this_machine(),)
    return Compiler(cuda_arch)


def _warnings(
    fused: onnx.ModelProto, targets: Sequence[str], compiler: Compiler | None, new: int
) -> tuple[str, ...]:
    """What a user would want to know before a session on a GPU says it."""
    if "cuda" not in targets and new and has_code(fused):
        return ("the model had GPU code, and its new fused nodes have none: it needs --target cpu,cuda for CUDA",)
    if compiler is not None and compiler.unknown:
        names = ", ".join(f"sm_{architecture}" for architecture in compiler.unknown)
        return (f"{compiler.version} make no code for {names}: such GPUs compile the PTX when a session is created",)
    return ()


def _compile(compiler: Compiler, texts: Sequence[str], codes: list[Code], progress: Progress) -> dict[str, bytes]:
    """GPU code by the text of the program; `codes` gets what is said about it."""
    code = {}
    try:
        programs = [Program.parse(text) for text in texts]
    except ProgramError as error:  # of a node that the model had already
        raise ModelError(f"the program of a fused node is damaged: {error}") from None
    try:
        for number, (text, kernels) in enumerate(zip(texts, compiler.compile(programs), strict=True)):
            progress(f"compiling for the GPU: {number + 1} of {len(texts)}")
            code[text] = kernels.data
            codes.append(Code(text, kernels.text, len(kernels.data), kernels.facts))
    except CompileError as error:
        raise SetupError(f"the compilers for CUDA do not take a kernel: {error}",
                         hint="--target cpu leaves GPU code out; please report it with the versions of "
                              "`onnxfuse doctor`") from error  # fmt: skip
    return code


def _fuse(
    source: Model, child: Child, command: str, options: dict[str, Any], compiler: Compiler | None, verify: bool,
    progress: Progress,
) -> tuple[onnx.ModelProto, Report]:
    progress("asking the runtime what it does better")
    notes = []
    with asked(source, child) as answer:  # meanwhile the model is checked and the plan prepared
        source.check()
        nodes_before = count_nodes(source.proto)

        def reserved() -> Reserved:
            found = answer()
            notes.append(found.note)
            progress("planning")
            return found

        choice = PlanOptions(targets=tuple(options["targets"]), half_math=options["half_math"],
                             max_fusions=options["max_fusions"], verify=verify)
        plan = make_plan(source, choice, reserved)
    progress("rewriting")
    codes: list[Code] = []
    fused = apply(source, plan, options["targets"],
                  None if compiler is None else lambda texts: _compile(compiler, texts, codes, progress),
                  "" if compiler is None else compiler.version)
    record = Report(
        command=command, input=None if source.path is None else str(source.path), output=None, options=options,
        nodes_before=nodes_before, nodes_after=count_nodes(fused), new_groups=len(plan.groups),
        warnings=_warnings(fused, options["targets"], compiler, len(plan.groups)),
        groups=collect_groups(fused), left=collect_left(plan.left), note=notes[0], codes=tuple(codes),
    )
    return fused, record


def _validate(
    source: Model, fused: onnx.ModelProto, record: Report, given: Mapping[str, Any] | None,
    shapes: Mapping[str, Sequence[int]] | None, seed: int, rtol: float | None, atol: float | None, progress: Progress,
) -> ValidationReport | None:
    original = _subject(source)
    candidate = Subject(fused, None, original.folder)
    if fused is source.proto:
        return None
    try:
        check = compare_models(
            original, candidate, inputs=given, shapes=shapes, seed=seed, rtol=rtol, atol=atol, say=progress
        )
        if check.passed and check.widened:  # a bar so wide says little of a group: look at each
            progress("checking the groups one by one")
            alone = check_groups(original, candidate, "", seed=seed, rtol=rtol, atol=atol)
            runs = [dataclasses.replace(run, name=f"group by group {run.name}") for run in alone.runs]
            check = dataclasses.replace(check, runs=(*check.runs, *runs), first_group=alone.first_group)
        return check
    except sessions.RunRefused as error:
        reason = f"the runtime cannot run the original ({error.message})"
    except NoInputsFit as error:
        reason = f"{error.message} (pass --inputs or --shape)"
    progress("checking the groups one by one")
    return check_groups(original, candidate, reason, seed=seed, rtol=rtol, atol=atol)


@_no_collection()
def _load(model: Source, folder: str | os.PathLike[str] | None, *, check: bool = True) -> Model:
    return from_proto(model, folder, check=check) if isinstance(model, onnx.ModelProto) else load(model, check=check)


def _subject(source: Model) -> Subject:
    path = None if source.path is None else str(source.path)
    return Subject(source.proto, path, None if source.folder is None else str(source.folder))


def _inputs(inputs: Inputs) -> Mapping[str, Any] | None:
    if inputs is None or isinstance(inputs, Mapping):
        return inputs
    return feeds.load_npz(inputs)


@contextlib.contextmanager
def _naming(source: Model) -> Iterator[None]:
    """Errors of the block name the model's file, if they name no file yet."""
    try:
        yield
    except OnnxfuseError as error:
        raise _with_path(error, source) from error.__cause__


def _with_path(error: OnnxfuseError, source: Model) -> OnnxfuseError:
    """The error with the model's path, if it names no file yet."""
    if error.path is None and source.path is not None:
        return type(error)(error.message, path=source.path, hint=error.hint)
    return error


# ---------------------------------------------------------------- checks before the work


def default_targets() -> tuple[str, ...]:
    """Where a model will run unless it is said: on the CPU, and on CUDA where the compilers for it are installed.
    ONNXFUSE_TARGET says otherwise. Raises UsageError for what that names."""
    named = os.environ.get(TARGET_VARIABLE)
    if named:
        targets = tuple(part.strip() for part in named.split(",") if part.strip())
        wrong = [target for target in targets if target not in TARGETS]
        if wrong or not targets:
            raise UsageError(f"{TARGET_VARIABLE} is {named!r}", hint="it is cpu, cuda or cpu,cuda")
        return targets
    return TARGETS if toolchain.installed() else ("cpu",)


def _targets(given: Sequence[str] | None, cuda_arch: object) -> tuple[str, ...]:
    """The targets, each once and in order. Raises UsageError."""
    targets = default_targets() if given is None else given
    if given is None and cuda_arch is not None and "cuda" not in targets:
        targets = TARGETS  # where the compilers are missing, the error will say so
    for name in targets:
        if name not in TARGETS:
            raise UsageError(f"unknown target {name!r}", hint="targets are cpu and cuda")
    if not targets:
        raise UsageError("no target given", hint="targets are cpu and cuda")
    return tuple(name for name in TARGETS if name in targets)


def _check_options(half_math: str, rtol: float | None, atol: float | None, max_fusions: int | None) -> None:
    if half_math not in ("float32", "strict"):
        raise UsageError(f"unknown --half-math {half_math!r}", hint="it is float32 or strict")
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value is not None and not 0 <= value < float("inf"):
            raise UsageError(f"--{name} must be a number from 0 up, not {value}")
    if max_fusions is not None and max_fusions < 0:
        raise UsageError(f"--max-fusions must not be negative, it is {max_fusions}")


def _check_target(target: Path) -> None:
    """Refuse an output that cannot be written before any work is done for it."""
    try:
        target.exists()
    except OSError as error:  # a name that is too long
        raise _cannot_write(target, error) from error
    if target.is_dir():
        raise SetupError("cannot be written: it is a folder", path=target)
    if _is_special(target):
        raise SetupError("cannot be written: it is not a regular file", path=target,
                         hint="--dry-run writes nothing, --report FILE.json tells what was done")
    folder = target.absolute().parent
    if not folder.exists():
        raise SetupError("cannot be written: its folder does not exist", path=target, hint=f"create {folder}")
    if not folder.is_dir():
        raise SetupError("cannot be written: its parent is not a folder", path=target)
    if not os.access(folder, os.W_OK):
        raise SetupError("cannot be written: no permission to write in its folder", path=target)


def check_report(report: str | os.PathLike[str], *others: object) -> None:
    """Refuse a report that cannot be written, or would take the place of another file that the command needs."""
    path = Path(report)
    for other in others:
        if isinstance(other, str | os.PathLike) and Path(other).resolve() == path.resolve():
            raise UsageError("the report would take the place of this file", path=path,
                             hint="give --report another name")
    if not _is_special(path):
        _check_target(path)


def _is_special(path: Path) -> bool:
    """A device, a pipe, or a link such as /dev/stdout, which a rename would destroy."""
    if path.is_symlink() and path.absolute().parent.parts[:2] in (("/", "dev"), ("/", "proc")):
        return True
    return path.exists() and not path.is_file() and not path.is_dir()


def _check_runtime(proto: onnx.ModelProto) -> None:
    """SetupError if there is no runtime or it is too old for the model: found with a model of one node."""
    sessions.load_runtime()
    probe = onnx.ModelProto(ir_version=max(8, proto.ir_version))
    probe.opset_import.extend(o for o in proto.opset_import if o.domain in ("", "ai.onnx"))
    probe.graph.name = "probe"
    probe.graph.node.append(onnx.helper.make_node("Identity", ["x"], ["y"]))
    probe.graph.input.append(onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, []))
    probe.graph.output.append(onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, []))
    if not probe.opset_import:
        return
    try:
        sessions.create(probe, optimize=False)
    except sessions.RunRefused as error:
        newer = sessions.too_new(error)
        if newer is not None:
            raise newer from None


def _check_interface(first: Model, second: Model) -> None:
    """Two models can be compared if the second takes the same inputs and gives the outputs of the first."""
    takes = {value.name for value in first.proto.graph.input}
    wants = [v.name for v in second.proto.graph.input if v.name not in {t.name for t in second.proto.graph.initializer}]
    missing = [name for name in wants if name not in takes]
    if missing:
        raise UsageError(f"needs the input {missing[0]!r}, which {first.path} does not have", path=second.path)
    gives = {value.name for value in second.proto.graph.output}
    lost = [value.name for value in first.proto.graph.output if value.name not in gives]
    if lost:
        raise UsageError(f"does not give the output {lost[0]!r} of {first.path}", path=second.path)


# ---------------------------------------------------------------- writing


def _write(model: onnx.ModelProto, target: Path, source: Model) -> None:
    try:
        save(model, target, source)
    except OSError as error:
        raise _cannot_write(target, error) from error


def _cannot_write(target: str | os.PathLike[str], error: OSError) -> SetupError:
    reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else (error.strerror or str(error))
    return SetupError(f"cannot be written: {reason}", path=target)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a small file beside its place, then rename it (a pipe or terminal: directly). SetupError if that fails."""
    target = Path(path)
    beside = target.absolute().with_name(f".{target.name}.{os.getpid()}.part")
    try:
        if _is_special(target):
            target.write_text(text, encoding="utf-8")
            return
        try:
            beside.write_text(text, encoding="utf-8")
            os.replace(beside, target)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise _cannot_write(target, error) from error
