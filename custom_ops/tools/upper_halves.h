// The upper halves of the vector registers of x86-64. Vector code that returns with them in use (without vzeroupper)
// makes the caller's own SSE code two to three times slower. On other processors there is nothing to ask.
#pragma once

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace onnxfuse::upper_halves {

#if defined(__x86_64__)

// State component 2 (AVX) of XINUSE. Processors that do not tell (CPUID.(EAX=0DH,ECX=1):EAX[2]) say no.
inline bool tracked_in_use() noexcept {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c >> 27 & 1) == 0) return false;  // OSXSAVE
  if (__get_cpuid_count(0xd, 1, &a, &b, &c, &d) == 0 || (a >> 2 & 1) == 0) return false;
  unsigned low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(1));
  return (low >> 2 & 1) != 0;
}

// Whether any of them is not zero. The processor's own note comes on top of it: Intel's stays set for zeros that were
// computed, AMD's does not.
__attribute__((target("avx"), noinline)) inline bool hold_anything() noexcept {
  alignas(16) unsigned char halves[16][16];
  __asm__ volatile(
      "vextractf128 $1, %%ymm0, 0(%0)\n\tvextractf128 $1, %%ymm1, 16(%0)\n\t"
      "vextractf128 $1, %%ymm2, 32(%0)\n\tvextractf128 $1, %%ymm3, 48(%0)\n\t"
      "vextractf128 $1, %%ymm4, 64(%0)\n\tvextractf128 $1, %%ymm5, 80(%0)\n\t"
      "vextractf128 $1, %%ymm6, 96(%0)\n\tvextractf128 $1, %%ymm7, 112(%0)\n\t"
      "vextractf128 $1, %%ymm8, 128(%0)\n\tvextractf128 $1, %%ymm9, 144(%0)\n\t"
      "vextractf128 $1, %%ymm10, 160(%0)\n\tvextractf128 $1, %%ymm11, 176(%0)\n\t"
      "vextractf128 $1, %%ymm12, 192(%0)\n\tvextractf128 $1, %%ymm13, 208(%0)\n\t"
      "vextractf128 $1, %%ymm14, 224(%0)\n\tvextractf128 $1, %%ymm15, 240(%0)\n\t"
      :
      : "r"(halves)
      : "memory");
  unsigned char any = 0;
  for (const auto& half : halves)
    for (unsigned char byte : half) any |= byte;
  return any != 0;
}

__attribute__((noinline)) inline bool in_use() noexcept {
  return __builtin_cpu_supports("avx") && (tracked_in_use() || hold_anything());
}

// To be called before what is judged, as others may have left them in use.
inline void clear() noexcept {
  if (__builtin_cpu_supports("avx")) __asm__ volatile("vzeroupper" ::: "memory");
}

// Puts something there; for the test of the test.
__attribute__((target("avx"), noinline)) inline void soil() noexcept {
  const unsigned char ones[32] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                  1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  __asm__ volatile("vmovups (%0), %%ymm7" : : "r"(ones) : "memory");
}

#else

inline bool in_use() noexcept { return false; }
inline void clear() noexcept {}

#endif

}  // namespace onnxfuse::upper_halves
