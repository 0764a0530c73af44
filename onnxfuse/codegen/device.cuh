// Device functions that the generated kernels call. A module gets the sections that it needs; `//# name: others` begins
// one and names those that have to stand before it (onnxfuse/codegen/device.py).
//
// The functions of float32 are those of custom_ops/src/cpu/vmath*.h: the same constants, and FMA in the same places, so
// that a GPU gives the bits of a CPU with FMA, but for large angles (and where the CPU joins several instructions into one
// function). Those of float64 are CUDA's own, but for sigmoid.

//# types:
typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;
struct __align__(16) Block { u32 word[4]; };

//# blocks: types
// Elements of so many bytes in 16-byte blocks; `e` is known when this is compiled, so that blocks stay in registers.
__device__ __forceinline__ u8 get1(const Block* b, u32 e) { return (u8)(b[e >> 4].word[e >> 2 & 3u] >> (e & 3u) * 8u); }
__device__ __forceinline__ u16 get2(const Block* b, u32 e) { return (u16)(b[e >> 3].word[e >> 1 & 3u] >> (e & 1u) * 16u); }
__device__ __forceinline__ u32 get4(const Block* b, u32 e) { return b[e >> 2].word[e & 3u]; }
__device__ __forceinline__ u64 get8(const Block* b, u32 e) {
  return (u64)b[e >> 1].word[(e & 1u) * 2u + 1u] << 32 | b[e >> 1].word[(e & 1u) * 2u];
}
// In rising order of e.
__device__ __forceinline__ void put(Block* b, u32 e, u8 v) {
  u32& word = b[e >> 4].word[e >> 2 & 3u];
  word = (e & 3u) == 0u ? (u32)v : word | (u32)v << (e & 3u) * 8u;
}
__device__ __forceinline__ void put(Block* b, u32 e, u16 v) {
  u32& word = b[e >> 3].word[e >> 1 & 3u];
  word = (e & 1u) == 0u ? (u32)v : word | (u32)v << 16;
}
__device__ __forceinline__ void put(Block* b, u32 e, u32 v) { b[e >> 2].word[e & 3u] = v; }
__device__ __forceinline__ void put(Block* b, u32 e, u64 v) {
  b[e >> 1].word[(e & 1u) * 2u] = (u32)v;
  b[e >> 1].word[(e & 1u) * 2u + 1u] = (u32)(v >> 32);
}
// Vector number v of the tensor at `from`, or the one element there in every place.
template <class T, u32 blocks>
__device__ __forceinline__ void fetch(Block (&to)[blocks], const u8* from, u32 v, bool moves) {
  if (moves) {
    const Block* const p = (const Block*)from + v * blocks;
#pragma unroll
    for (u32 k = 0u; k < blocks; ++k) to[k] = p[k];
  } else {
    u64 element = *(const T*)from;
    if (sizeof(T) == 1) element *= 0x0101010101010101ull;
    if (sizeof(T) == 2) element *= 0x0001000100010001ull;
    if (sizeof(T) == 4) element |= element << 32;
#pragma unroll
    for (u32 k = 0u; k < 2u * blocks; ++k) {
      to[k / 2u].word[k % 2u * 2u] = (u32)element;
      to[k / 2u].word[k % 2u * 2u + 1u] = (u32)(element >> 32);
    }
  }
}
template <u32 blocks>
__device__ __forceinline__ void write(u8* to, const Block (&from)[blocks], u32 v) {
  Block* const p = (Block*)to + v * blocks;
#pragma unroll
  for (u32 k = 0u; k < blocks; ++k) p[k] = from[k];
}

//# bits: types
__device__ __forceinline__ u32 bits(f32 v) { return __float_as_uint(v); }
__device__ __forceinline__ u64 bits(f64 v) { return (u64)__double_as_longlong(v); }
__device__ __forceinline__ f32 as_f32(u32 b) { return __uint_as_float(b); }
__device__ __forceinline__ f64 as_f64(u64 b) { return __longlong_as_double((i64)b); }

