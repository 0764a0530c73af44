"""What goes wrong on a GPU, in words: of the machine, of the model's code, of the driver."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from tests.cuda.build import Standin
from tests.cuda.child import Child, Refused, count, launches, loaded
from tests.cuda.conftest import Models, Start, optimize
from tests.cuda.models import affine, floats

NODE = r"onnxfuse: node 'fused_\w+' \(FusedElementwise1\): "


def refused(child: Child, model: onnx.ModelProto, words: str) -> list[str]:
    """No session is made of the model; the message names the node and has these words. What the driver logged."""
    child.lines()
    with pytest.raises(Refused, match=NODE + words):
        child.create("bad", model)
    return child.lines()


# ---- the machine


def test_no_driver(start: Start, fused: Models) -> None:
    """The message says what to do; the CPU is still there."""
    with contextlib.suppress(OSError):
        ctypes.CDLL("libcuda.so.1")
        pytest.skip("this machine has a driver")
    child = start(driver=None)
    refused(child, fused["row"], r"the CUDA driver is not there \(libcuda\.so\.1\).*CPUExecutionProvider")
    child.create("cpu", fused["row"], gpu=False)
    assert len(child.run("cpu", x=floats(50, 64), b=floats(64))) == 1


def test_driver_that_lacks_functions(start: Start, standin: Standin, fused: Models) -> None:
    refused(start(driver=standin.too_old), fused["row"], "the CUDA driver is too old: it has no cuDriverGetVersion")


def test_no_device(start: Start, fused: Models) -> None:
    """The driver's words; once there is a device, the next session gets it."""
    child = start(STANDIN_FAIL="cuInit=100")
    refused(child, fused["row"], r"CUDA: cuInit: CUDA_ERROR_NO_DEVICE \(100\): no CUDA-capable device is detected")
    child.environment(STANDIN_FAIL="")
    child.create("gpu", fused["row"])


CHOICES = {70: None, 75: "ptx 75", 80: "cubin 80", 86: "cubin 80", 89: "cubin 80", 90: "ptx 75", 121: "ptx 75"}


@pytest.mark.parametrize("device", CHOICES)
def test_architectures(gpu: Child, fused: Models, device: int) -> None:
    """The cubin within a generation, else the PTX where the device is new enough for it."""
    gpu.environment(STANDIN_CC=str(device))
    want = CHOICES[device]
    if want is None:
        words = "the model has GPU code for sm_80, PTX for compute_75, none of which runs on this device, sm_70"
        lines = refused(gpu, fused["row"], f"{words}; optimize it with --cuda-arch 70")
        assert count(lines, "retain") == 0
        return
    gpu.create("gpu", fused["row"])
    gpu.create("cpu", fused["row"], gpu=False)
    got, right = (gpu.run(name, x=floats(50, 64), b=floats(64)) for name in ("gpu", "cpu"))
    assert got[0].tobytes() == right[0].tobytes()
    assert loaded(gpu.lines()) == [want]


# ---- the code


def test_model_for_the_cpu_alone(gpu: Child) -> None:
    model = optimize(affine("N, 64", "64"))
    lines = refused(gpu, model, "the model was optimized for CPU alone .*--target cpu,cuda")
    assert lines == []
    gpu.create("without", model, library=False)
    gpu.run("without", x=floats(50, 64), b=floats(64))


