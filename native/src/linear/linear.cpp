// The product as the pool runs it: pack x, share the strips.
//
// x is packed once into the shared scratch. Then units of work are handed out dynamically: a few
// strips of the weight times a block of rows, the block small enough that its packed x stays in a
// core's second-level cache while the weight is read. A worker knows its next unit before it
// starts the present one, so that the next weights are on their way in time. Several products that
// run together (a layer's experts) have one sequence of units.
//
// A single tile of few rows is packed by every worker for itself, while its first weights are on
// their way: that takes less time than to wait for each other.
#include "linear/linear.h"

#include <unistd.h>

#include <algorithm>
#include <vector>

#include "linear/families.h"
#include "linear/layout.h"
#include "simd/fetch.h"

namespace quire {
namespace gemm {
namespace {

constexpr int64_t kMaxBlockRows = 512;
// Two lines: the hardware fetches them in pairs.
constexpr int64_t kSharedBytes = 128;

constexpr int64_t kSumsFloats = kMaxBlockRows * kStripColumns;

// The largest tile that every worker packs for itself.
constexpr int64_t kOwnTileBytes = 16384;
// Of a worker's first weights, fetched before it packs.
constexpr int64_t kFirstBytes = 4096;

// Five eighths of the second-level cache: the rest is for weights and sums.
int64_t packed_x_budget() {
  static const int64_t bytes = [] {
    const long l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return (l2 > 0 ? static_cast<int64_t>(l2) : int64_t{1} << 20) * 5 / 8;
  }();
  return bytes;
}

int64_t size_of(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

// How one product is cut into units of work. `products`: as many alike run together.
struct Plan {
  const Family* family;
  Tiling tiling;
  int64_t k;  // padded
  int64_t tile_bytes;
  int64_t block_tiles;  // tiles of rows in one unit
  int64_t blocks;
  int64_t strips;
  int64_t strip_bytes;
  bool has_scales;
  const float* scales;  // of all columns, for formats that have them
  const int32_t* offsets;
  int64_t group;  // strips in one unit
  int64_t groups;

  Plan(const Family& family_, const LinearArgs& args, int workers, int64_t products)
      : family(&family_), tiling(family_.tiling(args.m)) {
    const Layout layout = layout_of(args.weight->format);
    k = layout.padded(args.weight->k);
    tile_bytes = round_up(family->tile_bytes(tiling.rows, k), 64);
    strips = strips_of(args.weight->n, args.weight->glu);
    strip_bytes = layout.strip_bytes(args.weight->k);
    has_scales = layout.has_scales;
    scales = scales_of(*args.weight);
    offsets = offsets_of(*args.weight);
    group = std::min(family->strips_at_once(tiling.rows, tiling.tiles),
                     std::max<int64_t>(1, strips * products / (4 * workers)));
    groups = ceil_div(strips, group);
    // Even numbers of tiles: families take two at once.
    const int64_t most =
        std::min(kMaxBlockRows / (tiling.rows * family->planes), packed_x_budget() / tile_bytes);
    blocks = ceil_div(tiling.tiles, std::max<int64_t>(most / 2 * 2, 2));
    block_tiles = round_up(ceil_div(tiling.tiles, blocks), 2);
    blocks = ceil_div(tiling.tiles, block_tiles);
  }

  int64_t units() const { return blocks * groups; }
};

// One of the products that run together, and which of all units and tiles are its own.
struct Job {
  const LinearArgs* args;
  Plan plan;
  int64_t first_unit;
  int64_t first_tile;

  Job(const Family& family, const LinearArgs& args_, int workers, int64_t products,
      const Job* before)
      : args(&args_),
        plan(family, args_, workers, products),
        first_unit(before ? before->first_unit + before->plan.units() : 0),
        first_tile(before ? before->first_tile + before->plan.tiling.tiles : 0) {}
};

// The products that run together, the units of one after those of another.
struct Jobs {
  const Job* jobs;
  int64_t count;
  int64_t units;
  int64_t tiles;
  int64_t span;  // units that a worker takes at once: neighbours, which share lines of the output

  Jobs(const Job* jobs_, int64_t count_, int workers) : jobs(jobs_), count(count_) {
    const Job& last = jobs[count - 1];
    units = last.first_unit + last.plan.units();
    tiles = last.first_tile + last.plan.tiling.tiles;
    const int64_t columns =
        jobs->plan.group * (jobs->args->weight->glu ? kHalfStrip : kStripColumns);
    span = std::clamp<int64_t>(units / (8 * workers), 1,
                               ceil_div(kSharedBytes, columns * size_of(jobs->args->out_dtype)));
  }

  // Whether every worker packs x for itself.
  bool pack_own() const {
    return count == 1 && jobs->plan.tiling.tiles == 1 && jobs->plan.tile_bytes <= kOwnTileBytes;
  }

  const Job& of_unit(int64_t unit) const { return of(unit, &Job::first_unit); }
  const Job& of_tile(int64_t tile) const { return of(tile, &Job::first_tile); }

 private:
  // The last job that begins at `number` or before.
  const Job& of(int64_t number, int64_t Job::* first) const {
    const auto* after =
        std::upper_bound(jobs + 1, jobs + count, number,
                         [first](int64_t wanted, const Job& job) { return wanted < job.*first; });
    return after[-1];
  }
};

void pack_tile(const Job& job, int64_t tile, uint8_t* out) {
  const LinearArgs& args = *job.args;
  const Plan& plan = job.plan;
  const Rows rows{args.x,         args.x_dtype, args.x_stride,
                  args.weight->k, args.x_rows,  order_of(*args.weight)};
  plan.family->pack_tile(rows, tile * plan.tiling.rows, plan.tiling.rows_of(tile), plan.tiling.rows,
                         plan.k, out);
}

void pack_x(const Jobs& jobs, Pool& pool) {
  pool.each(jobs.tiles, [&](int64_t number) {
    const Job& job = jobs.of_tile(number);
    const int64_t tile = number - job.first_tile;
    pack_tile(job, tile, static_cast<uint8_t*>(job.args->scratch) + tile * job.plan.tile_bytes);
  });
}

const uint8_t* weight_of(const Job& job, int64_t unit) {
  const Plan& plan = job.plan;
  return static_cast<const uint8_t*>(job.args->weight->data) +
         (unit - job.first_unit) % plan.groups * plan.group * plan.strip_bytes;
}

Destination destination(const void* data, int64_t stride, int64_t element, int64_t row,
                        int64_t column, int64_t columns) {
  if (data == nullptr) return {nullptr, 0, 0};
  const auto* first = static_cast<const uint8_t*>(data) + (row * stride + column) * element;
  return {first, stride * element, columns * element};
}

// Prefetches the scales and offsets of a unit's columns: a few lines far from its weights, which
// are first read when its first sums are finished.
void fetch_scales(const Job& job, int64_t unit) {
  const Plan& plan = job.plan;
  if (!plan.has_scales) return;
  const int64_t columns = plan.group * kStripColumns;
  const int64_t first = (unit - job.first_unit) % plan.groups * columns;
  for (int64_t i = first; i < first + columns; i += kLanes) {
    __builtin_prefetch(plan.scales + i);
    __builtin_prefetch(plan.offsets + i);
  }
}

// Prefetches what adapters add to a unit's columns: short pieces, far from each other.
void fetch_changes(const Job& job, int64_t unit) {
  const RowChanges* changes = job.args->changes;
  if (changes == nullptr) return;
  const Plan& plan = job.plan;
  const int64_t first = (unit - job.first_unit) % plan.groups * plan.group;
  const int64_t last = std::min(first + plan.group, plan.strips) - 1;
  for (int64_t i = 0; i < changes->num_known; ++i) {
    const LowRank& by = *changes->known[i];
    const LowRank::Half& end = by.halves[2 * last + 1];
    const int64_t size = size_of(by.dtype);
    const auto* b = static_cast<const uint8_t*>(by.b) + by.halves[2 * first].b * size;
    const int64_t bytes = (end.b + end.count * kHalfStrip - by.halves[2 * first].b) * size;
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(b + at, 0, 2);
  }
}

// `x`: the first packed tile of the product. `next`: the first weights of the unit after this one.
void run_unit(const Job& job, int64_t unit, const uint8_t* x, const uint8_t* next, bool x_is_cached,
              float* sums) {
  const LinearArgs& args = *job.args;
  const Plan& plan = job.plan;
  const int64_t tile0 = (unit - job.first_unit) / plan.groups * plan.block_tiles;
  const int64_t strip0 = (unit - job.first_unit) % plan.groups * plan.group;
  const int64_t row = tile0 * plan.tiling.rows;
  Block block;
  block.args = &args;
  block.first_row = row;
  block.first_strip = strip0;
  block.x = x + tile0 * plan.tile_bytes;
  block.tile_bytes = plan.tile_bytes;
  block.tiles = std::min(plan.block_tiles, plan.tiling.tiles - tile0);
  block.rows = plan.tiling.rows * plan.family->planes;
  block.last_rows = plan.tiling.rows_of(tile0 + block.tiles - 1) * plan.family->planes;
  block.planes = plan.family->planes;
  block.k = plan.k;
  block.weight = weight_of(job, unit);
  block.strip_bytes = plan.strip_bytes;
  block.strips = std::min(plan.group, plan.strips - strip0);
  block.scales = plan.scales + strip0 * kStripColumns;
  block.offsets = plan.offsets + strip0 * kStripColumns;
  block.next = next;
  block.sums = sums;
  block.x_is_cached = x_is_cached;
  const int64_t width = args.weight->glu ? kHalfStrip : kStripColumns;
  block.out = destination(args.out, args.out_stride, size_of(args.out_dtype), row, strip0 * width,
                          width * block.strips);
  const void* residual = args.residual == args.out ? nullptr : args.residual;
  block.residual =
      destination(residual, args.residual_stride, 4, row, strip0 * width, width * block.strips);
  plan.family->multiply(block);
}

// The first weights of a unit, of all strips that it reads at once.
void fetch_first(const Job& job, int64_t unit) {
  const Plan& plan = job.plan;
  const uint8_t* weight = weight_of(job, unit);
  const int64_t bytes = std::min(kFirstBytes / plan.group, plan.strip_bytes);
  for (int64_t s = 0; s < plan.group; ++s) fetch_bytes(weight + s * plan.strip_bytes, bytes);
}

void multiply(const Jobs& jobs, Worker& worker) {
  Tickets units(worker, jobs.span, jobs.units);
  int64_t unit = units.next();
  if (unit >= jobs.units) return;
  alignas(64) float sums[kSumsFloats];
  alignas(64) uint8_t own_x[kOwnTileBytes];
  const Job* job = &jobs.of_unit(unit);
  if (jobs.pack_own()) {
    fetch_first(*job, unit);
    pack_tile(*job, 0, own_x);
  }
  const Job* begun = nullptr;
  int64_t previous_rows = -1;
  while (unit < jobs.units) {
    if (job != begun) {
      if (begun == nullptr || begun->plan.tiling.rows != job->plan.tiling.rows) {
        job->plan.family->begin(job->plan.tiling.rows, job->args->weight->format);
      }
      begun = job;
      previous_rows = -1;
    }
    const int64_t next = units.next();
    const uint8_t* next_weight = weight_of(*job, unit);
    const Job* next_job = job;
    if (next < jobs.units) {
      next_job = &jobs.of_unit(next);
      next_weight = weight_of(*next_job, next);
      fetch_scales(*next_job, next);
      fetch_changes(*next_job, next);
    }
    const int64_t rows = (unit - job->first_unit) / job->plan.groups;
    const auto* x = jobs.pack_own() ? own_x : static_cast<const uint8_t*>(job->args->scratch);
    run_unit(*job, unit, x, next_weight, rows == previous_rows, sums);
    previous_rows = rows;
    unit = next;
    job = next_job;
  }
  jobs.jobs->plan.family->end();
}

void run(const Jobs& jobs, Pool& pool) {
  if (!jobs.pack_own()) pack_x(jobs, pool);
  pool.run(jobs.units, [&](Worker& worker) { multiply(jobs, worker); });
}

void run_one(const LinearArgs& args, Pool& pool) {
  const Job job(family_of(args.weight->format, args.m), args, pool.size(), 1, nullptr);
  run(Jobs(&job, 1, pool.size()), pool);
}

// `rows`: of each product, on average.
void run_together(const LinearArgs* args, int64_t count, int64_t rows, Pool& pool) {
  const Family& family = family_of(args->weight->format, rows);
  std::vector<Job> jobs;
  jobs.reserve(count);
  for (int64_t i = 0; i < count; ++i) {
    jobs.emplace_back(family, args[i], pool.size(), count, i == 0 ? nullptr : &jobs[i - 1]);
  }
  run(Jobs(jobs.data(), count, pool.size()), pool);
}

size_t scratch_bytes(const Family& family, int64_t k, int64_t max_m) {
  // The padding of the last tile and of each tile's end to a cache line.
  const int64_t row = family.tile_bytes(1, round_up(k, family.depth));
  return static_cast<size_t>((max_m + family.tiling(max_m).tiles) * row + (max_m + 1) * 64);
}

}  // namespace
}  // namespace gemm

bool linear_available() { return gemm::families_available(); }

size_t linear_scratch_bytes(Format format, int64_t k, int64_t max_m) {
  // Products that run together may have the family of few rows, or of many, for any number of them.
  const auto of = [&](int64_t rows) {
    return gemm::scratch_bytes(gemm::family_of(format, rows), k, max_m);
  };
  return std::max(of(1), of(max_m));
}

ChangePlace change_place(Format format) { return gemm::family_of(format, 1).change_place; }

int64_t rows_of_tiles(Format format, int64_t m) {
  return gemm::family_of(format, m).tiling(m).rows;
}

void linear(const LinearArgs& args, Pool& pool) { gemm::run_one(args, pool); }

void linear_together(const LinearArgs* args, int64_t count, Pool& pool) {
  if (count == 0) return;
  int64_t rows = 0;
  for (int64_t i = 0; i < count; ++i) rows += args[i].m;
  gemm::run_together(args, count, rows / count, pool);
}

}  // namespace quire
