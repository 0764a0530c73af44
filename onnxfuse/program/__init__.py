"""The program format: instructions, text, verification and reference evaluation. Knows nothing of ONNX."""
