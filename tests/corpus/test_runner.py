"""What the runner of the corpus calls a problem, and what its table says."""

from __future__ import annotations

from collections import Counter

from tests.long.corpus import Row, document, table, with_library, without_library

BLOCKED = "com.microsoft.nchwc"
BEFORE = Counter(
    {("", "Mul"): 4, ("com.microsoft", "QuickGelu"): 2, ("com.microsoft", "BiasGelu"): 3, (BLOCKED, "ReorderOutput"): 1}
)


def moved(**counts: int) -> Counter[tuple[str, str]]:
    """BEFORE with other numbers."""
    domains = {op: domain for domain, op in BEFORE} | {"ReorderInput": BLOCKED}
    return Counter({**BEFORE, **{(domains.get(op, ""), op): count for op, count in counts.items()}})


def test_without_the_library_every_difference_counts() -> None:
    assert without_library(BEFORE, moved()) == []
    assert without_library(BEFORE, moved(Mul=3, Exp=1)) == ["without the library ORT's graph differs: Exp +1, Mul -1"]


def test_with_the_library_elementwise_nodes_and_quick_gelu_may_go() -> None:
    assert with_library(BEFORE, moved(Mul=0, QuickGelu=0, FusedElementwise1=2)) == []


def test_with_the_library_fused_ops_may_not_go() -> None:
    assert with_library(BEFORE, moved(BiasGelu=2)) == ["with the library BiasGelu 3 -> 2"]


def test_with_the_library_no_reorder_and_no_transpose_may_come() -> None:
    assert with_library(BEFORE, moved(ReorderOutput=2)) == ["with the library ReorderOutput 1 -> 2"]
    assert with_library(BEFORE, moved(ReorderInput=1)) == ["with the library ReorderInput 0 -> 1"]
    assert with_library(BEFORE, moved(Transpose=1)) == ["with the library Transpose 0 -> 1"]


def test_normalizations_are_counted_together() -> None:
    part, whole = Counter({("", "SimplifiedLayerNormalization"): 1}), Counter({("", "LayerNormalization"): 1})
    assert with_library(part, whole) == []
    assert with_library(whole, Counter()) == ["with the library normalizations 1 -> 0"]


def test_table_and_document() -> None:
    good = Row("good", "skeleton", 9, 4, 2, 1, 7, 1, 2, {"single": 2, "constant": 1}, 1.5e-7, ["a | b"])
    bad = Row("bad", "skeleton", problems=["process ended with -11: "])
    lines = table([good, bad]).splitlines()
    assert lines[2] == "| good | 9 | 4 | 2 | 1 | 7 | 3 | single 2 | 2 in 1 | 1.5e-07 | a \\| b |"
    assert lines[3].endswith("| **process ended with -11: ** |")
    text = document([good, bad])
    assert "2 models, 1 of them with\nfused nodes: 7 ops in 2 fused nodes, 3 elementwise ops left alone" in text
    assert "On a GPU alone 2 of those are fused, too, into 1 nodes." in text
    assert "| single | 2 |\n| constant | 1 |" in text
