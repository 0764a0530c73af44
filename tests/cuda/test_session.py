"""GPU code in sessions of ONNX Runtime, on a stand-in for the GPU: the provider hands out memory that the host must not
touch, the driver runs the very modules, built for the host, and checks all that it is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.cuda.child import Array, Child, Refused, count, launches, loaded
from tests.cuda.conftest import Models, Start
from tests.cuda.models import EMPTY, KERNEL, LAYOUTS, PIECES, floats
from tests.custom_ops.fused_model import nodes_of


def same(got: list[Array], want: list[Array]) -> None:
    """Equal types, shapes and bits."""
    for one, other in zip(got, want, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()


def on_both(child: Child, model: onnx.ModelProto, /, **feeds: Array) -> tuple[list[Array], list[str]]:
    """Runs a model on the CPU and on the GPU, which must give the same bits; the outputs, and the log of the driver."""
    child.create("cpu", model, gpu=False)
    want = child.run("cpu", **feeds)
    child.drop("cpu")
    assert child.lines() == []
    assert child.create("gpu", model)[0] == "CUDAExecutionProvider"
    got = child.run("gpu", **feeds)
    child.drop("gpu")
    same(got, want)
    return got, child.lines()


def fused_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in nodes_of(model.graph) if node.domain == "onnxfuse"]


@pytest.mark.parametrize("current", ["", "1"], ids=["pushed", "current"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(gpu: Child, fused: Models, layout: str, current: str) -> None:
    """One launch of the right kernel whatever the shapes, whether or not the context is current already; none for
    tensors without elements."""
    _, x, _, b = LAYOUTS[layout]
    gpu.environment(STANDIN_CURRENT=current)
    assert len(fused_nodes(fused[layout])) == 1
    feeds = {"x": floats(*x), "b": floats(*b, seed=1)}
    (y,), lines = on_both(gpu, fused[layout], **feeds)
    assert y.shape == np.broadcast_shapes(x, b)
    want = (feeds["x"] - feeds["b"]) * np.float32(1.5) * feeds["b"] + feeds["x"]
    np.testing.assert_array_equal(y, want)
    made = launches(lines)
    if layout in EMPTY:
        assert made == []
    else:
        assert [launch.kernel for launch in made] == [KERNEL[layout]] * PIECES.get(layout, 1)
    before = lines[: next(k for k, line in enumerate(lines) if line.startswith("unload")) - 1]
    assert (count(before, "push") == 0) == (current == "1")


def test_more_blocks_than_the_device_takes_at_once(gpu: Child, fused: Models) -> None:
    """The grid follows the processors: threads go on where the last one ended."""
    _, lines = on_both(gpu, fused["contiguous"], x=floats(1000, 300), b=floats(1000, 300, seed=1))
    (launch,) = launches(lines)
    assert launch.grid == (3 * 8, 1)
    assert launch.block == (256, 1)


def test_half(gpu: Child, fused: Models, plain: Models) -> None:
    feeds = {"x": floats(9, 72).astype(np.float16), "b": floats(72, seed=1).astype(np.float16)}
    (got,), lines = on_both(gpu, fused["half"], **feeds)
    assert [launch.kernel for launch in launches(lines)] == ["rows"]
    gpu.create("plain", plain["half"], gpu=False, library=False)
    np.testing.assert_allclose(got, gpu.run("plain", **feeds)[0], rtol=4e-3, atol=4e-3)


def test_half_between_nodes_that_the_cpu_widens(gpu: Child, fused: Models, plain: Models) -> None:
    """The runtime computes products of float16 in float32 where it has no other; our node gets what it was made for."""
    feeds = {"x": floats(9, 72).astype(np.float16), "b": floats(72, seed=1).astype(np.float16)}
    gpu.create("gpu", fused["half_products"])
    (got,) = gpu.run("gpu", **feeds)
    assert [launch.kernel for launch in launches(gpu.lines())] == ["rows"]
    gpu.create("plain", plain["half_products"], gpu=False, library=False)
    np.testing.assert_allclose(got, gpu.run("plain", **feeds)[0], rtol=2e-2, atol=2e-2)


def test_long_node(gpu: Child, fused: Models) -> None:
    """Its module has one kernel, which runs what another node's `rows` would."""
    assert len(fused_nodes(fused["long"])) == 1
    _, lines = on_both(gpu, fused["long"], x=floats(50, 64), b=floats(64, seed=1))
    assert [launch.kernel for launch in launches(lines)] == ["strided"]


