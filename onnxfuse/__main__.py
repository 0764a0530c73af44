"""`python -m onnxfuse`."""

from __future__ import annotations

from onnxfuse.cli import main

if __name__ == "__main__":
    main()
