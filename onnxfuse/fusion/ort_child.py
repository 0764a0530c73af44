"""What ONNX Runtime's own offline optimization makes of a model, found out in a child process.

The runtime may crash, hang or take much memory on a model; so it runs in a Python process of its own with a time
limit, and what comes back is a small description of each optimized graph: nodes, value names, types, no weights.

::

    optimized_graphs(path) -> Optimized(extended=OptGraph, full=OptGraph)      or RuntimeRefused(text)

This file is also the program of the child (``python ort_child.py FOLDER``; the request comes through its input): it is
started by path, so nothing of the package is imported there and nothing here may import the package.

A model that computes in float16 or bfloat16 is optimized as a float32 copy of its types: the CPU provider has no
kernels for most half ops, wraps them in casts and then finds hardly any pattern. The copy needs no weights: small
tensors are converted (constants are part of patterns), large ones point into one sparse file of zeros.

A model with thousands of constants of one element gets a copy in which equal ones are one: the runtime's own pass for
that takes time that grows with the square of their number, and is left out then.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LEVELS = ("extended", "full")
INSERTED_CAST = "InsertedPrecisionFreeCast_"  # prefix that the runtime gives to float32 twins of half values
SMALL_ELEMENTS = 1 << 16  # tensors up to this size keep their values in a copy
MASK_ELEMENTS = 1 << 22  # and these masks, which are parts of attention patterns
MANY_SCALARS = 2000  # constants of one element from which on they are merged before the runtime sees them
FLOAT, FLOAT16, BFLOAT16 = 1, 10, 16
_SHARED_TYPES = frozenset({FLOAT, FLOAT16, 11, 6, 7})  # with DOUBLE, INT32, INT64: those that the runtime merges itself
_SHARING = "ConstantSharing"  # the runtime's pass
_LARGE = 4000  # nodes from which on passes are left out that can find nothing: each walks over the whole graph
_PASSES = {
    ("quant", "qlinear", "integer", "nbits"): """EnsureUniqueDQForNodeUnit QDQPropagationTransformer
        WeightBiasQuantization WhereDummyDq DoubleQDQPairsRemover QDQS8ToU8Transformer QDQSelectorActionTransformer
        QDQFinalCleanupTransformer MatMulIntegerToFloatFusion DynamicQuantizeMatMulFusion MatMulNBitsFusion""",
    ("norm", "reduce"): """LayerNormFusionL1 LayerNormFusionL2 SimplifiedLayerNormFusion SkipLayerNormFusion
        BiasSkipLayerNormFusion EmbedLayerNormFusion GroupQueryAttentionPreNormFusion""",
    ("softmax", "attention"): "AttentionFusion BiasSoftmaxFusion",
    ("attention",): "GroupQueryAttentionFusion",
    ("erf",): "GeluFusionL1 GeluFusionL2",
    ("erf", "tanh", "gelu"): "FastGeluFusion BiasGeluFusion",
    ("sigmoid", "silu", "swish"): "QuickGeluFusion",
    ("gather", "slice"): "GatherToSliceFusion GatherSliceToSplitFusion SliceConcatToSpaceToDepthFusion",
    ("transpose",): "TransposeOptimizer TransposeOptimizer_CPUExecutionProvider MatmulTransposeFusion",
    ("conv",): "ConvActivationFusion",
    ("dropout",): "BiasDropoutFusion",
    ("reshape",): "ReshapeFusion",
    ("where",): "NotWhereFusion",
}
"""The runtime's passes that do nothing where no op has one of these words in its name, in small letters. An op that the
runtime replaces by a function of simpler ones counts as one of those."""
_TYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_dtype", "output_datatype", "precision"})


@dataclass(frozen=True)
class OptNode:
    """A node of an optimized graph. ``attributes`` maps each name to a digest of the value (bodies left out)."""

    domain: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, str] = field(default_factory=dict)
    bodies: Mapping[str, OptGraph] = field(default_factory=dict)


@dataclass(frozen=True)
class OptGraph:
    """An optimized graph; ``types`` holds ONNX element type numbers of the values whose type is written down."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    initializers: frozenset[str]
    nodes: tuple[OptNode, ...]
    types: Mapping[str, int] = field(default_factory=dict)

    @property
    def produced(self) -> dict[str, OptNode]:
        """Value name -> the node that produces it."""
        return {name: node for node in self.nodes for name in node.outputs if name}

    def walk(self) -> Iterator[OptNode]:
        """Every node, those of bodies included."""
        for node in self.nodes:
            yield node
            for body in node.bodies.values():
                yield from body.walk()


