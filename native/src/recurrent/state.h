// The states of recurrent layers in the blocks of a request, and how their work is shared out.
//
// A unit of work is a piece of a request's state, with all rows of the request in the step: the
// head is the outer loop and the token the inner one, so that a state stays in the worker's cache.
#pragma once

#include <cstdint>
#include <cstring>

#include "ops/op_checks.h"
#include "runtime/model.h"

namespace quire {

constexpr int kStateChunk = QUIRE_STATE_CHUNK;

// Rows of one request: `count` rows of the step from `row` on, the first at `position`.
struct RequestRows {
  int64_t row;
  int64_t count;
  int64_t position;
};

inline RequestRows rows_of(const Step& step, int64_t seq) {
  const int64_t row = step.batch.seq_starts[seq];
  const int64_t count = step.batch.seq_starts[seq + 1] - row;
  return {row, count, count == 0 ? 0 : step.batch.positions[row]};
}

inline float* state_piece(const Step& step, const quire_state& state, int64_t seq, int64_t piece) {
  const KvCache& cache = step.model.kv;
  const int64_t in_first = (cache.block_bytes - state.first_offset) / state.piece_bytes;
  const int64_t per_block = cache.block_bytes / state.piece_bytes;
  int64_t entry = state.first_entry;
  int64_t offset = state.first_offset + piece * state.piece_bytes;
  if (piece >= in_first) {
    entry += 1 + (piece - in_first) / per_block;
    offset = (piece - in_first) % per_block * state.piece_bytes;
  }
  const int32_t* table = step.block_table(static_cast<int32_t>(seq), state.layer_group);
  return reinterpret_cast<float*>(cache.block(table[entry]) + offset);
}

// Calls body(worker index, request's rows, piece, its state) for all pieces of all requests. A state
// begins as zeros, so that nothing of the block's last user is left in it.
template <class Body>
void each_piece(const Step& step, const quire_state& state, Body&& body) {
  const int64_t units = int64_t{step.batch.num_seqs} * state.num_pieces;
  step.model.pool.run(units, [&](Worker& worker) {
    for (int64_t unit; (unit = worker.grab_own(units)) < units;) {
      const int64_t seq = unit / state.num_pieces;
      const int64_t piece = unit % state.num_pieces;
      const RequestRows rows = rows_of(step, seq);
      if (rows.count == 0) continue;
      float* memory = state_piece(step, state, seq, piece);
      if (rows.position == 0) std::memset(memory, 0, state.piece_bytes);
      body(worker.index(), rows, piece, memory);
    }
  });
}

// Throws unless the state has pieces of `floats` numbers, in blocks that hold them.
inline void check_state(const OpChecks& checks, const quire_state& state, int64_t num_pieces,
                        int64_t floats) {
  const KvCache& cache = checks.model().kv;
  checks.require(state.layer_group >= 0 && state.layer_group < cache.num_layer_groups(),
                 "no such layer group");
  const int64_t blocks = cache.state_blocks[state.layer_group];
  const int64_t bytes = state.piece_bytes;
  checks.require(blocks > 0 && state.num_pieces == num_pieces && bytes >= floats * 4 &&
                     bytes <= cache.block_bytes && state.first_entry >= 0 &&
                     state.first_offset >= 0 && state.first_offset + bytes <= cache.block_bytes,
                 "state: wrong pieces");
  const int64_t in_first = (cache.block_bytes - state.first_offset) / bytes;
  const int64_t per_block = cache.block_bytes / bytes;
  const int64_t rest = num_pieces > in_first ? num_pieces - in_first : 0;
  const int64_t last = state.first_entry + (rest + per_block - 1) / per_block;
  checks.require(last < blocks, "state: more pieces than its blocks hold");
}

}  // namespace quire