//# halves: bits
// What differs between CUDA and a host build of this text: conversions between float16 and the others, to nearest even.
#ifdef ONNXFUSE_HOST
__device__ __forceinline__ u16 f16_bits(_Float16 h) { u16 b; __builtin_memcpy(&b, &h, 2); return b; }
__device__ __forceinline__ f32 from_f16(u16 b) { _Float16 h; __builtin_memcpy(&h, &b, 2); return (f32)h; }
__device__ __forceinline__ u16 to_f16(f32 v) { return f16_bits((_Float16)v); }
__device__ __forceinline__ u16 to_f16(f64 v) { return f16_bits((_Float16)v); }
#else
__device__ __forceinline__ f32 from_f16(u16 b) { f32 v; asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(b)); return v; }
__device__ __forceinline__ u16 to_f16(f32 v) { u16 b; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(b) : "f"(v)); return b; }
__device__ __forceinline__ u16 to_f16(f64 v) { u16 b; asm("cvt.rn.f16.f64 %0, %1;" : "=h"(b) : "d"(v)); return b; }
#endif
__device__ __forceinline__ f32 round_f16(f32 v) { return from_f16(to_f16(v)); }
__device__ __forceinline__ f32 round_f16(f64 v) { return from_f16(to_f16(v)); }

//# bfloats: bits
// In integers: there is no instruction for it before sm_80. NaN stays NaN.
__device__ __forceinline__ f32 from_bf16(u16 b) { return as_f32((u32)b << 16); }
__device__ __forceinline__ u16 to_bf16(f32 v) {
  const u32 b = bits(v);
  return v == v ? (u16)((b + 0x7fffu + (b >> 16 & 1u)) >> 16) : (u16)(b >> 16 | 0x40u);
}
// Rounded to odd, so that rounding once more to a shorter type gives what one rounding gives.
__device__ __forceinline__ f32 to_odd(f64 v) {
  const f32 near = (f32)v;
  const f64 back = (f64)near;
  if (back == v || v != v) return near;
  const u32 b = bits(near);
  // Toward zero, then the last bit set.
  const bool away = (back < 0.0 ? -back : back) > (v < 0.0 ? -v : v);
  return as_f32((away ? b - 1u : b) | 1u);
}
__device__ __forceinline__ f32 round_bf16(f32 v) { return from_bf16(to_bf16(v)); }
__device__ __forceinline__ f32 round_bf16(f64 v) { return round_bf16(to_odd(v)); }

//# sticky: types
// An integer beyond 2^53 as a double that rounds to a half type as the integer would: the low 11 bits become one.
__device__ __forceinline__ f64 sticky(u64 v) {
  const u64 low = v & 0x7ffull;
  return v >> 53 ? (f64)((v & ~0x7ffull) | (low != 0 ? 0x800ull : 0ull)) : (f64)v;
}
__device__ __forceinline__ f64 sticky(i64 v) { return v < 0 ? -sticky(0ull - (u64)v) : sticky((u64)v); }

//# extremes: bits
// NaN if either is; of two zeros the one with the sign asked for.
__device__ __forceinline__ f32 minimum(f32 a, f32 b) {
  return a < b ? a : b < a ? b : a == b ? as_f32(bits(a) | bits(b)) : a + b;
}
__device__ __forceinline__ f64 minimum(f64 a, f64 b) {
  return a < b ? a : b < a ? b : a == b ? as_f64(bits(a) | bits(b)) : a + b;
}
__device__ __forceinline__ f32 maximum(f32 a, f32 b) {
  return a > b ? a : b > a ? b : a == b ? as_f32(bits(a) & bits(b)) : a + b;
}
__device__ __forceinline__ f64 maximum(f64 a, f64 b) {
  return a > b ? a : b > a ? b : a == b ? as_f64(bits(a) & bits(b)) : a + b;
}

//# integer_division: types
// x / 0 and x % 0 are 0; the lowest number / -1 wraps.
template <class T>
__device__ __forceinline__ T divide(T a, T b) {
  if (b == (T)0) return (T)0;
  if (b == (T)-1 && (T)-1 < (T)1) return (T)(0 - (u64)a);
  return (T)(a / b);
}
template <class T>
__device__ __forceinline__ T remainder_of(T a, T b) {  // the sign of a
  if (b == (T)0 || (b == (T)-1 && (T)-1 < (T)1)) return (T)0;
  return (T)(a % b);
}
template <class T>
__device__ __forceinline__ T modulo(T a, T b) {  // the sign of b
  const T r = remainder_of(a, b);
  return r != (T)0 && (r < (T)0) != (b < (T)0) ? (T)(r + b) : r;
}

