"""The measuring of errors itself (tests/long/exhaustive.py), and every float instruction on a small part of its
operands, on the machine."""

from __future__ import annotations

from pathlib import Path

import mpmath
import numpy as np
import pytest

from tests.custom_ops.accuracy import Accuracy
from tests.custom_ops.accuracy_samples import all_of, few, special
from tests.custom_ops.machine import MachineLibrary
from tests.long import exhaustive


@pytest.fixture(scope="module")
def accuracy(test_library: Path) -> Accuracy:
    """The probe beside the test library."""
    return Accuracy(test_library.parent)


@pytest.mark.parametrize("question", exhaustive.questions(), ids=lambda q: q.label)
def test_bounds(question: exhaustive.Question, accuracy: Accuracy) -> None:
    """Every 65,521st float and special ones, all numbers of a half type, or special operands and some random ones."""
    arguments = "--step 65521 --samples 1 --block 20000 --threads 1"
    options = exhaustive.parser().parse_args(arguments.split())
    answer = exhaustive.ask(question, accuracy, options)
    assert answer.problems == []
    assert answer.count > 20000
    assert list(answer.errors) == accuracy.isas


def test_measure_is_right(accuracy: Accuracy, machine: MachineLibrary) -> None:
    """The largest error as mpmath finds it, and where."""
    x = np.linspace(-5, 5, 3001, dtype=np.float32)
    for isa in accuracy.isas:
        (got,) = machine.run("onnxfuse 1\nin x0 f32\nt0 = tanh.f32 x0\nout t0\n", [x], x.size, isa=isa)
        errors = []
        for value, result in zip(x.tolist(), got.tolist(), strict=True):
            true = mpmath.tanh(value)
            errors.append(float(abs(result - true) / mpmath.ldexp(1, mpmath.frexp(true)[1] - 24)) if true else 0.0)
        error = accuracy.measure("tanh", (x,), "f32", isas=[isa])[isa]
        assert error.ulp == pytest.approx(max(errors), abs=1e-6)
        assert error.at == (int(x[int(np.argmax(errors))].view(np.uint32)),)
        assert error.ulp > 1


def test_unknown_reference(accuracy: Accuracy) -> None:
    x = np.ones(3, np.float32)
    with pytest.raises(ValueError, match="there is no instruction"):
        accuracy.measure("and", (x, x), "f32")
    with pytest.raises(ValueError, match="no reference for sign"):
        accuracy.reference("sign", (x,), "f32")


def test_samples_are_special() -> None:
    for dtype in ("f32", "f64", "f16", "bf16"):
        with np.errstate(all="ignore"):
            values = special(dtype).astype(np.float64)
        assert np.isnan(values).any()
        assert {np.inf, -np.inf, 0.0, 0.5, 1.0, 2.5, -3.0} <= set(values.tolist())
        assert (np.signbit(values) & (values == 0)).any()
        assert np.unique(few(dtype).astype(np.float64)).size > 40
    assert np.isnan(all_of("f16").astype(np.float64)).sum() == 2046


def test_document(accuracy: Accuracy, test_library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows run later are put into the document that is there, in its order."""
    path = tmp_path / "accuracy.md"
    common = ["--build", str(test_library.parent), "--write", str(path), "--threads", "1"]
    assert exhaustive.main(["--instructions", "tanh.f16", "ceil.f16", *common]) == 0
    path.write_text(path.read_text(encoding="utf-8").replace("| exact |", "| exact. |"), encoding="utf-8")
    assert exhaustive.main(["--instructions", "neg.f16", "tanh.f16", *common]) == 0
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert [line.split("`")[1] for line in lines] == ["neg.f16", "tanh.f16", "ceil.f16"]
    assert "exact." not in lines[0]
    assert "exact." in lines[2]
    assert "3 rows" not in capsys.readouterr().out


def test_unknown_instruction() -> None:
    with pytest.raises(SystemExit, match="no such float instruction: tan8"):
        exhaustive.chosen(["exp", "tan8"])
