// A fused program and its kernels, written by onnxfuse. Options: --std=c++17 --fmad=false
//
//   onnxfuse 1
//   in x0 f32
//   in x1 f32
//   t0 = sigmoid.f32 x0
//   t1 = add.f32 x0 x1
//   t2 = sin.f32 t1
//   t3 = mul.f32 t0 t2
//   t4 = sub.f32 t3 x0
//   t5 = sigmoid.f32 t4
//   t6 = add.f32 t4 x1
//   t7 = erf.f32 t6
//   t8 = mul.f32 t5 t7
//   t9 = sub.f32 t8 x0
//   t10 = sigmoid.f32 t9
//   t11 = add.f32 t9 x1
//   t12 = tanh.f32 t11
//   t13 = mul.f32 t10 t12
//   t14 = abs.f32 t13
//   t15 = pow.f32 t14 x1
//   t16 = sigmoid.f32 t15
//   t17 = add.f32 t15 x1
//   t18 = exp.f32 t17
//   t19 = mul.f32 t16 t18
//   t20 = sub.f32 t19 x0
//   t21 = sigmoid.f32 t20
//   t22 = add.f32 t20 x1
//   t23 = sin.f32 t22
//   t24 = mul.f32 t21 t23
//   t25 = sub.f32 t24 x0
//   t26 = lt.f32.bool t25 x1
//   out t25
//   out t26

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

__device__ __forceinline__ u32 bits(f32 v) { return __float_as_uint(v); }
__device__ __forceinline__ u64 bits(f64 v) { return (u64)__double_as_longlong(v); }
__device__ __forceinline__ f32 as_f32(u32 b) { return __uint_as_float(b); }
__device__ __forceinline__ f64 as_f64(u64 b) { return __longlong_as_double((i64)b); }

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

// 1.02 ULP.
__device__ __forceinline__ f32 exp_f32(f32 x) {
  f32 w;
  const f32 r = reduce_exp(within(-104.0f, x, 89.0f), w);
  const u32 half = bits(w) >> 1 << 23;
  const f32 power = as_f32(half + 0x3f800000u);
  return __fmaf_rn(expm1_small(r), power, power) * as_f32((bits(w) << 23) - half + 0x3f800000u);
}

// 2.48 ULP.
__device__ __forceinline__ f32 sigmoid_f32(f32 x) {
  f32 w;
  const f32 r = reduce_exp(within(-104.0f, x, 20.0f), w);
  const f32 e = polynomial(r, 1.0f, -1.0f, 0.4999999341410351f, -0.16666520110763922f, 0.04166839374012247f,
                              -0.008368780259911755f, 0.0013814496013697813f);
  const f32 power = as_f32((bits(w) << 23) + ((127u + 24u) << 23));
  return power / __fmaf_rn(power, 0x1p-24f, e) * 0x1p-24f;
}

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

// float32 functions in double, accurate to about 2^-38, rounded once: 0.501 ULP.
#define WIDE_MAGIC 0x1.8p52
__device__ __forceinline__ f64 size_of(f64 v) { return as_f64(bits(v) & 0x7fffffffffffffffull); }
__device__ __forceinline__ f64 signed_as(f64 size, f64 sign) {
  return as_f64((bits(size) & 0x7fffffffffffffffull) | (bits(sign) & 0x8000000000000000ull));
}

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

// 1.58 ULP.
__device__ __forceinline__ f32 sin_f32(f32 v) {
  const f32 r = (bits(v) & 0x7fffffffu) <= 0x48000000u ? near_sine(v, 0u) : wide_sine(v, 0u);
  return as_f32(bits(r) ^ (bits(v) & 0x80000000u));
}

// n / size for n below 2^31, with the multiplier and shift of the launcher (custom_ops/src/cuda).
__device__ __forceinline__ u32 quotient(u32 n, u32 multiplier, u32 shift) { return (__umulhi(n, multiplier) + n) >> shift; }

__device__ __forceinline__ void compute(f32 x0, f32 x1, f32& y0, bool& y1) {
  const f32 t0 = sigmoid_f32(x0);
  const f32 t1 = x0 + x1;
  const f32 t2 = sin_f32(t1);
  const f32 t3 = t0 * t2;
  const f32 t4 = t3 - x0;
  const f32 t5 = sigmoid_f32(t4);
  const f32 t6 = t4 + x1;
  const f32 t7 = erf_f32(t6);
  const f32 t8 = t5 * t7;
  const f32 t9 = t8 - x0;
  const f32 t10 = sigmoid_f32(t9);
  const f32 t11 = t9 + x1;
  const f32 t12 = tanh_f32(t11);
  const f32 t13 = t10 * t12;
  const f32 t14 = fabsf(t13);
  const f32 t15 = pow_f32(t14, x1);
  const f32 t16 = sigmoid_f32(t15);
  const f32 t17 = t15 + x1;
  const f32 t18 = exp_f32(t17);
  const f32 t19 = t16 * t18;
  const f32 t20 = t19 - x0;
  const f32 t21 = sigmoid_f32(t20);
  const f32 t22 = t20 + x1;
  const f32 t23 = sin_f32(t22);
  const f32 t24 = t21 * t23;
  const f32 t25 = t24 - x0;
  const bool t26 = t25 < x1;
  y0 = t25;
  y1 = t26;
}

struct Strided {
  const u8* inputs[2];  // address of each tensor input
  u8* outputs[2];  // address of each output
  u32 elements;  // elements of the iteration space, fewer than 2^31
  u32 rank;  // dims
  u32 size[8];  // of each dim, the last first
  u32 multiplier[8];  // of the division by it
  u32 shift[8];  // of the division by it
  u32 stride[2][8];  // elements that a tensor moves on along each dim
};

extern "C" __global__ void __launch_bounds__(256, 4) strided(const __grid_constant__ Strided a) {
#pragma unroll 1
  for (u32 i = blockIdx.x * 256u + threadIdx.x; i < a.elements; i += gridDim.x * 256u) {
    u32 left = i, at0 = 0u, at1 = 0u;
#pragma unroll 1
    for (u32 d = 0u; d < a.rank; ++d) {
      const u32 next = quotient(left, a.multiplier[d], a.shift[d]);
      const u32 index = left - next * a.size[d];
      left = next;
      at0 += index * a.stride[0][d];
      at1 += index * a.stride[1][d];
    }
    const f32 x0 = as_f32(((const u32*)a.inputs[0])[at0]);
    const f32 x1 = as_f32(((const u32*)a.inputs[1])[at1]);
    f32 y0;
    bool y1;
    compute(x0, x1, y0, y1);
    ((u32*)a.outputs[0])[i] = bits(y0);
    ((u8*)a.outputs[1])[i] = (u8)y1;
  }
}