//# integer_power: types
// Wraps; a negative exponent gives 1 / a^|b| cut to an integer, and 0 for a = 0.
template <class T, class U>
__device__ __forceinline__ T power_of(T a, T b) {
  if (b < (T)0) return a == (T)1 ? a : a == (T)-1 ? ((b & (T)1) != (T)0 ? a : (T)1) : (T)0;
  U result = (U)1, square = (U)a;
#pragma unroll 1
  for (U left = (U)b; left != (U)0; left >>= 1, square *= square)
    if (left & (U)1) result *= square;
  return (T)result;
}

//# shifts: types
template <class T>
__device__ __forceinline__ T shift_left(T a, T b) {
  return b < (T)(8 * sizeof(T)) ? (T)((u64)a << b) : (T)0;
}
template <class T>
__device__ __forceinline__ T shift_right(T a, T b) {
  return b < (T)(8 * sizeof(T)) ? (T)(a >> b) : (T)0;
}

//# signs: types
template <class T>
__device__ __forceinline__ T sign_of(T a) {
  return a > (T)0 ? (T)1 : a < (T)0 ? (T)-1 : a == a ? (T)0 : a;
}

//# truncation: types
// Toward zero; defined for all floats.
__device__ __forceinline__ i32 to_i32(f32 v) { return __float2int_rz(v); }
__device__ __forceinline__ i32 to_i32(f64 v) { return __double2int_rz(v); }
__device__ __forceinline__ u32 to_u32(f32 v) { return __float2uint_rz(v); }
__device__ __forceinline__ u32 to_u32(f64 v) { return __double2uint_rz(v); }
__device__ __forceinline__ i64 to_i64(f32 v) { return __float2ll_rz(v); }
__device__ __forceinline__ i64 to_i64(f64 v) { return __double2ll_rz(v); }
__device__ __forceinline__ u64 to_u64(f32 v) { return __float2ull_rz(v); }
__device__ __forceinline__ u64 to_u64(f64 v) { return __double2ull_rz(v); }

//# polynomial: types
__device__ __forceinline__ f32 fused(f32 a, f32 b, f32 c) { return __fmaf_rn(a, b, c); }
__device__ __forceinline__ f64 fused(f64 a, f64 b, f64 c) { return fma(a, b, c); }
// c0 + x (c1 + x (c2 + ...)), innermost first.
template <class T>
__device__ __forceinline__ T polynomial(T, T c) {
  return c;
}
template <class T, class... Rest>
__device__ __forceinline__ T polynomial(T x, T c, Rest... rest) {
  return fused(polynomial(x, rest...), x, c);
}

//# exponential: bits, polynomial
// x = n ln 2 + r with |r| <= ln 2 / 2; the last bits of w are n.
#define MAGIC 0x1.8p23f
__device__ __forceinline__ f32 within(f32 low, f32 x, f32 high) {  // NaN stays
  const f32 raised = low > x ? low : x;
  return high < raised ? high : raised;
}
__device__ __forceinline__ f32 reduce_exp(f32 x, f32& w) {
  w = __fmaf_rn(x, 0x1.715476p0f, MAGIC);
  const f32 n = w - MAGIC;
  return __fmaf_rn(-n, 1.42860677e-6f, __fmaf_rn(-n, 0.693145752f, x));
}
// e^r - 1 there.
__device__ __forceinline__ f32 expm1_small(f32 r) {
  const f32 q = polynomial(r, 0.4999999341410351f, 0.16666520110763922f, 0.04166839374012247f, 0.008368780259911755f,
                              0.0013814496013697813f);
  return __fmaf_rn(r * r, q, r);
}
__device__ __forceinline__ f32 power_of_two(f32 w) { return as_f32((bits(w) << 23) + 0x3f800000u); }

//# exp: exponential
// 1.02 ULP.
__device__ __forceinline__ f32 exp_f32(f32 x) {
  f32 w;
  const f32 r = reduce_exp(within(-104.0f, x, 89.0f), w);
  const u32 half = bits(w) >> 1 << 23;
  const f32 power = as_f32(half + 0x3f800000u);
  return __fmaf_rn(expm1_small(r), power, power) * as_f32((bits(w) << 23) - half + 0x3f800000u);
}

