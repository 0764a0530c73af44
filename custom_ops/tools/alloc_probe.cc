// Preloaded (LD_PRELOAD), it counts the heap allocations that libonnxfuse itself asks for; those of others pass through.
// tests/custom_ops/test_allocations.py reads the count.
#include <dlfcn.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <new>

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
}

namespace {

std::atomic<unsigned long> allocations{0};

void count(const void* caller) noexcept {
  Dl_info where;
  if (dladdr(caller, &where) != 0 && where.dli_fname != nullptr && std::strstr(where.dli_fname, "libonnxfuse") != nullptr)
    ++allocations;
}

void* or_throw(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

#define CALLER __builtin_return_address(0)

extern "C" {

unsigned long onnxfuse_allocations() { return allocations; }

void* malloc(size_t size) {
  count(CALLER);
  return __libc_malloc(size);
}

void* calloc(size_t number, size_t size) {
  count(CALLER);
  return __libc_calloc(number, size);
}

void* realloc(void* memory, size_t size) {
  count(CALLER);
  return __libc_realloc(memory, size);
}

void* aligned_alloc(size_t alignment, size_t size) {
  count(CALLER);
  return __libc_memalign(alignment, size);
}

int posix_memalign(void** memory, size_t alignment, size_t size) {
  count(CALLER);
  *memory = __libc_memalign(alignment, size);
  return *memory == nullptr ? ENOMEM : 0;
}

}  // extern "C"

void* operator new(size_t size) {
  count(CALLER);
  return or_throw(__libc_malloc(size));
}

void* operator new[](size_t size) {
  count(CALLER);
  return or_throw(__libc_malloc(size));
}

void* operator new(size_t size, std::align_val_t alignment) {
  count(CALLER);
  return or_throw(__libc_memalign(static_cast<size_t>(alignment), size));
}

void* operator new[](size_t size, std::align_val_t alignment) {
  count(CALLER);
  return or_throw(__libc_memalign(static_cast<size_t>(alignment), size));
}
