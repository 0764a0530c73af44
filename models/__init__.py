"""Scripts that bring real models from PyPI packages and run onnxfuse on them. Nothing large lives here."""