def test_several_outputs(gpu: Child, fused: Models) -> None:
    feeds = {"x": floats(33, 80), "a": floats(33, 80, seed=1), "b": floats(80, seed=2)}
    (u, v), lines = on_both(gpu, fused["outputs"], **feeds)
    np.testing.assert_array_equal(u, feeds["x"] * feeds["a"] + feeds["b"])
    np.testing.assert_array_equal(v, np.maximum(u, feeds["x"]) - feeds["b"])
    assert len(launches(lines)) == len(fused_nodes(fused["outputs"])) == 1


def test_types_of_several_sizes(gpu: Child, fused: Models) -> None:
    """bool, uint8, float32 and int64, contiguous and broadcast, in as many nodes as were made."""
    rng = np.random.default_rng(0)
    i, m = rng.integers(0, 256, (21, 5, 3)).astype(np.uint8), floats(3)
    k, n = rng.random((21, 5, 1)) < 0.5, rng.integers(-9, 9, (21, 5, 3))
    (f, t, z), lines = on_both(gpu, fused["mixed"], i=i, m=m, k=k, n=n)
    s = i.astype(np.float32) - m
    want = np.where(k, s, n.astype(np.float32)) * s
    np.testing.assert_array_equal(f, want)
    np.testing.assert_array_equal(t, want < s)
    np.testing.assert_array_equal(z, i.astype(np.int64) + n)
    assert len(launches(lines)) == len(fused_nodes(fused["mixed"])) >= 1


def test_if_body(gpu: Child, fused: Models) -> None:
    """Nodes in both branches have their code; the one that is taken is launched."""
    feeds = {"x": floats(5, 64), "b": floats(64, seed=1)}
    for taken in (True, False):
        _, lines = on_both(gpu, fused["branches"], c=np.array(taken), **feeds)
        assert len(launches(lines)) == 1
        assert len(loaded(lines)) == 2


def test_loop_body(gpu: Child, fused: Models) -> None:
    feeds = {"n": np.array(3), "x": floats(8, 64), "b": floats(64, seed=1)}
    _, lines = on_both(gpu, fused["loop"], **feeds)
    assert len(launches(lines)) == 3
    assert len(loaded(lines)) == 1


def test_one_module_for_all_that_run_it(gpu: Child, fused: Models) -> None:
    """The same program in three nodes and in three sessions of two models is loaded once, another one beside it, and
    each is unloaded with its last session."""
    many, row = fused["many"], fused["row"]
    gpu.create("one", many)
    lines = gpu.lines()
    assert loaded(lines) == ["cubin 80"] * 2
    assert (count(lines, "retain"), count(lines, "unload")) == (2, 0)
    gpu.create("two", many)
    gpu.create("three", row)
    assert loaded(gpu.lines()) == []
    results = [gpu.run(name, x=floats(7, 64)) for name in ("one", "two")]
    same(*results)
    made = launches(gpu.lines())
    assert len(made) == 8
    assert len({launch.module for launch in made}) == 2
    gpu.drop("one")
    gpu.drop("two")
    assert count(gpu.lines(), "unload") == 1
    gpu.run("three", x=floats(50, 64), b=floats(64))
    gpu.drop("three")
    lines = gpu.lines()
    assert (len(launches(lines)), count(lines, "unload"), count(lines, "release")) == (1, 1, 1)
    gpu.create("four", row)
    assert loaded(gpu.lines()) == ["cubin 80"]