@dataclass(frozen=True)
class Optimized:
    """The graph at the extended level and at the full one, which adds the blocked layout (where there is nothing to
    block: the same object)."""

    extended: OptGraph
    full: OptGraph
    version: str  # of the runtime


class RuntimeRefused(Exception):
    """The runtime is not installed, cannot load the model, crashed, or ran out of time; the text says which."""


# ------------------------------------------------------------------------------------------------ parent


class Child:
    """A process that imports the runtime and then waits for its request, with a temporary folder ``work``."""

    def __init__(self, work: Path) -> None:
        self.work = work
        with open(work / "stderr", "wb") as stderr:
            try:
                self._process: subprocess.Popen[bytes] | OSError = subprocess.Popen(
                    [sys.executable, str(Path(__file__).absolute()), str(work)],
                    stdin=subprocess.PIPE,
                    stdout=stderr,
                    stderr=stderr,
                    cwd=work,
                    start_new_session=True,  # so that the whole group can be ended
                )
            except OSError as error:
                self._process = error

    def ask(self, request: Mapping[str, Any]) -> Callable[[float], int]:
        """Send the request; what comes back waits some seconds for the end of the process and gives its exit code."""
        process = self._process
        if isinstance(process, OSError):
            raise RuntimeRefused(f"no process can be started for ONNX Runtime: {process}")
        assert process.stdin is not None
        with contextlib.suppress(OSError), process.stdin as pipe:  # a process that is gone is noticed by who waits
            pipe.write(json.dumps(request).encode() + b"\n")
        return process.wait

    def end(self) -> None:
        """End the process and all that it started."""
        process = self._process
        if isinstance(process, OSError):
            return
        if process.poll() is None:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                process.kill()
            process.wait()
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()


@contextlib.contextmanager
def started() -> Iterator[Child]:
    """A child, which ends with the block. Started before there is anything to ask, it is ready by then: the start of
    the interpreter and the import of the runtime take over half a second."""
    with tempfile.TemporaryDirectory(prefix="onnxfuse-", ignore_cleanup_errors=True) as temporary:
        child = Child(Path(temporary))
        try:
            yield child
        finally:
            child.end()


def optimized_graphs(model: Path | Any, **options: Any) -> Optimized:
    """What `optimizing` gives, waited for."""
    with started() as child, optimizing(model, child, **options) as answer:
        return answer()


@contextlib.contextmanager
def optimizing(
    model: Path | Any,
    child: Child,
    *,
    folder: Path | None = None,
    float32_copy: bool = False,
    merge_scalars: bool = False,
    left_out: Collection[str] = (),
    timeout: float = 900.0,
    levels: tuple[str, ...] = LEVELS,
    library: Path | None = None,
    config: Mapping[str, str] | None = None,
) -> Iterator[Callable[[], Optimized]]:
    """Optimize ``model`` in a child process at both levels and describe the graphs. The child works while the block
    runs; a call of what the block gets waits for it. It ends with the block.

    ``model`` is the path of a model file, or a ModelProto (written to the temporary folder; ``folder`` is then where
    its external data lies). ``float32_copy`` makes the child work on a float32 copy, ``merge_scalars`` on one in which
    equal constants of one element are one; ``left_out`` names passes of the runtime that are not run. ``timeout`` in
    seconds counts from the request, for both levels together. Only one level is run if ``levels`` names one, or where
    the others would add nothing; it then stands in both fields. ``library`` is a library of custom ops to register,
    ``config`` entries for the session.

    The block may not begin, or the call end, by RuntimeRefused with one line of text.
    """
    if isinstance(model, os.PathLike | str):
        path = Path(model).absolute()
        folder = path.parent
        copy = float32_copy or merge_scalars
    else:
        path = child.work / "model.onnx"
        copy = float32_copy or merge_scalars or folder is not None
        path.write_bytes(model.SerializeToString())
    request = {
        "model": str(path),
        "folder": str(folder or child.work),
        "copy": copy,
        "half": float32_copy,
        "merge": merge_scalars,
        "left_out": sorted(left_out),
        "levels": list(levels),
        "library": None if library is None else str(library),
        "config": dict(config or {}),
    }
    wait, end = child.ask(request), time.monotonic() + timeout
    try:
        yield lambda: _answer(wait, child.work, levels, timeout, end)
    finally:
        child.end()