def with_code(model: onnx.ModelProto, change: Callable[[bytes], bytes]) -> onnx.ModelProto:
    """The model with other bytes as the code of its node."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    (tensor,) = (t for t in changed.graph.initializer if t.data_type == onnx.TensorProto.UINT8)
    data = change(tensor.raw_data)
    tensor.raw_data = data
    tensor.dims[0] = len(data)
    return changed


def at(place: int, bits: int = 1) -> Callable[[bytes], bytes]:
    """Changes one byte."""

    def change(data: bytes) -> bytes:
        changed = bytearray(data)
        changed[place] ^= bits
        return bytes(changed)

    return change


def newer(data: bytes) -> bytes:
    """A container of a later version, with a right checksum."""
    head = data[:8] + struct.pack("<I", 9) + data[12:28]
    return head + struct.pack("<I", zlib.crc32(head)) + data[32:]


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "magic": (at(0), "not a container of kernels"),
    "version": (newer, "a container of version 9; this library knows version 1"),
    "head": (at(21), "its head was changed"),
    "kind": (at(32), "its head was changed"),
    "checksum": (at(60), "its head was changed"),
    "place": (at(40), "its head was changed"),
    "bytes": (at(600), "."),  # found by the unpacking or by the checksum
    "end": (lambda data: data[:-5], "image 1 is not as it should be"),
    "more": (lambda data: data + b"\0", "it has more bytes than it says"),
    "short": (lambda data: data[:20], "not a container of kernels"),
    "none": (lambda data: b"", "not a container of kernels"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_code(gpu: Child, fused: Models, damage: str) -> None:
    """Refused when the session is made, before the driver gets it; the CPU does not look at it."""
    change, words = DAMAGE[damage]
    model = with_code(fused["row"], change)
    lines = refused(gpu, model, f"(the GPU code of the node: )?.*({words})")
    assert loaded(lines) == []
    gpu.create("cpu", model, gpu=False)
    gpu.run("cpu", x=floats(50, 64), b=floats(64))


def test_code_of_another_program(gpu: Child, fused: Models) -> None:
    (other,) = (t.raw_data for t in fused["half"].graph.initializer if t.data_type == onnx.TensorProto.UINT8)
    model = with_code(fused["row"], lambda _: other)
    assert refused(gpu, model, "the GPU code of the node: it was made for another program") == []


def test_code_that_is_no_constant(gpu: Child, fused: Models) -> None:
    model = onnx.ModelProto()
    model.CopyFrom(fused["row"])
    (tensor,) = (t for t in model.graph.initializer if t.data_type == onnx.TensorProto.UINT8)
    model.graph.input.add(name=tensor.name).type.tensor_type.elem_type = onnx.TensorProto.UINT8
    model.graph.input[-1].type.tensor_type.shape.dim.add(dim_value=tensor.dims[0])
    del model.graph.initializer[:]
    refused(gpu, model, "its first input, the GPU code, is no constant")


# ---- the driver

AT_CREATION = {
    "cuModuleLoadDataEx=2": r"CUDA: cuModuleLoadDataEx of code for sm_80: CUDA_ERROR_OUT_OF_MEMORY \(2\): out of memo",
    "cuModuleLoadDataEx=218": r"CUDA: cuModuleLoadDataEx of code for sm_80 \(line 1: what is it\?\): CUDA_ERROR_INV",
    "cuModuleLoadDataEx=209": r"CUDA: cuModuleLoadDataEx of code for sm_80 by a driver for CUDA 12\.0: CUDA_ERROR_NO_B",
    "cuModuleGetFunction=500": r"CUDA: cuModuleGetFunction of rows: CUDA_ERROR_NOT_FOUND \(500\)",
    "cuDevicePrimaryCtxRetain=2": r"CUDA: cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY",
    "cuCtxPushCurrent=201": r"CUDA: cuCtxPushCurrent: CUDA_ERROR_INVALID_CONTEXT",
    "cuDeviceGet=101": r"CUDA: cuDeviceGet: CUDA_ERROR_INVALID_DEVICE",
    "cuDeviceGetAttribute=1": r"CUDA: cuDeviceGetAttribute: CUDA_ERROR_INVALID_VALUE",
    "cuModuleLoadDataEx=12345": r"CUDA: cuModuleLoadDataEx of code for sm_80: an unknown error \(12345\)$",
}


@pytest.mark.parametrize("failure", AT_CREATION)
def test_failure_at_creation(gpu: Child, fused: Models, failure: str) -> None:
    """The call and the driver's words; nothing stays behind, and the next session works."""
    gpu.environment(STANDIN_FAIL=failure)
    lines = refused(gpu, fused["row"], AT_CREATION[failure])
    assert count(lines, "retain") == count(lines, "release")
    assert count(lines, "load") == count(lines, "unload")
    gpu.environment(STANDIN_FAIL="")
    gpu.create("gpu", fused["row"])
    gpu.run("gpu", x=floats(50, 64), b=floats(64))
    assert len(launches(gpu.lines())) == 1


