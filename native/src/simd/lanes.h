// Sixteen numbers side by side, on any machine.
//
// Where registers hold sixteen, the lanes are one vector of the compiler's own; elsewhere they are
// pairs (of pairs) of as many as a register holds. gcc keeps a vector longer than the machine's
// registers in memory between the operations, and compares or converts it lane by lane; a pair it
// keeps in registers. A Pair has the operators of a vector, so that one source serves both.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#define QUIRE_INLINE inline __attribute__((always_inline))

namespace quire::gemm {

constexpr int kLanes = 16;
#if defined(__AVX512F__)
constexpr int kPartLanes = 16;  // of 32 bits, in a register
#elif defined(__AVX2__)
constexpr int kPartLanes = 8;
#else
constexpr int kPartLanes = 4;
#endif

template <class Half_>
struct Pair {
  using Half = Half_;
  Half low;
  Half high;
};

template <class V>
constexpr bool is_pair = false;
template <class Half>
constexpr bool is_pair<Pair<Half>> = true;

template <class T, int kCount>
struct LanesOf {
  using Type = Pair<typename LanesOf<T, kCount / 2>::Type>;
};
template <class T>
struct LanesOf<T, kPartLanes> {
  typedef T Type __attribute__((vector_size(kPartLanes * sizeof(T))));
};

using F32x16 = LanesOf<float, kLanes>::Type;
using I32x16 = LanesOf<int32_t, kLanes>::Type;
using U32x16 = LanesOf<uint32_t, kLanes>::Type;
using U16x16 = LanesOf<uint16_t, kLanes>::Type;
using F32Part = LanesOf<float, kPartLanes>::Type;
using I32Part = LanesOf<int32_t, kPartLanes>::Type;
using U32Part = LanesOf<uint32_t, kPartLanes>::Type;
using U16Part = LanesOf<uint16_t, kPartLanes>::Type;

template <class Half>
QUIRE_INLINE Pair<Half> pair(Half low, Half high) {
  return {low, high};
}

// Calls f with each register of `v` and the matching ones of `more`.
template <class F, class V, class... More>
QUIRE_INLINE auto lanewise(F f, V v, More... more) {
  if constexpr (is_pair<V>) {
    return pair(lanewise(f, v.low, more.low...), lanewise(f, v.high, more.high...));
  } else {
    return f(v, more...);
  }
}

template <class S>
using IfNumber = std::enable_if_t<std::is_arithmetic_v<S>>;

#define QUIRE_PAIR_OPERATOR(op)                         \
  template <class H>                                    \
  QUIRE_INLINE auto operator op(Pair<H> a, Pair<H> b) { \
    return pair(a.low op b.low, a.high op b.high);      \
  }                                                     \
  template <class H, class S, class = IfNumber<S>>      \
  QUIRE_INLINE auto operator op(Pair<H> a, S b) {       \
    return pair(a.low op b, a.high op b);               \
  }                                                     \
  template <class S, class H, class = IfNumber<S>>      \
  QUIRE_INLINE auto operator op(S a, Pair<H> b) {       \
    return pair(a op b.low, a op b.high);               \
  }
QUIRE_PAIR_OPERATOR(+)
QUIRE_PAIR_OPERATOR(-)
QUIRE_PAIR_OPERATOR(*)
QUIRE_PAIR_OPERATOR(/)
QUIRE_PAIR_OPERATOR(&)
QUIRE_PAIR_OPERATOR(|)
QUIRE_PAIR_OPERATOR(<<)
QUIRE_PAIR_OPERATOR(>>)
QUIRE_PAIR_OPERATOR(==)
QUIRE_PAIR_OPERATOR(<)
QUIRE_PAIR_OPERATOR(<=)
QUIRE_PAIR_OPERATOR(>=)
#undef QUIRE_PAIR_OPERATOR

template <class H>
QUIRE_INLINE Pair<H> operator-(Pair<H> a) {
  return {-a.low, -a.high};
}
template <class H>
QUIRE_INLINE Pair<H> operator~(Pair<H> a) {
  return {~a.low, ~a.high};
}
template <class H>
QUIRE_INLINE Pair<H>& operator+=(Pair<H>& a, Pair<H> b) {
  return a = a + b;
}
template <class H>
QUIRE_INLINE Pair<H>& operator-=(Pair<H>& a, Pair<H> b) {
  return a = a - b;
}

template <class V>
QUIRE_INLINE V load(const void* p) {
  if constexpr (is_pair<V>) {
    using Half = typename V::Half;
    return {load<Half>(p), load<Half>(static_cast<const char*>(p) + sizeof(Half))};
  } else {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
}

template <class V>
QUIRE_INLINE void store(void* p, V v) {
  if constexpr (is_pair<V>) {
    store(p, v.low);
    store(static_cast<char*>(p) + sizeof v.low, v.high);
  } else {
    std::memcpy(p, &v, sizeof v);
  }
}

// The same bits as lanes of another type.
template <class To, class From>
QUIRE_INLINE To as(From v) {
  if constexpr (is_pair<To>) {
    return {as<typename To::Half>(v.low), as<typename To::Half>(v.high)};
  } else {
    return (To)v;
  }
}

// The same numbers as lanes of another type.
template <class To, class From>
QUIRE_INLINE To convert(From v) {
  if constexpr (is_pair<To>) {
    return {convert<typename To::Half>(v.low), convert<typename To::Half>(v.high)};
  } else {
    return __builtin_convertvector(v, To);
  }
}

// Subtracting zero is the one spelling that compilers reduce to a plain broadcast.
QUIRE_INLINE F32x16 splat(float x) { return x - F32x16{}; }

template <class V>
QUIRE_INLINE float first_lane(V v) {
  if constexpr (is_pair<V>) {
    return first_lane(v.low);
  } else {
    return v[0];
  }
}

QUIRE_INLINE I32x16 lane_numbers() {
  alignas(64) static constexpr int32_t kNumbers[kLanes] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                           8, 9, 10, 11, 12, 13, 14, 15};
  return load<I32x16>(kNumbers);
}

}  // namespace quire::gemm
