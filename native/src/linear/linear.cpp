// The product as the pool runs it: pack x, share the strips.
//
// x is packed once into the shared scratch. Then units of work are handed out dynamically: a few
// strips of the weight times a block of rows, the block small enough that its packed x stays in a
// core's second-level cache while the weight is read. A worker knows its next unit before it
// starts the present one, so that the next weights are on their way in time.
#include "linear/linear.h"

#include <unistd.h>

#include <algorithm>

#include "linear/families.h"
#include "linear/layout.h"

namespace quire {
namespace gemm {
namespace {

constexpr int64_t kMaxBlockRows = 512;
// Two lines: the hardware fetches them in pairs.
constexpr int64_t kSharedBytes = 128;

constexpr int64_t kSumsFloats = kMaxBlockRows * kStripColumns;

// Five eighths of the second-level cache: the rest is for weights and sums.
int64_t packed_x_budget() {
  static const int64_t bytes = [] {
    const long l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return (l2 > 0 ? static_cast<int64_t>(l2) : int64_t{1} << 20) * 5 / 8;
  }();
  return bytes;
}

int64_t size_of(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

// How one product is cut into units of work.
template <class Family>
struct Plan {
  Tiling tiling;
  int64_t k;  // padded
  int64_t tile_bytes;
  int64_t block_tiles;  // tiles of rows in one unit
  int64_t blocks;
  int64_t strips;
  int64_t strip_bytes;
  bool has_scales;
  int64_t group;  // strips in one unit
  int64_t groups;
  int64_t span;  // units that a worker takes at once: neighbours, which share lines of the output

  Plan(const LinearArgs& args, int workers) : tiling(args.m, Family::kMaxTileRows) {
    const Layout layout = layout_of(args.weight->format);
    k = layout.padded(args.weight->k);
    tile_bytes = round_up(Family::tile_bytes(tiling.rows, k), 64);
    strips = strips_of(args.weight->n, args.weight->glu);
    strip_bytes = layout.strip_bytes(args.weight->k);
    has_scales = layout.has_scales;
    group = std::min(Family::strips_at_once(tiling.rows, tiling.tiles),
                     std::max<int64_t>(1, strips / (4 * workers)));
    groups = ceil_div(strips, group);
    // Even numbers of tiles: families take two at once.
    const int64_t most =
        std::min(kMaxBlockRows / (tiling.rows * Family::kPlanes), packed_x_budget() / tile_bytes);
    blocks = ceil_div(tiling.tiles, std::max<int64_t>(most / 2 * 2, 2));
    block_tiles = round_up(ceil_div(tiling.tiles, blocks), 2);
    blocks = ceil_div(tiling.tiles, block_tiles);
    const int64_t columns = group * (args.weight->glu ? kHalfStrip : kStripColumns);
    span = std::clamp<int64_t>(units() / (8 * workers), 1,
                               ceil_div(kSharedBytes, columns * size_of(args.out_dtype)));
  }

  int64_t units() const { return blocks * groups; }
};

template <class Family>
void pack_x(const LinearArgs& args, const Plan<Family>& plan, Pool& pool) {
  const Rows rows{args.x, args.x_dtype, args.x_stride, args.weight->k};
  auto* out = static_cast<uint8_t*>(args.scratch);
  pool.each(plan.tiling.tiles, [&](int64_t tile) {
    Family::pack_tile(rows, tile * plan.tiling.rows, plan.tiling.rows_of(tile), plan.tiling.rows,
                      plan.k, out + tile * plan.tile_bytes);
  });
}

template <class Family>
const uint8_t* weight_of(const LinearArgs& args, const Plan<Family>& plan, int64_t unit) {
  return static_cast<const uint8_t*>(args.weight->data) +
         unit % plan.groups * plan.group * plan.strip_bytes;
}

Destination destination(const void* data, int64_t stride, int64_t element, int64_t row,
                        int64_t column, int64_t columns) {
  if (data == nullptr) return {nullptr, 0, 0};
  const auto* first = static_cast<const uint8_t*>(data) + (row * stride + column) * element;
  return {first, stride * element, columns * element};
}

// Prefetches the scales and offsets of a unit's columns: a few lines far from its weights, which
// are first read when its first sums are finished.
template <class Family>
void fetch_scales(const LinearArgs& args, const Plan<Family>& plan, int64_t unit) {
  if (!plan.has_scales || unit >= plan.units()) return;
  const int64_t columns = plan.group * kStripColumns;
  const int64_t first = unit % plan.groups * columns;
  for (int64_t i = first; i < first + columns; i += kLanes) {
    __builtin_prefetch(scales_of(*args.weight) + i);
    __builtin_prefetch(offsets_of(*args.weight) + i);
  }
}

template <class Family>
void run_unit(const LinearArgs& args, const Plan<Family>& plan, int64_t unit, int64_t next,
              bool x_is_cached, float* sums) {
  const int64_t tile0 = unit / plan.groups * plan.block_tiles;
  const int64_t strip0 = unit % plan.groups * plan.group;
  const int64_t row = tile0 * plan.tiling.rows;
  Block block;
  block.args = &args;
  block.first_row = row;
  block.first_strip = strip0;
  block.x = static_cast<const uint8_t*>(args.scratch) + tile0 * plan.tile_bytes;
  block.tile_bytes = plan.tile_bytes;
  block.tiles = std::min(plan.block_tiles, plan.tiling.tiles - tile0);
  block.rows = plan.tiling.rows * Family::kPlanes;
  block.last_rows = plan.tiling.rows_of(tile0 + block.tiles - 1) * Family::kPlanes;
  block.planes = Family::kPlanes;
  block.k = plan.k;
  block.weight = weight_of(args, plan, unit);
  block.strip_bytes = plan.strip_bytes;
  block.strips = std::min(plan.group, plan.strips - strip0);
  block.scales = scales_of(*args.weight) + strip0 * kStripColumns;
  block.offsets = offsets_of(*args.weight) + strip0 * kStripColumns;
  block.next = weight_of(args, plan, next < plan.units() ? next : unit);
  fetch_scales(args, plan, next);
  block.sums = sums;
  block.x_is_cached = x_is_cached;
  const int64_t width = args.weight->glu ? kHalfStrip : kStripColumns;
  block.out = destination(args.out, args.out_stride, size_of(args.out_dtype), row, strip0 * width,
                          width * block.strips);
  const void* residual = args.residual == args.out ? nullptr : args.residual;
  block.residual =
      destination(residual, args.residual_stride, 4, row, strip0 * width, width * block.strips);
  Family::multiply(block);
}

template <class Family>
void multiply(const LinearArgs& args, const Plan<Family>& plan, Worker& worker) {
  Tickets units(worker, plan.span, plan.units());
  int64_t unit = units.next();
  if (unit >= plan.units()) return;
  alignas(64) float sums[kSumsFloats];
  int64_t previous_rows = -1;
  Family::begin(plan.tiling.rows);
  while (unit < plan.units()) {
    const int64_t next = units.next();
    const int64_t rows = unit / plan.groups;
    run_unit(args, plan, unit, next, rows == previous_rows, sums);
    previous_rows = rows;
    unit = next;
  }
  Family::end();
}

template <class Family>
void run(const LinearArgs& args, Pool& pool) {
  const Plan<Family> plan(args, pool.size());
  pack_x(args, plan, pool);
  pool.run(plan.units(), [&](Worker& worker) { multiply(args, plan, worker); });
}

template <class Family>
size_t scratch_bytes(int64_t k, int64_t max_m) {
  // The padding of the last tile and of each tile's end to a cache line.
  const int64_t row = Family::tile_bytes(1, round_up(k, Family::kDepth));
  return static_cast<size_t>((max_m + ceil_div(max_m, Family::kMaxTileRows)) * row +
                             (max_m + 1) * 64);
}

}  // namespace
}  // namespace gemm

bool linear_available() { return gemm::Bf16Family::available(); }

size_t linear_scratch_bytes(Format format, int64_t k, int64_t max_m) {
  return gemm::with_family(format, [&](auto tag) {
    return gemm::scratch_bytes<typename decltype(tag)::Family>(k, max_m);
  });
}

void linear(const LinearArgs& args, Pool& pool) {
  gemm::with_family(args.weight->format,
                    [&](auto tag) { gemm::run<typename decltype(tag)::Family>(args, pool); });
}

}  // namespace quire
