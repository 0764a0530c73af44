"""What GPU is here: asked of the driver, without anything of CUDA installed."""

from __future__ import annotations

import ctypes

from onnxfuse.errors import SetupError

_MAJOR, _MINOR = 75, 76  # attributes of a device


def architecture_of_this_machine() -> int:
    """Compute capability of the first GPU, such as 80. Raises SetupError where there is none."""
    name = "nvcuda.dll" if hasattr(ctypes, "WinDLL") else "libcuda.so.1"
    try:
        driver = ctypes.CDLL(name)
    except OSError:
        raise SetupError(f"no CUDA driver is installed here ({name})",
                         hint="name the architectures: --cuda-arch 80,90") from None  # fmt: skip
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    code = driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0)
    code = code or driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
    code = code or driver.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
    if code:
        raise SetupError(f"the CUDA driver finds no GPU (error {code})",
                         hint="name the architectures: --cuda-arch 80,90")  # fmt: skip
    return 10 * major.value + minor.value