//# expm1: exponential
// 1.46 ULP.
__device__ __forceinline__ f32 expm1_f32(f32 x) {
  f32 w;
  const f32 r = reduce_exp(within(-20.0f, x, 89.0f), w);
  const f32 half = as_f32((bits(w) << 23) + (126u << 23));
  const f32 y = __fmaf_rn(half, expm1_small(r), half - 0.5f);
  return as_f32((bits(y + y) & 0x7fffffffu) | (bits(x) & 0x80000000u));
}

//# sigmoid: exponential
// 2.48 ULP.
__device__ __forceinline__ f32 sigmoid_f32(f32 x) {
  f32 w;
  const f32 r = reduce_exp(within(-104.0f, x, 20.0f), w);
  const f32 e = polynomial(r, 1.0f, -1.0f, 0.4999999341410351f, -0.16666520110763922f, 0.04166839374012247f,
                              -0.008368780259911755f, 0.0013814496013697813f);
  const f32 power = as_f32((bits(w) << 23) + ((127u + 24u) << 23));
  return power / __fmaf_rn(power, 0x1p-24f, e) * 0x1p-24f;
}

//# tanh: exponential
// 2.50 ULP.
__device__ __forceinline__ f32 tanh_f32(f32 x) {
  const u32 sign = bits(x) & 0x80000000u;
  const f32 size = as_f32(bits(x) ^ sign);
  const f32 a = 10.0f < size ? 10.0f : size;
  const f32 w = __fmaf_rn(a, -2.0f * 0x1.715476p0f, MAGIC);
  const f32 r = __fmaf_rn(w - MAGIC, 0x1.62e43p-2f, a);
  const f32 q = polynomial(r, -2.0f * 0.4999999341410351f, 4.0f * 0.16666520110763922f, -8.0f * 0.04166839374012247f,
                              16.0f * 0.008368780259911755f, -32.0f * 0.0013814496013697813f);
  const f32 power = power_of_two(w);
  const f32 u = __fmaf_rn(power, __fmaf_rn(r * r, q, r), __fmaf_rn(power, -0.5f, 0.5f));
  return as_f32(bits(u / (1.0f - u)) ^ sign);
}

//# logarithm: bits, polynomial
// e ln 2 + log(1 + f), with infinity for infinity, -infinity where x is 0 and NaN where it is below or NaN.
__device__ __forceinline__ f32 log_sum(f32 x, f32 e, f32 f) {
  const f32 q = polynomial(f, 0.3333333985797028f, -0.2500016529215479f, 0.19999605075973292f, -0.166552960597847f,
                              0.1427623361738192f, -0.1272777622350372f, 0.11700700651806809f, -0.09116285388578516f,
                              0.037673587605145005f);
  const f32 ff = f * f;
  f32 r = __fmaf_rn(e, 1.42860677e-6f, f * ff * q);
  r = __fmaf_rn(-0.5f, ff, r) + f;
  r = __fmaf_rn(e, 0.693145752f, r);
  r = x < as_f32(0x7f800000u) ? r : x;
  r = x == 0.0f ? as_f32(0xff800000u) : r;
  return x < 0.0f ? as_f32(0x7fc00000u) : r;
}

//# log: logarithm
// 0.87 ULP.
__device__ __forceinline__ f32 log_f32(f32 x) {
  const bool tiny = x < 0x1p-126f;
  const u32 b = bits(tiny ? x * 0x1p23f : x);
  const u32 k = (u32)((i32)(b - 0x3f400000u) >> 23);
  const f32 m = as_f32(b - (k << 23));
  return log_sum(x, (f32)(i32)k + (tiny ? -23.0f : 0.0f), m - 1.0f);
}

//# log1p: logarithm
// 0.87 ULP.
__device__ __forceinline__ f32 log1p_f32(f32 x) {
  const f32 u = x + 1.0f;
  const u32 b = bits(u);
  const u32 shift = (u32)((i32)(b - 0x3f400000u) >> 23) << 23;
  const f32 m = as_f32(b - shift), twice = as_f32((128u << 23) - shift);
  const f32 f = m - 1.0f, exact = __fmaf_rn(x - (u - 1.0f), twice, f + f) * 0.5f;
  const f32 r = log_sum(u, (f32)((i32)shift >> 23), exact);
  return as_f32((bits(r) & 0x7fffffffu) | (bits(x) & 0x80000000u));
}

