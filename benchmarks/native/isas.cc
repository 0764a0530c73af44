#include "isas.h"

namespace onnxfuse {

// Defined in isa_hand.cc and isa_copy.cc, once for each instruction set.
#if defined(__x86_64__)
#define ONNXFUSE_ISAS(X) X(baseline) X(avx2) X(avx512)
#else
#define ONNXFUSE_ISAS(X) X(neon)
#endif
#define ONNXFUSE_DECLARE(isa)                                                                             \
  namespace isa {                                                                                         \
  bench::Loops hand_loops();                                                                              \
  void copy(const bench::Streams& streams, std::size_t begin, std::size_t end, bool streaming);           \
  }
ONNXFUSE_ISAS(ONNXFUSE_DECLARE)
#undef ONNXFUSE_DECLARE

namespace bench {

#if defined(__x86_64__)
#define ONNXFUSE_CHOOSE(what)                               \
  switch (pick_isa(wanted)) {                               \
    case Isa::kAvx512: return avx512::what;                 \
    case Isa::kAvx2: return avx2::what;                     \
    default: return baseline::what;                         \
  }
#else
#define ONNXFUSE_CHOOSE(what) \
  pick_isa(wanted);           \
  return neon::what;
#endif

Loops hand_loops(Isa wanted) { ONNXFUSE_CHOOSE(hand_loops()) }
Copy copy_loop(Isa wanted) { ONNXFUSE_CHOOSE(copy) }

}  // namespace bench
}  // namespace onnxfuse