def test_nodes_between_others_on_the_cpu(gpu: Child, fused: Models, plain: Models) -> None:
    """Results as from the model before, where copies go forth and back."""
    x = floats(7, 64)
    got, lines = on_both(gpu, fused["many"], x=x)
    assert len(fused_nodes(fused["many"])) == 4
    # A product that only our node reads gives its memory to the output. The first node reads what the caller owns, the
    # last one writes it.
    assert [launch.over for launch in launches(lines)] == ["-", "x0", "x0", "-"]
    gpu.create("plain", plain["many"], gpu=False, library=False)
    for one, other in zip(got, gpu.run("plain", x=x), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["many", "half_products", "branches", "loop"])
def test_no_more_copies_than_unfused(start: Start, fused: Models, plain: Models, name: str, tmp_path: Path) -> None:
    """As many copies between CPU and GPU as where the GPU takes each operator that was fused: the code, which is an
    input of the node, needs none."""
    left = {"MatMul", "CumSum", "Transpose", "Constant", "Identity", "If", "Loop"}
    ops = {node.op_type for node in nodes_of(plain[name].graph)} - left
    child = start(STANDIN_OPS=",".join(sorted(ops)))
    found: list[dict[str, int]] = []
    for model in (plain[name], fused[name]):
        path = tmp_path / f"{len(found)}.onnx"
        child.create("s", model, save=str(path))
        child.drop("s")
        copies = [node.op_type for node in nodes_of(onnx.load(path).graph)]
        found.append({kind: copies.count(kind) for kind in ("MemcpyFromHost", "MemcpyToHost")})
    assert found[1] == found[0]
    if name in ("many", "half_products"):  # between graphs the runtime copies without nodes
        assert min(found[0].values()) > 0


def test_threads(gpu: Child, fused: Models) -> None:
    """Calls of one session from four threads, each on its stream, with shapes of their own."""
    model = fused["many"]
    feeds = [{"x": floats(1 + k % 9, 64, seed=k)} for k in range(60)]
    gpu.create("cpu", model, gpu=False)
    gpu.create("gpu", model)
    got = gpu.call("run_many", "gpu", feeds, 4)
    for one, given in zip(got, feeds, strict=True):
        same(one, gpu.run("cpu", **given))
    made = launches(gpu.lines())
    assert len(made) == 60 * 4


def test_sessions_that_come_and_go_in_threads(gpu: Child, fused: Models) -> None:
    """Modules are loaded and unloaded while other sessions run them."""
    feeds = [{"x": floats(1 + k % 5, 64, seed=k)} for k in range(24)]
    gpu.create("cpu", fused["many"], gpu=False)
    got = gpu.call("lives", fused["many"].SerializeToString(), feeds, 4)
    for one, given in zip(got, feeds, strict=True):
        same(one, gpu.run("cpu", **given))
    lines = gpu.lines()
    assert len(launches(lines)) == 24 * 4
    assert 2 <= len(loaded(lines)) == count(lines, "unload") <= 24 * 2


@pytest.mark.parametrize("name", ["many", "outputs"])
def test_tensors_that_share_blocks_of_memory(gpu: Child, fused: Models, name: str) -> None:
    """With the runtime's memory patterns, from the second run on tensors lie side by side in one block."""
    feeds = {"x": floats(33, 64), "a": floats(33, 64, seed=1), "b": floats(64, seed=2)}
    feeds = {value.name: feeds[value.name] for value in fused[name].graph.input}
    gpu.create("cpu", fused[name], gpu=False)
    gpu.create("gpu", fused[name], pattern=True)
    for _ in range(3):
        same(gpu.run("gpu", **feeds), gpu.run("cpu", **feeds))


def test_output_in_the_place_of_an_input(gpu: Child, fused: Models) -> None:
    """Bound to the memory of an input of its shape, the output is right; over one that is broadcast it is refused."""
    shape, b = (50, 64), floats(64, seed=1)
    gpu.create("gpu", fused["row"])
    gpu.create("cpu", fused["row"], gpu=False)
    address, x = gpu.call("device_value", "gpu", {"x": floats(*shape), "b": b})
    y = gpu.call("run_at", "gpu", {"x": (address, shape)}, (address, shape), b=b)
    same([y], gpu.run("cpu", x=x, b=b))
    gpu.lines()
    with pytest.raises(Refused, match=r"node '\w+' .*output 0 is bound to memory of input 2 \(x1\)"):
        gpu.call("run_at", "gpu", {"x": (address, shape), "b": (address, (64,))}, (address, shape))
    with pytest.raises(Refused, match=r"output 0 is bound to memory of input 1 \(x0\)"):
        gpu.call("run_at", "gpu", {"x": (address, (49, 64))}, (address + 256, (49, 64)), b=b)
    assert launches(gpu.lines()) == []


