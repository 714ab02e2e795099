// How an adapter is stored: A line by line, B in half strips of 16 columns as the products have
// them.
#include "adapters/adapter.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "linear/layout.h"
#include "linear/low_rank.h"
#include "runtime/model.h"
#include "simd/vector.h"

namespace quire {
namespace {

constexpr int64_t kMaxEmbeddingRank = 1024;
constexpr int64_t kMaxRank = 65536;

void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(std::string("adapter: ") + what);
}

int64_t item_of(int32_t dtype) { return dtype == QUIRE_F32 ? 4 : 2; }

int64_t embedding_key(int32_t matrix, int32_t table) {
  return matrix >= 0 ? int64_t{matrix} * 2 : int64_t{table} * 2 + 1;
}

// What the parts of one weight need to know of it.
struct Shape {
  int64_t n;
  int64_t k;  // of an embedding, ids
  bool glu;
  bool on_tiles;  // if A and B are bfloat16
};

using Parts = std::vector<const quire_adapter_part*>;

void check_part(const quire_adapter_part& part, const Shape& shape) {
  require(part.rank >= 1 && part.rank <= kMaxRank, "a rank is out of range");
  require(part.a != nullptr && part.b != nullptr, "a part has no A or B");
  require(part.rows >= 1 && part.first_row >= 0 && part.first_row + part.rows <= shape.n,
          "rows of a part are outside the weight");
}

void write_line(std::vector<uint8_t>& to, int32_t dtype, int64_t at, const float* from,
                int64_t size) {
  for (int64_t i = 0; i < size; i += kLanes) {
    store_some(to.data() + at * item_of(dtype), dtype, i, size - i,
               load_some(from, QUIRE_F32, i, size - i));
  }
}

void keep_a(AdapterWeight& weight, const Parts& parts) {
  weight.depth = static_cast<int64_t>(round_up(weight.k, weight.step()));
  weight.own_a.assign(weight.width * weight.depth * item_of(weight.dtype), 0);
  int64_t line = 0;
  for (const quire_adapter_part* part : parts) {
    for (int64_t j = 0; j < part->rank; ++j, ++line) {
      weight.scales.push_back(part->scale);
      for (int64_t i = 0; i < weight.k; i += kLanes) {
        const int64_t count = std::min<int64_t>(kLanes, weight.k - i);
        write_line(weight.own_a, weight.dtype, weight.place(line, i), part->a + j * weight.k + i,
                   count);
      }
    }
  }
}

// Where the numbers of A x of the part after `width` others begin.
int64_t start_of_part(const AdapterWeight& weight, int64_t width) {
  return weight.on_tiles ? static_cast<int64_t>(round_up(width, kTileNumbers)) : width;
}

// Lines of A for tiles, 16 together.
void keep_a_for_tiles(AdapterWeight& weight, const Parts& parts) {
  constexpr int64_t kLines = kTileLinesOfA;
  weight.depth = static_cast<int64_t>(round_up(weight.k, 32));
  weight.scales.assign(weight.width, 0.0f);
  std::vector<float> a;
  int64_t number = 0;
  for (const quire_adapter_part* part : parts) {
    number = start_of_part(weight, number);
    for (int64_t j = 0; j < part->rank; ++j) {
      if (j % kTileNumbers == 0) weight.chunks.push_back(static_cast<int64_t>(a.size()) * 2);
      if (j % kLines == 0) a.resize(a.size() + kLines * weight.depth, 0.0f);
      float* lines = a.data() + a.size() - kLines * weight.depth + j % kLines * 2;
      for (int64_t i = 0; i < weight.k; ++i) {
        lines[i / 2 * kLines * 2 + i % 2] = part->a[j * weight.k + i];
      }
      weight.scales[number + j] = part->scale;
    }
    number += part->rank;
  }
  weight.chunks.push_back(static_cast<int64_t>(a.size()) * 2);
  weight.own_a.resize(a.size() * 2);
  write_line(weight.own_a, weight.dtype, 0, a.data(), static_cast<int64_t>(a.size()));
}

void keep_embedding_a(AdapterWeight& weight, const quire_adapter_part& part) {
  weight.scales.assign(part.rank, part.scale);
  weight.own_a.assign(weight.k * part.rank * item_of(weight.dtype), 0);
  for (int64_t id = 0; id < weight.k; ++id) {
    write_line(weight.own_a, weight.dtype, id * part.rank, part.a + id * part.rank, part.rank);
  }
}

// Row of the weight that is column `c` of a half strip; -1: none.
int64_t row_of(const Shape& shape, int64_t half, int64_t c) {
  const int64_t strip = half / 2;
  if (!shape.glu) {
    const int64_t row = half * kLanes + c;
    return row < shape.n ? row : -1;
  }
  const int64_t within = strip * kLanes + c;
  return within < shape.n / 2 ? (half % 2) * (shape.n / 2) + within : -1;
}

struct PlacedPart {
  const quire_adapter_part* part;
  int64_t line;  // its first number of A x