//# erf: exponential
// 1.06 ULP.
__device__ __forceinline__ f32 erf_f32(f32 x) {
  const f32 a = as_f32(bits(x) & 0x7fffffffu), xx = x * x;
  const f32 p = polynomial(xx, 0.1283791568392639f, -0.37612545537447944f, 0.11282396931012985f, -0.026789075863753217f,
                               0.0050282455846329035f, -0.0006180765282949128f);
  const f32 small = __fmaf_rn(x, p, x);
  const f32 t = 4.0f < a ? 4.0f : a;
  const f32 q = polynomial(t, 0.12944584844835672f, 0.6334886718183708f, 0.10812186513403552f, -0.02501577596927815f,
                              0.0041312341044733025f, -0.00042615474821551985f, 2.0369670091893283e-05f);
  f32 w;
  const f32 r = reduce_exp(-__fmaf_rn(q, t, t), w) + 0.00016054899451407412f;
  const f32 rest = (expm1_small(r) + 1.0f) * power_of_two(w);
  return a > 0.88f ? as_f32(bits(1.0f - rest) | (bits(x) & 0x80000000u)) : small;
}

//# wide: bits, polynomial
// float32 functions in double, accurate to about 2^-38, rounded once: 0.501 ULP.
#define WIDE_MAGIC 0x1.8p52
__device__ __forceinline__ f64 size_of(f64 v) { return as_f64(bits(v) & 0x7fffffffffffffffull); }
__device__ __forceinline__ f64 signed_as(f64 size, f64 sign) {
  return as_f64((bits(size) & 0x7fffffffffffffffull) | (bits(sign) & 0x8000000000000000ull));
}

//# wide_exponential: wide
__device__ __forceinline__ f64 wide_reduce(f64 x, f64& w) {
  w = fma(x, 0x1.71547652b82fep0, WIDE_MAGIC);
  return fma(-(w - WIDE_MAGIC), 0x1.62e42fefa39efp-1, x);
}
__device__ __forceinline__ f64 wide_expm1_small(f64 r) {
  const f64 q = polynomial(r, 0.5000000000430248, 0.1666666678513442, 0.04166666439041905, 0.00833328160482492,
                              0.0013889198586186586, 0.0001990907294222265, 2.4707991221911944e-05);
  return fma(r * r, q, r);
}
__device__ __forceinline__ f64 wide_clamp(f64 x) {
  const f64 raised = -700.0 > x ? -700.0 : x;
  return 700.0 < raised ? 700.0 : raised;
}
__device__ __forceinline__ f64 wide_power(f64 w) { return as_f64((bits(w) << 52) + 0x3ff0000000000000ull); }
__device__ __forceinline__ f64 wide_exp(f64 x) {
  f64 w;
  const f64 r = wide_reduce(wide_clamp(x), w), power = wide_power(w);
  return fma(power, wide_expm1_small(r), power);
}
__device__ __forceinline__ f64 wide_expm1(f64 x) {
  f64 w;
  const f64 r = wide_reduce(wide_clamp(x), w), power = wide_power(w);
  return signed_as(fma(power, wide_expm1_small(r), power - 1.0), x);
}

//# sinh: wide_exponential
__device__ __forceinline__ f32 sinh_f32(f32 v) {
  const f64 x = v, t = wide_expm1(size_of(x));
  return (f32)signed_as(0.5 * (t + t / (t + 1.0)), x);
}

//# cosh: wide_exponential
__device__ __forceinline__ f32 cosh_f32(f32 v) {
  const f64 e = wide_exp(size_of((f64)v));
  return (f32)(0.5 * (e + 1.0 / e));
}