def _answer(
    wait: Callable[[float], int], work: Path, levels: tuple[str, ...], timeout: float, end: float
) -> Optimized:
    """Wait for the child until ``end`` and read its result; RuntimeRefused where it leaves none."""
    try:
        code = wait(max(end - time.monotonic(), 0.0))
    except subprocess.TimeoutExpired:
        raise RuntimeRefused(f"ONNX Runtime took longer than {timeout:g} s to optimize the model") from None
    if code or not (work / "result.json").exists():
        raise RuntimeRefused(_failure(code, work))
    answer = json.loads((work / "result.json").read_text(encoding="utf-8"))
    if "error" in answer:
        # without the random name of the temporary folder: the text stands in reports
        raise RuntimeRefused(answer["error"].replace(f"{work}{os.sep}", ""))
    try:
        graphs = {level: _described(_load(work / f"{level}.onnx").graph) for level in answer["levels"]}
    except Exception as error:  # a damaged file, names that are no text
        raise RuntimeRefused(f"what ONNX Runtime made of the model cannot be read: {error}") from None
    first = graphs[levels[0]]
    return Optimized(first, graphs.get(levels[-1], first), answer["version"])


def _failure(code: int, work: Path) -> str:
    """How the child ended, with its last words."""
    lines = (work / "stderr").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        how = f"ended by {name}"
    else:
        how = f"exit code {code}"
    return f"ONNX Runtime's child process failed ({how})" + (f": {lines[-1]}" if lines else "")


def _load(path: Path) -> Any:
    """The model in a file that the runtime wrote, without large weights."""
    import onnx

    return onnx.load(str(path), load_external_data=False)


def _described(graph: Any) -> OptGraph:
    values = [*graph.input, *graph.output, *graph.value_info]
    initializers = [t.name for t in graph.initializer] + [t.values.name for t in graph.sparse_initializer]
    return OptGraph(
        tuple([v.name for v in graph.input]),
        tuple([v.name for v in graph.output]),
        frozenset(initializers),
        tuple(map(_described_node, graph.node)),
        {v.name: v.type.tensor_type.elem_type for v in values if v.type.HasField("tensor_type")},
    )


def _described_node(node: Any) -> OptNode:
    domain = "" if node.domain == "ai.onnx" else node.domain
    inputs, outputs = tuple(map(_plain, node.input)), tuple(map(_plain, node.output))
    attributes = node.attribute
    if not attributes:
        return OptNode(domain, node.op_type, inputs, outputs)
    digests = {a.name: digest(a) for a in attributes if not a.HasField("g") and not a.graphs}
    bodies = {a.name: _described(a.g) for a in attributes if a.HasField("g")}
    return OptNode(domain, node.op_type, inputs, outputs, digests, bodies)


def _plain(name: str) -> str:
    """The name of a value without the prefix of an inserted cast."""
    return name.removeprefix(INSERTED_CAST)


# ------------------------------------------------------------------------------------------------ child


def _child(work: Path) -> None:
    """Entry of the child: import the runtime, read the request, optimize, write the result."""
    _first_to_go()
    gc.disable()  # nothing here is worth the search
    try:
        import onnx  # noqa: F401  # while there is nothing to do yet
        import onnxruntime  # noqa: F401

        # A line, not all up to the end: a process that some other thread of the parent has forked holds the pipe open.
        request = sys.stdin.buffer.readline()
        if not request.endswith(b"\n"):  # nothing will be asked any more
            return
        answer = _optimize(json.loads(request), work)
    except Exception as error:  # whatever the runtime raises is an answer for the parent
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        answer = {"error": lines[0][:500]}
    (work / "result.json").write_text(json.dumps(answer), encoding="utf-8")
    os._exit(0)  # without taking all down bit by bit, for which the parent would wait


def _first_to_go() -> None:
    """When memory runs out, the system shall end this process and not the parent."""
    try:
        Path("/proc/self/oom_score_adj").write_text("1000")
    except OSError:
        pass


