"""Finding the compiled library and registering it on session options."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import parser

import onnxfuse
from onnxfuse import library as library_module
from onnxfuse.errors import SetupError, UsageError
from onnxfuse.library import highest_names, one_line
from onnxfuse.rewrite import bodies


class Options:
    """Stands in for onnxruntime.SessionOptions."""

    def __init__(self, problem: str = "") -> None:
        self.entries: dict[str, str] = {}
        self.libraries: list[str] = []
        self.problem = problem

    def add_session_config_entry(self, key: str, value: str) -> None:
        self.entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        return self.entries[key]

    def register_custom_ops_library(self, path: str) -> None:
        if self.problem:
            raise RuntimeError(self.problem)
        self.libraries.append(path)


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path = tmp_path / "libonnxfuse.so"
    path.write_bytes(b"x")
    monkeypatch.setenv("ONNXFUSE_LIBRARY", str(path))
    return str(path.resolve())


def model(*numbers: int) -> onnx.ModelProto:
    nodes = "".join(f"y{n} = onnxfuse.FusedElementwise{n}(k, x) " for n in numbers)
    return parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17, "onnxfuse" : 1]>
        g (float[N] x, bool c) => (float[N] y) <uint8[1] k = {{0}}> {{ {nodes}
        y = If(c) <then_branch = t () => (float[N] u) {{ u = onnxfuse.FusedElementwise40(k, x) }},
                   else_branch = e () => (float[N] v) {{ v = onnxfuse.FusedDevice3(k, x) }}> }}""")


def test_registers_the_library_once(library: str) -> None:
    options = Options()
    onnxfuse.register(options)
    assert options.libraries == [library]
    assert "onnxfuse.names" not in options.entries
    with pytest.raises(SetupError, match="already registered on these session options") as error:
        onnxfuse.register(options)
    assert "once" in (error.value.hint or "")
    assert options.libraries == [library]


def test_asks_for_as_many_names_as_the_models_need(library: str, tmp_path: Path) -> None:
    assert highest_names(model(1, 2)) == {"FusedDevice": 3, "FusedElementwise": 40}
    options = Options()
    onnx.save(model(1, 77), tmp_path / "m.onnx")
    onnxfuse.register(options, model(1), tmp_path / "m.onnx", model(2).SerializeToString(), device="cuda")
    assert options.entries["onnxfuse.names"] == "FusedDevice:3,FusedElementwise:77"
    assert options.entries["onnxfuse.device"] == "cuda"


def test_names_are_said_once_for_servers_and_once_for_the_optimizer() -> None:
    for name in ("DOMAIN", "FAMILY", "GPU_FAMILY"):
        assert getattr(library_module, name) == getattr(bodies, name)


def test_asks_for_no_names_of_a_gpu_that_no_model_has(library: str) -> None:
    plain = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17, "onnxfuse" : 1]>
        g (float[N] x) => (float[N] y) <uint8[1] k = {0}> { y = onnxfuse.FusedElementwise2(k, x) }""")
    options = Options()
    onnxfuse.register(options, plain, device="cuda")
    assert options.entries["onnxfuse.names"] == "FusedDevice:0,FusedElementwise:2"


def test_asks_for_no_names_of_the_cpu_that_no_model_has(library: str) -> None:
    """Of a model without any fused node nothing is known: it may be no model of ours at all."""
    alone = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17, "onnxfuse" : 1]>
        g (float[N] x) => (float[N] y) <uint8[1] k = {0}> { y = onnxfuse.FusedDevice2(k, x) }""")
    for device, wanted in (("cuda", "FusedDevice:2,FusedElementwise:0"), (None, "FusedDevice:2,FusedElementwise:0")):
        options = Options()
        onnxfuse.register(options, alone, device=device)
        assert options.entries["onnxfuse.names"] == wanted


def test_asks_for_no_more_names_than_the_library_takes(library: str) -> None:
    options = Options()
    onnxfuse.register(options, model(5000))
    assert options.entries["onnxfuse.names"] == "FusedDevice:3,FusedElementwise:4096"


@pytest.mark.parametrize("numbers", [(1,), (1, 12), (40, 3, 127)])
def test_reads_the_names_off_the_bytes(library: str, tmp_path: Path, numbers: tuple[int, ...]) -> None:
    """As the parsed model says, whatever stands behind a name in the file: the tag of a doc string is the digit 2."""
    made = model(*numbers)
    for node in made.graph.node:
        node.doc_string = "of FusedElementwise4000"
    for given in (made.SerializeToString(), tmp_path / "m.onnx"):
        if isinstance(given, Path):
            onnx.save(made, given)
        options = Options()
        onnxfuse.register(options, given)
        wanted = highest_names(made)
        assert options.entries["onnxfuse.names"] == ",".join(f"{k}:{v}" for k, v in wanted.items())


def test_a_bare_file_name_is_a_file_of_this_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = Options()
    onnxfuse.register(options, library="libonnxfuse.so")
    assert options.libraries == [str(tmp_path / "libonnxfuse.so")]


def test_what_cannot_be_registered(library: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown device 'tpu'"):
        onnxfuse.register(Options(), device="tpu")
    with pytest.raises(UsageError, match="cannot be read as a model"):
        onnxfuse.register(Options(), tmp_path / "none.onnx")
    (tmp_path / "empty.onnx").touch()
    with pytest.raises(UsageError, match="cannot be read as a model"):
        onnxfuse.register(Options(), tmp_path / "empty.onnx")
    with pytest.raises(SetupError, match="does not load the library: no symbol") as error:
        onnxfuse.register(Options("[ONNXRuntimeError] : 1 : FAIL : no symbol"))
    assert "doctor" in (error.value.hint or "")


def test_a_missing_library_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ONNXFUSE_LIBRARY", str(tmp_path / "none.so"))
    with pytest.raises(SetupError, match=r"none\.so") as error:
        onnxfuse.library_path()
    assert "ONNXFUSE_LIBRARY" in (error.value.hint or "")


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("[ONNXRuntimeError] : 1 : FAIL : went\n wrong", "went wrong"),
        ("/src/core/a.cc:12 void ns::F(const std::map<int, T>&, bool) const It (really) fails", "It (really) fails"),
        ("x" * 400, "x" * 299 + "…"),
    ],
)
def test_messages_of_the_runtime_become_one_line(said: str, line: str) -> None:
    assert one_line(said) == line


def test_real_options_refuse_a_second_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    options: Any = onnxruntime.SessionOptions()
    options.add_session_config_entry("onnxfuse.registered", "1")
    monkeypatch.setattr("onnxfuse.library.library_path", lambda: "anything")
    with pytest.raises(SetupError, match="already registered"):
        onnxfuse.register(options)


def test_registering_needs_neither_onnx_nor_the_optimizer() -> None:
    code = "import onnxfuse, sys; onnxfuse.register; assert not {'onnx', 'numpy', 'click'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
