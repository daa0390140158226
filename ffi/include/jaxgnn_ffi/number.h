// Storage types of features, their conversion to float, and the switch over them.
#pragma once

#include <cstdint>
#include <cstring>

#include "jaxgnn_ffi/isa.h"
#include "xla/ffi/api/ffi.h"

namespace jaxgnn {

template <typename To, typename From>
JAXGNN_INLINE inline To BitCast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}

// bfloat16: the upper half of a float, rounded to nearest even.
struct BFloat16 {
  uint16_t bits;

  JAXGNN_INLINE inline float ToFloat() const {
    return BitCast<float>(static_cast<uint32_t>(bits) << 16);
  }
  JAXGNN_INLINE static inline BFloat16 FromFloat(float value) {
    const uint32_t word = BitCast<uint32_t>(value);
    const uint32_t rounded = (word + 0x7fff + ((word >> 16) & 1)) >> 16;
    const bool is_nan = (word & 0x7fffffff) > 0x7f800000;
    return {static_cast<uint16_t>(is_nan ? ((word >> 16) | 0x40) : rounded)};
  }
};

// IEEE half.
struct Float16 {
  uint16_t bits;

  JAXGNN_INLINE inline float ToFloat() const {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
    const uint32_t magnitude = bits & 0x7fff;
    if (magnitude >= 0x7c00) return BitCast<float>(sign | 0x7f800000 | (magnitude << 13));
    // A subnormal is a multiple of 2^-24. Nothing here may be a subnormal float: XLA's threads
    // take those for zero.
    if (magnitude < 0x400) {
      const float value = static_cast<float>(magnitude) * 5.9604644775390625e-8f;
      return BitCast<float>(sign | BitCast<uint32_t>(value));
    }
    return BitCast<float>(sign | ((magnitude << 13) + (uint32_t{112} << 23)));
  }
  // Rounded to nearest even.
  JAXGNN_INLINE static inline Float16 FromFloat(float value) {
    const uint32_t word = BitCast<uint32_t>(value);
    const uint32_t sign = (word >> 16) & 0x8000, magnitude = word & 0x7fffffff;
    const uint32_t normal = magnitude + 0xfff + ((magnitude >> 13) & 1) - (uint32_t{112} << 23);
    // Adding 0.5 leaves a multiple of 2^-24 in the last bits of a float: the subnormal halves.
    const uint32_t subnormal = BitCast<uint32_t>(BitCast<float>(magnitude) + 0.5f) - 0x3f000000;
    uint32_t bits = magnitude < 0x38800000 ? subnormal : normal >> 13;
    if (magnitude >= 0x477ff000) bits = 0x7c00;  // rounds to infinity
    if (magnitude > 0x7f800000) bits = 0x7e00;   // NaN
    return {static_cast<uint16_t>(sign | bits)};
  }
};

JAXGNN_INLINE inline float ToFloat(float value) { return value; }
JAXGNN_INLINE inline float ToFloat(BFloat16 value) { return value.ToFloat(); }
JAXGNN_INLINE inline float ToFloat(Float16 value) { return value.ToFloat(); }

template <typename T>
JAXGNN_INLINE inline T FromFloat(float value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else {
    return T::FromFloat(value);
  }
}

template <typename T>
struct Type {
  using type = T;
};

inline xla::ffi::Error UnsupportedType(const char* what, xla::ffi::DataType type) {
  return xla::ffi::Error::InvalidArgument(std::string("jaxgnn: ") + what + ": unsupported dtype " +
                                          std::to_string(static_cast<int>(type)));
}

// Calls `body(Type<T>{})` with the C++ type of a float dtype of at most 32 bits.
template <typename Body>
xla::ffi::Error SwitchFloat(xla::ffi::DataType type, const Body& body) {
  switch (type) {
    case xla::ffi::F32:
      return body(Type<float>{});
    case xla::ffi::BF16:
      return body(Type<BFloat16>{});
    default:
      return UnsupportedType("features", type);
  }
}

// The same with float16.
template <typename Body>
xla::ffi::Error SwitchAnyFloat(xla::ffi::DataType type, const Body& body) {
  return type == xla::ffi::F16 ? body(Type<Float16>{}) : SwitchFloat(type, body);
}

// Calls `body(Type<T>{})` with an integer as wide as a float dtype, for what only moves numbers.
template <typename Body>
xla::ffi::Error SwitchFloatBits(xla::ffi::DataType type, const Body& body) {
  switch (type) {
    case xla::ffi::F32:
      return body(Type<uint32_t>{});
    case xla::ffi::BF16:
    case xla::ffi::F16:
      return body(Type<uint16_t>{});
    default:
      return UnsupportedType("features", type);
  }
}

inline bool IsColumn(xla::ffi::DataType type) {
  return type == xla::ffi::U8 || type == xla::ffi::U16 || type == xla::ffi::U32;
}

// Column ids.
template <typename Body>
xla::ffi::Error SwitchColumn(xla::ffi::DataType type, const Body& body) {
  switch (type) {
    case xla::ffi::U8:
      return body(Type<uint8_t>{});
    case xla::ffi::U16:
      return body(Type<uint16_t>{});
    case xla::ffi::U32:
      return body(Type<uint32_t>{});
    default:
      return UnsupportedType("column ids", type);
  }
}

}  // namespace jaxgnn