//# wide_logarithm: wide
// x = 2^e (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)), for a normal positive x.
__device__ __forceinline__ f64 wide_split(f64 x, f64& e) {
  const u64 one = 0x3ff0000000000000ull, b = bits(x);
  const u64 biased = (b + (one - 0x3fe6a09e667f3bcdull)) >> 52;
  e = as_f64(biased | 0x4330000000000000ull) - (0x1p52 + 1023.0);
  return as_f64(b - (biased << 52) + one) - 1.0;
}
__device__ __forceinline__ f64 wide_log_of(f64 f, f64 e) {
  const f64 s = f / (f + 2.0), z = s * s;
  const f64 q = polynomial(z, 0.66666666675804, 0.39999995620945833, 0.2857210924136658, 0.22176185568491638,
                              0.19584192861646843);
  return fma(e, 0x1.62e42fefa39efp-1, fma(s * z, q, s + s));
}
// r where x is a positive number; else what log gives.
__device__ __forceinline__ f64 wide_log_specials(f64 x, f64 r) {
  r = x < as_f64(0x7ff0000000000000ull) ? r : x;
  r = x == 0.0 ? as_f64(0xfff0000000000000ull) : r;
  return x < 0.0 ? as_f64(0x7ff8000000000000ull) : r;
}
__device__ __forceinline__ f64 wide_log(f64 x) {
  f64 e;
  const f64 f = wide_split(x, e);
  return wide_log_specials(x, wide_log_of(f, e));
}
__device__ __forceinline__ f64 wide_log1p(f64 x) {
  const f64 u = x + 1.0;
  f64 e;
  f64 f = wide_split(u, e);
  const bool near = size_of(x) < 0.25;  // here 1 + x would lose what x is
  f = near ? x : f;
  e = near ? 0.0 : e;
  return signed_as(wide_log_specials(u, wide_log_of(f, e)), x);
}

//# asinh: wide_logarithm
__device__ __forceinline__ f32 asinh_f32(f32 v) {
  const f64 x = v, a = size_of(x), aa = a * a;
  const f64 r = wide_log1p(a + aa / (1.0 + sqrt(aa + 1.0)));
  return (f32)signed_as(a < as_f64(0x7ff0000000000000ull) ? r : a, x);
}

//# acosh: wide_logarithm
__device__ __forceinline__ f32 acosh_f32(f32 v) {
  const f64 t = (f64)v - 1.0;
  const f64 r = wide_log1p(t + sqrt(t * (t + 2.0)));
  return (f32)(t < 0.0 ? as_f64(0x7ff8000000000000ull) : r);
}

//# atanh: wide_logarithm
__device__ __forceinline__ f32 atanh_f32(f32 v) {
  const f64 x = v, a = size_of(x);
  return (f32)signed_as(0.5 * wide_log1p((a + a) / (1.0 - a)), x);
}

//# pow: wide_exponential, wide_logarithm
// e^(b log a), then what C asks for: the sign of a negative base, NaN for its powers that are not whole, 1 where 0 times
// infinity arose.
__device__ __forceinline__ f32 pow_f32(f32 a, f32 b) {
  const f32 size = as_f32(bits(a) & 0x7fffffffu), inf = as_f32(0x7f800000u), half = b * 0.5f;
  f32 r = (f32)wide_exp((f64)b * wide_log((f64)size));
  const bool whole = rintf(b) == b, odd = whole && rintf(half) != half;
  r = odd ? as_f32(bits(r) | (bits(a) & 0x80000000u)) : r;
  r = a < 0.0f && size < inf && !whole ? as_f32(0x7fc00000u) : r;
  return a == 1.0f || b == 0.0f || (size == 1.0f && as_f32(bits(b) & 0x7fffffffu) == inf) ? 1.0f : r;
}

//# wide_arcs: wide
#define HALF_PI 0x1.921fb54442d18p0
// asin a for a in [0, 0.5].
__device__ __forceinline__ f64 wide_asin_small(f64 a) {
  const f64 z = a * a;
  const f64 q = polynomial(z, 0.1666666662734421, 0.07500004980944727, 0.04464070813850809, 0.03042651872411507,
                              0.02186574918759916, 0.020646267543576017, 0.001979279880295359, 0.03291163859482109);
  return fma(a * z, q, a);
}

//# asin: wide_arcs
// NaN above 1, by the square root. Above 0.5, asin a = pi/2 - 2 asin(sqrt((1 - a) / 2)).
__device__ __forceinline__ f32 asin_f32(f32 v) {
  const f64 x = v, a = size_of(x);
  const bool large = a > 0.5;
  const f64 s = wide_asin_small(large ? sqrt(fma(-0.5, a, 0.5)) : a);
  return (f32)signed_as(large ? HALF_PI - (s + s) : s, x);
}

//# acos: wide_arcs
__device__ __forceinline__ f32 acos_f32(f32 v) {
  const f64 x = v, a = size_of(x);
  const bool large = a > 0.5, negative = bits(x) >> 63 != 0;
  const f64 s = wide_asin_small(large ? sqrt(fma(-0.5, a, 0.5)) : a);
  const f64 far = negative ? 2.0 * HALF_PI - (s + s) : s + s;
  return (f32)(large ? far : HALF_PI - signed_as(s, x));
}

