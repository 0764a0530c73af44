"""Program -> CUDA C++ -> machine code, ahead of time and without a GPU. Knows nothing of graphs."""

from onnxfuse.codegen.build import DEFAULT, Compiler, Kernels
from onnxfuse.codegen.kernels import Shape, emit, shape_of
from onnxfuse.codegen.native import architecture_of_this_machine

__all__ = ["DEFAULT", "Compiler", "Kernels", "Shape", "architecture_of_this_machine", "emit", "shape_of"]
