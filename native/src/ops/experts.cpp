// A mixture of experts: each row goes through the few MLPs that its router chose. They are gated if
// their first matrices are glu matrices.
//
// Rows are listed by expert; then two groups of products run, all experts' gates and ups, and all
// their downs, each over its own rows; then each row's results are added up. So an expert's weights
// are read once for all of its rows, with the same packed layout and kernels as other products.
//
// A row's bits depend on the row alone: a product gives a row the same bits among any others, and
// results are added in the order of the experts. There is no limit to the rows of an expert.
#include <algorithm>
#include <vector>

#include "adapters/adapter.h"
#include "linear/linear.h"
#include "ops/kernel.h"
#include "simd/vector.h"

namespace quire {
namespace {

// (row, expert) pairs that are worked on at once: bounds what the products work in.
constexpr int64_t kMaxPairs = 8192;

int64_t num_experts(const quire_experts& op) { return op.routes.dim; }

int64_t item_bytes(int32_t dtype) { return dtype == QUIRE_F32 ? 4 : 2; }

// Whole cache lines, and not the same line of every page.
int64_t stride_of(int64_t dim, int32_t dtype) {
  const auto line = static_cast<int64_t>(kCacheLine) / item_bytes(dtype);
  return static_cast<int64_t>(round_up(dim, line)) + line;
}

// The rows of a step that are worked on at once.
int64_t slab_rows(const quire_experts& op, int64_t rows) {
  return std::min(rows, std::max<int64_t>(1, kMaxPairs / op.top_k));
}

// Where everything lies that the op needs for a slab of rows.
struct Places {
  const PackedMatrix& gate_up;
  const PackedMatrix& down;
  int64_t pairs;
  int64_t input_stride;
  int64_t hidden_stride;
  int64_t result_stride;
  size_t rows;     // [pairs] int32: the row of each pair, expert after expert
  size_t pair_of;  // [pairs] int32: the pairs of each row, in the order of the experts
  size_t weights;  // [pairs] float: of the same
  size_t inputs;   // [pairs, D] in x's type: weighted rows of x, where they are
  size_t hidden;  // [pairs, I] in x's type; if columns are exchanged, it is in the model's `hidden`
  size_t results;  // [pairs, D] float
  size_t packed;   // of the products
  size_t end;

  Places(const Model& model, const quire_experts& op, int64_t slab)
      : gate_up(model.matrices[op.gate_up]),
        down(model.matrices[op.down]),
        pairs(slab * op.top_k),
        input_stride(stride_of(op.x.dim, op.x.dtype)),
        hidden_stride(stride_of(down.k, op.x.dtype)),
        result_stride(stride_of(down.n, QUIRE_F32)) {
    rows = 0;
    pair_of = after(rows, pairs * sizeof(int32_t));
    weights = after(pair_of, pairs * sizeof(int32_t));
    inputs = after(weights, pairs * sizeof(float));
    hidden = after(inputs, op.weighs_inputs ? pairs * input_stride * item_bytes(op.x.dtype) : 0);
    results = after(hidden, op.exchange < 0 ? hidden_bytes(op) : 0);
    packed = after(results, pairs * result_stride * sizeof(float));
    end = packed + std::max(packed_bytes_of(gate_up, op), packed_bytes_of(down, op));
  }

  size_t hidden_bytes(const quire_experts& op) const {
    return pairs * hidden_stride * item_bytes(op.x.dtype);
  }

 private:
  static size_t after(size_t place, size_t bytes) { return round_up(place + bytes, kCacheLine); }
  // Of all products together, each on lines of its own.
  size_t packed_bytes_of(const PackedMatrix& weight, const quire_experts& op) const {
    const int64_t products = std::min<int64_t>(pairs, num_experts(op));
    return linear_scratch_bytes(weight.format, weight.k, pairs) +
           products * (linear_scratch_bytes(weight.format, weight.k, 1) + kCacheLine);
  }
};

// One slab of rows in progress.
class Slab {
 public:
  Slab(const Step& step, const quire_experts& op, int32_t kind, int64_t first, int64_t rows)
      : step_(step),
        op_(op),
        kind_(kind),
        first_(first),
        rows_(rows),
        places_(step.model, op_, rows),
        starts_(num_experts(op_) + 1) {}

  void run() {
    list_pairs();
    if (op_.weighs_inputs) weigh_inputs();
    // Until no rank reads the hidden columns of the slab before.
    if (first_ > 0 && op_.exchange >= 0) step_.model.ranks.wait(op_.exchange);
    multiply_gates();
    if (op_.exchange >= 0) exchange_hidden();
    multiply_downs();
    by_rows(step_, rows_, op_.out.dim * op_.top_k, [&](Span span) {
      for (int64_t r = span.first; r < span.last; ++r) add_up(r);
    });
  }

