"""Tables and summaries for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from onnxfuse.check.compare import REPORTED, STEPS, TOLERANT, Comparison
from onnxfuse.check.validate import ValidationReport
from onnxfuse.library import one_line
from onnxfuse.report.doctor import Finding
from onnxfuse.report.summary import Group, LeftNode, Report, code_line
from onnxfuse.timing import BenchReport

__all__ = ["show_bench", "show_cuda", "show_doctor", "show_explanation", "show_node", "show_summary", "show_validation"]

_MANY = 20


def plural(count: int, word: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{count:,} {word}" + ("" if count == 1 else "s")


def _table(*columns: str | tuple[str, str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        title, justify = column if isinstance(column, tuple) else (column, "left")
        table.add_column(title, justify="right" if justify == "right" else "left", overflow="fold")
    return table


def show_summary(console: Console, report: Report, *, verbose: bool = False) -> None:
    """What `optimize` did: nodes, groups, what was left alone and why, the check, and where it was written."""
    name = escape(report.input or "model")
    distinct = len({group.op for group in report.groups})
    if report.new_groups:
        on_cpu = f" ({report.nodes_on_cpu:,} on the CPU)" if report.gpu_groups else ""
        console.print(
            f"{name}: {report.nodes_before:,} -> {plural(report.nodes_after, 'node')}{on_cpu}; "
            f"{plural(report.ops_fused, 'op')} in {plural(len(report.groups), 'fused group')} ({distinct} distinct)"
        )
        _show_gpu_groups(console, report)
    else:
        done = f", {len(report.groups)} of them fused already" if report.groups else ""
        console.print(f"{name}: nothing to fuse ({plural(report.nodes_before, 'node')}{done})")
    if report.left:
        counts = report.left_counts
        shown = ", ".join(f"{count} {code}" for code, count in counts.items())
        console.print(f"left alone{_on_cpu(report)}: {plural(len(report.left), 'elementwise node')} ({shown})")
    if report.note:
        console.print(f"note: {escape(one_line(report.note))}")
    _show_codes(console, report, verbose=verbose)
    if verbose and report.groups:
        console.print(_group_table(report.groups))
    if verbose and report.left:
        console.print(_left_table(report.left))
    if report.validation is not None:
        _show_check(console, report.validation, verbose=verbose)
    elif report.options.get("validate"):
        console.print("check: not needed, nothing changed")
    else:
        console.print("check: left out (--no-validate)")
    for warning in report.warnings:
        console.print(f"warning: {escape(warning)}")
    if report.output is not None:
        console.print(f"written: {escape(report.output)}")
    elif report.passed:
        console.print("written: nothing (dry run)")


def _on_cpu(report: Report) -> str:
    """Where nodes are left alone, if not everywhere."""
    return " on the CPU" if report.gpu_groups else ""


def _show_gpu_groups(console: Console, report: Report) -> None:
    """A line about groups that are such on a GPU alone."""
    groups = report.gpu_groups
    if groups and report.options["targets"] != ["cuda"]:
        console.print(
            f"on a GPU alone: {plural(sum(len(group.ops) for group in groups), 'op')} in "
            f"{len(groups)} of them; on the CPU these stay single nodes"
        )


def _show_codes(console: Console, report: Report, *, verbose: bool) -> None:
    """GPU code: a line, and with `verbose` a table by program."""
    if not report.codes:
        return
    console.print(f"GPU code: {code_line(report.codes)}")
    if verbose:
        table = _table("fused node", ("KB", "right"), "kernel", ("registers", "right"), ("local bytes", "right"))
        for code in report.codes:
            ops = ", ".join(report.ops_of(code))
            for number, (name, registers) in enumerate(code.registers.items()):
                frame = max(kernels[name].frame for kernels in code.facts.values())
                first = (ops, f"{code.bytes / 1024:.1f}") if number == 0 else ("", "")
                table.add_row(*first, name, str(registers), str(frame))
        console.print(table)


def show_cuda(console: Console, report: Report, wanted: str | None = None) -> bool:
    """The CUDA text of every program, or of that which runs a node; False if none does."""
    programs = {group.program for group in report.groups if wanted is None or _is_in(wanted, group)}
    shown = [code for code in report.codes if code.program in programs]
    for code in shown:
        console.print(f"// ---- {', '.join(report.ops_of(code))}", markup=False)
        console.print(code.text, markup=False)
    return bool(shown) or wanted is None


def _show_check(console: Console, check: ValidationReport, *, verbose: bool) -> None:
    modes = ", ".join(run.name for run in check.runs)
    if check.passed and check.runs:
        console.print(
            f"check: passed {modes}; largest error {check.largest_error:.1e} of the largest value "
            f"(allowed {check.tolerance.rtol:.0e}{', more where quantized' if check.quantized else ''})"
        )
    elif check.passed:
        console.print("check: nothing could be run")
    else:
        console.print(f"check: FAILED: {escape(check.failure())}")
    for name, op in check.skipped.items():
        console.print(f"not compared: output {escape(repr(name))} depends on {op}")
    for output in check.reported:
        console.print(f"reported: {escape(_reported(output))}")
    for warning in check.warnings:
        console.print(f"warning: {escape(warning)}")
    if verbose:
        console.print(_check_table(check))


def _reported(output: Comparison) -> str:
    if output.problem:
        return f"output {output.name!r}: {output.problem} (its size depends on decisions between near ties)"
    return (
        f"output {output.name!r}: {output.differing} of {output.total} elements differ "
        f"({output.share:.2%}; decisions between near ties)"
    )


def show_validation(console: Console, check: ValidationReport) -> None:
    """The table of `validate`."""
    console.print(_check_table(check))
    _show_check(console, check, verbose=False)


def _check_table(check: ValidationReport) -> Table:
    table = _table("run", "output", "type", "shape", ("error", "right"), ("allowed", "right"),
                   ("differing", "right"), "result")
    for run in check.runs:
        if run.refused:
            table.add_row(run.name, "", "", "", "", "", "", f"does not run: {escape(run.refused)}")
        for output in run.outputs:
            numeric = output.rule in (TOLERANT, STEPS)
            result = "ok" if output.passed else "FAILED"
            if output.passed and output.rule == REPORTED and output.differing:
                result = "reported"
            table.add_row(
                run.name, escape(output.name), output.dtype, escape(str(list(output.shape))),
                f"{output.error:.2e}" if numeric else "", f"{output.limit:.2e}" if numeric else "equal",
                f"{output.differing:,} of {output.total:,}", escape(output.problem) or result,
            )
    return table


def show_explanation(console: Console, report: Report, *, verbose: bool = False) -> None:
    """The tables of `explain`: groups, then what was left alone."""
    name = escape(report.input or "model")
    console.print(
        f"{name}: {plural(report.nodes_before, 'node')}; {plural(report.ops_fused, 'op')} would become "
        f"{plural(len(report.groups), 'fused node')}"
    )
    _show_gpu_groups(console, report)
    _show_codes(console, report, verbose=verbose)
    if report.groups:
        console.print(_group_table(report.groups, full=verbose))
    if report.left:
        console.print(_left_table(report.left, full=verbose))
        shown = ", ".join(f"{count} {code}" for code, count in report.left_counts.items())
        console.print(f"left alone{_on_cpu(report)}: {plural(len(report.left), 'elementwise node')} ({shown})")
    if report.note:
        console.print(f"note: {escape(one_line(report.note))}")


def show_node(console: Console, report: Report, wanted: str) -> bool:
    """What becomes of the node of that name (or that makes that value); False if it is neither fused nor left alone."""
    found = fused_on_gpu = False
    for group in report.groups:
        if _is_in(wanted, group):
            found, fused_on_gpu = True, group.on_gpu_alone
            where = f"{_at(group.graph)}{', on a GPU alone' if group.on_gpu_alone else ''}"
            console.print(f"{escape(wanted)}: fused into {group.op} {escape(repr(group.name))}{where}")
            console.print(f"  together: {escape(', '.join(group.source))}")
            console.print(f"  ops: {', '.join(group.ops)}")
    for node in report.left:
        if wanted in (node.node, node.output):
            found = True
            what = f"{escape(wanted)} ({node.op}){_at(node.graph)}"
            where = " on the CPU" if fused_on_gpu else ""
            console.print(f"{what}: left alone{where}, {node.code}: {escape(node.text)}")
    return found


def _is_in(wanted: str, group: Group) -> bool:
    """Whether a group is, or holds, or makes what has this name."""
    return wanted in group.source or wanted in group.outputs or wanted == group.name


def _at(graph: str) -> str:
    return f" in {escape(graph)}" if graph else ""


def _ops(names: Sequence[str]) -> str:
    """`Mul, Add x3, Sigmoid`: runs of one op are counted."""
    parts: list[list[str | int]] = []
    for name in names:
        if parts and parts[-1][0] == name:
            parts[-1][1] = int(parts[-1][1]) + 1
        else:
            parts.append([name, 1])
    shown = [str(name) if count == 1 else f"{name} x{count}" for name, count in parts]
    return ", ".join(shown if len(shown) <= 12 else [*shown[:11], "…"])


def _group_table(groups: Iterable[Group], *, full: bool = True) -> Table:
    """Groups; those with the same body in one row unless `full`."""
    table = _table("fused node", ("groups", "right"), ("ops", "right"), "replaces", "first at")
    by_op: dict[str, list[Group]] = {}
    for group in groups:
        by_op.setdefault(group.op, []).append(group)
    rows = list(by_op.values())
    hidden = 0 if full else max(0, len(rows) - _MANY)
    for members in rows[: len(rows) - hidden]:
        first = members[0]
        where = f"{first.name or first.outputs[0]}" + (f" in {first.graph}" if first.graph else "")
        table.add_row(first.op, str(len(members)), str(len(first.ops)), _ops(first.ops), escape(where))
    if hidden:
        table.add_row(f"… {hidden} more", "", "", "", "(-v shows all)")
    return table


def _left_table(left: Iterable[LeftNode], *, full: bool = True) -> Table:
    """Nodes left alone, by reason; without `full` at most three nodes a reason."""
    table = _table("reason", "node", "op", "why")
    by_code: dict[str, list[LeftNode]] = {}
    for node in left:
        by_code.setdefault(node.code, []).append(node)
    for code, nodes in sorted(by_code.items(), key=lambda item: (-len(item[1]), item[0])):
        shown = nodes if full else nodes[:3]
        for node in shown:
            name = node.node or node.output
            table.add_row(code, escape(name + (f" in {node.graph}" if node.graph else "")), node.op, escape(node.text))
        if len(shown) < len(nodes):
            table.add_row(code, f"… {len(nodes) - len(shown)} more", "", "(-v shows all)")
    return table


def show_bench(console: Console, report: BenchReport) -> None:
    """The table of `bench`: one row a model and number of threads."""
    table = _table("model", ("threads", "right"), "library", ("ms", "right"), ("times faster (10-90 %)", "right"),
                   ("noise (A against A)", "right"))
    for row in report.rows:
        table.add_row(
            escape(row.model), str(row.threads), "yes" if row.with_library else "no", f"{row.milliseconds:.3f}",
            row.speedup.text(), report.noise[row.threads].text(),
        )
    console.print(table)
    console.print(f"inputs: {escape(', '.join(f'{name} {text}' for name, text in report.inputs.items()))}")


def show_doctor(console: Console, findings: Sequence[Finding]) -> None:
    """The table of `doctor`, then what to do."""
    table = _table("", "what", "found")
    for finding in findings:
        table.add_row("ok" if finding.ok else "!!", finding.what, escape(finding.found))
    console.print(table)
    for finding in findings:
        if finding.advice:
            console.print(f"{'note' if finding.ok else 'to do'}: {escape(finding.what)}: {escape(finding.advice)}")