//# atan: wide_arcs
// One division brings |x| under tan(pi/8): x, (x - 1) / (x + 1) or -1 / x, with 0, pi/4 or pi/2 added to the result.
__device__ __forceinline__ f32 atan_f32(f32 v) {
  const f64 x = v, a = size_of(x);
  const bool above = a > 0x1.a827999fcef32p-2, far = a > 0x1.3504f333f9de6p1;
  const f64 top = far ? -1.0 : above ? a - 1.0 : a;
  const f64 bottom = far ? a : above ? a + 1.0 : 1.0;
  const f64 add = far ? HALF_PI : above ? 0.5 * HALF_PI : 0.0;
  const f64 t = top / bottom, z = t * t;
  const f64 q = polynomial(z, -0.33333333295479595, 0.19999994295289952, -0.14285422329042505, 0.11103979304223108,
                              -0.08996605772102348, 0.06990124536631301, -0.037904496581576234);
  return (f32)signed_as(add + fma(t * z, q, t), x);
}

//# wide_angles: wide
// 2/pi behind one word of zeros.
__constant__ u32 two_over_pi[8] = {0u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u,
                                   0xfe5163abu};
// |x| = n pi/2 + r with |r| <= pi/4, n modulo 4. Up to 2^20 in double. Beyond, |x| = m 2^s with 24 bits of m, times the 96
// bits of 2/pi from 2^(1-s) down (those above count whole turns): in registers alone, which CUDA's reduction is not.
__device__ __forceinline__ f64 wide_quadrant(f32 v, u32& n) {
  const u32 b = bits(v) & 0x7fffffffu;
  if (b <= 0x49800000u) {
    const f64 a = as_f32(b), w = fma(a, 0x1.45f306dc9c883p-1, WIDE_MAGIC), whole = w - WIDE_MAGIC;
    n = (u32)bits(w);
    return fma(-whole, 0x1.0b4611a626331p-34, fma(-whole, 0x1.921fb544p0, a));
  }
  n = 0u;
  if (b >= 0x7f800000u) return as_f64(0x7ff8000000000000ull);
  const u32 m = (b & 0x7fffffu) | 0x800000u, from = (b >> 23) - 120u, word = from >> 5, shift = from & 31u;
  u32 p[3];
#pragma unroll
  for (u32 k = 0u; k < 3u; ++k)
    p[k] = (u32)((((u64)two_over_pi[word + k] << 32 | two_over_pi[word + k + 1u]) << shift) >> 32);
  const u64 low = (u64)m * p[2], middle = (u64)m * p[1] + (low >> 32);
  const u32 high = m * p[0] + (u32)(middle >> 32);
  // 96 bits, the upper two of which are n. The rest, as a signed number, is the nearest r.
  const i64 fraction = (i64)(((u64)high << 32 | (u32)middle) << 2 | (u32)low >> 30);
  n = (high >> 30) + (fraction < 0 ? 1u : 0u);
  return ((f64)fraction + (f64)((u32)low & 0x3fffffffu) * 0x1p-30) * (0x1.921fb54442d18p0 * 0x1p-64);
}
__device__ __forceinline__ void wide_both(f64 r, f64& sine, f64& cosine) {
  const f64 z = r * r;
  const f64 s = polynomial(z, -0.1666666664160969, 0.008333329383874936, -0.00019839334171436264,
                              2.718304998877122e-06);
  sine = fma(r * z, s, r);
  const f64 c = polynomial(z, 0.04166666662279713, -0.0013888883750625704, 2.479951924453727e-05,
                              -2.7210172556158233e-07);
  cosine = fma(z * z, c, fma(-0.5, z, 1.0));
}
// sin(|x| + quarter pi/2).
__device__ __forceinline__ f32 wide_sine(f32 v, u32 quarter) {
  u32 n;
  f64 sine, cosine;
  wide_both(wide_quadrant(v, n), sine, cosine);
  n += quarter;
  const f32 r = (f32)((n & 1u) != 0u ? cosine : sine);
  return as_f32(bits(r) ^ (n << 30 & 0x80000000u));
}

//# tan: wide_angles
__device__ __forceinline__ f32 tan_f32(f32 v) {
  u32 n;
  f64 sine, cosine;
  wide_both(wide_quadrant(v, n), sine, cosine);
  const bool odd = (n & 1u) != 0u;
  const f32 t = (f32)((odd ? -cosine : sine) / (odd ? sine : cosine));
  return as_f32(bits(t) ^ (bits(v) & 0x80000000u));
}