def _optimize(request: Mapping[str, Any], work: Path) -> dict[str, Any]:
    """Write what each level makes of the model to a file of its name, in ``work``."""
    import onnxruntime as ort

    ort.set_default_logger_severity(4)
    source = request["model"]
    if request["copy"]:
        source = str(work / "copy.onnx")
        _write_copy(request["model"], Path(request["folder"]), work, request["half"], request["merge"])
    steps = {
        "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
        "full": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    }
    done: list[str] = []
    sessions: list[Any] = []
    for level in request["levels"]:
        if level == "full" and "extended" in done and not _may_block(_load(work / "extended.onnx").graph):
            continue
        sessions.clear()  # the last one goes with the process: taking it down takes long
        target, weights = work / f"{level}.onnx", work / f"{level}.weights"
        options = ort.SessionOptions()
        options.graph_optimization_level = steps[level]
        options.optimized_model_filepath = str(target)
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        options.enable_mem_pattern = False  # nothing runs, and planning memory for many weights takes long
        options.add_session_config_entry("session.disable_prepacking", "1")
        for key, value in request["config"].items():
            options.add_session_config_entry(key, value)
        if request["library"]:
            options.register_custom_ops_library(request["library"])
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", weights.name)
        options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "256")
        left_out = [*request["left_out"], *([_SHARING] if request["merge"] else [])]
        sessions.append(
            ort.InferenceSession(source, options, providers=["CPUExecutionProvider"], disabled_optimizers=left_out)
        )
        weights.unlink(missing_ok=True)
        done.append(level)
    return {"levels": done, "version": ort.__version__}


def _may_block(graph: Any) -> bool:
    """Whether the blocked layout may begin somewhere: at a convolution or pooling, by whatever name."""
    return any(
        "Conv" in n.op_type or "Pool" in n.op_type or any(_may_block(a.g) for a in n.attribute if a.HasField("g"))
        for n in graph.node
    )


def digest(attribute: Any) -> str:
    """A short text that is equal for equal values of an AttributeProto (doc strings and the like aside)."""
    kind = attribute.type
    if kind in (1, 2, 6, 7):  # FLOAT, INT, FLOATS, INTS
        value: Any = (attribute.f, attribute.i, list(attribute.floats), list(attribute.ints))
        return repr(value[{1: 0, 2: 1, 6: 2, 7: 3}[kind]])
    if kind in (3, 8):  # STRING, STRINGS
        return repr(attribute.s if kind == 3 else list(attribute.strings))
    return hashlib.sha1(attribute.SerializeToString(deterministic=True)).hexdigest()


# ------------------------------------------------------------------------------------------------ float32 copy


def _write_copy(source: str, folder: Path, work: Path, half: bool, merge: bool) -> None:
    """Write ``work/copy.onnx``: float32 in place of half types if ``half``, equal scalars as one if ``merge``, no large
    weights, no external data of the original."""
    import onnx

    model = onnx.load(source, load_external_data=False)
    if merge:
        _merge_scalars(model.graph)
    largest = 0
    for graph in [model.graph, *model.functions]:
        largest = max(largest, _copy_graph(graph, folder, half))
    with open(work / "zeros", "wb") as zeros:
        zeros.truncate(max(largest, 1))
    onnx.save(model, str(work / "copy.onnx"))


def _merge_scalars(graph: Any) -> None:
    """Make equal constants of one element one, in the main graph, as the runtime's own pass does: not those that a
    caller may override or that a body reads. Constants that nobody reads any more are taken out."""
    import onnx

    kept = {v.name for v in (*graph.input, *graph.output)} | _read_in_bodies(graph)
    first: dict[object, str] = {}
    renamed: dict[str, str] = {}
    for name, tensor in scalars(graph):
        if name not in kept and tensor.data_location != onnx.TensorProto.EXTERNAL:
            value = tensor.raw_data or onnx.numpy_helper.to_array(tensor).tobytes()
            one = first.setdefault((tensor.data_type, len(tensor.dims), value), name)
            if one != name:
                renamed[name] = one
    for node in graph.node:
        inputs = list(node.input)
        if not renamed.keys().isdisjoint(inputs):
            node.input[:] = [renamed.get(name, name) for name in inputs]
    left = type(graph)(
        initializer=[tensor for tensor in graph.initializer if tensor.name not in renamed],
        node=[node for node in graph.node if not (node.op_type == "Constant" and node.output[0] in renamed)],
    )
    for nodes_or_tensors, stay in ((graph.initializer, left.initializer), (graph.node, left.node)):
        del nodes_or_tensors[:]
        nodes_or_tensors.MergeFrom(stay)


def idle_passes(op_types: Collection[str], nodes: int) -> set[str]:
    """Passes of the runtime that can be left out of a large model with these ops, functions and bodies included."""
    if nodes < _LARGE:
        return set()
    ops = "\n".join(op_types).lower()
    idle = (names for words, names in _PASSES.items() if not any(word in ops for word in words))
    return {name for names in idle for name in names.split()}


