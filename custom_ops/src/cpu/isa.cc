// Which instruction set to use, and its stages.
#include "isa.h"

#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

namespace onnxfuse {

// Defined in isa_memory.cc, once for each instruction set.
#if defined(__x86_64__)
namespace baseline {
void fill_stages(StageTable& narrow, StageTable& wide);
}
namespace avx2 {
void fill_stages(StageTable& narrow, StageTable& wide);
}
namespace avx512 {
void fill_stages(StageTable& narrow, StageTable& wide);
}
#else
namespace neon {
void fill_stages(StageTable& narrow, StageTable& wide);
}
#endif

namespace {

struct Tables {
  StageTable narrow, wide;
  explicit Tables(void (*fill)(StageTable&, StageTable&)) { fill(narrow, wide); }
};

#if defined(__x86_64__)
constexpr Isa kKnown[] = {Isa::kAvx512, Isa::kAvx2, Isa::kBaseline};  // best first

// The builtin asks the operating system too: whether it saves the wide registers.
bool has(Isa isa) {
  __builtin_cpu_init();
  switch (isa) {
    case Isa::kAvx512:  // -march=x86-64-v4
#ifdef ONNXFUSE_EMULATE_AVX512
      return has(Isa::kAvx2);
#else
      return has(Isa::kAvx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
#endif
    case Isa::kAvx2:  // -march=x86-64-v3
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
             __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c") && __builtin_cpu_supports("lzcnt") &&
             __builtin_cpu_supports("movbe");
    default:
      return isa == Isa::kBaseline;
  }
}
#else
constexpr Isa kKnown[] = {Isa::kNeon};
bool has(Isa isa) { return isa == Isa::kNeon; }
#endif

Isa named(const char* word) {
  for (Isa isa : kKnown)
    if (std::strcmp(word, name(isa)) == 0) return isa;
  std::string known;
  for (Isa isa : kKnown) known += std::string(known.empty() ? "" : ", ") + name(isa);
  throw std::runtime_error("ONNXFUSE_ISA is '" + std::string(word).substr(0, 40) + "'; it may be one of: " + known);
}

}  // namespace

const char* name(Isa isa) noexcept {
  switch (isa) {
    case Isa::kBest:
      return "best";
    case Isa::kBaseline:
      return "baseline";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kNeon:
      return "neon";
  }
  return "unknown";
}

Isa pick_isa(Isa wanted) {
  if (wanted == Isa::kBest) {
    const char* const word = std::getenv("ONNXFUSE_ISA");
    if (word != nullptr && *word != '\0') wanted = named(word);
  }
  if (wanted == Isa::kBest) {
    for (Isa isa : kKnown)
      if (has(isa)) return isa;
  }
  if (!has(wanted)) throw std::runtime_error("this processor has no " + std::string(name(wanted)));
  return wanted;
}

const StageTable& stage_table(Isa isa, bool wide) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) {
    static const Tables tables(avx512::fill_stages);
    return wide ? tables.wide : tables.narrow;
  }
  if (isa == Isa::kAvx2) {
    static const Tables tables(avx2::fill_stages);
    return wide ? tables.wide : tables.narrow;
  }
  static const Tables tables(baseline::fill_stages);
#else
  (void)isa;
  static const Tables tables(neon::fill_stages);
#endif
  return wide ? tables.wide : tables.narrow;
}

}  // namespace onnxfuse
