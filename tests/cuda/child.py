"""A process with the stand-ins in its environment, which runs sessions for a test, and the log of its driver."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tests.cuda.build import Standin

Array = np.ndarray[Any, Any]
DEFAULTS = {"STANDIN_CC": "80", "STANDIN_FAIL": "", "STANDIN_CURRENT": ""}


class Refused(Exception):
    """What a call in the child raised."""


@dataclasses.dataclass(frozen=True)
class Launch:
    """`over`: the input, such as "x0", whose place the first output takes, or "-"."""

    module: int
    kernel: str
    grid: tuple[int, int]
    block: tuple[int, int]
    stream: str
    over: str


class Child:
    """`driver` is the folder of libcuda.so.1, if there is to be one; `provider=None`: none is registered. `history` has
    all lines that `lines` gave."""

    def __init__(
        self, standin: Standin, library: str, images: Path, log: Path, root: Path, *, driver: Path | None,
        provider: Path | None, **more: str,
    ) -> None:  # fmt: skip
        self._log, self._errors, self._seen = log, log.with_suffix(".stderr"), 0
        self.history: list[str] = []
        log.touch()
        environment = dict(os.environ) | DEFAULTS | {
            "STANDIN_LOG": str(log), "STANDIN_MAP": str(images), "STANDIN_PROVIDER": str(standin.provider), **more,
        }  # fmt: skip
        environment.pop("LD_LIBRARY_PATH", None)
        if driver is not None:
            environment["LD_LIBRARY_PATH"] = str(driver)
        self._stderr = self._errors.open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-m", "tests.cuda.serve", str(provider or ""), library],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, cwd=root, env=environment,
        )  # fmt: skip

    def call(self, verb: str, *arguments: Any, **more: Any) -> Any:
        """A method of the server. Raises Refused with what it raises, AssertionError where the process ends."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            pickle.dump((verb, arguments, more), self._process.stdin)
            self._process.stdin.flush()
            done, answer = pickle.load(self._process.stdout)
        except (EOFError, BrokenPipeError):
            code = self._process.wait()
            raise AssertionError(f"the process ended with {code}:\n{self._errors.read_text()[-4000:]}") from None
        if not done:
            raise Refused(answer)
        return answer

    def environment(self, **values: str) -> None:
        self.call("environment", values)

    def create(self, name: str, model: onnx.ModelProto, **options: Any) -> list[str]:
        providers: list[str] = self.call("create", name, model.SerializeToString(), **options)
        return providers

    def drop(self, name: str | None = None) -> None:
        self.call("drop", name)

    def run(self, name: str, /, **feeds: Array) -> list[Array]:
        outputs: list[Array] = self.call("run", name, feeds)
        return outputs

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def lines(self) -> list[str]:
        """What the driver has logged since this was asked last."""
        text = self._log.read_text(encoding="utf-8")
        new, self._seen = text[self._seen :].splitlines(), len(text)
        self.history += new
        return new

    def close(self) -> int:
        """The end of the process; its exit status."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        code = self._process.wait(60)
        self._process.stdout.close()
        self._stderr.close()
        return code


def launches(lines: list[str]) -> list[Launch]:
    """The launches among lines of the log."""
    found = []
    for line in lines:
        match = re.fullmatch(r"launch (\d+) (\w+) grid (\d+) (\d+) block (\d+) (\d+) stream (\S+) over (\S+)", line)
        if match:
            module, kernel, *sizes, stream, over = match.groups()
            a, b, c, d = (int(s) for s in sizes)
            found.append(Launch(int(module), kernel, (a, b), (c, d), stream, over))
    return found


def loaded(lines: list[str]) -> list[str]:
    """The images that were loaded, such as "cubin 80"."""
    return [" ".join(line.split()[1:3]) for line in lines if line.startswith("load ")]


def count(lines: list[str], verb: str) -> int:
    """The calls of one kind."""
    return sum(line.split()[0] == verb for line in lines)
