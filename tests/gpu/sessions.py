"""What whole sessions do on a real GPU: fused against unfused models in ONNX Runtime with its CUDA provider.

    python -m tests.gpu.prepare build/gpu                  (elsewhere: models, compiled; and the runtime in pieces)
    python tests/gpu/sessions.py build/gpu --out FOLDER    (here: numpy and onnxruntime-gpu alone, no network)

For each model: outputs, nodes that run (those of ours, copies between devices, what the runtime fuses by itself),
threads, and latency with and without CUDA graphs. `--pieces` brings the runtime as a wheel in pieces; `--provider
CPUExecutionProvider` tries the whole on a machine without a GPU.
Writes sessions.json and sessions.txt. Exit code 1 if an output is wrong or more is copied than before, 2 if nothing
could be run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CHILD = Path(__file__).with_name("session_child.py")
CUDA = "CUDAExecutionProvider"
OURS = re.compile(r"Fused(Elementwise|Device)\d+")
SECONDS = 150.0  # for one part of one model; one that hangs costs no more
CHANGED = 12  # ops of a model listed in the table of the runtime's own fusions
Ran = Mapping[str, Mapping[str, int]]


class LeftOut(Exception):
    """Why nothing could be run: one line."""


# ------------------------------------------------------------------------------------------------ the runtime


def join(pieces: Path, folder: Path) -> Path:
    """The wheel that tests.gpu.prepare has cut into `pieces`, whole again, in `folder`. Raises LeftOut."""
    about = pieces / "pieces.json"
    if not about.is_file():
        raise LeftOut(f"no {about.name} among the pieces of the wheel")
    facts = json.loads(about.read_text(encoding="utf-8"))
    wheel, whole = folder / Path(facts["wheel"]).name, hashlib.sha256()
    with wheel.open("wb") as file:
        for piece in facts["pieces"]:
            path = pieces / Path(piece["file"]).name
            data = path.read_bytes() if path.is_file() else None
            if data is None or hashlib.sha256(data).hexdigest() != piece["sha256"]:
                raise LeftOut(f"piece {path.name} of the wheel is {'missing' if data is None else 'damaged'}")
            whole.update(data)
            file.write(data)
    if whole.hexdigest() != facts["sha256"]:
        raise LeftOut(f"{wheel.name}: the pieces do not make up the wheel")
    return wheel


def install(wheel: Path, site: Path) -> None:
    """The wheel in a folder of its own. Raises LeftOut."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile",
               "--disable-pip-version-check", "--target", str(site), str(wheel)]  # fmt: skip
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LeftOut(f"pip does not install {wheel.name}: {last(done.stderr + done.stdout)}")


