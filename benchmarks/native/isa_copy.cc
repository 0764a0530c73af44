// Copy loops: every input is read once and every output written once, with next to no work between. What they reach is
// what memory gives a fused loop over the same tensors.
#include "loops.h"
#include "simd.h"

namespace onnxfuse {
inline namespace ONNXFUSE_ISA_NS {
namespace {

using bench::kStep;
using bench::Streams;

ONNXFUSE_INLINE void put(char* p, I32 v, [[maybe_unused]] bool streaming) {
#if defined(__x86_64__)
  if (streaming) {
    ONNXFUSE_MM(stream_ps)(reinterpret_cast<float*>(p), (F32)v);
    return;
  }
#endif
  store(p, v);
}

template <bool streaming, int inputs, int outputs>
void loop(const Streams& s, std::size_t begin, std::size_t end) {
  const char* in[inputs];
  std::size_t step[inputs];
  char* out[outputs];
  for (int k = 0; k < inputs; ++k) {
    in[k] = s.in[k];
    step[k] = s.in_step[k];
  }
  for (int k = 0; k < outputs; ++k) out[k] = s.out[k];
  for (std::size_t i = begin; i < end; ++i) {
#pragma GCC unroll 4
    for (std::size_t part = 0; part < kStep; part += kBytes) {
      // Narrower inputs overlap from step to step: more loads than need be, but all from the first cache.
      I32 v = {};
#pragma GCC unroll 8
      for (int k = 0; k < inputs; ++k) v |= load<I32>(in[k] + i * step[k] + (part < step[k] ? part : 0));
#pragma GCC unroll 2
      for (int k = 0; k < outputs; ++k) put(out[k] + i * kStep + part, v, streaming);
    }
  }
}

template <bool streaming, int outputs>
void with_inputs(const Streams& s, std::size_t begin, std::size_t end) {
  switch (s.inputs) {
    case 1: return loop<streaming, 1, outputs>(s, begin, end);
    case 2: return loop<streaming, 2, outputs>(s, begin, end);
    case 3: return loop<streaming, 3, outputs>(s, begin, end);
    case 4: return loop<streaming, 4, outputs>(s, begin, end);
    default: return loop<streaming, 5, outputs>(s, begin, end);
  }
}

template <bool streaming>
void copy_as(const Streams& s, std::size_t begin, std::size_t end) {
  if (s.outputs == 1) with_inputs<streaming, 1>(s, begin, end);
  else with_inputs<streaming, 2>(s, begin, end);
}

}  // namespace

void copy(const Streams& streams, std::size_t begin, std::size_t end, bool streaming) {
  if (streaming) copy_as<true>(streams, begin, end);
  else copy_as<false>(streams, begin, end);
#if defined(__x86_64__)
  if (streaming) _mm_sfence();
#endif
#if defined(ONNXFUSE_AVX512) || defined(ONNXFUSE_AVX2)
  _mm256_zeroupper();
#endif
}

}  // inline namespace
}  // namespace onnxfuse
