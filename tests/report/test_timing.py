"""The timing module: who is called how often, and the arithmetic of ratios. No times are judged here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from onnx import parser

from onnxfuse import timing
from onnxfuse.check import sessions
from onnxfuse.check.subject import Subject
from onnxfuse.errors import UsageError
from onnxfuse.timing import bind, interleave, measure, ratio


def test_ratios_are_taken_pair_by_pair() -> None:
    found = ratio([2.0, 40.0, 6.0], [1.0, 10.0, 2.0])
    assert found.median == 3.0
    assert found.low == pytest.approx(2.2)
    assert found.high == pytest.approx(3.8)
    assert found.text() == "3.00 (2.20-3.80)"


def test_calls_take_turns_and_none_follows_itself() -> None:
    log: list[str] = []

    def call(name: str) -> Callable[[], None]:
        def run() -> None:
            log.append(name)
            time.sleep(3e-3)  # much longer than what is repeated within a round

        return run

    times = interleave([call("a"), call("b"), call("c")], 0.0, warm_up=0.0)
    assert [len(own) for own in times] == [5, 5, 5]
    assert "".join(log[-15:]) == "abcbcacababcbca"


def test_short_calls_are_repeated_within_a_round() -> None:
    count = 0

    def run() -> None:
        nonlocal count
        count += 1

    times = interleave([run], 0.0, warm_up=0.02)
    assert len(times[0]) == 5
    assert count > 100


def test_what_repeats_itself_is_asked_once_a_round_each_as_often_as_it_needs() -> None:
    class Native:
        def __init__(self, seconds: float) -> None:
            self.seconds = seconds
            self.asked: list[int] = []

        def run(self, repeat: int) -> None:
            self.asked.append(repeat)
            if self.seconds:
                time.sleep(self.seconds * repeat)

    slow, fast = Native(1e-3), Native(0.0)
    times = interleave([slow, fast], 0.0, warm_up=0.02)
    assert [len(own) for own in times] == [5, 5]
    assert slow.asked[-5:] == [1] * 5
    assert len(set(fast.asked[-5:])) == 1
    assert fast.asked[-1] > 1


def test_threads_that_spin_after_their_work_come_to_rest_before_the_next_subject(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moments = 0  # for which a thread still spins

    def share() -> float:
        nonlocal moments
        moments = max(0, moments - 1)
        return 1.0 if moments else 0.0

    def leaves_a_thread() -> None:
        nonlocal moments
        moments = 10

    monkeypatch.setattr("onnxfuse.timing._idle_share", share)
    seen: list[int] = []
    interleave([leaves_a_thread, lambda: seen.append(moments)], 0.0, warm_up=0.0)
    assert seen
    assert set(seen) == {0}


def test_a_thread_that_spins_is_seen() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=lambda: [None for _ in iter(stop.is_set, True)])
    thread.start()
    try:
        assert max(timing._idle_share() for _ in range(50)) > 0.0
    finally:
        stop.set()
        thread.join()


ADD = '<ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (float[N] y) { y = Add(x, x) }'
WORDS = '<ir_version: 8, opset_import: ["" : 17]> g (string[N] x) => (string[N] y) { y = Identity(x) }'


def test_a_bound_call_runs_the_session() -> None:
    session = sessions.create(parser.parse_model(ADD), optimize=True)
    bind(session, {"x": np.ones(3, np.float32)})()
    words = sessions.create(parser.parse_model(WORDS), optimize=True)
    assert bind(words, {"x": np.array(["a"], object)})()["y"].tolist() == ["a"]  # type: ignore[index]


def test_measure_gives_a_row_for_each_model_and_number_of_threads() -> None:
    subject = Subject.of(parser.parse_model(ADD))
    report = measure([subject, subject], None, {"x": (5,)}, 0, [1, 2], 0.01)
    assert [row.threads for row in report.rows] == [1, 1, 2, 2]
    assert sorted(report.noise) == [1, 2]
    assert dict(report.inputs) == {"x": "float32[5]"}
    with pytest.raises(UsageError, match="from 1 to 1024"):
        measure([subject], None, None, 0, [0], 0.01)
