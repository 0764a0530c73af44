"""The stand-ins for ONNX Runtime's CUDA provider and for the CUDA driver, compiled; and the code of models for them."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import zlib
from collections.abc import Iterable
from pathlib import Path

import onnx

from onnxfuse.codegen import Shape, container
from onnxfuse.program import Program
from onnxfuse.program.instructions import BYTES
from onnxfuse.rewrite.kernels import graphs_of
from tests.codegen.host import HostModules

SOURCES = Path(__file__).with_name("standin")
FLAGS = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread")


@dataclasses.dataclass(frozen=True)
class Standin:
    """`driver` is the folder of libcuda.so.1, `too_old` that of one that lacks functions."""

    provider: Path
    driver: Path
    too_old: Path


def build(root: Path, folder: Path) -> Standin:
    """Both stand-ins, compiled side by side. No library is linked but those of the system."""
    made = Standin(folder / "provider.so", folder / "driver", folder / "too_old")
    for place in (made.driver, made.too_old):
        place.mkdir()
    subprocess.run([sys.executable, str(root / "onnxfuse/codegen/layout.py"), "--cpp", str(folder / "kernel_layout.h")],
                   check=True)  # fmt: skip
    (folder / "nothing.cc").write_text('extern "C" int cuInit(unsigned) { return 0; }\n', encoding="utf-8")
    includes = [f"-I{place}" for place in (SOURCES, root / "custom_ops" / "src", folder)]
    running = [
        subprocess.Popen(["g++", *FLAGS, *includes, "-o", str(target), str(source), "-ldl"], stderr=subprocess.PIPE,
                         text=True)
        for target, source in (
            (made.provider, SOURCES / "provider.cc"), (made.driver / "libcuda.so.1", SOURCES / "driver.cc"),
            (made.too_old / "libcuda.so.1", folder / "nothing.cc"),
        )
    ]  # fmt: skip
    for process in running:
        _, said = process.communicate()
        assert process.returncode == 0, said
    return made


def code_of(model: onnx.ModelProto) -> dict[str, bytes]:
    """The container of each program that fused nodes have, by the program's text."""
    found = {}
    graphs = list(graphs_of(model.graph))
    held = {tensor.name: tensor.raw_data for graph in graphs for tensor in graph.initializer}
    for graph in graphs:
        for node in graph.node:
            if node.domain == "onnxfuse":
                found[next(a.s.decode() for a in node.attribute if a.name == "program")] = held[node.input[0]]
    return found


def write_map(models: Iterable[onnx.ModelProto], folder: Path) -> Path:
    """Compiles the modules of all programs for the host, in the shape of loops that their containers tell, and writes
    which image is which for the stand-in driver."""
    code: dict[str, bytes] = {}
    for model in models:
        code |= code_of(model)
    opened = {text: container.unpack(data) for text, data in code.items()}
    kept = [(Program.parse(text), found) for text, found in opened.items() if found is not None]
    host = HostModules([program for program, _ in kept], folder, shapes=[Shape(*found.form) for _, found in kept])
    lines = []
    for number, (program, found) in enumerate(kept):
        x = "".join(str(BYTES[i.dtype]) for i in program.tensors)
        y = "".join(str(BYTES[program.dtype_of(name)]) for name in program.outputs)
        lines += [
            f"{zlib.crc32(image.code)} {host.library._name} p{number} {x or '-'} {len(program.scalars)} {y}\n"
            for image in found.images
        ]
    path = folder / "map"
    path.write_text("".join(lines), encoding="utf-8")
    return path
