// Integers by their sizes, storage types of features and their conversion to float. Every program
// begins with this file.
#ifdef __CUDACC_RTC__  // NVRTC has no headers of the C library.
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#define INFINITY __uint_as_float(0x7f800000u)
#endif

template <typename A, typename B>
constexpr bool kSame = false;
template <typename A>
constexpr bool kSame<A, A> = true;

// bfloat16: the upper half of a float, rounded to nearest even.
struct BFloat16 {
  uint16_t bits;

  __device__ __forceinline__ float ToFloat() const {
    return __uint_as_float(static_cast<uint32_t>(bits) << 16);
  }
  static __device__ __forceinline__ BFloat16 FromFloat(float value) {
    const uint32_t word = __float_as_uint(value);
    const uint32_t rounded = (word + 0x7fff + ((word >> 16) & 1)) >> 16;
    const bool is_nan = (word & 0x7fffffff) > 0x7f800000;
    return {static_cast<uint16_t>(is_nan ? ((word >> 16) | 0x40) : rounded)};
  }
};

// IEEE half, which kernels only read.
struct Float16 {
  uint16_t bits;

  __device__ __forceinline__ float ToFloat() const {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
    const uint32_t magnitude = bits & 0x7fff;
    if (magnitude >= 0x7c00) return __uint_as_float(sign | 0x7f800000 | (magnitude << 13));
    // A subnormal is a multiple of 2^-24.
    if (magnitude < 0x400) {
      const float value = static_cast<float>(magnitude) * 5.9604644775390625e-8f;
      return __uint_as_float(sign | __float_as_uint(value));
    }
    return __uint_as_float(sign | ((magnitude << 13) + (uint32_t{112} << 23)));
  }
};

__device__ __forceinline__ float ToFloat(float value) { return value; }
__device__ __forceinline__ float ToFloat(BFloat16 value) { return value.ToFloat(); }
__device__ __forceinline__ float ToFloat(Float16 value) { return value.ToFloat(); }

template <typename T>
__device__ __forceinline__ T FromFloat(float value) {
  if constexpr (kSame<T, float>) {
    return value;
  } else {
    return T::FromFloat(value);
  }
}
