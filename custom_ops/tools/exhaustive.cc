// The largest error of a float32 function over a range of floats, or over all 2^32 of them, and where it is.
//
//   g++ -std=c++17 -O2 -ffp-contract=off -march=x86-64-v3 -pthread -o exhaustive custom_ops/tools/exhaustive.cc
//   ./exhaustive tanh               all floats: about 3 minutes on two cores
//   ./exhaustive exp -104 89        every float between the two
//   ./exhaustive log 1e-45 3e38 97  every 97th of them
//
// Two threads, against the C library's double function (vmath_reference.h), which is itself within 1 ULP of a double.
#include "vmath_probe.cc"

#include <cstdio>
#include <cstdlib>
#include <thread>

namespace {

struct Worst {
  double ulp = 0;
  std::uint32_t where = 0;
};

std::uint32_t bits_of(float x) {
  std::uint32_t b;
  std::memcpy(&b, &x, sizeof b);
  return b;
}

// The floats with bits first, first + step, ... up to last, in two halves.
Worst sweep(const char* name, std::uint32_t first, std::uint32_t last, std::uint32_t step) {
  const std::uint64_t count = (static_cast<std::uint64_t>(last) - first) / step + 1, half = count / 2;
  Worst a, b;
  std::thread other([&] { a.ulp = vmath_sweep(name, first, step, half, &a.where); });
  b.ulp = vmath_sweep(name, first + static_cast<std::uint32_t>(half * step), step, count - half, &b.where);
  other.join();
  return a.ulp < b.ulp ? b : a;
}

}  // namespace

int main(int argc, char** argv) {
  if ((argc != 2 && argc != 4 && argc != 5) || reference::find(argv[1]) == nullptr) {
    std::fprintf(stderr, "usage: exhaustive FUNCTION [FROM TO [STEP]]\n");
    return 2;
  }
  const std::uint32_t step = argc == 5 ? static_cast<std::uint32_t>(std::strtoul(argv[4], nullptr, 10)) : 1;
  Worst w;
  if (argc == 2) {
    w = sweep(argv[1], 0, UINT32_MAX, step);
  } else {
    // Floats of one sign are in the order of their bits, so the range is cut at zero.
    const float from = std::strtof(argv[2], nullptr), to = std::strtof(argv[3], nullptr);
    if (!(from <= to) || step == 0) {
      std::fprintf(stderr, "exhaustive: FROM must not be above TO, nor STEP 0\n");
      return 2;
    }
    if (std::signbit(from)) w = sweep(argv[1], bits_of(std::signbit(to) ? to : -0.0f), bits_of(from), step);
    if (!std::signbit(to)) {
      const Worst p = sweep(argv[1], bits_of(std::signbit(from) ? 0.0f : from), bits_of(to), step);
      if (p.ulp > w.ulp) w = p;
    }
  }
  float x;
  std::memcpy(&x, &w.where, sizeof x);
  std::printf("%s: %.4f ULP at %.9g (0x%08x), vectors of %zu bytes\n", argv[1], w.ulp, x, w.where, vmath_bytes());
  return 0;
}
