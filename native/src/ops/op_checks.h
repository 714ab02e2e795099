// Checks shared by all ops: whether the model has the values and weights that an op names.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "runtime/model.h"

namespace quire {

// Throws std::invalid_argument on the first thing that is wrong with an op.
class OpChecks {
 public:
  // `name`: the op's, for messages. `rows`: quire_rows of its values.
  OpChecks(const Model& model, const char* name, int32_t rows)
      : model_(model), name_(name), rows_(rows) {}

  const Model& model() const { return model_; }
  int32_t rows() const { return rows_; }

  // `what`: the message, after the op's name.
  void require(bool condition, const char* what) const {
    if (!condition) throw std::invalid_argument(std::string(name_) + ": " + what);
  }

  // A value lies in the workspace, with `rows` (quire_rows), as many as the op has by default.
  void view(const quire_view& v) const { view(v, rows_); }
  void view(const quire_view& v, int32_t rows) const {
    require_of_all(v.dtype == QUIRE_F32 || v.dtype == QUIRE_BF16, "view: unknown dtype");
    require_of_all(v.dim >= 1 && v.stride >= v.dim && v.offset >= 0, "view: bad shape");
    const int64_t count =
        rows == QUIRE_ROWS_TOKENS ? model_.spec.max_num_tokens : max_logits_rows(model_.spec);
    const int64_t item = v.dtype == QUIRE_F32 ? 4 : 2;
    const int64_t end = v.offset + ((count - 1) * v.stride + v.dim) * item;
    require_of_all(end <= model_.spec.workspace_bytes, "view: outside the workspace");
  }
  void optional_view(const quire_view& v) const {
    if (v.offset >= 0) view(v);
  }
  // An enum's number is one of its first `count`.
  void choice(int32_t number, int32_t count, const char* what) const {
    require(number >= 0 && number < count, what);
  }
  void optional_vector(int32_t id) const {
    require_of_all(id < static_cast<int32_t>(model_.vectors.size()), "op: no such vector");
  }
  void some_vector(int32_t id) const {
    require_of_all(id >= 0, "op: a weight is missing");
    optional_vector(id);
  }
  void exchange(int32_t number) const { require(number >= 0, "exchange"); }
  // A vector, if there is one, has this size.
  void vector(int32_t id, int64_t size) const {
    if (id < 0) return;
    optional_vector(id);
    require_of_all(static_cast<int64_t>(model_.vectors[id].size()) == size,
                   "op: vector of another size");
  }
  const PackedMatrix& matrix(int32_t id) const {
    require_of_all(is_index(id, model_.matrices.size()), "op: no such matrix");
    return model_.matrices[id];
  }
  const Table& table(int32_t id) const {
    require_of_all(is_index(id, model_.tables.size()), "op: no such table");
    return model_.tables[id];
  }
  void kv_place(const quire_kv_place& place) const {
    require_of_all(is_index(place.layer_group, model_.kv.num_layer_groups()),
                   "op: no such layer group");
    require_of_all(is_index(place.slot, model_.kv.num_slots), "op: no such slot");
  }

 private:
  static bool is_index(int32_t id, int64_t count) { return id >= 0 && id < count; }
  // These messages are the same for every op.
  static void require_of_all(bool condition, const char* what) {
    if (!condition) throw std::invalid_argument(what);
  }

  const Model& model_;
  const char* const name_;
  const int32_t rows_;
};

}  // namespace quire