def test_ptx_that_the_driver_refuses(gpu: Child, fused: Models) -> None:
    """The message has what the driver's compiler said."""
    gpu.environment(STANDIN_CC="90", STANDIN_FAIL="cuModuleLoadDataEx=218")
    words = r"CUDA: cuModuleLoadDataEx of PTX for compute_75 \(line 1: what is it\?\): CUDA_ERROR_INVALID_PTX \(218\)"
    refused(gpu, fused["row"], words)


def test_driver_that_is_older_than_the_ptx(gpu: Child, fused: Models) -> None:
    """The message has the CUDA version of the driver."""
    gpu.environment(STANDIN_CC="90", STANDIN_FAIL="cuModuleLoadDataEx=222")
    words = r"CUDA: cuModuleLoadDataEx of PTX for compute_75 by a driver for CUDA 12\.0: CUDA_ERROR_UNSUPPORTED_PTX_V"
    refused(gpu, fused["row"], words)


def test_failure_of_a_launch(gpu: Child, fused: Models) -> None:
    """The run fails with the node and the driver's words; the session can go on."""
    gpu.create("gpu", fused["row"])
    gpu.environment(STANDIN_FAIL="cuLaunchKernel=719")
    words = NODE + r"CUDA: cuLaunchKernel: CUDA_ERROR_LAUNCH_FAILED \(719\): unspecified launch failure"
    for _ in range(2):
        with pytest.raises(Refused, match=words):
            gpu.run("gpu", x=floats(50, 64), b=floats(64))
    gpu.environment(STANDIN_FAIL="")
    gpu.run("gpu", x=floats(50, 64), b=floats(64))


def test_shapes_that_do_not_fit(gpu: Child, fused: Models) -> None:
    gpu.create("gpu", fused["contiguous"])
    with pytest.raises(Refused, match=NODE + r".*\[3,64\].*\[4,64\]"):
        gpu.run("gpu", x=floats(3, 64), b=floats(4, 64))
    assert launches(gpu.lines()) == []


# ---- the stand-ins themselves


def test_positions(root: Path) -> None:
    """What the stand-in provider declares of the runtime stands where released headers have it."""
    path = Path(os.environ.get("ONNXFUSE_FACTS") or root / "../shared/facts/ort_api.tsv")
    if not path.is_file():
        pytest.skip("no table of the C API: set ONNXFUSE_FACTS")
    facts = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    positions = {fields[2]: fields[1] for fields in facts if fields[0] == "OrtApi"}
    text = (root / "tests/cuda/standin/plugin_api.h").read_text(encoding="utf-8")
    rows = re.findall(r"^  X\((\d+), (\w+),", text.split("#define STANDIN_ORT_API(X)")[1].split("\n\n")[0], re.M)
    assert len(rows) == 6
    assert [(positions[name], name) for _, name in rows] == rows


def test_the_host_cannot_reach_device_memory(start: Start, fused: Models) -> None:
    """Reading it ends the process: no kernel of ours can do so unseen."""
    child = start()
    child.create("gpu", fused["row"])
    address, _ = child.call("device_value", "gpu", {"x": floats(50, 64), "b": floats(64)})
    with pytest.raises(AssertionError, match="ended with -11"):
        child.call("peek", address)


def test_images_that_nobody_made_are_found(start: Start, fused: Models, tmp_path: Path) -> None:
    """The driver runs no image but those of the map, byte for byte."""
    (tmp_path / "map").touch()
    child = start(STANDIN_MAP=str(tmp_path / "map"))
    lines = refused(child, fused["row"], ".*CUDA_ERROR_INVALID_IMAGE")
    assert any(line.startswith("wrong: an image that nobody made: cubin 80") for line in lines)
