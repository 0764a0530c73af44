"""Validation: a right model passes, a wrong one fails with output, index, both values and the group at fault."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxfuse import api
from onnxfuse.check.classify import profile, tolerance_for
from onnxfuse.check.compare import EXACT, REPORTED, STEPS, TOLERANT
from onnxfuse.check.oracle import check_groups
from onnxfuse.check.subject import Subject
from onnxfuse.check.validate import AS_ON_GPU, WITH, WITHOUT, RunReport, ValidationReport, _Trial, compare_models
from onnxfuse.errors import UsageError
from tests.check import models
from tests.custom_ops.conftest import ort_library

__all__ = ["ort_library"]


def parse(body: str, opset: int = 17, more: str = "") -> onnx.ModelProto:
    return models.parse(f'<ir_version: 8, opset_import: ["" : {opset}{more}]> {body}')


def fuse(model: onnx.ModelProto, **options: Any) -> onnx.ModelProto:
    return api.optimize(model, validate=False, **options).model


def check(original: onnx.ModelProto, fused: onnx.ModelProto, **options: Any) -> ValidationReport:
    return compare_models(Subject.of(original), Subject.of(fused), use_library=False, **options)


TWO_GROUPS = """g (float[N, 8] x) => (float[N, 8] y) <float a = {0.5}, float b = {0.25}, int64 axis = {1}> {
    [mul1] m = Mul(x, a)
    [add1] n = Add(m, x)
    [sum1] s = CumSum(n, axis)
    [sub1] p = Sub(s, b)
    [abs1] q = Abs(p)
    [sum2] y = CumSum(q, axis)
}"""


def fused_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if node.domain == "onnxfuse"]


def spoil(model: onnx.ModelProto, group: int) -> onnx.ModelProto:
    """A copy in which the scalar constant of one group is another one."""
    wrong = copy.deepcopy(model)
    constant = next(a for a in fused_nodes(wrong)[group].attribute if a.name == "c0")
    constant.t.CopyFrom(numpy_helper.from_array(np.array(0.75, np.float32)))
    return wrong


def test_a_right_model_passes() -> None:
    original = parse(TWO_GROUPS)
    fused = fuse(original)
    assert len(fused_nodes(fused)) == 2
    report = check(original, fused)
    assert report.passed
    assert report.failure() == ""
    assert [run.name for run in report.runs] == [WITHOUT]
    assert report.largest_error < 1e-6


@pytest.mark.parametrize(("group", "replaces"), [(0, "mul1, add1"), (1, "sub1, abs1")])
def test_a_changed_constant_fails_and_the_group_is_named(group: int, replaces: str) -> None:
    original = parse(TWO_GROUPS)
    report = check(original, spoil(fuse(original), group))
    assert not report.passed
    assert "output 'y' differs at [" in report.failure()
    assert "got " in report.failure()
    assert "expected " in report.failure()
    assert f"(replaces {replaces})" in report.first_group
    assert report.first_group in report.failure()


NORMALIZATION = """g (float[N, 8, 5] x) => (float[N, 8, 5] y) <float[8] s = {1, 2, 3, 4, 5, 6, 7, 8}> {
    [normal] n = BatchNormalization(x, s, s, s, s)
    [relu] y = Relu(n)
}"""


def test_groups_for_a_gpu_are_checked_too(ort_library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU they are plain nodes; their programs run where the session is told that there is a GPU."""
    monkeypatch.setattr(api, "_compiler", lambda *_: None)
    original = parse(NORMALIZATION)
    fused = fuse(original, targets=("cpu", "cuda"))
    (node,) = fused_nodes(fused)
    assert node.op_type == "FusedDevice1"
    right = compare_models(Subject.of(original), Subject.of(fused), library=ort_library)
    assert (right.passed, [run.name for run in right.runs]) == (True, [WITHOUT, WITH, AS_ON_GPU])
    program = next(a for a in node.attribute if a.name == "program")
    program.s = program.s.replace(b"add.f32", b"sub.f32")
    wrong = compare_models(Subject.of(original), Subject.of(fused), library=ort_library)
    assert [run.passed for run in wrong.runs] == [True, True, False]
    assert wrong.failure().startswith("output 'y' differs at [")
    assert "(replaces normal, relu)" in wrong.failure()
    alone = check_groups(Subject.of(original), Subject.of(fused), "", library=ort_library)
    assert not alone.passed


