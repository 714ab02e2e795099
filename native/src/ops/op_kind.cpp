#include "ops/op_kind.h"

namespace quire {
namespace {

struct OpKinds {
  OpKind kinds[QUIRE_NUM_OP_KINDS];
  bool is_set[QUIRE_NUM_OP_KINDS];
};

// Made at first use: the static objects of other files, which fill it, are made in any order.
OpKinds& all_kinds() {
  static OpKinds all = {};
  return all;
}

}  // namespace

OpRegistration::OpRegistration(const OpKind& kind) {
  all_kinds().kinds[kind.id] = kind;
  all_kinds().is_set[kind.id] = true;
}

const OpKind* find_op_kind(int32_t id) {
  const bool is_known = id >= 0 && id < QUIRE_NUM_OP_KINDS && all_kinds().is_set[id];
  return is_known ? &all_kinds().kinds[id] : nullptr;
}

}  // namespace quire
