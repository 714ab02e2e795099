// Packs checkpoint tensors with all workers at once, and adds what is packed to a model.
#include "weights/load.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "linear/grouped/pack_grouped.h"
#include "linear/layout.h"
#include "linear/packing/gguf_blocks.h"
#include "linear/packing/pack_source.h"
#include "runtime/model.h"
#include "simd/simd.h"

namespace quire {
namespace {

constexpr int64_t kPackingVersion = 1;  // to be raised when other bytes have the same layout text
constexpr int64_t kPieceRows = 256;     // of a matrix, packed by one worker at a time
constexpr int64_t kPieceBytes = 1 << 20;
constexpr int64_t kMaxElements = int64_t{1} << 48;  // of a matrix: its bytes fit, padded too

void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

// Of blocks; null where a part has none.
const gemm::BlockKind* kind_of(const quire_part& part) {
  return gemm::block_kind(static_cast<DType>(part.dtype));
}

// Bytes of a row of `width` numbers. No part of GROUPED is asked.
int64_t row_bytes(const quire_part& part, int64_t width) {
  const gemm::BlockKind* kind = kind_of(part);
  return kind != nullptr ? kind->row_bytes(width) : width * (part.dtype == QUIRE_F32 ? 4 : 2);
}

// Of parts whose rows have `width` numbers.
int64_t total_rows(const quire_part* parts, int32_t num_parts, int64_t width) {
  int64_t rows = 0;
  for (int32_t p = 0; p < num_parts; ++p) {
    require(parts[p].rows >= 1 && parts[p].data != nullptr, "part: empty");
    const int32_t dtype = parts[p].dtype;
    const gemm::BlockKind* kind = kind_of(parts[p]);
    require((dtype >= QUIRE_F32 && dtype <= QUIRE_F16) || dtype == QUIRE_GROUPED || kind != nullptr,
            "part: unknown dtype");
    require(kind == nullptr || (width % kind->items == 0 && !parts[p].transposed),
            "part: its rows are not whole blocks");
    rows += parts[p].rows;
  }
  return rows;
}

// A range of rows of one part of a weight, at the row of the whole where it goes.
struct Piece {
  const quire_packing* weight;
  const quire_part* part;
  int64_t part_row;
  int64_t row;
  int64_t rows;
};

using Units = std::vector<std::vector<Piece>>;

// Cuts the parts so that pieces of different workers never share a strip of a packed matrix, which
// has `n` rows: pieces begin at multiples of `multiple` within it, except where a part ends inside
// a strip; such a strip's pieces follow each other in one unit of work.
void cut(const quire_packing& weight, int64_t n, int64_t multiple, int64_t piece_rows,
         Units& units) {
  int64_t row = 0;
  for (int32_t p = 0; p < weight.num_parts; ++p) {
    const quire_part& part = weight.parts[p];
    for (int64_t done = 0; done < part.rows;) {
      const int64_t within = row % n;
      const int64_t boundary = std::min(n, (within / piece_rows + 1) * piece_rows);
      const int64_t count = std::min(boundary - within, part.rows - done);
      if (within % multiple == 0) units.emplace_back();
      units.back().push_back({&weight, &part, done, row, count});
      done += count;
      row += count;
    }
  }
}

void convert_blocks(const quire_part& part, int64_t index, int64_t width, int32_t dtype,
                    uint8_t* out) {
  const gemm::Source source{part.data, static_cast<DType>(part.dtype), false, part.rows, width};
  if (dtype == QUIRE_F32) {
    gemm::read_row(source, index, 0, width, reinterpret_cast<float*>(out));
  } else {
    gemm::read_row(source, index, 0, width, reinterpret_cast<uint16_t*>(out));
  }
}

void convert_row(const quire_part& part, int64_t index, int64_t width, int32_t dtype,
                 uint8_t* out) {
  if (kind_of(part) != nullptr) return convert_blocks(part, index, width, dtype, out);
  const int64_t item = part.dtype == QUIRE_F32 ? 4 : 2;
  const uint8_t* from = static_cast<const uint8_t*>(part.data) + index * width * item;
  if (part.dtype == dtype) {
    std::memcpy(out, from, width * item);
    return;
  }
  for (int64_t i = 0; i < width; ++i) {
    float value;
    uint16_t half;
    if (part.dtype == QUIRE_F32) {
      std::memcpy(&value, from + 4 * i, 4);
    } else {
      std::memcpy(&half, from + 2 * i, 2);
      value = part.dtype == QUIRE_BF16 ? gemm::bf16_to_f32(half) : gemm::f16_to_f32(half);
    }
    if (dtype == QUIRE_F32) {
      std::memcpy(out + 4 * i, &value, 4);
    } else {
      half = gemm::f32_to_bf16(value);
      std::memcpy(out + 2 * i, &half, 2);
    }
  }
}

// Bytes of each of the matrices: whole cache lines.
size_t one_matrix_bytes(const quire_matrix_spec& spec) {
  return packed_bytes(static_cast<Format>(spec.format), spec.n, spec.k, spec.glu != 0);
}

// Matrix `index` of those that lie at `data`.
PackedMatrix matrix_of(const quire_matrix_spec& spec, const void* data, int64_t index) {
  const auto* first = static_cast<const uint8_t*>(data) + index * one_matrix_bytes(spec);
  return {static_cast<Format>(spec.format), spec.n, spec.k, spec.glu != 0,
          const_cast<uint8_t*>(first)};
}

// Of a matrix whose columns have an order: calls `use` with the number of each matrix, the order
// that a part of it has, and whether that part is the matrix's first.
template <class Use>
void each_order(const quire_packing& weight, Use use) {
  const quire_matrix_spec& spec = *weight.matrix;
  const auto format = static_cast<Format>(spec.format);
  if (!is_grouped(format) || !gemm::Grouping(format).ordered) return;
  int64_t row = 0;
  for (int32_t p = 0; p < weight.num_parts; ++p) {
    const quire_part& part = weight.parts[p];
    const auto* data = static_cast<const uint8_t*>(part.data);
    const int64_t at = gemm::part_order_at(format, part.rows, spec.k);
    use(row / spec.n, data + at, row % spec.n == 0);
    row += part.rows;
  }
}

void check_orders(const quire_packing& weight) {
  const int64_t k = weight.matrix->k;
  const uint8_t* of_first = nullptr;
  each_order(weight, [&](int64_t, const uint8_t* order, bool is_first) {
    if (is_first) of_first = order;
    require(std::memcmp(of_first, order, 4 * k) == 0, "matrix: its parts have unlike orders");
    for (int64_t i = 0; i < k; ++i) {
      int32_t column;
      std::memcpy(&column, order + 4 * i, 4);
      require(column >= 0 && column < k, "matrix: an order of columns that it does not have");
    }
  });
}

void copy_orders(const quire_packing& weight) {
  each_order(weight, [&](int64_t index, const uint8_t* order, bool is_first) {
    if (!is_first) return;
    const PackedMatrix matrix = matrix_of(*weight.matrix, weight.out, index);
    std::memcpy(gemm::order_of(matrix), order, 4 * matrix.k);
  });
}

int64_t row_bytes(const quire_table_spec& spec) {
  return spec.width * (spec.dtype == QUIRE_F32 ? 4 : 2);
}

void check_table(const quire_table_spec& spec) {
  require(spec.rows >= 1 && spec.width >= 1 && spec.rows <= kMaxElements / spec.width,
          "table: empty or too large");
  require(spec.dtype == QUIRE_F32 || spec.dtype == QUIRE_BF16, "table: unknown dtype");
}

void check(const quire_packing& weight) {
  require((weight.matrix == nullptr) != (weight.table == nullptr), "weight: of which kind?");
  require(reinterpret_cast<uintptr_t>(weight.out) % 64 == 0 && weight.out != nullptr,
          "weight: its place is not aligned");
  require(weight.not_finite != nullptr, "weight: no place for what is not finite");
  const int64_t width = weight.matrix != nullptr ? weight.matrix->k : weight.table->width;
  const int64_t rows = total_rows(weight.parts, weight.num_parts, width);
  if (weight.matrix != nullptr) {
    matrix_bytes(*weight.matrix);
    require(rows == weight.matrix->n * weight.matrix->count,
            "matrix: the parts do not make up its rows");
    const auto format = static_cast<Format>(weight.matrix->format);
    const bool grouped = is_grouped(format);
    for (int32_t p = 0; p < weight.num_parts; ++p) {
      const quire_part& part = weight.parts[p];
      const gemm::BlockKind* kind = kind_of(part);
      if (grouped && kind != nullptr) {
        require(kind->grouping == (weight.matrix->format & ~0xff),
                "matrix: blocks of another format");
        continue;
      }
      require(
          !is_held(format) || part.dtype == (format == Format::kHeldF16 ? QUIRE_F16 : QUIRE_BF16),
          "matrix: a held matrix has numbers of its own type");
      require((part.dtype == QUIRE_GROUPED) == grouped,
              "matrix: groups of codes go into a grouped matrix, and only they");
      require(!grouped || (!part.transposed && !part.mapped),
              "matrix: groups of codes lie in memory, row by row");
      require(!grouped || (weight.matrix->format & QUIRE_GROUPS_NESTED) == 0,
              "matrix: nested groups come as blocks");
    }
    check_orders(weight);
    return;
  }
  check_table(*weight.table);
  require(rows == weight.table->rows, "table: the parts do not make up its rows");
  for (int32_t p = 0; p < weight.num_parts; ++p) {
    require(!weight.parts[p].transposed, "table: transposed");
    require(weight.parts[p].dtype != QUIRE_GROUPED, "table: groups of codes");
  }
}

bool is_finite(const quire_table_spec& table, const uint8_t* row) {
  return table.dtype == QUIRE_F32
             ? gemm::all_finite(reinterpret_cast<const float*>(row), table.width)
             : gemm::all_finite(reinterpret_cast<const uint16_t*>(row), table.width);
}

// Returns whether all numbers are finite as they are stored.
bool pack_piece(const Piece& piece) {
  const quire_packing& weight = *piece.weight;
  const quire_part& part = *piece.part;
  if (weight.matrix != nullptr) {
    const int64_t n = weight.matrix->n;
    return pack_rows(matrix_of(*weight.matrix, weight.out, piece.row / n), part.data,
                     static_cast<DType>(part.dtype), part.transposed != 0, part.rows,
                     piece.part_row, piece.row % n, piece.rows);
  }
  bool finite = true;
  const quire_table_spec& table = *weight.table;
  auto* out = static_cast<uint8_t*>(weight.out) + piece.row * row_bytes(table);
  for (int64_t r = 0; r < piece.rows; ++r, out += row_bytes(table)) {
    convert_row(part, piece.part_row + r, table.width, table.dtype, out);
    finite &= is_finite(table, out);
  }
  return finite;
}

// Several workers may set the same flag.
void report_not_finite(const Piece& piece) {
  uint8_t* flag = piece.weight->not_finite + (piece.part - piece.weight->parts);
  __atomic_store_n(flag, uint8_t{1}, __ATOMIC_RELAXED);
}

// Frees the pages that were read for a piece, so that a checkpoint and its packed weights are not
// both in memory. Pages that it shares with neighbouring pieces stay.
void drop_source(const Piece& piece) {
  const quire_part& part = *piece.part;
  if (!part.mapped || part.transposed) return;
  const quire_packing& weight = *piece.weight;
  const int64_t width = weight.matrix != nullptr ? weight.matrix->k : weight.table->width;
  const int64_t bytes = row_bytes(part, width);
  static const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const auto data = reinterpret_cast<uintptr_t>(part.data);
  const size_t begin = round_up(data + piece.part_row * bytes, page);
  const size_t end = (data + (piece.part_row + piece.rows) * bytes) / page * page;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace

size_t matrix_bytes(const quire_matrix_spec& spec) {
  require(spec.n >= 1 && spec.k >= 1 && spec.count >= 1, "matrix: empty");
  require(spec.n <= kMaxElements / spec.k && spec.count <= kMaxElements / spec.k / spec.n,
          "matrix: too large");
  const auto format = static_cast<Format>(spec.format);
  require((spec.format >= static_cast<int32_t>(Format::kF32) &&
           spec.format <= static_cast<int32_t>(Format::kInt4A16)) ||
              is_held(format) || (is_grouped(format) && gemm::Grouping(format).is_known()),
          "matrix: unknown format");
  require(!is_integer(format) || spec.k <= kMaxIntegerDepth,
          "matrix: rows of integers have at most 131071 numbers");
  require(!spec.glu || spec.n % 2 == 0, "matrix: a glu matrix has an even number of rows");
  return one_matrix_bytes(spec) * static_cast<size_t>(spec.count);
}

std::string format_layout(int32_t format) {
  matrix_bytes({1, 1, format, 0, 1});
  const gemm::Layout layout = gemm::layout_of(static_cast<Format>(format));
  return "strips of " + std::to_string(gemm::kStripColumns) + " by " +
         std::to_string(layout.depth) + " in " + std::to_string(layout.strip_bytes(layout.depth)) +
         " bytes, packing " + std::to_string(kPackingVersion);
}

void pack(Pool& pool, const quire_packing* weights, int32_t num_weights) {
  Units units;
  for (int32_t i = 0; i < num_weights; ++i) {
    check(weights[i]);
    const quire_table_spec* table = weights[i].table;
    if (table == nullptr) {
      copy_orders(weights[i]);
      cut(weights[i], weights[i].matrix->n, pack_row_multiple(), kPieceRows, units);
    } else {
      cut(weights[i], table->rows, 1, std::max<int64_t>(1, kPieceBytes / row_bytes(*table)), units);
    }
  }
  pool.each(static_cast<int64_t>(units.size()), [&](int64_t unit) {
    for (const Piece& piece : units[unit]) {
      if (!pack_piece(piece)) report_not_finite(piece);
      drop_source(piece);
    }
  });
}

int32_t add_matrix(Model& model, const quire_matrix_spec& spec, const void* data) {
  const size_t bytes = matrix_bytes(spec);
  require(data != nullptr && reinterpret_cast<uintptr_t>(data) % 64 == 0, "matrix: not aligned");
  const auto first = static_cast<int32_t>(model.matrices.size());
  for (int64_t i = 0; i < spec.count; ++i) model.matrices.push_back(matrix_of(spec, data, i));
  model.weight_bytes += static_cast<int64_t>(bytes);
  return first;
}

int32_t add_table(Model& model, const quire_table_spec& spec, const void* data) {
  check_table(spec);
  require(data != nullptr, "table: empty");
  model.tables.push_back({static_cast<const uint8_t*>(data), spec.rows, spec.width, spec.dtype});
  model.weight_bytes += spec.rows * row_bytes(spec);
  return static_cast<int32_t>(model.tables.size() - 1);
}

int32_t add_vector(Model& model, const float* values, int64_t size) {
  require(size >= 1 && values != nullptr, "vector: empty");
  model.vectors.emplace_back(values, values + size);
  model.weight_bytes += size * static_cast<int64_t>(sizeof(float));
  return static_cast<int32_t>(model.vectors.size() - 1);
}

}  // namespace quire
