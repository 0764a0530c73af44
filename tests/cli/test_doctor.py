"""What `doctor` finds, and what it advises."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from onnxfuse.cli import cli
from onnxfuse.codegen import nvjitlink, nvrtc
from onnxfuse.library import find_library
from onnxfuse.report import doctor


def found(what: str) -> doctor.Finding:
    return next(finding for finding in doctor.examine() if finding.what == what)


def test_the_table_names_versions_processor_and_providers() -> None:
    findings = {finding.what: finding.found for finding in doctor.examine()}
    assert list(findings)[:5] == ["onnxfuse", "Python", "onnx", "processor", "kernels"]
    assert "CPU" in findings["providers"]
    assert findings["ONNX Runtime"].startswith("onnxruntime")


def test_the_compiler_for_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its version and where compiled code is kept; without it how to get it, which is no fault; a broken one is."""
    if nvrtc.find() is not None:
        monkeypatch.setenv("ONNXFUSE_CUDA_CACHE", str(tmp_path))
        assert f"NVRTC {nvrtc.need().version}" in found("GPU compiler").found
        assert str(tmp_path) in found("GPU compiler").found
    for one in (nvrtc, nvjitlink):  # one without the other is none
        monkeypatch.setattr(one, "find", lambda: None)
        assert found("GPU compiler").ok
        assert "onnxfuse[cuda]" in found("GPU compiler").advice
        monkeypatch.undo()
    nvrtc.find.cache_clear()
    broken = tmp_path / "libnvrtc.so.12"
    broken.write_bytes(b"this is no library")
    monkeypatch.setenv("ONNXFUSE_NVRTC", str(broken))
    try:
        assert not found("GPU compiler").ok
        assert "ONNXFUSE_NVRTC" in found("GPU compiler").advice
    finally:
        nvrtc.find.cache_clear()


def test_two_runtimes_at_once_are_recognized(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        if package in ("onnxruntime", "onnxruntime-gpu"):
            return "1.31.1"
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "version", version)
    finding = found("ONNX Runtime")
    assert not finding.ok
    assert "overwrite each other" in finding.found
    assert "pip uninstall onnxruntime onnxruntime-gpu" in finding.advice


def test_a_library_that_does_not_load_is_told_and_is_4(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "libonnxfuse.so"
    broken.write_bytes(b"this is no library")
    monkeypatch.setenv("ONNXFUSE_LIBRARY", str(broken))
    finding = found("library loads")
    assert not finding.ok
    assert str(broken) in finding.advice
    result = CliRunner().invoke(cli, ["doctor"])
    assert result.exit_code == 4
    assert "to do: library loads" in result.output


def test_a_library_that_is_missing_is_4(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ONNXFUSE_LIBRARY", str(tmp_path / "none.so"))
    assert not found("library").ok
    assert CliRunner().invoke(cli, ["doctor"]).exit_code == 4


def test_a_wrong_instruction_set_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXFUSE_ISA", "mmx")
    assert not found("kernels").ok
    monkeypatch.setattr(doctor, "cpu_features", lambda: ["AVX2+FMA", "SSE2"])
    monkeypatch.setenv("ONNXFUSE_ISA", "avx2")
    assert found("kernels").ok
    monkeypatch.setenv("ONNXFUSE_ISA", "avx512")
    assert "unset" in found("kernels").advice
    monkeypatch.setattr(doctor, "cpu_features", list)
    assert found("kernels").ok


@pytest.mark.skipif(find_library() is None, reason="the library is not built")
def test_the_library_of_the_package_loads_and_computes() -> None:
    assert found("library loads").ok, found("library loads")
    result = CliRunner().invoke(cli, ["doctor"])
    assert result.exit_code == 0, result.output
    assert os.path.basename(str(find_library())) in result.output