  // Of this row of the weight; -1: it has none.
  int64_t index(int64_t row) const {
    const int64_t at = row - part->first_row;
    return row >= 0 && at >= 0 && at < part->rows ? at : -1;
  }
};

void keep_half(AdapterWeight& weight, const Shape& shape, const std::vector<PlacedPart>& parts,
               int64_t half, std::vector<float>& b) {
  int64_t first = weight.width;
  int64_t end = 0;
  for (const PlacedPart& placed : parts) {
    bool reaches = false;
    for (int64_t c = 0; c < kLanes; ++c) reaches |= placed.index(row_of(shape, half, c)) >= 0;
    if (!reaches) continue;
    first = std::min(first, placed.line);
    end = std::max<int64_t>(end, placed.line + placed.part->rank);
  }
  const int64_t count = std::max<int64_t>(0, end - first);
  const auto begin = static_cast<int64_t>(b.size());
  weight.halves.push_back(
      {static_cast<int32_t>(count > 0 ? first : 0), static_cast<int32_t>(count), begin});
  const int64_t together = weight.dtype == QUIRE_F32 ? 1 : 2;  // see low_rank.h
  b.resize(begin + round_up(count, together) * kLanes, 0.0f);
  for (const PlacedPart& placed : parts) {
    for (int64_t c = 0; c < kLanes; ++c) {
      const int64_t row = placed.index(row_of(shape, half, c));
      if (row < 0) continue;
      const quire_adapter_part& part = *placed.part;
      for (int64_t j = 0; j < part.rank; ++j) {
        const int64_t number = placed.line - first + j;
        const int64_t line = number - number % together;
        b[begin + line * kLanes + c * together + number % together] = part.b[row * part.rank + j];
      }
      if (part.bias) weight.bias[half * kLanes + c] = part.scale * part.bias[row];
      if (part.gains) weight.gains[half * kLanes + c] = part.gains[row];
    }
  }
}

void keep_b(AdapterWeight& weight, const Shape& shape, const Parts& parts) {
  std::vector<PlacedPart> placed;
  int64_t line = 0;
  bool has_bias = false;
  bool has_gains = false;
  for (const quire_adapter_part* part : parts) {
    line = start_of_part(weight, line);
    placed.push_back({part, line});
    line += part->rank;
    has_bias |= part->bias != nullptr;
    has_gains |= part->gains != nullptr;
  }
  const int64_t halves = 2 * gemm::strips_of(shape.n, shape.glu);
  if (has_bias) weight.bias.assign(halves * kLanes, 0.0f);
  if (has_gains) weight.gains.assign(halves * kLanes, 1.0f);
  std::vector<float> b;
  for (int64_t half = 0; half < halves; ++half) keep_half(weight, shape, placed, half, b);
  // The last tile of B ends after them.
  if (weight.on_tiles) b.resize(b.size() + kTileNumbers * kLanes, 0.0f);
  weight.own_b.assign(b.size() * item_of(weight.dtype), 0);
  write_line(weight.own_b, weight.dtype, 0, b.data(), static_cast<int64_t>(b.size()));
}

AdapterWeight weight_of(const Shape& shape, const Parts& parts, int32_t dtype) {
  AdapterWeight weight;
  weight.dtype = dtype;
  weight.n = shape.n;
  weight.k = shape.k;
  weight.on_tiles = shape.on_tiles && dtype == QUIRE_BF16;
  for (const quire_adapter_part* part : parts) {
    check_part(*part, shape);
    weight.width = start_of_part(weight, weight.width) + part->rank;
  }
  weight.width = start_of_part(weight, weight.width);
  if (parts[0]->is_embedding) {
    require(parts.size() == 1 && parts[0]->rows == shape.n && parts[0]->rank <= kMaxEmbeddingRank &&
                parts[0]->gains == nullptr,
            "an embedding has another shape");
    keep_embedding_a(weight, *parts[0]);
  } else if (weight.on_tiles) {
    keep_a_for_tiles(weight, parts);
  } else {
    keep_a(weight, parts);
  }
  keep_b(weight, shape, parts);
  return weight;
}

// Set where the weight stays: it points into itself.
int64_t settle(AdapterWeight& weight) {
  weight.a = weight.own_a.data();
  weight.b = weight.own_b.data();
  weight.change = {weight.halves.data(),
                   weight.b,
                   static_cast<DType>(weight.dtype),
                   weight.bias.empty() ? nullptr : weight.bias.data(),
                   weight.gains.empty() ? nullptr : weight.gains.data(),
                   weight.width,
                   weight.on_tiles};
  const size_t floats = weight.scales.size() + weight.bias.size() + weight.gains.size();
  return static_cast<int64_t>(weight.own_a.size() + weight.own_b.size() + 4 * floats +
                              weight.halves.size() * sizeof(LowRank::Half));
}

Shape shape_of(const Model& model, const quire_adapter_part& part) {
  if (part.matrix >= 0) {
    require(part.matrix < static_cast<int32_t>(model.matrices.size()), "no such matrix");
    const PackedMatrix& matrix = model.matrices[part.matrix];
    if (part.is_embedding) return {matrix.k, matrix.n, false, false};
    return {matrix.n, matrix.k, matrix.glu, change_place(matrix.format) != ChangePlace::kVectors};
  }
  require(part.is_embedding && part.table >= 0 &&
              part.table < static_cast<int32_t>(model.tables.size()),
          "no such table");
  const Table& table = model.tables[part.table];
  return {table.width, table.rows, false, false};
}

}  // namespace

