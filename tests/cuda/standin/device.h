// What the stand-in driver asks of the stand-in provider, which owns the memory and the streams of the device.
#pragma once

#include <cstddef>

extern "C" {
// Where the host reaches device memory; null unless all of it lies in one block that is allocated.
void* standin_host_address(const void* address, size_t bytes);
// Whether a stream of the provider has this handle.
bool standin_is_stream(const void* handle);
// Whether this thread is in a run of a session: while a CUDA graph is captured, nothing but launches is allowed.
bool standin_in_run();
}