def test_nodes_for_a_gpu_in_a_model_that_roundings_move(ort_library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the runtime's own optimizations move the model too far, nodes for the GPU may move it twice as far, not
    more; and the bar is said to be a wide one."""
    monkeypatch.setattr(api, "_compiler", lambda *_: None)
    original = parse(NORMALIZATION)
    fused = fuse(original, targets=("cpu", "cuda"))
    run = _Trial.run

    def moving(self: _Trial, subject: Subject, title: str, *arguments: Any, **options: Any) -> RunReport:
        """The optimized original is off by `by` everywhere, and the run with the nodes for the GPU by 1.5 of it."""
        off = {"optimized": 1.0, AS_ON_GPU: 1.5}.get(title, 0.0) * by
        reference = self.reference
        shifted = {name: value + np.float32(off) for name, value in reference.outputs.items()}
        return run(dataclasses.replace(self, reference=dataclasses.replace(reference, outputs=shifted)), subject, title,
                   *arguments, **options)  # fmt: skip

    monkeypatch.setattr(_Trial, "run", moving)
    subjects = Subject.of(original), Subject.of(fused)
    by = 1.0
    check = compare_models(*subjects, library=ort_library)
    assert (check.passed, check.widened) == (True, True)
    monkeypatch.setattr(_Trial, "run", lambda self, *a, **o: moving(self, *a, **{**o, "moved": {}}))
    assert not compare_models(*subjects, library=ort_library).passed  # without what the optimizer does
    by = 0.0
    check = compare_models(*subjects, library=ort_library)
    assert (check.passed, check.widened) == (True, False)


def test_a_group_in_a_body_is_named_by_the_node_that_carries_it() -> None:
    original = parse("""g (float[N] x, bool c) => (float[N] y) <float a = {0.5}> { [choose] y = If(c) <
        then_branch = t () => (float[N] u) { m = Mul(x, a)  u = Add(m, x) },
        else_branch = e () => (float[N] v) { n = Mul(x, a)  v = Sub(n, x) }> }""")
    wrong = fuse(original)
    for branch in wrong.graph.node[-1].attribute:
        node = next(n for n in branch.g.node if n.domain == "onnxfuse")
        for attribute in node.attribute:
            if attribute.name == "c0":
                attribute.t.CopyFrom(numpy_helper.from_array(np.array(0.75, np.float32)))
    report = check(original, wrong)
    assert not report.passed
    assert report.first_group == "one in the body of If 'choose'"


def test_a_fused_model_that_does_not_run_fails() -> None:
    original = parse(TWO_GROUPS)
    wrong = fuse(original)
    fused_nodes(wrong)[0].op_type = "FusedElementwise99"
    report = check(original, wrong)
    assert not report.passed
    assert "does not run without the library" in report.failure()


def test_given_tolerances_hold() -> None:
    original, other = parse("g (float[4] x) => (float[4] y) <float a = {1.0}> { y = Mul(x, a) }"), None
    other = parse("g (float[4] x) => (float[4] y) <float a = {1.001}> { y = Mul(x, a) }")
    assert not check(original, other).passed
    assert check(original, other, rtol=2e-3).passed
    assert check(original, other, atol=1e-1).passed
    assert not check(original, other, rtol=0.0, atol=0.0).passed


def test_the_inputs_can_be_given() -> None:
    original = parse("g (float[N] x) => (float[N] y) { y = Relu(x) }")
    other = parse("g (float[N] x) => (float[N] y) { y = Identity(x) }")
    assert check(original, other, inputs={"x": np.ones(3, np.float32)}).passed
    assert not check(original, other, inputs={"x": -np.ones(3, np.float32)}).passed


def test_random_outputs_are_not_compared_and_named() -> None:
    model = parse("g (float[4] x) => (float[4] y, float[4] z) { r = RandomNormalLike(x)  y = Add(x, r)  z = Neg(x) }")
    other = parse("g (float[4] x) => (float[4] y, float[4] z) { r = RandomNormalLike(x)  y = Sub(x, r)  z = Neg(x) }")
    report = check(model, other)
    assert report.passed
    assert report.skipped == {"y": "RandomNormalLike"}
    assert [output.name for output in report.runs[0].outputs] == ["z"]


@pytest.mark.parametrize(("training", "random"), [("1", True), ("0", False)])
def test_dropout_is_random_in_training_only(training: str, random: bool) -> None:
    model = parse("g (float[4] x) => (float[4] y) <float ratio = {0.5}, bool mode = {MODE}> "
                  "{ d = Dropout(x, ratio, mode)  y = Neg(d) }".replace("MODE", training))
    assert bool(profile(model).random) is random


def test_randomness_inside_a_function_and_a_body_is_seen() -> None:
    model = parse("""g (float[4] x, bool c) => (float[4] y, float[4] z) { y = own.Noise(x)
        z = If(c) <then_branch = t () => (float[4] u) { u = RandomUniformLike(x) },
                   else_branch = e () => (float[4] v) { v = Neg(x) }> }
        <opset_import: ["" : 17], domain: "own"> Noise (a) => (b) { b = Bernoulli(a) }""", more=', "own" : 1')
    assert dict(profile(model).random) == {"y": "Bernoulli", "z": "RandomUniformLike"}


def test_how_outputs_are_compared_follows_from_what_they_depend_on() -> None:
    model = parse("""g (float[N] x, int64[N] k) => (float[N] f, int64[N] exact, int64 best, bool[N] less, int32[N] cut,
                     bool[N] same, int64[M] where) {
        f = Exp(x)  exact = Add(k, k)  best = ArgMax<keepdims = 0>(f)  less = Less(f, x)  cut = Cast<to = 6>(f)
        same = Equal(k, k)  w = NonZero(less)  where = Identity(w) }""")
    found = profile(model)
    assert found.rules == {
        "f": TOLERANT, "exact": EXACT, "best": REPORTED, "less": REPORTED, "cut": STEPS, "same": EXACT,
        "where": REPORTED,
    }
    assert found.free_size == {"where"}
    assert not found.half
    assert not found.quantized


def test_half_precision_and_quantized_models_have_their_tolerance() -> None:
    half = profile(parse("g (float[N] x) => (float[N] y) { h = Cast<to = 10>(x)  n = Neg(h)  y = Cast<to = 1>(n) }"))
    assert tolerance_for(half, None, None).rtol == 4e-3
    assert tolerance_for(half, 1e-5, None).rtol == 1e-5
    quantized = profile(parse("g (float[N] x) => (float[N] y) <float s = {0.1}, uint8 z = {128}> "
                              "{ q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }"))
    assert quantized.quantized


def test_a_quantized_model_may_move_as_its_own_roundings_do() -> None:
    text = """g (float[N] x) => (float[N] y) <float k = {K}, float scale = {0.125}, uint8 zero = {128}> {
        [mul] a = Mul(x, k)  [add] b = Add(a, a)  r = Reshape(b, flat)  q = QuantizeLinear(r, scale, zero)
        y = DequantizeLinear(q, scale, zero) }"""
    model, near, far = (parse(text.replace("{K}", k)) for k in ("{0.5}", "{0.5000001}", "{0.7}"))
    for proto in (model, near, far):
        proto.graph.initializer.append(numpy_helper.from_array(np.array([-1]), "flat"))
    ties = {"x": ((np.arange(64) - 32 + 0.5) * 0.125).astype(np.float32)}
    report = check(model, near, inputs=ties)
    assert report.passed
    assert report.widened
    output = report.runs[0].outputs[0]
    assert output.error == 0.125  # one step of the quantization
    assert output.limit == 0.25
    assert not check(model, far, inputs=ties).passed
    checked = api.optimize(model, inputs=ties).report.validation
    assert checked is not None
    assert "group by group without the library" in [run.name for run in checked.runs]


def test_a_quantized_model_without_real_inputs_is_shaken_by_its_weights() -> None:
    text = """g (int64[N] i) => (float[N] y) <float k = {K}, float scale = {0.125}, uint8 zero = {128}> {
        x = Gather(table, i)  a = Mul(x, k)  b = Add(a, a)  q = QuantizeLinear(b, scale, zero)
        y = DequantizeLinear(q, scale, zero) }"""
    model, near, far = (parse(text.replace("{K}", k)) for k in ("{0.5}", "{0.5000001}", "{0.7}"))
    for proto in (model, near, far):
        ties = ((np.arange(64) - 32 + 0.5) * 0.125).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(ties, "table"))
    everything = {"i": np.arange(64)}
    assert check(model, near, inputs=everything).passed
    assert not check(model, far, inputs=everything).passed


def test_inputs_that_give_nan_are_replaced_by_positive_ones() -> None:
    model = parse("g (float[N] x) => (float[N] y) { a = Neg(x)  b = Neg(a)  l = Log(b)  y = Neg(l) }")
    wrong = parse("g (float[N] x) => (float[N] y) { a = Neg(x)  b = Neg(a)  l = Log(b)  y = Abs(l) }")
    report = check(model, wrong)
    assert report.runs[0].outputs[0].differing > 1


def test_no_input_that_runs_says_what_to_pass() -> None:
    model = parse("g (float[N, M] x) => (float[3, 7, 11] y) <int64[3] s = {3, 7, 11}> { y = Reshape(x, s) }")
    with pytest.raises(UsageError, match="made-up inputs") as error:
        check(model, model)
    assert "--inputs" in (error.value.hint or "")
    assert check(model, model, shapes={"x": (21, 11)}).passed


def test_optimize_then_checks_the_groups_one_by_one() -> None:
    model = parse("g (float[N, M] x) => (float[3, 7, 11] y) <int64[3] s = {3, 7, 11}> "
                  "{ a = Mul(x, x)  b = Add(a, x)  y = Reshape(b, s) }")
    report = api.optimize(model).report.validation
    assert report is not None
    assert report.method == "oracle"
    assert report.passed
    assert "no made-up inputs" in report.warnings[0]
    assert "--inputs" in report.warnings[0]
    with pytest.raises(UsageError, match="on these inputs"):
        api.optimize(model, shapes={"x": (20, 11)})
    checked = api.optimize(model, shapes={"x": (21, 11)}).report.validation
    assert checked is not None
    assert checked.method == "runtime"


def test_where_the_runtime_breaks_the_original_the_fused_model_is_run_as_it_stands() -> None:
    """The runtime's Relu-Clip fusion refuses a float64 bound; the original fails there as the fused model does."""
    original = models.parse("""<ir_version: 8, opset_import: ["" : 17]>
        g (double[N] x) => (double[N] y) <double low = {-1.0}> { [abs] a = Abs(x)  [neg] n = Neg(a)
        [soft] c = CumSum(n, axis)  [relu] r = Relu(c)  [clip] y = Clip(r, low) }""")
    original.graph.initializer.append(numpy_helper.from_array(np.array(0), "axis"))
    report = check(original, fuse(original))
    assert report.passed
    assert any("own optimizations break the original" in line for line in report.warnings)


def test_decisions_may_differ_only_if_what_they_are_made_from_agrees() -> None:
    original = parse("""g (float[N, 8] x) => (int64[N, 1] best) <float k = {0.5}, int64 axis = {0}> {
        [mul] a = Mul(x, k)  [add] b = Add(a, x)  s = CumSum(b, axis)  best = ArgMax<axis = 1>(s) }""")
    fused = fuse(original)
    assert check(original, fused).passed
    wrong = copy.deepcopy(fused)
    node = next(n for n in wrong.graph.node if n.op_type == "ArgMax")
    node.op_type = "ArgMin"
    tie = check(original, wrong)  # the floats agree: to the check it looks like ties
    assert tie.passed
    assert [output.name for output in tie.reported] == ["best"]
    body = next(n for f in fused.functions for n in f.node if n.op_type == "Add")
    body.op_type = "Sub"
    report = check(original, fused)
    assert not report.passed
    assert "output 's' differs at" in report.failure()
    assert "replaces mul, add" in report.first_group


# ---------------------------------------------------------------- the runtime cannot run the original


FOREIGN = """g (float[N, 4] x) => (float[N, 4] y) <float a = {0.5}> {
    [mul1] m = Mul(x, a)  [add1] n = Add(m, x)  y = nobody.Knows(n) }"""


def test_groups_are_checked_by_the_oracle_where_the_original_cannot_run() -> None:
    original = parse(FOREIGN, more=', "nobody" : 1')
    result = api.optimize(original)
    report = result.report.validation
    assert report is not None
    assert report.method == "oracle"
    assert report.passed
    assert "1 of 1 groups were checked one by one" in report.warnings[0]
    wrong = copy.deepcopy(result.model)
    program = next(a for a in fused_nodes(wrong)[0].attribute if a.name == "program")
    program.s = program.s.replace(b"add.f32", b"sub.f32")
    spoiled = check_groups(Subject.of(original), Subject.of(wrong), "no such op")
    assert not spoiled.passed
    assert "replaces mul1, add1" in spoiled.first_group


def test_the_oracle_finds_shapes_for_channels_and_types() -> None:
    original = parse("""g (float[N, 3, H, W] x, int32[N] k) => (float[N, 3, H, W] y, int32[N] j)
        <float[3] s = {1, 2, 3}> {
        n = QuantizeLinear<axis = 1>(x, s)  r = DequantizeLinear<axis = 1>(n, s)  u = nobody.Knows(r)  y = Identity(u)
        p = Mul(k, k)  j = Add(p, k) }""", more=', "nobody" : 1')
    report = api.optimize(original).report.validation
    assert report is not None
    assert report.passed
    assert len(report.runs[0].outputs) == 2
    assert len(report.warnings) == 1
