"""The command line: options, exit codes and messages. What the commands do is in `api` and `report`.

Exit codes: 0 done, 1 a check failed, 2 wrong usage, 3 the input cannot be used, 4 the environment cannot, 5 our fault.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from onnxfuse.errors import OnnxfuseError, SetupError, UsageError
from onnxfuse.version import __version__

__all__ = ["cli", "main"]

EXIT_USAGE = 2
EXIT_ENVIRONMENT = 4
EXIT_OUR_FAULT = 5
EXIT_INTERRUPTED = 130
TRACKER = "the issue tracker of onnxfuse"


def _complain(message: str, path: str | None = None, hint: str | None = None) -> None:
    """`onnxfuse: error: FILE: what is wrong`, then one line with a hint, on stderr."""
    where = f"{path}: " if path else ""
    print(f"onnxfuse: error: {where}{' '.join(message.split())}", file=sys.stderr)
    if hint:
        print(f"hint: {' '.join(hint.split())}", file=sys.stderr)


class _Commands(click.Group):
    """The group of commands, with one place that turns exceptions into messages and exit codes."""

    debug = False

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        self.debug = False
        kwargs["standalone_mode"] = False
        sys.exit(self._guarded(*args, **kwargs))

    def _guarded(self, *args: Any, **kwargs: Any) -> int:
        try:
            code = super().main(*args, **kwargs)
            sys.stdout.flush()
            return code if isinstance(code, int) else 0
        except click.ClickException as error:
            context = getattr(error, "ctx", None)
            command = context.command_path if context is not None else "onnxfuse"
            _complain(error.format_message(), hint=f"`{command} --help` lists what there is")
            return EXIT_USAGE
        except (click.Abort, KeyboardInterrupt):
            print("onnxfuse: interrupted", file=sys.stderr)
            return EXIT_INTERRUPTED
        except OnnxfuseError as error:
            self._trace()
            _complain(error.message, error.path, error.hint)
            return error.exit_code
        except BrokenPipeError:  # the reader of `onnxfuse explain | head` has gone
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except MemoryError:
            self._trace()
            _complain("out of memory", hint="--shape NAME:1,3,224,224 makes the inputs of a check smaller")
            return EXIT_ENVIRONMENT
        except OSError as error:
            self._trace()
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                _complain("the disk is full", error.filename)
                return EXIT_ENVIRONMENT
            return self._our_fault(error)
        except Exception as error:
            self._trace()
            return self._our_fault(error)

    def _our_fault(self, error: Exception) -> int:
        text = " ".join(str(error).split())[:200]
        _complain(
            f"internal error, please report it to {TRACKER}: {type(error).__name__}: {text}",
            hint=None if self.debug else "run again with --debug and add the traceback to the report",
        )
        return EXIT_OUR_FAULT

    def _trace(self) -> None:
        if self.debug:
            traceback.print_exc(file=sys.stderr)


_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(cls=_Commands, invoke_without_command=True, context_settings=_SETTINGS)
@click.version_option(__version__, "--version", prog_name="onnxfuse", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context) -> None:
    """Fuse elementwise graphs of ONNX models ahead of time, for ONNX Runtime."""
    if context.invoked_subcommand is None:
        print(context.get_help())
        context.exit(EXIT_USAGE)


# ---------------------------------------------------------------- shared options


def _set_debug(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    command = context.find_root().command
    if value and isinstance(command, _Commands):
        command.debug = True


def _is_debug() -> bool:
    command = click.get_current_context().find_root().command
    return isinstance(command, _Commands) and command.debug


_debug = click.option(
    "--debug", is_flag=True, expose_value=False, callback=_set_debug, is_eager=True,
    help="Show tracebacks of errors, and verify the plan.",
)
_inputs = click.option("--inputs", metavar="F.npz", help="Arrays by input name instead of made-up ones.")
_shapes = click.option(
    "--shape", "shapes", multiple=True, metavar="NAME:1,3,224,224", help="Shape of an input; may be given again."
)
_seed = click.option("--seed", type=int, default=0, show_default=True, help="Seed of made-up inputs.")
_rtol = click.option("--rtol", type=float, help="Allowed error, relative to the largest value of an output.")
_atol = click.option("--atol", type=float, help="Allowed absolute error, in addition.")
_verbose = click.option("-v", "--verbose", is_flag=True, help="Print every group and every node left alone.")
_quiet = click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
_target = click.option(
    "--target", "targets", metavar="cpu,cuda",
    help="Where the model will run (default: both where the compilers for CUDA are installed, else cpu; "
    "ONNXFUSE_TARGET says otherwise).",
)
_cuda_arch = click.option(
    "--cuda-arch", metavar="80,90|native", help="GPUs to compile for, by compute capability (default: all recent ones)."
)
_half = click.option(
    "--half-math", default="float32", show_default=True, metavar="float32|strict",
    help="float16 groups: compute in float32 and round once, or round after each op.",
)
_fuel = click.option("--max-fusions", type=int, metavar="N", help="Stop after N groups, to find the one at fault.")


def _console() -> Console:
    """Standard output; wide where it is not a terminal, so that no table is cut for a program that reads it."""
    console = Console(highlight=False, soft_wrap=True)
    return console if console.is_terminal else Console(highlight=False, soft_wrap=True, width=200)


@contextlib.contextmanager
def _steps(total: int, quiet: bool) -> Iterator[Callable[[str], None]]:
    """A progress bar on stderr if that is a terminal; call it with the name of each step."""
    if quiet or not sys.stderr.isatty():  # rich takes FORCE_COLOR for a terminal too
        yield lambda text: None
        return
    console = Console(stderr=True)
    columns = (SpinnerColumn(), BarColumn(bar_width=24), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=total)
        begun = ""

        def step(text: str) -> None:
            nonlocal begun
            stage = text.partition(":")[0]  # "compiling: 3 of 20" is one step
            progress.update(task, description=text, advance=1 if begun not in ("", stage) else 0)
            begun = stage

        yield step


# ---------------------------------------------------------------- commands


@cli.command()
@click.argument("model", metavar="IN")
@click.argument("out", metavar="OUT", required=False)
@_target
@_cuda_arch
@click.option("--validate/--no-validate", default=True, show_default=True, help="Run and compare before writing.")
@_inputs
@_shapes
@_rtol
@_atol
@_seed
@_half
@_fuel
@click.option("--report", metavar="F.json", help="Write what was done as JSON (docs/report.md).")
@click.option("--dry-run", is_flag=True, help="Do everything but write the result; OUT may be left out.")
@_quiet
@_verbose
@_debug
def optimize(
    model: str, out: str | None, targets: str | None, cuda_arch: str | None, validate: bool, inputs: str | None,
    shapes: tuple[str, ...], rtol: float | None, atol: float | None, seed: int, half_math: str,
    max_fusions: int | None, report: str | None, dry_run: bool, quiet: bool, verbose: bool,
) -> None:
    """Fuse IN, validate, write OUT (which may be IN). Nothing is written unless all succeeded."""
    from onnxfuse import api
    from onnxfuse.check.feeds import parse_shapes
    from onnxfuse.report import terminal

    if out is None and not dry_run:
        raise UsageError("OUT is missing", hint="give the path to write, or --dry-run to write nothing")
    with _steps(8, quiet) as step:
        result = api.optimize(
            model, out, targets=_split(targets), cuda_arch=_architectures(cuda_arch), validate=validate, inputs=inputs,
            shapes=parse_shapes(shapes), rtol=rtol, atol=atol, seed=seed, half_math=half_math,
            max_fusions=max_fusions, report=report, dry_run=dry_run, verify=_is_debug(), progress=step,
        )
    if not quiet:
        terminal.show_summary(_console(), result.report, verbose=verbose)


@cli.command()
@click.argument("original", metavar="A")
@click.argument("fused", metavar="B")
@_inputs
@_shapes
@_rtol
@_atol
@_seed
@click.option("--report", metavar="F.json", help="Write the comparison as JSON.")
@_quiet
@_debug
def validate(
    original: str, fused: str, inputs: str | None, shapes: tuple[str, ...], rtol: float | None, atol: float | None,
    seed: int, report: str | None, quiet: bool,
) -> None:
    """Run A (optimizations off) and B (default, without and with the library) and compare every output."""
    from onnxfuse import api
    from onnxfuse.check.feeds import parse_shapes
    from onnxfuse.errors import CheckFailed
    from onnxfuse.report import schema, terminal

    if report is not None:
        api.check_report(report, original, fused, inputs)
    with _steps(4, quiet) as step:
        check = api.validate(
            original, fused, inputs=inputs, shapes=parse_shapes(shapes), seed=seed, rtol=rtol, atol=atol,
            progress=step,
        )
    if report is not None:
        api.write_text(report, schema.to_json(schema.validation_record(original, fused, check)))
    if not quiet:
        terminal.show_validation(_console(), check)
    if not check.passed:
        raise CheckFailed(check.failure(), path=fused)


@cli.command()
@click.argument("model", metavar="IN")
@click.option("--node", metavar="NAME", help="Only this node: its name, or a value that it makes.")
@_target
@_cuda_arch
@click.option("--cuda", is_flag=True,
              help="Print the CUDA text of every program, or of that of --node, instead (docs/cuda.md).")
@_half
@_fuel
@click.option("--report", metavar="F.json", help="Write the plan as JSON (docs/report.md).")
@_verbose
@_debug
def explain(
    model: str, node: str | None, targets: str | None, cuda_arch: str | None, cuda: bool, half_math: str,
    max_fusions: int | None, report: str | None, verbose: bool,
) -> None:
    """What would be fused, into what, and for every elementwise node left alone the reason."""
    from onnxfuse import api
    from onnxfuse.report import schema, terminal

    if report is not None:
        api.check_report(report, model)
    asked = _split(targets)
    if cuda:
        asked = (*(asked or api.default_targets()), "cuda")
    with _steps(4, False) as step:
        record = api.explain(
            model, half_math=half_math, targets=asked, cuda_arch=_architectures(cuda_arch),
            code=cuda or verbose or cuda_arch is not None, max_fusions=max_fusions, verify=_is_debug(), progress=step,
        )
    if report is not None:
        api.write_text(report, schema.to_json(schema.to_dict(record)))
    if cuda:
        if not terminal.show_cuda(_console(), record, node):
            raise UsageError(f"no fused node has {node!r} in it", path=model, hint="without --node all are printed")
    elif node is None:
        terminal.show_explanation(_console(), record, verbose=verbose)
    elif not terminal.show_node(_console(), record, node):
        raise UsageError(
            f"no elementwise node {node!r} is in the model", path=model,
            hint="--node takes a node's name or the name of a value that it makes; names inside functions do not count",
        )


@cli.command()
@click.argument("models", metavar="A [B …]", nargs=-1, required=True)
@_inputs
@_shapes
@_seed
@click.option("--threads", default="1,2", show_default=True, metavar="N,M", help="Numbers of threads to measure.")
@click.option("--seconds", type=float, default=5.0, show_default=True, help="Time for one number of threads.")
@click.option("--report", metavar="F.json", help="Write the table as JSON.")
@_debug
def bench(
    models: tuple[str, ...], inputs: str | None, shapes: tuple[str, ...], seed: int, threads: str, seconds: float,
    report: str | None,
) -> None:
    """Latency of models side by side, interleaved; A is what the others are compared with."""
    from onnxfuse import api
    from onnxfuse.check.feeds import parse_shapes
    from onnxfuse.report import schema, terminal

    try:
        counts = [int(part) for part in threads.split(",")]
    except ValueError:
        raise UsageError(f"--threads {threads!r} is not of the form 1,2") from None
    if report is not None:
        api.check_report(report, *models, inputs)
    with _steps(len(counts) + 1, False) as step:
        result = api.bench(
            *models, inputs=inputs, shapes=parse_shapes(shapes), seed=seed, threads=counts, seconds=seconds,
            progress=step,
        )
    if report is not None:
        api.write_text(report, schema.to_json(schema.bench_record(result)))
    terminal.show_bench(_console(), result)


@cli.command()
@_debug
def library() -> None:
    """Print the path of the compiled library (for register_custom_ops_library, C++, C#)."""
    from onnxfuse.library import library_path

    print(library_path())


@cli.command()
@_debug
def doctor() -> None:
    """Versions, processor, providers, whether the library loads into this runtime, and what to do if not."""
    from onnxfuse.report import doctor as examination
    from onnxfuse.report import terminal

    findings = examination.examine()
    terminal.show_doctor(_console(), findings)
    bad = [finding.what for finding in findings if not finding.ok]
    if bad:
        raise SetupError(f"not in order: {', '.join(bad)}", hint="see the lines that begin with `to do`")


def _split(targets: str | None) -> tuple[str, ...] | None:
    return None if targets is None else tuple(part.strip() for part in targets.split(",") if part.strip())


def _architectures(text: str | None) -> tuple[int, ...] | str | None:
    """`--cuda-arch`: "80,90", "sm_80" or "8.0" are all understood."""
    if text is None or text.strip() == "native":
        return None if text is None else "native"
    numbers = [part.strip().removeprefix("sm_").replace(".", "") for part in text.split(",") if part.strip()]
    if not numbers or not all(number.isdecimal() and len(number) <= 3 for number in numbers):
        raise UsageError(f"--cuda-arch is {text!r}", hint="compute capabilities such as 80,90, or native")
    return tuple(map(int, numbers))


def main() -> NoReturn:
    """Entry point of `onnxfuse` and `python -m onnxfuse`."""
    try:
        cli.main(prog_name="onnxfuse")
    except SystemExit as end:
        if end.code == EXIT_INTERRUPTED:  # a compilation that is under way would be waited for, minutes at worst
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(EXIT_INTERRUPTED)
        raise