//# angles: bits, polynomial
// |x| = n pi/2 + r in float32, up to 2^17.
__device__ __forceinline__ f32 near_sine(f32 v, u32 quarter) {
  const f32 a = as_f32(bits(v) & 0x7fffffffu);
  const f32 w = __fmaf_rn(a, 0x1.45f306p-1f, 0x1.8p23f), whole = w - 0x1.8p23f;
  f32 r = __fmaf_rn(-whole, 0x1.921fb6p0f, a);
  r = __fmaf_rn(-whole, -0x1.777a5cp-25f, r);
  r = __fmaf_rn(-whole, -0x1.ee59dap-50f, r);
  const f32 z = r * r;
  const f32 s = polynomial(z, -0.16666654936579237f, 0.008332177682698944f, -0.00019517234329174976f);
  const f32 c = polynomial(z, 0.04166664685714412f, -0.001388736702833125f, 2.4438391767315578e-05f);
  const u32 n = bits(w) + quarter;
  const f32 value = (n & 1u) != 0u ? __fmaf_rn(z * z, c, __fmaf_rn(-0.5f, z, 1.0f)) : __fmaf_rn(r * z, s, r);
  return as_f32(bits(value) ^ (n << 30 & 0x80000000u));
}

//# sin: angles, wide_angles
// 1.58 ULP.
__device__ __forceinline__ f32 sin_f32(f32 v) {
  const f32 r = (bits(v) & 0x7fffffffu) <= 0x48000000u ? near_sine(v, 0u) : wide_sine(v, 0u);
  return as_f32(bits(r) ^ (bits(v) & 0x80000000u));
}

//# cos: angles, wide_angles
// 1.57 ULP.
__device__ __forceinline__ f32 cos_f32(f32 v) {
  return (bits(v) & 0x7fffffffu) <= 0x48000000u ? near_sine(v, 1u) : wide_sine(v, 1u);
}

//# exp64: bits, polynomial
// x in [-746, 710]; `low` is what the result loses in its last addition.
#define MAGIC64 0x1.8p52
__device__ __forceinline__ f64 scale64(f64 p, f64 w) {
  const i64 n = (i64)(bits(w) - bits(MAGIC64)), half = n >> 1;
  return p * as_f64((u64)(half + 1023) << 52) * as_f64((u64)(n - half + 1023) << 52);
}
__device__ __forceinline__ f64 exp_in_range(f64 x, f64& low) {
  const f64 w = fma(x, 0x1.71547652b82fep0, MAGIC64), n = w - MAGIC64;
  const f64 high = fma(-n, 0x1.62e42feep-1, x), second = n * 0x1.a39ef35793c76p-33;
  const f64 r = high - second, lost = (high - r) - second;
  const f64 q = polynomial(r, 0.5, 0.16666666666666682, 0.04166666666666609, 0.008333333333316918,
                              0.0013888888889117298, 0.0001984126989667947, 2.4801586924529267e-05,
                              2.7557234560028207e-06, 2.7557582862146833e-07, 2.5112144121077043e-08,
                              2.082651569807897e-09);
  const f64 p = fma(r * r, q, lost) + r, sum = 1.0 + p;
  low = scale64(p - (sum - 1.0), w);
  return scale64(sum, w);
}

//# sigmoid64: exp64
// With e = e^-|x|: 1 / (1 + e) for x >= 0 and e / (1 + e) below, where for a small e it is e - e^2 / (1 + e). 1.69 ULP.
__device__ __forceinline__ f64 sigmoid_f64(f64 x) {
  const f64 size = as_f64(bits(x) & 0x7fffffffffffffffull);
  f64 low;
  const f64 e = exp_in_range(-746.0 > -size ? -746.0 : -size, low);
  const f64 r = (bits(x) >> 63 != 0ull ? e : 1.0) / (1.0 + e);
  return x < -1.0986 ? e + (low - e * r) : r;
}

//# division: types
// n / size for n below 2^31, with the multiplier and shift of the launcher (custom_ops/src/cuda).
__device__ __forceinline__ u32 quotient(u32 n, u32 multiplier, u32 shift) { return (__umulhi(n, multiplier) + n) >> shift; }