def scalars(graph: Any) -> Iterator[tuple[str, Any]]:
    """Name and tensor of the constants of one element that the runtime's own pass looks at."""
    named = [(tensor.name, tensor) for tensor in graph.initializer]
    named += [(n.output[0], a.t) for n in graph.node if n.op_type == "Constant" for a in n.attribute if a.HasField("t")]
    for name, tensor in named:
        if tensor.data_type in _SHARED_TYPES and list(tensor.dims) in ([], [1]):
            yield name, tensor


def _read_in_bodies(graph: Any) -> set[str]:
    """Names that nodes and outputs of the bodies below read."""
    found: set[str] = set()
    bodies = [b for n in graph.node for a in n.attribute for b in (*([a.g] if a.HasField("g") else []), *a.graphs)]
    for body in bodies:
        found.update(name for node in body.node for name in node.input)
        found.update(value.name for value in body.output)
        found |= _read_in_bodies(body)
    return found


def _copy_graph(graph: Any, folder: Path, half: bool) -> int:
    """Change a graph or function in place; returns the bytes that its largest emptied tensor wants."""
    largest = 0
    for tensor in [*getattr(graph, "initializer", ())]:
        largest = max(largest, _copy_tensor(tensor, folder, half, in_graph=True))
    if half:
        for value in [*graph.value_info, *_values(graph, "input"), *_values(graph, "output")]:
            _copy_type(value.type)
    for node in graph.node:
        for attribute in node.attribute:
            if half and attribute.name in _TYPE_ATTRIBUTES and attribute.i in (FLOAT16, BFLOAT16):
                attribute.i = FLOAT
            for tensor in [*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors]:
                _copy_tensor(tensor, folder, half, in_graph=False)
            if half and attribute.HasField("tp"):
                _copy_type(attribute.tp)
            for body in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                largest = max(largest, _copy_graph(body, folder, half))
    return largest


def _values(graph: Any, name: str) -> list[Any]:
    """Inputs or outputs of a graph; of a function they are bare names without a type."""
    return [v for v in getattr(graph, name) if not isinstance(v, str)]


def _copy_type(proto: Any) -> None:
    kind = proto.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        inner = getattr(proto, kind)
        if inner.elem_type in (FLOAT16, BFLOAT16):
            inner.elem_type = FLOAT
    elif kind in ("sequence_type", "optional_type"):
        _copy_type(getattr(proto, kind).elem_type)
    elif kind == "map_type":
        _copy_type(proto.map_type.value_type)


def _copy_tensor(tensor: Any, folder: Path, half: bool, in_graph: bool) -> int:
    """Convert or empty one tensor in place; returns the bytes it wants from the file of zeros."""
    import numpy as np
    import onnx

    changes = half and tensor.data_type in (FLOAT16, BFLOAT16)
    external = tensor.data_location == onnx.TensorProto.EXTERNAL
    elements: int = math.prod(tensor.dims)
    if not changes and not external and (elements <= SMALL_ELEMENTS or not in_graph):
        return 0
    if tensor.data_type == onnx.TensorProto.STRING:
        return 0
    name = tensor.name
    mask = tensor.data_type == onnx.TensorProto.BOOL and elements <= MASK_ELEMENTS
    if elements <= SMALL_ELEMENTS or mask or not in_graph:
        array = onnx.numpy_helper.to_array(tensor, str(folder))
        tensor.CopyFrom(onnx.numpy_helper.from_array(array.astype(np.float32) if changes else array, name))
        return 0
    kind, dims = (FLOAT if changes else tensor.data_type), list(tensor.dims)
    tensor.Clear()
    tensor.name, tensor.data_type = name, kind
    tensor.dims.extend(dims)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    size = -(-elements * _bits(kind) // 8)
    for key, value in (("location", "zeros"), ("offset", "0"), ("length", str(size))):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    return size


def _bits(data_type: int) -> int:
    """Bits of one element, packed types included."""
    import numpy as np
    import onnx

    name = onnx.TensorProto.DataType.Name(data_type)
    if name.endswith("2"):
        packed = {"INT2": 2, "UINT2": 2}.get(name)
        if packed:
            return packed
    if name in ("INT4", "UINT4", "FLOAT4E2M1"):
        return 4
    return 8 * int(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(data_type)).itemsize)


if __name__ == "__main__":
    # the modules beside this file must not stand before others of the same name
    sys.path[:] = [entry for entry in sys.path if entry != str(Path(__file__).absolute().parent)]
    _child(Path(sys.argv[1]))
