// An adapter: low-rank changes of the weights of a model, for the rows of requests that ask for it.
//
// y = W x becomes y + scale * B (A x). A x is computed for all rows that have an adapter, grouped
// by adapter. B (A x) is added to the sums of the product before their scale and bias: in its
// epilogue, or before its first step of K (ChangePlace). Both products are computed on vectors in
// float32, or on AMX tiles (linear/amx/amx_low_rank.h).
// Rows without an adapter go through the same operations as in a step without adapters.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "adapters/adapter_rows.h"
#include "linear/linear.h"
#include "quire.h"
#include "runtime/memory.h"

namespace quire {

struct Model;
struct Step;

// Lines of A that are stored together: 64 bytes of each line, then the next 64 bytes of each, and
// so on. If fewer lines are left at the end, each of them is stored by itself.
#if defined(__AVX512F__)
constexpr int64_t kTileLines = 4;
#else
constexpr int64_t kTileLines = 2;
#endif

// The changes of one weight.
struct AdapterWeight {
  bool on_tiles = false;
  int64_t width = 0;            // numbers of A x: the ranks of all parts, padded where on tiles
  int64_t depth = 0;            // numbers of a line of A, padded to whole steps
  int64_t n = 0;                // rows of the weight; of an embedding, its width
  int64_t k = 0;                // numbers of a row of x; of an embedding, ids
  int32_t dtype = QUIRE_F32;    // of A and B
  const uint8_t* a = nullptr;   // [width, depth], see kTileLines; of an embedding [ids, width]; on
                                // tiles [16 lines][32 of K][16 pairs][16 lines][2]
  std::vector<int64_t> chunks;  // on tiles: of each 32 numbers of A x, where its lines begin in A,
                                // in bytes; at the end the size of A
  const uint8_t* b = nullptr;
  std::vector<uint8_t> own_a;  // A and B, unless they are in the memory of the adapter
  std::vector<uint8_t> own_b;
  std::vector<float> scales;  // [width]
  std::vector<float> bias;
  std::vector<float> gains;
  std::vector<LowRank::Half> halves;
  LowRank change{};

  // Numbers of A in 64 bytes.
  int64_t step() const { return dtype == QUIRE_F32 ? 16 : 32; }
  int64_t lines_together(int64_t line) const {
    return line < width / kTileLines * kTileLines ? kTileLines : 1;
  }
  // The place of number `i` of a line of A.
  int64_t place(int64_t line, int64_t i) const {
    const int64_t together = lines_together(line);
    return (line - line % together) * depth + (i / step() * together + line % together) * step() +
           i % step();
  }
};

class Adapter {
 public:
  // Throws std::invalid_argument if a part does not fit the model.
  Adapter(const Model& model, const quire_adapter_part* parts, int32_t num_parts, int32_t dtype);

  int64_t bytes() const { return bytes_; }
  size_t num_matrices() const { return num_matrices_; }
  // Null if the adapter does not change the product with this matrix.
  const AdapterWeight* of_product(int32_t matrix) const;
  // Adds to a row of an embedding: `scale` is that of the op.
  void change_embedding(int32_t matrix, int32_t table, int64_t id, float scale, float* out) const;

 private:
  void move_to_huge_pages();

  std::vector<AdapterWeight> products_;
  std::vector<int32_t> of_matrix_;               // index of products_, -1: none
  std::map<int64_t, AdapterWeight> embeddings_;  // by `embedding_key`
  std::optional<Reservation> memory_;            // of A and B of a large adapter
  size_t num_matrices_;
  int64_t bytes_ = 0;
};

// Checks that the adapters of a batch belong to the model. Throws std::invalid_argument.
void check_adapters(const Model& model, const quire_batch& batch);

// `linear` or `linear_together`, with the changes of the rows that have an adapter.
void linear_with_adapters(const Step& step, const ProductRows* products, LinearArgs* args,
                          int64_t count);

}  // namespace quire

struct quire_adapter {
  quire::Adapter adapter;
};
