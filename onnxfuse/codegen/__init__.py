"""Program -> CUDA C++ -> machine code, ahead of time and without a GPU. Knows nothing of graphs."""

from onnxfuse.codegen.build import DEFAULT, Compiler, Kernels
from onnxfuse.codegen.kernels import Shape, emit, shape_of

__all__ = ["DEFAULT", "Compiler", "Kernels", "Shape", "emit", "shape_of"]
