// Brings checkpoint tensors into the model's own memory, with all workers at once.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "linear/simd.h"
#include "runtime/model.h"

namespace quire {
namespace {

constexpr int64_t kPieceRows = 256;  // of a matrix, packed by one worker at a time
constexpr int64_t kPieceBytes = 1 << 20;
constexpr int64_t kMaxElements = int64_t{1} << 48;  // of a matrix: its bytes fit, padded too

void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

int64_t total_rows(const quire_part* parts, int32_t num_parts) {
  int64_t rows = 0;
  for (int32_t p = 0; p < num_parts; ++p) {
    require(parts[p].rows >= 1 && parts[p].data != nullptr, "part: empty");
    require(parts[p].dtype >= QUIRE_F32 && parts[p].dtype <= QUIRE_F16, "part: unknown dtype");
    rows += parts[p].rows;
  }
  return rows;
}

// A range of rows of one part, at the row of the whole where it goes.
struct Piece {
  const quire_part* part;
  int64_t part_row;
  int64_t row;
  int64_t rows;
};

// Cuts the parts so that pieces of different workers never share a strip of the packed matrix:
// pieces begin at multiples of `multiple`, except where a part ends inside a strip; such a strip's
// pieces follow each other in one unit of work.
std::vector<std::vector<Piece>> pieces_of(const quire_part* parts, int32_t num_parts,
                                          int64_t multiple, int64_t piece_rows) {
  std::vector<std::vector<Piece>> units;
  int64_t row = 0;
  for (int32_t p = 0; p < num_parts; ++p) {
    for (int64_t done = 0; done < parts[p].rows;) {
      const int64_t boundary = (row / piece_rows + 1) * piece_rows;
      const int64_t count = std::min(boundary - row, parts[p].rows - done);
      if (row % multiple == 0 || units.empty()) units.emplace_back();
      units.back().push_back({&parts[p], done, row, count});
      done += count;
      row += count;
    }
  }
  return units;
}

void convert_row(const quire_part& part, int64_t index, int64_t width, int32_t dtype,
                 uint8_t* out) {
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

}  // namespace

size_t matrix_bytes(const quire_matrix_spec& spec) {
  require(spec.n >= 1 && spec.k >= 1, "matrix: empty");
  require(spec.n <= kMaxElements / spec.k, "matrix: too large");
  require(spec.format >= static_cast<int32_t>(Format::kF32) &&
              spec.format <= static_cast<int32_t>(Format::kInt4A16),
          "matrix: unknown format");
  const auto format = static_cast<Format>(spec.format);
  require(!is_integer(format) || spec.k <= kMaxIntegerDepth,
          "matrix: rows of integers have at most 131071 numbers");
  require(!spec.glu || spec.n % 2 == 0, "matrix: a glu matrix has an even number of rows");
  return packed_bytes(format, spec.n, spec.k, spec.glu != 0);
}

int32_t add_matrix(Model& model, const quire_matrix_spec& spec, const quire_part* parts,
                   int32_t num_parts) {
  const size_t bytes = matrix_bytes(spec);
  require(total_rows(parts, num_parts) == spec.n, "matrix: the parts do not make up its rows");
  PackedMatrix matrix{static_cast<Format>(spec.format), spec.n, spec.k, spec.glu != 0,
                      model.arena.take(bytes)};
  const auto units = pieces_of(parts, num_parts, pack_row_multiple(), kPieceRows);
  model.pool.run([&](Worker& worker) {
    for (int64_t unit; (unit = worker.grab()) < static_cast<int64_t>(units.size());) {
      for (const Piece& piece : units[unit]) {
        pack_rows(matrix, piece.part->data, static_cast<DType>(piece.part->dtype),
                  piece.part->transposed != 0, piece.part->rows, piece.part_row, piece.row,
                  piece.rows);
      }
    }
  });
  model.matrices.push_back(matrix);
  return static_cast<int32_t>(model.matrices.size() - 1);
}

int32_t add_table(Model& model, int64_t rows, int64_t width, int32_t dtype, const quire_part* parts,
                  int32_t num_parts) {
  require(rows >= 1 && width >= 1 && total_rows(parts, num_parts) == rows,
          "table: the parts do not make up its rows");
  require(dtype == QUIRE_F32 || dtype == QUIRE_BF16, "table: unknown dtype");
  for (int32_t p = 0; p < num_parts; ++p) require(!parts[p].transposed, "table: transposed");
  Table table{nullptr, rows, width, dtype};
  uint8_t* data = model.arena.take(rows * table.row_bytes());
  table.data = data;
  const int64_t piece_rows = std::max<int64_t>(1, kPieceBytes / table.row_bytes());
  const auto units = pieces_of(parts, num_parts, 1, piece_rows);
  model.pool.run([&](Worker& worker) {
    for (int64_t unit; (unit = worker.grab()) < static_cast<int64_t>(units.size());) {
      for (const Piece& piece : units[unit]) {
        for (int64_t r = 0; r < piece.rows; ++r) {
          convert_row(*piece.part, piece.part_row + r, width, dtype,
                      data + (piece.row + r) * table.row_bytes());
        }
      }
    }
  });
  model.tables.push_back(table);
  return static_cast<int32_t>(model.tables.size() - 1);
}

int32_t add_vector(Model& model, const float* values, int64_t size) {
  require(size >= 1 && values != nullptr, "vector: empty");
  float* data = reinterpret_cast<float*>(model.arena.take(size * sizeof(float)));
  std::memcpy(data, values, size * sizeof(float));
  model.vectors.push_back({data, size});
  return static_cast<int32_t>(model.vectors.size() - 1);
}

}  // namespace quire
