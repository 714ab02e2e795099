// The memory in which one worker attends: a piece of `AttentionScratch`.
#pragma once

#include <cstdint>

#include "attention/kernels/kernel.h"
#include "attention/softmax.h"
#include "runtime/memory.h"

namespace quire {

// One worker's workspace, laid out in AttentionScratch.
struct Workspace {
  Workspace(uint8_t* base, int64_t dim) {
    q = take(base, int64_t{kItemRows + kMaxTileRows} * dim);
    result = take(base, int64_t{kItemRows + kMaxTileRows} * dim);
    scores = take(base, kMaxTileRows * kScoreStride);
    weights = take(base, kMaxTileRows * kWeightStride);
    partial = take(base, int64_t{kMaxTileRows} * dim);
    tail = reinterpret_cast<uint8_t*>(take(base, int64_t{kGroup} * dim));
    key_scales = take(base, kChunk);
    value_scales = take(base, kChunk);
    keys = reinterpret_cast<uint8_t*>(take(base, kChunk * dim));
    chunk = base;
  }
  static float* take(uint8_t*& base, int64_t floats) {
    float* piece = reinterpret_cast<float*>(base);
    base += round_up(floats * 4, 64);
    return piece;
  }

  float* q;             // [item rows][dim] of the kernel's element
  float* result;        // [item rows][dim]
  float* scores;        // [tile rows][kScoreStride]
  float* weights;       // [tile rows][kWeightStride] of the kernel's element
  float* partial;       // [tile rows][dim]
  uint8_t* tail;        // the last V group of a request, zeros after its end
  float* key_scales;    // [kChunk] of an int8 cache
  float* value_scales;  // [kChunk]
  uint8_t* keys;        // expanded groups, or copies of V
  uint8_t* chunk;       // the kernel's own
  RowStates state;
  RowStates of_chunk;  // of a tile
};

}  // namespace quire
