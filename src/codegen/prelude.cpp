// What every kernel's source begins with.
#include "codegen/prelude.h"

namespace magneto::codegen {

// Without headers: these would take longer to compile than the kernels. On the host (MAGNETO_HOST is defined) a block
// is one thread, so that kernels can be tested without a GPU.
const char* const kPrelude = R"(
typedef long long i64;
struct bf16 { unsigned short bits; };
struct f16 { unsigned short bits; };
#define NAN32 __int_as_float_(0x7fffffff)
#define INF32 __int_as_float_(0x7f800000)
#define NAN64 ((double)NAN32)
#define INF64 ((double)INF32)

#ifndef MAGNETO_HOST
#define DEVICE __device__ __forceinline__
#define THREADS(count) (count)
#define __int_as_float_ __int_as_float
DEVICE float to_float(bf16 x) { return __int_as_float((unsigned)x.bits << 16); }
DEVICE float to_float(f16 x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits)); return y; }
DEVICE f16 to_f16(float x) { f16 y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); return y; }
DEVICE unsigned bits_of(float x) { return __float_as_uint(x); }
template <class T> DEVICE T from_lane(T x, int lane) { return __shfl_xor_sync(0xffffffffu, x, lane); }
DEVICE void wait() { __syncthreads(); }
#define SHARED __shared__
#define ASSURE(condition)
// What a thread has written, others see before what it writes later.
DEVICE void publish() { __threadfence(); }
DEVICE unsigned arrive(unsigned* count) { return atomicAdd(count, 1u); }
// What other blocks have written.
DEVICE void load_latest(float* to, const float* from) {
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3]) : "l"(from) : "memory");
}
#endif

#if !defined(MAGNETO_HOST) && __CUDA_ARCH__ >= 800
DEVICE bf16 to_bf16(float x) { bf16 y; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); return y; }
#else
DEVICE bf16 to_bf16(float x) {
  unsigned bits = bits_of(x);
  bf16 y;
  y.bits = x != x ? 0x7fff : (unsigned short)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  return y;
}
#endif
DEVICE float round_bf16(float x) { return to_float(to_bf16(x)); }
DEVICE float round_f16(float x) { return to_float(to_f16(x)); }

template <class M, class V> struct As;
template <class T> struct As<T, T> {
  static DEVICE T get(T x) { return x; }
  static DEVICE T put(T x) { return x; }
};
template <> struct As<bf16, float> {
  static DEVICE float get(bf16 x) { return to_float(x); }
  static DEVICE bf16 put(float x) { return to_bf16(x); }
};
template <> struct As<f16, float> {
  static DEVICE float get(f16 x) { return to_float(x); }
  static DEVICE f16 put(float x) { return to_f16(x); }
};

// N neighbours. `load` and `store` take them at once, from where such packs begin.
template <class M, int N> struct alignas(sizeof(M) * N < 16 ? sizeof(M) * N : 16) Pack { M x[N]; };
template <class P> DEVICE bool begins_pack(const void* at) { return (unsigned long long)at % alignof(P) == 0; }
template <int N, class M, class V> DEVICE void unpack(V* to, const Pack<M, N>& pack) {
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = As<M, V>::get(pack.x[i]);
}
template <int N, class M, class V> DEVICE void load(V* to, const M* from) {
  ASSURE((begins_pack<Pack<M, N>>(from)));
  unpack<N>(to, *(const Pack<M, N>*)from);
}
template <int N, class M, class V> DEVICE void load_anywhere(V* to, const M* from) {
  if (begins_pack<Pack<M, N>>(from)) return load<N>(to, from);
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = As<M, V>::get(from[i]);
}
template <int N, class M, class V> DEVICE void store(M* to, const V* from) {
  ASSURE((begins_pack<Pack<M, N>>(to)));
  Pack<M, N> pack;
#pragma unroll
  for (int i = 0; i < N; ++i) pack.x[i] = As<M, V>::put(from[i]);
  *(Pack<M, N>*)to = pack;
}
template <int N, class M, class V> DEVICE void store_anywhere(M* to, const V* from) {
  if (begins_pack<Pack<M, N>>(to)) return store<N>(to, from);
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = As<M, V>::put(from[i]);
}

DEVICE float larger(float a, float b) { return a != a || a > b ? a : b; }
DEVICE float smaller(float a, float b) { return a != a || a < b ? a : b; }
DEVICE double larger(double a, double b) { return a != a || a > b ? a : b; }
DEVICE double smaller(double a, double b) { return a != a || a < b ? a : b; }
DEVICE i64 larger(i64 a, i64 b) { return a > b ? a : b; }
DEVICE i64 smaller(i64 a, i64 b) { return a < b ? a : b; }
DEVICE int larger(int a, int b) { return a > b ? a : b; }
DEVICE int smaller(int a, int b) { return a < b ? a : b; }

// A number to take away from others like it.
DEVICE float origin(float x) { return x - x == 0 ? x : 0; }

struct Sum { template <class T> static DEVICE T join(T a, T b) { return a + b; } };
struct Largest { template <class T> static DEVICE T join(T a, T b) { return larger(a, b); } };
struct Smallest { template <class T> static DEVICE T join(T a, T b) { return smaller(a, b); } };

// Of all threads of a row; each of them gets it. THREADS of a row are 1, 32 or a whole block.
template <class How, int T, class V> DEVICE V over_row(V x) {
  if (T == 1) return x;
#ifndef MAGNETO_HOST
#pragma unroll
  for (int lane = 16; lane; lane /= 2) x = How::join(x, from_lane(x, lane));
  if (T == 32) return x;
  SHARED V parts[T / 32];
  wait();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  wait();
  x = parts[0];
#pragma unroll
  for (int i = 1; i < T / 32; ++i) x = How::join(x, parts[i]);
#endif
  return x;
}

// Of all warps of a block, lane by lane; the first warp gets it.
template <int G, class V> DEVICE V over_groups(V x) {
#ifndef MAGNETO_HOST
  SHARED V parts[G][32];
  parts[threadIdx.x / 32][threadIdx.x % 32] = x;
  wait();
  if (threadIdx.x >= 32) return x;
#pragma unroll
  for (int i = 1; i < G; ++i) x += parts[i][threadIdx.x];
#endif
  return x;
}

DEVICE float power(float x, float y) { return powf(x, y); }
DEVICE double power(double x, double y) { return pow(x, y); }
)";

}  // namespace magneto::codegen