 private:
  template <class T>
  T* at(size_t place) const {
    return reinterpret_cast<T*>(step_.model.linear_scratch->data() + place);
  }
  int64_t pairs_of(int64_t expert) const { return starts_[expert + 1] - starts_[expert]; }

  // Counts the pairs of each expert, then gives each pair its place among them. A row has no more
  // than top_k, whatever its routes say.
  void list_pairs() {
    const int64_t experts = num_experts(op_);
    each_pair([&](int64_t, int64_t, int64_t expert, float) { ++starts_[expert + 1]; });
    for (int64_t e = 0; e < experts; ++e) starts_[e + 1] += starts_[e];
    std::vector<int64_t> next(starts_.begin(), starts_.end());
    std::fill_n(at<int32_t>(places_.pair_of), places_.pairs, -1);
    each_pair([&](int64_t row, int64_t index, int64_t expert, float weight) {
      const int64_t pair = next[expert]++;
      at<int32_t>(places_.rows)[pair] = static_cast<int32_t>(row);
      at<int32_t>(places_.pair_of)[row * op_.top_k + index] = static_cast<int32_t>(pair);
      at<float>(places_.weights)[row * op_.top_k + index] = weight;
    });
  }

  template <class Use>
  void each_pair(Use use) const {
    for (int64_t row = 0; row < rows_; ++row) {
      const float* routes = step_.f32_row(op_.routes, first_ + row);
      int64_t index = 0;
      for (int64_t e = 0; e < num_experts(op_) && index < op_.top_k; ++e) {
        if (routes[e] != 0.0f) use(row, index++, e, routes[e]);
      }
    }
  }

  uint8_t* input_row(int64_t pair) const {
    return at<uint8_t>(places_.inputs) + pair * places_.input_stride * item_bytes(op_.x.dtype);
  }

  void weigh_inputs() {
    by_rows(step_, rows_, op_.x.dim * op_.top_k, [&](Span span) {
      for (int64_t row = span.first; row < span.last; ++row) {
        const uint8_t* x = step_.row(op_.x, first_ + row);
        const int32_t* pairs = at<int32_t>(places_.pair_of) + row * op_.top_k;
        const float* weights = at<float>(places_.weights) + row * op_.top_k;
        for (int64_t index = 0; index < op_.top_k && pairs[index] >= 0; ++index) {
          uint8_t* input = input_row(pairs[index]);
          for (int64_t i = 0; i < op_.x.dim; i += kLanes) {
            const int64_t n = op_.x.dim - i;
            const F32x16 weighted = load_some(x, op_.x.dtype, i, n) * weights[index];
            store_some(input, op_.x.dtype, i, n, weighted);
          }
        }
      }
    });
  }

  // A product for each expert that has rows; `fill` completes its arguments.
  template <class Fill>
  void multiply(int32_t first_matrix, int32_t bias, Fill fill) {
    std::vector<LinearArgs> products;
    std::vector<ProductRows> rows;
    uint8_t* scratch = at<uint8_t>(places_.packed);
    for (int64_t e = 0; e < num_experts(op_); ++e) {
      if (pairs_of(e) == 0) continue;
      const PackedMatrix& weight = step_.model.matrices[first_matrix + e];
      LinearArgs args{};
      args.weight = &weight;
      args.m = pairs_of(e);
      args.scale = 1.0f;
      args.bias = bias < 0 ? nullptr : step_.vector(bias) + e * weight.n;
      args.scratch = scratch;
      fill(args, starts_[e]);
      scratch += round_up(linear_scratch_bytes(weight.format, weight.k, args.m), kCacheLine);
      products.push_back(args);
      const int32_t* which = at<int32_t>(places_.rows) + starts_[e];
      rows.push_back({first_matrix + static_cast<int32_t>(e), kind_, first_, which});
    }
    const auto count = static_cast<int64_t>(products.size());
    linear_with_adapters(step_, rows.data(), products.data(), count);
  }

  uint8_t* hidden_row(int64_t pair) const {
    uint8_t* hidden = op_.exchange < 0 ? at<uint8_t>(places_.hidden) : step_.model.hidden->data();
    return hidden + pair * places_.hidden_stride * item_bytes(op_.x.dtype);
  }

  void exchange_hidden() const {
    step_.model.ranks.complete(op_.exchange, hidden_row(0), starts_.back(),
                               places_.hidden_stride * item_bytes(op_.x.dtype));
  }

