// Threads that wait for the next piece of work by spinning, for a millisecond, and sleep then: what a benchmark of two
// threads wants, where starting one would take longer than the work.
#pragma once

#include <cstddef>

namespace onnxfuse::bench {

constexpr size_t kMostThreads = 64;

// Calls work(user, 0) ... work(user, total - 1) on `threads` threads, of which the calling one is the first; each takes
// the next index as soon as it is done. `work` does not throw. One call at a time; others wait.
void parallel(size_t threads, size_t total, void (*work)(void* user, size_t index), void* user);

}  // namespace onnxfuse::bench