Adapter::Adapter(const Model& model, const quire_adapter_part* parts, int32_t num_parts,
                 int32_t dtype)
    : of_matrix_(model.matrices.size(), -1), num_matrices_(model.matrices.size()) {
  require(dtype == QUIRE_F32 || dtype == QUIRE_BF16, "unknown dtype");
  require(model.spec.max_adapter_width > 0, "the model was built without adapters");
  std::map<int32_t, Parts> products;
  std::map<int64_t, Parts> embeddings;
  for (int32_t i = 0; i < num_parts; ++i) {
    shape_of(model, parts[i]);
    if (parts[i].is_embedding) {
      embeddings[embedding_key(parts[i].matrix, parts[i].table)].push_back(parts + i);
    } else {
      products[parts[i].matrix].push_back(parts + i);
    }
  }
  products_.reserve(products.size());
  for (const auto& [matrix, own] : products) {
    of_matrix_[matrix] = static_cast<int32_t>(products_.size());
    products_.push_back(weight_of(shape_of(model, *own[0]), own, dtype));
    bytes_ += settle(products_.back());
    require(AdapterScratch::bytes_of(products_.back().change) <= model.adapters.row_bytes,
            "the ranks for one weight are larger than the model was built for");
  }
  move_to_huge_pages();
  for (const auto& [key, own] : embeddings) {
    AdapterWeight& weight = embeddings_[key];
    weight = weight_of(shape_of(model, *own[0]), own, dtype);
    bytes_ += settle(weight);
  }
}

// A step reads short pieces of A and B between long ones of the weights. On huge pages, and in the
// order of the step, products with A take less time than on pages of 4 KB.
void Adapter::move_to_huge_pages() {
  const auto size_of = [](const std::vector<uint8_t>& own) {
    return round_up(own.size(), kCacheLine);
  };
  size_t bytes = 0;
  for (const AdapterWeight& one : products_) bytes += size_of(one.own_a) + size_of(one.own_b);
  if (bytes < kHugePage) return;
  memory_.emplace(bytes);
  uint8_t* to = memory_->data();
  const auto move = [&](std::vector<uint8_t>& own) {
    uint8_t* at = to;
    std::memcpy(at, own.data(), own.size());
    to += size_of(own);
    std::vector<uint8_t>().swap(own);
    return at;
  };
  for (AdapterWeight& one : products_) {
    one.a = move(one.own_a);
    one.change.b = one.b = move(one.own_b);
  }
}

const AdapterWeight* Adapter::of_product(int32_t matrix) const {
  const int32_t index = of_matrix_[matrix];
  return index < 0 ? nullptr : &products_[index];
}

void Adapter::change_embedding(int32_t matrix, int32_t table, int64_t id, float scale,
                               float* out) const {
  const auto found = embeddings_.find(embedding_key(matrix, table));
  if (found == embeddings_.end()) return;
  const AdapterWeight& weight = found->second;
  float hidden[kMaxEmbeddingRank];
  const int64_t width = weight.width;
  const uint8_t* line = weight.a + id * width * item_of(weight.dtype);
  for (int64_t j = 0; j < width; j += kLanes) {
    const F32x16 numbers = load_some(line, weight.dtype, j, width - j);
    const F32x16 scales = load_some(weight.scales.data(), QUIRE_F32, j, width - j);
    store_some(hidden, QUIRE_F32, j, width - j, numbers * scales);
  }
  const auto halves = static_cast<int64_t>(weight.halves.size());
  for (int64_t half = 0; half < halves; ++half) {
    const int64_t at = half * kLanes;
    const LowRank::Half& own = weight.halves[half];
    if (own.count == 0) continue;
    const float* const of_row = hidden;
    F32x16 sums[1][1];
    gemm::expand(weight.change, half, &of_row, sums);
    const F32x16 added = sums[0][0] * scale;
    const int64_t columns = weight.n - at;
    store_some(out, QUIRE_F32, at, columns, load_some(out, QUIRE_F32, at, columns) + added);
  }
}

}  // namespace quire
