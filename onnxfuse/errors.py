"""Errors that a user can cause or mend, each with the exit code of the command line.

Everything that onnxfuse raises on purpose derives from `OnnxfuseError`. An exception of any other
kind that reaches the command line is our own fault (exit code 5).
"""

from __future__ import annotations

import os

__all__ = ["CheckFailed", "ModelError", "OnnxfuseError", "SetupError", "UsageError"]


class OnnxfuseError(Exception):
    """Base of all errors raised on purpose.

    `message` says what is wrong in one line, without the path; `path` is the file it is about;
    `hint` says in one line what to do about it, where there is something to do.
    """

    exit_code: int = 5

    def __init__(self, message: str, *, path: str | os.PathLike[str] | None = None, hint: str | None = None) -> None:
        self.message = message
        self.path: str | None = None if path is None else os.fspath(path)
        self.hint: str | None = hint
        super().__init__(message if self.path is None else f"{self.path}: {message}")


class CheckFailed(OnnxfuseError):
    """A check did not pass: outputs differ, or a bar was not met."""

    exit_code = 1


class UsageError(OnnxfuseError):
    """An option, an argument or a file of inputs does not fit."""

    exit_code = 2


class ModelError(OnnxfuseError):
    """The input file cannot be used as a model."""

    exit_code = 3


class SetupError(OnnxfuseError):
    """The environment cannot do it: runtime or library missing or too old, output cannot be written."""

    exit_code = 4
