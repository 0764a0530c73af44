"""Comparison rules: what passes, what fails, and what the message says."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from onnxfuse.check.compare import REPORTED, STEPS, Comparison, Tolerance, compare, largest_move

TOLERANCE = Tolerance(rtol=1e-4, atol=1e-6)


def one(got: Any, want: Any, **options: Any) -> Comparison:
    results = compare("y", got, want, TOLERANCE, **options)
    assert len(results) == 1
    return results[0]


def test_error_is_relative_to_the_largest_value_of_the_output() -> None:
    want = np.array([1e-3, -100.0], np.float32)
    near = want + np.array([0.0099, 0], np.float32)  # 10 times the element, 1e-4 of the largest
    assert one(near, want).passed
    assert one(near, want).relative == pytest.approx(0.0099 / 100, rel=1e-3)
    far = one(want + np.array([0.0102, 0], np.float32), want)
    assert not far.passed
    assert far.index == (0,)


def test_message_names_output_index_and_both_values() -> None:
    want = np.zeros((2, 3), np.float32) + 1
    got = want.copy()
    got[1, 2] = 1.5
    text = one(got, want).text()
    assert "output 'y' differs at [1, 2]: got 1.5, expected 1.0" in text
    assert "1 of 6 elements" in text


def test_the_worst_element_is_named_not_the_first() -> None:
    want = np.ones(4, np.float32)
    assert one(np.array([1.1, 1, 3, 1.2], np.float32), want).index == (2,)


@pytest.mark.parametrize(
    ("got", "want"),
    [([np.nan, 1], [1, 1]), ([1, 1], [np.nan, 1]), ([np.inf, 1], [-np.inf, 1]), ([np.inf, 1], [9, 1])],
)
def test_nan_and_infinity_must_stand_in_the_same_places(got: list[float], want: list[float]) -> None:
    result = one(np.array(got, np.float64), np.array(want, np.float64))
    assert not result.passed
    assert result.index == (0,)


def test_equal_nan_and_infinity_pass() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 2.0], np.float32)
    assert one(values.copy(), values).passed


def test_integers_must_be_equal() -> None:
    want = np.array([1, 2, 3])
    result = one(np.array([1, 2, 4]), want)
    assert not result.passed
    assert (result.got, result.want) == ("4", "3")


def test_large_integers_are_not_compared_as_floats() -> None:
    want = np.array([2**62 + 1])
    assert not one(want - 1, want).passed


def test_rounded_integers_may_be_one_step_off() -> None:
    want = np.array([100, -100], np.int16)
    assert one(want + np.int16(1), want, rule=STEPS).passed
    assert not one(want + np.int16(2), want, rule=STEPS).passed


def test_decisions_are_reported_not_failed() -> None:
    result = one(np.array([0, 1, 1, 0]), np.array([0, 1, 0, 0]), rule=REPORTED)
    assert result.passed
    assert result.differing == 1
    assert result.share == 0.25


def test_another_shape_or_type_fails() -> None:
    want = np.zeros((2, 3), np.float32)
    assert "shape is [3, 2], expected [2, 3]" in one(want.T, want).text()
    assert "element type is float64, expected float32" in one(want.astype(np.float64), want).text()
    assert one(want[:1], want, free_shape=True).passed


def test_a_quantized_model_may_move_twice_as_far_as_the_runtime_moves_it() -> None:
    want = np.ones(3, np.float32)
    got = want + np.float32(0.019)
    assert not one(got, want).passed
    assert one(got, want, moved=0.01).passed
    assert not one(got, want, moved=0.009).passed
    assert largest_move(got, want) == pytest.approx(0.019, rel=1e-5)


def test_bfloat16_and_float16() -> None:
    for dtype in (ml_dtypes.bfloat16, np.float16):
        want = np.array([1, 2], dtype)
        assert one(want, want).passed
        assert not one(want + np.array([0, 0.5], dtype), want).passed


def test_strings_sequences_maps_and_empty_optionals() -> None:
    words = np.array(["a", "b"], object)
    assert one(words, words.astype(str)).passed
    assert "got 'b', expected 'a'" in one(words[::-1].copy(), words).text()
    assert [r.name for r in compare("y", [words, words], [words, words], TOLERANCE)] == ["y[0]", "y[1]"]
    assert not one([words], [words, words]).passed
    assert one({1: 0.5}, {1: 0.5}).passed
    assert not one({1: 0.5}, {2: 0.5}).passed
    assert one(None, None).passed
    assert not one(None, words).passed


def test_empty_and_scalar_values() -> None:
    assert one(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)).passed
    result = one(np.float32(1), np.float32(2))
    assert not result.passed
    assert "output 'y' differs: got 1.0, expected 2.0" in result.text()