@pytest.mark.parametrize(("read", "written"), [(4, 0), (0, 4), (4, 12)])
def test_memory_that_is_not_aligned(gpu: Child, fused: Models, read: int, written: int) -> None:
    """Bound some bytes behind a multiple of 16, tensors are read and written element by element."""
    shape, b = (40, 64), floats(64, seed=1)
    gpu.create("gpu", fused["row"])
    gpu.create("cpu", fused["row"], gpu=False)
    address, all_of_it = gpu.call("device_value", "gpu", {"x": floats(100, 64), "b": b})
    x = all_of_it.ravel()[read // 4 :][: 40 * 64].reshape(shape)
    y = gpu.call("run_at", "gpu", {"x": (address + read, shape)}, (address + 50 * 256 + written, shape), b=b)
    same([y], gpu.run("cpu", x=x, b=b))


@pytest.mark.parametrize("options", [{"library": False}, {"names": "FusedElementwise:0"}], ids=["absent", "no names"])
def test_without_kernels_of_ours(gpu: Child, fused: Models, plain: Models, options: dict[str, Any]) -> None:
    """On the GPU, too, nodes run as their plain operators where the library is not there or knows no such node."""
    gpu.create("fused", fused["many"], **options)
    gpu.create("plain", plain["many"])
    for one, other in zip(gpu.run("fused", x=floats(7, 64)), gpu.run("plain", x=floats(7, 64)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    assert gpu.lines() == []


@pytest.mark.parametrize("library", [True, False])
@pytest.mark.parametrize("name", ["many", "half", "mixed", "branches"])
def test_the_same_file_on_the_cpu(start: Start, fused: Models, plain: Models, name: str, library: bool) -> None:
    """Where there is no GPU, no driver and no provider, the file runs with the library and without it."""
    child = start(driver=None, provider=None)
    rng = np.random.default_rng(0)
    feeds = {
        "many": {"x": floats(7, 64)},
        "half": {"x": floats(9, 72).astype(np.float16), "b": floats(72, seed=1).astype(np.float16)},
        "mixed": {"i": rng.integers(0, 256, (2, 5, 3)).astype(np.uint8), "m": floats(3),
                  "k": rng.random((2, 5, 1)) < 0.5, "n": rng.integers(-9, 9, (2, 5, 3))},
        "branches": {"c": np.array(True), "x": floats(5, 64), "b": floats(64, seed=1)},
    }[name]  # fmt: skip
    child.create("fused", fused[name], gpu=False, library=library)
    child.create("plain", plain[name], gpu=False, library=False)
    for one, other in zip(child.run("fused", **feeds), child.run("plain", **feeds), strict=True):
        np.testing.assert_allclose(one, other, rtol=4e-3, atol=4e-3)
    assert child.lines() == []


def test_nodes_for_a_gpu_alone(gpu: Child, fused: Models) -> None:
    """They are launched where the session is told that there is a GPU; elsewhere they are the nodes they replace."""
    model = fused["normalization"]
    assert [node.op_type for node in fused_nodes(model)] == ["FusedDevice1", "FusedElementwise1"]
    x = floats(3, 4, 30)
    want = None
    for provider, device, nodes in ((False, None, 0), (False, "cuda", 0), (True, None, 1), (True, "cuda", 2)):
        gpu.create("own", model, gpu=provider, device=device)
        (y,) = gpu.run("own", x=x)
        gpu.drop("own")
        assert len(launches(gpu.lines())) == nodes
        want = y if want is None else want
        np.testing.assert_allclose(y, want, rtol=1e-6)
