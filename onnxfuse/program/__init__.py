"""The program format: instructions, text, verification and reference evaluation. Knows nothing of ONNX."""

from __future__ import annotations

from onnxfuse.program.builder import Builder
from onnxfuse.program.instructions import INSTRUCTIONS, Instruction
from onnxfuse.program.parts import Input, ProgramError, Statement
from onnxfuse.program.program import Program

__all__ = ["INSTRUCTIONS", "Builder", "Input", "Instruction", "Program", "ProgramError", "Statement"]