  void multiply_gates() {
    multiply(op_.gate_up, op_.gate_up_bias, [&](LinearArgs& args, int64_t first) {
      args.x_dtype = static_cast<DType>(op_.x.dtype);
      if (op_.weighs_inputs) {
        args.x = input_row(first);
        args.x_stride = places_.input_stride;
      } else {
        args.x = step_.row(op_.x, first_);
        args.x_stride = op_.x.stride;
        args.x_rows = at<int32_t>(places_.rows) + first;
      }
      args.activation = static_cast<Activation>(op_.activation);
      args.out = hidden_row(first) + op_.first * item_bytes(op_.x.dtype);
      args.out_dtype = args.x_dtype;
      args.out_stride = places_.hidden_stride;
    });
  }

  void multiply_downs() {
    multiply(op_.down, op_.down_bias, [&](LinearArgs& args, int64_t first) {
      args.x = hidden_row(first);
      args.x_dtype = static_cast<DType>(op_.x.dtype);
      args.x_stride = places_.hidden_stride;
      args.out = at<float>(places_.results) + first * places_.result_stride;
      args.out_dtype = DType::kF32;
      args.out_stride = places_.result_stride;
    });
  }

  void add_up(int64_t row) const {
    const int32_t* pairs = at<int32_t>(places_.pair_of) + row * op_.top_k;
    const float* weights = at<float>(places_.weights) + row * op_.top_k;
    const uint8_t* residual =
        op_.residual.offset >= 0 ? step_.row(op_.residual, first_ + row) : nullptr;
    uint8_t* out = step_.row(op_.out, first_ + row);
    for (int64_t i = 0; i < op_.out.dim; i += kLanes) {
      const int64_t n = op_.out.dim - i;
      F32x16 sum = {};
      for (int64_t index = 0; index < op_.top_k && pairs[index] >= 0; ++index) {
        const float* result = at<float>(places_.results) + pairs[index] * places_.result_stride;
        const float weight = op_.weighs_inputs ? 1.0f : weights[index];
        sum = fma(load_some(result, QUIRE_F32, i, n), splat(weight), sum);
      }
      sum = sum * op_.scale;
      if (residual) sum = sum + load_some(residual, op_.residual.dtype, i, n);
      store_some(out, op_.out.dtype, i, n, sum);
    }
  }

  const Step& step_;
  const quire_experts& op_;
  const int32_t kind_;  // quire_rows
  const int64_t first_;
  const int64_t rows_;
  const Places places_;
  std::vector<int64_t> starts_;  // [E + 1]: the first pair of each expert
};

void check_experts(const OpChecks& checks, const quire_experts& op) {
  checks.require(op.routes.dtype == QUIRE_F32, "the routes are not float32");
  const int64_t experts = num_experts(op);
  checks.require(op.top_k >= 1 && op.top_k <= experts, "top_k is not from 1 to all experts");
  const PackedMatrix& first = checks.matrix(op.gate_up);
  checks.matrix(op.down);
  for (int32_t e = 0; e < experts; ++e) {
    const PackedMatrix& gate_up = checks.matrix(op.gate_up + e);
    const PackedMatrix& down = checks.matrix(op.down + e);
    const int64_t inner = gate_up.glu ? gate_up.n / 2 : gate_up.n;
    const bool has_all = inner == down.k && op.first == 0;
    checks.require(
        has_all || (op.exchange >= 0 && op.first >= 0 && op.first + inner <= down.k),
        "the experts have other columns");
    checks.require(gate_up.k == op.x.dim && gate_up.n == first.n && gate_up.glu == first.glu &&
                       down.n == op.out.dim && !down.glu,
                   "the matrices have other shapes");
    checks.require(gate_up.format == first.format && down.format == checks.matrix(op.down).format,
                   "the experts have different formats");
  }
  checks.require(op.weighs_inputs == 0 || op.weighs_inputs == 1, "weighs_inputs");
  checks.vector(op.gate_up_bias, experts * first.n);
  checks.vector(op.down_bias, experts * op.out.dim);
  checks.require(op.residual.offset < 0 || op.residual.dim == op.out.dim, "dims differ");
}

void run_experts(const Step& step, const quire_experts& op, int32_t kind) {
  const int64_t rows = step.rows(kind);
  const int64_t slab = slab_rows(op, rows);
  for (int64_t first = 0; first < rows; first += slab) {
    Slab(step, op, kind, first, std::min(slab, rows - first)).run();
  }
}

void reserve_experts(const Model& model, const quire_experts& op, OpNeeds& needs) {
  const int64_t slab = slab_rows(op, model.spec.max_num_tokens);
  const Places places(model, op, slab);
  needs.scratch_bytes = std::max(needs.scratch_bytes, places.end);
  needs.product_rows = std::max(needs.product_rows, places.pairs);
  if (op.exchange >= 0) needs.hidden_bytes = std::max(needs.hidden_bytes, places.hidden_bytes(op));
}

const OpRegistration kExperts(op_kind<quire_experts, check_experts, run_experts,
                                      look_at_out<quire_experts>, reserve_experts>());

}  // namespace
}  // namespace quire
