"""Sessions in a process of their own, for child.py: it takes calls from its input and answers them on its output.

    python -m tests.cuda.serve PROVIDER LIBRARY
"""

from __future__ import annotations

import ctypes
import os
import pickle
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnxruntime as ort

PROVIDER = "CUDAExecutionProvider"
Feeds = Mapping[str, np.ndarray]


def _device() -> Any:
    """The GPU. The name "cuda" alone means that of NVIDIA in some builds of the runtime only."""
    return ort.OrtDevice.make("gpu", 0, 0x10DE)._get_c_device()


class Server:
    """What a child can do. Errors go back to the caller."""

    def __init__(self, provider: str, library: str) -> None:
        self._library = library
        self._sessions: dict[str, ort.InferenceSession] = {}
        self._kept: list[Any] = []
        if provider:
            ort.register_execution_provider_library(PROVIDER, provider)

    def environment(self, values: Mapping[str, str]) -> None:
        """Sets variables for what the stand-in driver reads at each call."""
        os.environ.update(values)

    def create(
        self, name: str, model: bytes, *, gpu: bool = True, library: bool = True, pattern: bool = False,
        save: str | None = None, names: str | None = None, device: str | None = None,
    ) -> list[str]:  # fmt: skip
        """A session under a name; its providers. `pattern`: tensors share blocks of memory."""
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.enable_mem_pattern = pattern
        if save is not None:
            options.optimized_model_filepath = save
        if names is not None:
            options.add_session_config_entry("onnxfuse.names", names)
        if device is not None:
            options.add_session_config_entry("onnxfuse.device", device)
        if library:
            options.register_custom_ops_library(self._library)
        if gpu:
            options.add_provider_for_devices([d for d in ort.get_ep_devices() if d.ep_name == PROVIDER], {})
        providers = None if gpu else ["CPUExecutionProvider"]
        self._sessions[name] = ort.InferenceSession(model, options, providers=providers, enable_fallback=0)
        return list(self._sessions[name].get_providers())

    def drop(self, name: str | None = None) -> None:
        """Ends a session, or all of them."""
        if name is None:
            self._kept.clear()
        for one in [name] if name is not None else list(self._sessions):
            del self._sessions[one]

    def run(self, name: str, feeds: Feeds) -> list[np.ndarray]:
        """All outputs."""
        return list(self._sessions[name].run(None, dict(feeds)))

    def run_many(self, name: str, feeds: list[Feeds], threads: int) -> list[list[np.ndarray]]:
        """The outputs for each of the feeds, by several threads at once."""
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(lambda one: self.run(name, one), feeds))

    def lives(self, model: bytes, feeds: list[Feeds], threads: int) -> list[list[np.ndarray]]:
        """The outputs for each of the feeds, by sessions of their own that come and go in several threads at once."""

        def one(number: int) -> list[np.ndarray]:
            name = f"life {number}"
            self.create(name, model)
            outputs = self.run(name, feeds[number])
            self.drop(name)
            return outputs

        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(one, range(len(feeds))))

    def device_value(self, name: str, feeds: Feeds) -> tuple[int, np.ndarray]:
        """Leaves the output y of a run in device memory: its address, and the values."""
        binding = self._sessions[name].io_binding()
        for one, value in feeds.items():
            binding.bind_cpu_input(one, value)
        binding._iobinding.bind_output("y", _device())
        self._sessions[name].run_with_iobinding(binding)
        self._kept.append(binding)
        return binding.get_outputs()[0].data_ptr(), binding.copy_outputs_to_cpu()[0]

    def run_at(self, name: str, inputs: Mapping[str, tuple[int, tuple[int, ...]]], output: tuple[int, tuple[int, ...]],
               **more: np.ndarray) -> np.ndarray:  # fmt: skip
        """The output y of a run whose float32 inputs and output lie at addresses on the device, `more` on the CPU."""
        binding = self._sessions[name].io_binding()
        for one, (address, shape) in inputs.items():
            binding._iobinding.bind_input(one, _device(), np.float32, shape, address)
        for one, value in more.items():
            binding.bind_cpu_input(one, value)
        binding._iobinding.bind_output("y", _device(), np.float32, output[1], output[0])
        self._sessions[name].run_with_iobinding(binding)
        return np.asarray(binding.copy_outputs_to_cpu()[0])

    def peek(self, address: int) -> bytes:
        """Reads memory as the host does."""
        return ctypes.string_at(address, 1)


def main() -> None:
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # what the runtime prints is no answer
        server = Server(*sys.argv[1:])
        while True:
            try:
                verb, arguments, more = pickle.load(sys.stdin.buffer)
            except EOFError:
                return
            try:
                answer = (True, getattr(server, verb)(*arguments, **more))
            except Exception as error:
                answer = (False, str(error))
            pickle.dump(answer, answers)
            answers.flush()


if __name__ == "__main__":
    main()
