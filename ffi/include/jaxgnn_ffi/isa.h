// Runs a piece of code compiled for the widest vector unit of the machine it finds itself on.
//
// The library is one file for every x86-64 (or other) processor. A kernel wraps its work in
// `WithWidestIsa([&]() JAXGNN_INLINE { ... })`; the compiler inlines the work into one function per
// instruction set, and the first call picks.
#pragma once

#if defined(__GNUC__)
#define JAXGNN_INLINE __attribute__((always_inline))
#else
#define JAXGNN_INLINE
#endif

namespace jaxgnn {

#if defined(__x86_64__) && defined(__GNUC__)

template <typename F>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi,bmi2,lzcnt,popcnt"),
               noinline)) void RunAvx512(F& work) {
  work();
}

template <typename F>
__attribute__((target("avx2,fma,bmi,bmi2,lzcnt,popcnt"), noinline)) void RunAvx2(F& work) {
  work();
}

// For processors of before 2013: compiled for size, which takes half of the time.
template <typename F>
__attribute__((cold, noinline)) void RunBaseline(F& work) {
  work();
}

// The widest vectors: 0, 1 or 2 for none of these, AVX2 or AVX-512.
inline int IsaLevel() {
  static const int level = [] {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__builtin_cpu_supports("bmi2")) {
      return 0;
    }
    const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return wide ? 2 : 1;
  }();
  return level;
}

// For work that was measured to take longer with AVX-512 than with AVX2.
template <typename F>
void WithAvx2(F&& work) {
  if (IsaLevel() >= 1) {
    RunAvx2(work);
  } else {
    RunBaseline(work);
  }
}

template <typename F>
void WithWidestIsa(F&& work) {
  if (IsaLevel() == 2) {
    RunAvx512(work);
  } else {
    WithAvx2(work);
  }
}

#else

template <typename F>
void WithAvx2(F&& work) {
  work();
}

template <typename F>
void WithWidestIsa(F&& work) {
  work();
}

#endif

}  // namespace jaxgnn