def last(log: str) -> str:
    """The line of a log that says most: the missing library of a provider, else the last one."""
    text = re.sub(r"\x1b\[[\d;]*m", "", log)
    missing = re.search(r"Failed to load library \S+ with error: (.+)", text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (missing[1] if missing else lines[-1] if lines else "no message")[:300]


class Children:
    """Parts of the work, each in a process of its own."""

    def __init__(self, folder: Path, provider: str, site: Path | None, rtol: float, seconds: float) -> None:
        self.folder = folder
        self.more = ["--provider", provider, "--rtol", str(rtol), "--seconds", str(seconds)]
        self.more += ["--site", str(site)] if site is not None else []

    def answer(self, part: str, name: str) -> dict[str, Any]:
        """What the child has found; "died" is there where it did not come to its end, "step" is where it was."""
        with tempfile.TemporaryDirectory(prefix="onnxfuse-sessions-", ignore_cleanup_errors=True) as temporary:
            result, log = Path(temporary) / "result.json", Path(temporary) / "log"
            command = [sys.executable, "-X", "faulthandler", str(CHILD), part, str(self.folder), name, str(result)]
            died = ""
            with log.open("wb") as output:
                try:
                    done = subprocess.run([*command, *self.more], stdin=subprocess.DEVNULL, stdout=output,
                                          stderr=output, timeout=SECONDS, check=False)  # fmt: skip
                    died = f"ended with {done.returncode}" if done.returncode else ""
                except subprocess.TimeoutExpired:
                    died = f"took longer than {SECONDS:g} s"
            text = log.read_text(encoding="utf-8", errors="replace")
            found: dict[str, Any] = {"step": "start"}
            if result.exists():
                found = json.loads(result.read_text(encoding="utf-8"))
            return found | ({"died": f"{died}: {last(text)}"} if died else {})


# ------------------------------------------------------------------------------------------------ verdicts


def count(ran: Ran, what: str, provider: str) -> int:
    """Nodes that ran: "provider" (on it), "cpu" (elsewhere), "memcpy" (copies between devices), "ours"."""
    total = 0
    for where, ops in ran.items():
        for op, number in ops.items():
            copies = op.startswith("Memcpy")
            kinds = {"memcpy": copies, "provider": where == provider and not copies,
                     "cpu": where != provider and not copies, "ours": OURS.fullmatch(op) is not None}  # fmt: skip
            total += number * kinds[what]
    return total


def judge(row: dict[str, Any], provider: str) -> None:
    """Fills "problems" (what must not be) and "notes" of a row."""
    problems, notes = [], []
    main, graphs = row["main"], row["graphs"]
    if "died" in main:
        problems.append(f"in '{main['step']}': {main['died']}")
    problems += [f"{name}: outputs differ ({found['error']:.1e})"
                 for name, found in main.get("values", {}).items() if not found["right"]]  # fmt: skip
    problems += [f"{name}: {found.get('problem') or 'outputs differ'}"
                 for name, found in main.get("threads", {}).items() if not found["right"]]  # fmt: skip
    ran = main.get("ran", {})
    for name in ("fused", "inlined"):
        then, now = (count(ran.get(n, {}), "memcpy", provider) for n in ("original", name))
        if now > then:
            problems.append(f"{name}: {then} copies between devices became {now}")
    if "fused" in ran and not count(ran["fused"], "ours", provider):
        problems.append("no node of ours ran")
    if "inlined" in ran and ran["inlined"] != ran["original"]:
        notes.append(f"without the library other nodes run: {moved(ran['original'], ran['inlined'])}")
    problems += [f"{name} in a CUDA graph: outputs differ ({found['error']:.1e})"
                 for name, found in graphs.get("values", {}).items() if not found["right"]]  # fmt: skip
    refused = graphs.get("refused", {})
    for name, reason in refused.items():
        alone = name == "fused" and "original" not in refused
        (problems if alone else notes).append(f"no CUDA graph of {name}: {reason}")
    if "died" in graphs:
        ours = not graphs["step"].startswith(("original", "import", "start"))
        (problems if ours else notes).append(f"CUDA graphs, in '{graphs['step']}': {graphs['died']}")
    row["problems"], row["notes"] = problems, notes


def moved(before: Ran, after: Ran, most: int = CHANGED) -> str:
    """Ops that run more or less often, e.g. "+57 QuickGelu, -57 Sigmoid"; copies apart."""
    sums: dict[str, int] = {}
    for ran, sign in ((before, -1), (after, 1)):
        for ops in ran.values():
            for op, number in ops.items():
                sums[op] = sums.get(op, 0) + sign * number
    changed = sorted(((n, op) for op, n in sums.items() if n and not op.startswith("Memcpy")), key=lambda i: (-i[0], i))
    shown = [f"{n:+d} {op}" for n, op in changed]
    return ", ".join(shown if len(shown) <= most else [*shown[:most], f"and {len(shown) - most} more"]) or "nothing"


# ------------------------------------------------------------------------------------------------ tables


def tables(rows: Sequence[Mapping[str, Any]], patterns: Mapping[str, Any], provider: str) -> str:
    """All rows as text."""
    parts = [_outputs(rows, provider), _latency(rows, provider), _fusions(rows, patterns, provider)]
    return "\n".join(parts)


def _outputs(rows: Sequence[Mapping[str, Any]], provider: str) -> str:
    lines = ["nodes that run, original -> fused (ours: runs / nodes in the file)",
             f"largest errors against the original on {provider}", "",
             f"{'model':20s} {'on it':>11s} {'elsewhere':>11s} {'copies':>8s} {'ours':>8s} {'fused':>8s} "
             f"{'inlined':>8s} {'feed 2':>8s} {'threads':>8s} verdict"]  # fmt: skip
    for row in rows:
        main = row["main"]
        ran, values, threads = main.get("ran", {}), main.get("values", {}), main.get("threads", {})
        both = [ran[name] for name in ("original", "fused") if name in ran]
        cells = [" -> ".join(str(count(r, what, provider)) for r in both) for what in ("provider", "cpu", "memcpy")]
        errors = [f"{values[n]['error']:.1e}" if n in values else "-" for n in ("fused", "inlined",
                                                                               "fused, second feed")]  # fmt: skip
        together = f"{max(f['error'] for f in threads.values()):.1e}" if threads else "-"
        ours = f"{count(ran.get('fused', {}), 'ours', provider)} / {row['groups']}"
        verdict = "; ".join(row["problems"]) or ("right" if values else "nothing fused")
        lines.append(f"{row['name']:20s} {cells[0]:>11s} {cells[1]:>11s} {cells[2]:>8s} {ours:>8s} {errors[0]:>8s} "
                     f"{errors[1]:>8s} {errors[2]:>8s} {together:>8s} {verdict}")  # fmt: skip
    lines += ["", *(f"{row['name']}: {note}" for row in rows for note in row["notes"])]
    return "\n".join(lines) + "\n"


def _latency(rows: Sequence[Mapping[str, Any]], provider: str) -> str:
    graphs = "in CUDA graphs" if provider == CUDA else "again (no CUDA graphs here)"
    lines = [f"latency: milliseconds of the original, and how much faster the others are; the same {graphs}", "",
             f"{'model':20s} {'ms':>8s} {'fused':>6s} {'inlined':>7s} {'noise':>6s} {'graph ms':>9s} {'fused':>6s} "
             f"graph against plain"]  # fmt: skip
    for row in rows:
        plain, graph = row["main"].get("latency") or {}, row["graphs"].get("latency") or {}
        ms, faster = plain.get("milliseconds", {}), plain.get("faster", {})
        graph_ms = graph.get("milliseconds", {})

        def cell(values: Mapping[str, float], name: str, digits: int = 2) -> str:
            return f"{values[name]:.{digits}f}" if name in values else "-"

        # by "faster", fused is only against the original where both were captured
        captured = cell(graph.get("faster", {}), "fused") if "original" in graph_ms else "-"
        gain = [f"{n} {ms[n] / graph_ms[n]:.2f}" for n in ("original", "fused") if n in ms and n in graph_ms]
        lines.append(f"{row['name']:20s} {cell(ms, 'original', 3):>8s} {cell(faster, 'fused'):>6s} "
                     f"{cell(faster, 'inlined'):>7s} {cell(faster, 'again'):>6s} "
                     f"{cell(graph_ms, 'original', 3):>9s} {captured:>6s} {', '.join(gain) or '-'}")  # fmt: skip
    return "\n".join(lines) + "\n"


def _fusions(rows: Sequence[Mapping[str, Any]], patterns: Mapping[str, Any], provider: str) -> str:
    lines = [f"what the runtime makes of the originals on {provider} (changes by its optimizations)", ""]
    for row in rows:
        ran = row["main"].get("ran", {})
        if "original" in ran:
            lines.append(f"{row['name']}: {moved(ran['written'], ran['original'])}")
            left = {op: n for op, n in ran["original"].get(provider, {}).items() if "Conv" in op or "Gemm" in op}
            lines += [f"    with them run {', '.join(f'{n} {op}' for op, n in left.items())}"] if left else []
    lines += ["", f"small patterns: the nodes that run on {provider} (others in brackets)", ""]
    for name, found in patterns.items():
        if isinstance(found, str):
            lines.append(f"{name:42s} {found}")
            continue
        ops = [f"{op} x{n}" if n > 1 else op for op, n in found.get(provider, {}).items()]
        ops += [f"({op})" for where, some in found.items() if where != provider for op in some]
        lines.append(f"{name:42s} {' + '.join(op for op in ops if not op.startswith('Memcpy'))}")
    return "\n".join(lines) + "\n"


# ------------------------------------------------------------------------------------------------ the run


def check(folder: Path, provider: str, pieces: Path | None, minutes: float, rtol: float, seconds: float,
          out: Path) -> bool:  # fmt: skip
    """Runs everything and writes it; whether all is right. Raises LeftOut."""
    begin = time.monotonic()
    listed = folder / "models" / "models.json"
    models = json.loads(listed.read_text(encoding="utf-8"))["models"] if listed.is_file() else []
    if not models:
        raise LeftOut("the folder has no models")
    with tempfile.TemporaryDirectory(prefix="onnxfuse-site-", ignore_cleanup_errors=True) as temporary:
        site = None
        if pieces is not None:
            site = Path(temporary) / "site"
            wheel = join(pieces, Path(temporary))
            install(wheel, site)
            wheel.unlink()
        children = Children(folder, provider, site, rtol, seconds)
        about = children.answer("probe", models[0]["name"])
        if "died" in about:
            raise LeftOut(f"no ONNX Runtime with {provider}: {about['died']}")
        machine = {"onnxruntime": about["version"], "built_for": about["built_for"], "provider": provider,
                   "python": sys.version.split()[0], "date": time.strftime("%Y-%m-%d")}  # fmt: skip
        patterns = children.answer("patterns", "-")
        found: dict[str, Any] = {"machine": machine, "patterns": patterns.get("patterns", {}), "models": [],
                                 "not_begun": []}  # fmt: skip
        for place, model in enumerate(models, 1):
            name, start = model["name"], time.monotonic()
            if start - begin > 60 * minutes:
                found["not_begun"] = [other["name"] for other in models[place - 1 :]]
                break
            row: dict[str, Any] = dict(model)
            row["main"], row["graphs"] = children.answer("main", name), children.answer("graphs", name)
            judge(row, provider)
            row["seconds"] = round(time.monotonic() - start, 1)
            found["models"].append(row)
            write(found, out)
            verdict = "; ".join(row["problems"]) or "ok"
            print(f"[{place}/{len(models)}] {name}: {row['seconds']} s: {verdict}", flush=True)
    text = write(found, out)
    print(f"\n{text}", end="")
    return not any(row["problems"] for row in found["models"]) and "died" not in patterns


def write(found: Mapping[str, Any], out: Path) -> str:
    """sessions.json and sessions.txt; the text."""
    (out / "sessions.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    late = f"\nnot begun, the time was over: {', '.join(found['not_begun'])}\n" if found["not_begun"] else ""
    text = f"{found['machine']}\n\n{tables(found['models'], found['patterns'], found['machine']['provider'])}{late}"
    (out / "sessions.txt").write_text(text, encoding="utf-8")
    return text


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="sessions.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="what tests.gpu.prepare has made")
    parser.add_argument("--out", type=Path, default=Path("run-output"))
    parser.add_argument("--pieces", type=Path, help="folder with a wheel of onnxruntime-gpu in pieces")
    parser.add_argument("--provider", default=CUDA)
    parser.add_argument("--minutes", type=float, default=4.0, help="no model is begun when these are over")
    parser.add_argument("--rtol", type=float, default=1e-3, help="of the largest value; ten times that in float16")
    parser.add_argument("--seconds", type=float, default=1.5, help="for each measurement of latency")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        right = check(options.folder, options.provider, options.pieces, options.minutes, options.rtol,
                      options.seconds, options.out)  # fmt: skip
    except LeftOut as reason:
        (options.out / "sessions.json").write_text(json.dumps({"left_out": str(reason)}), encoding="utf-8")
        print(f"sessions left out: {reason}")
        return 2
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
