"""Made-up inputs: seeded, in range for what the model does with them, overridable by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, parser

from onnxfuse.check import feeds, sessions
from onnxfuse.errors import UsageError


def parse(body: str, opset: int = 17) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {body}')


def first(model: onnx.ModelProto, **options: Any) -> dict[str, Any]:
    return feeds.make(model, **options)


def runs(model: onnx.ModelProto, **options: Any) -> dict[str, Any]:
    """The first choice of inputs that the runtime accepts, as validation takes it."""
    session = sessions.create(model, optimize=False)
    for feed in feeds.candidates(model, **options):
        try:
            sessions.run(session, feed)
            return feed
        except sessions.RunRefused:
            continue
    raise AssertionError("no choice of sizes runs")


PLAIN = "g (float[N, 4] a, float[N, 4] b) => (float[N, 4] y) { y = Add(a, b) }"


def test_the_seed_decides() -> None:
    model = parse(PLAIN)
    one, again, other = first(model, seed=1), first(model, seed=1), first(model, seed=2)
    assert all(np.array_equal(one[name], again[name]) for name in one)
    assert not np.array_equal(one["a"], other["a"])
    assert not np.array_equal(one["a"], one["b"])


def test_values_of_an_input_do_not_depend_on_the_others() -> None:
    alone = parse("g (float[N, 4] a) => (float[N, 4] y) { y = Neg(a) }")
    assert np.array_equal(first(alone)["a"], first(parse(PLAIN))["a"])


def test_equal_symbols_get_equal_sizes_and_sums_are_computed() -> None:
    model = parse(
        "g (float[B, past, 8] k, float[B, seq, 8] x, int64[B, past + seq] m) => (float[B, t, 8] y)"
        "{ y = Concat<axis = 1>(k, x) }".replace("past + seq", "total")
    )
    model.graph.input[2].type.tensor_type.shape.dim[1].dim_param = "past + seq"
    feed = first(model)
    batch, past, _ = feed["k"].shape
    assert feed["x"].shape[0] == batch
    assert feed["m"].shape == (batch, past + feed["x"].shape[1])


def test_initializers_are_not_asked_for() -> None:
    model = parse("g (float[N] x, float[1] w) => (float[N] y) <float[1] w = {2.0}> { y = Mul(x, w) }")
    assert list(first(model)) == ["x"]


def test_tokens_stay_below_the_rows_of_the_table() -> None:
    model = parse(
        "g (int64[B, S] input_ids) => (float[B, S, 2] y) <float[5, 2] table = {0,1,2,3,4,5,6,7,8,9}> "
        "{ i = Cast<to = 6>(input_ids)  r = Unsqueeze(i, ax)  s = Squeeze(r, ax)  y = Gather(table, s) }"
    )
    model.graph.initializer.append(helper.make_tensor("ax", TensorProto.INT64, [1], [0]))
    ids = runs(model)["input_ids"]
    assert ids.min() >= 0
    assert ids.max() < 5
    assert len(np.unique(ids)) > 1


def test_an_index_into_a_value_of_unknown_size_is_in_range() -> None:
    model = parse(
        "g (float[nodes, 3] x, int64[2, edges] edge_index) => (float[2, edges, 3] y) { y = Gather(x, edge_index) }"
    )
    feed = runs(model)
    assert feed["edge_index"].max() < feed["x"].shape[0]


def test_an_index_used_inside_a_branch_counts() -> None:
    model = parse(
        "g (int64[S] ids, bool c) => (float[S] y) <float[3] t = {1, 2, 3}> { y = If(c) <"
        "then_branch = a () => (float[S] u) { u = Gather(t, ids) }, "
        "else_branch = b () => (float[S] v) { v = Cast<to = 1>(ids) }> }"
    )
    assert first(model)["ids"].max() < 3


def test_masks_are_ones_and_some_zeros() -> None:
    model = parse("g (int64[B, S] attention_mask, bool[B, S] padMask) => (int64[B, S] y) "
                  "{ y = Identity(attention_mask) }")
    feed = first(model)
    for name in ("attention_mask", "padMask"):
        assert set(np.unique(feed[name]).tolist()) == {0, 1}
        assert feed[name][:, 0].all()  # no row is empty: softmax over nothing is NaN


def test_lengths_are_the_sequence_and_positions_count_up() -> None:
    model = parse(
        "g (float[B, S, 4] x, int64[B] lengths, int64[B, S] position_ids) => (float[B, S, 4] y) { y = Neg(x) }"
    )
    feed = first(model)
    assert (feed["lengths"] == feed["x"].shape[1]).all()
    assert feed["position_ids"][0].tolist() == list(range(feed["x"].shape[1]))


def test_a_scalar_that_is_compared_takes_the_value() -> None:
    model = parse("g (int64 sr) => (bool y) <int64 k = {8000}> { y = Equal(sr, k) }")
    assert first(model)["sr"] == 8000


def test_shapes_as_inputs_are_such_that_they_run() -> None:
    model = parse("g (float[N] x, int64[3] s, int64[2] e) => (float[A, B, C] y, float[D, E] z) "
                  "{ y = Reshape(x, s)  f = Constant<value = float {1.0}>()  z = Expand(f, e) }")
    assert runs(model)["s"].tolist() == [-1, 1, 1]


def test_pictures_of_bytes_use_the_full_range() -> None:
    model = parse("g (uint8[N, H, W, 3] image) => (uint8[N, H, W, 3] y) { y = Identity(image) }")
    image = first(model)["image"]
    assert image.shape[3] == 3
    assert image.min() == 0
    assert image.max() == 255


def test_a_model_of_batch_one_gets_batch_one() -> None:
    model = parse("g (float[N, 6] x) => (float[1, 6] y) <int64[2] s = {1, 6}> { y = Reshape(x, s) }")
    assert first(model)["x"].shape[0] == 2
    assert runs(model)["x"].shape == (1, 6)


def test_free_dims_of_features_and_channels_come_from_the_weights() -> None:
    model = parse("g (float[N, F] x, float[N, C, H, W] image) => (float[N, 2] y, float[N, D, H, W] z) "
                  "{ a = Relu(x)  y = MatMul(a, w)  z = Conv(image, k) }")
    for name, shape in (("w", (37, 2)), ("k", (4, 5, 1, 1))):
        values = np.ones(shape, np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    feed = first(model)
    assert feed["x"].shape == (2, 37)
    assert feed["image"].shape[:2] == (2, 5)


def test_the_state_of_a_recurrent_cell_has_the_batch_in_the_middle() -> None:
    model = parse("g (float[B, F] x, float[2, S, 64] state) => (float[B, F] y) { y = Neg(x) }")
    for value in model.graph.input:  # as exporters write it: dims without names
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.ClearField("dim_param")
    feed = first(model)
    assert feed["state"].shape == (2, feed["x"].shape[0], 64)


def test_an_input_of_unknown_rank_gets_a_rank_that_runs() -> None:
    model = parse("g (float[N] x) => (float[N] y) <float[3, 1, 1] b = {1, 2, 3}, int64[1] ax = {3}> "
                  "{ s = Squeeze(x, ax)  y = Add(s, b) }")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    assert runs(model)["x"].ndim == 4


@pytest.mark.parametrize("kind", ["FLOAT16", "BFLOAT16", "DOUBLE", "INT8", "UINT64", "BOOL", "STRING", "FLOAT"])
def test_every_type_gets_its_dtype(kind: str) -> None:
    elem = getattr(TensorProto, kind)
    value = helper.make_tensor_value_info("x", elem, ["N", 3])
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])], "g", [value], [helper.make_tensor_value_info("y", elem, ["N", 3])]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    array = first(model)["x"]
    want: Any = {"STRING": object, "BFLOAT16": ml_dtypes.bfloat16}.get(kind) or helper.tensor_dtype_to_np_dtype(elem)
    assert array.dtype == want
    assert array.shape == (2, 3)
    if kind == "BFLOAT16" and not hasattr(onnxruntime.OrtValue, "ortvalue_from_numpy_with_onnx_type"):
        return  # this runtime takes none from Python
    assert sessions.run(sessions.create(model, optimize=False), {"x": array})["y"].tolist() == array.tolist()


def test_sequences_and_optionals_run() -> None:
    model = parse("g (seq(float[N]) s, optional(float[2]) o) => (float y, bool h) "
                  "<int64 zero = {0}> "
                  "{ e = SequenceAt(s, zero)  y = ReduceSum<keepdims = 0>(e)  h = OptionalHasElement(o) }")
    feed = runs(model)
    assert len(feed["s"]) == 2
    assert feed["o"].shape == (2,)


# ---------------------------------------------------------------- what a caller gives


def test_shapes_are_taken_and_bind_symbols() -> None:
    feed = first(parse(PLAIN), shapes={"a": (7, 4)})
    assert feed["a"].shape == feed["b"].shape == (7, 4)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"nope": (1,)}, "no input 'nope'"),
        ({"a": (1, 5)}, r"\[1, 5\], the model wants \[N, 4\]"),
        ({"a": (4,)}, "has 1 dims, the model wants 2"),
        ({"a": (2, 4), "b": (3, 4)}, "'N' is 2 in another input"),
    ],
)
def test_shapes_that_do_not_fit(shapes: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        first(parse(PLAIN), shapes=shapes)


def test_parse_shapes() -> None:
    assert feeds.parse_shapes(["x:1,3", "scope/in:0:2", "s:"]) == {"x": (1, 3), "scope/in:0": (2,), "s": ()}
    for bad in ("x", "x:1,a", ":1", "x:-1,2"):
        with pytest.raises(UsageError, match="is not of the form"):
            feeds.parse_shapes([bad])


def test_arrays_override_by_name_and_bind_symbols(tmp_path: Path) -> None:
    given = np.full((3, 4), 5, np.float32)
    np.savez(tmp_path / "in.npz", a=given)
    feed = first(parse(PLAIN), given=feeds.load_npz(tmp_path / "in.npz"))
    assert np.array_equal(feed["a"], given)
    assert feed["b"].shape == (3, 4)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"z": np.zeros(1, np.float32)}, "no input 'z'"),
        ({"a": np.zeros((2, 4))}, "is float64, the model wants float32"),
        ({"a": np.zeros((2, 5), np.float32)}, r"\[2, 5\], the model wants \[N, 4\]"),
    ],
)
def test_arrays_that_do_not_fit(arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        first(parse(PLAIN), given=arrays)


def test_bfloat16_survives_npz(tmp_path: Path) -> None:
    model = parse("g (bfloat16[N] x) => (bfloat16[N] y) { y = Identity(x) }")
    np.savez(tmp_path / "in.npz", x=np.array([1, 2], ml_dtypes.bfloat16))
    feed = first(model, given=feeds.load_npz(tmp_path / "in.npz"))
    assert feed["x"].dtype == ml_dtypes.bfloat16
    assert feed["x"].tolist() == [1, 2]


def test_files_that_are_no_npz(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        feeds.load_npz(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(UsageError, match=r"cannot be read as an \.npz"):
        feeds.load_npz(tmp_path / "text.npz")
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(UsageError, match="one array"):
        feeds.load_npz(tmp_path / "one.npy")
