"""Guessed sizes: inputs of many symbolic dims stay small enough to be made."""

from __future__ import annotations

import math

import onnx
import pytest

from onnxfuse.check.inputs import InputSpec
from onnxfuse.check.sizes import ATTEMPTS, LARGEST, Attempt, assign


def spec(name: str, *dims: int | str) -> InputSpec:
    return InputSpec(name, "tensor", onnx.TensorProto.FLOAT, dims)


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_high_ranks(attempt: Attempt) -> None:
    """No input has more than LARGEST elements; equal symbols stay equal, sizes that are given stay as they are."""
    specs = [spec("x", *(f"d{k}" for k in range(9))), spec("y", "d7", "d8"), spec("z", 5, "rows")]
    sizes = assign(specs, attempt, {"d0": 7}, {})
    assert math.prod(sizes["x"]) <= LARGEST
    assert min(sizes["x"]) >= 1
    assert sizes["x"][0] == 7
    assert sizes["y"] == sizes["x"][7:]
    assert sizes["z"][0] == 5


def test_equal_sizes_stay_equal() -> None:
    equal = next(a for a in ATTEMPTS if a.batch == a.sequence == a.side == a.other == 8)
    (shape,) = assign([spec("x", *(f"d{k}" for k in range(9)))], equal, {}, {}).values()
    assert set(shape) == {4}


def test_arithmetic_dims() -> None:
    sizes = assign([spec("y", "seq"), spec("x", *["seq*seq"] * 3)], ATTEMPTS[0], {}, {})
    assert math.prod(sizes["x"]) <= LARGEST
    assert sizes["x"][0] == sizes["y"][0] ** 2


def test_what_is_given_is_not_cut() -> None:
    large = {"d0": 1 << 13, "d1": 1 << 13}
    specs = [spec("x", "d0", "d1"), spec("y", 1 << 25), spec("z", "a", "b")]
    sizes = assign(specs, ATTEMPTS[0], large, {"z": (1 << 13, 1 << 13)})
    assert sizes == {"x": (1 << 13, 1 << 13), "y": (1 << 25,), "z": (1 << 13, 1 << 13)}


def test_usual_inputs_are_left_alone() -> None:
    specs = [spec("image", "batch", 3, "height", "width"), spec("ids", "batch", "sequence")]
    for attempt in ATTEMPTS:
        sizes = assign(specs, attempt, {}, {})
        assert sizes["image"] == (attempt.batch, 3, attempt.side, attempt.side)
        assert sizes["ids"] == (attempt.batch, attempt.sequence)
