// Which edges attention leaves out; jaxgnn/ops/_attention/reference/dropout.py is the definition.
#pragma once

#include <cstdint>

#include "jaxgnn_ffi/isa.h"

namespace jaxgnn {

JAXGNN_INLINE inline uint32_t MixBits(uint32_t word) {
  word = (word ^ (word >> 16)) * 0x7feb352du;
  word = (word ^ (word >> 15)) * 0x846ca68bu;
  return word ^ (word >> 16);
}

// What all heads of an edge start from.
JAXGNN_INLINE inline uint32_t MixedEdge(const uint32_t* seed, uint32_t slot) {
  return MixBits(seed[0] ^ slot);
}

// The uniform word of an edge and a head.
JAXGNN_INLINE inline uint32_t DrawOfHead(const uint32_t* seed, uint32_t mixed_edge, uint32_t head) {
  return MixBits(mixed_edge ^ (seed[1] + head * 0x9e3779b9u));
}

}  // namespace jaxgnn
