// The C ABI over the C++ inside: no exception leaves, every failure becomes a message.
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>

#include "adapters/adapter.h"
#include "attention/kv_clear.h"
#include "quire.h"
#include "runtime/library_tier.h"
#include "runtime/model.h"
#include "threads/pool.h"
#include "weights/load.h"

struct quire_pool {
  quire::Pool pool;
};

struct quire_model {
  quire::Model model;
};

namespace {

thread_local std::string last_error;

// Runs f; what it throws becomes the last error and `failed` the result.
template <class T, class F>
T guarded(T failed, F f) noexcept {
  try {
    return f();
  } catch (const std::bad_alloc&) {
    last_error = "out of memory, or of address space (ulimit -v)";
  } catch (const std::exception& error) {
    last_error = error.what();
  }
  return failed;
}

template <class Copy>
void each_block(const quire::Model& model, const int32_t* ids, int32_t num_ids, Copy copy) {
  for (int32_t i = 0; i < num_ids; ++i) {
    if (ids[i] < 0 || ids[i] >= model.kv.num_blocks) {
      throw std::invalid_argument("block id " + std::to_string(ids[i]) + " is not from 0 to " +
                                  std::to_string(model.kv.num_blocks - 1));
    }
  }
  const int64_t bytes = model.kv.block_bytes;
  for (int32_t i = 0; i < num_ids; ++i) copy(model.kv.block(ids[i]), i * bytes, bytes);
}

}  // namespace

#define QUIRE_API extern "C" __attribute__((visibility("default")))

QUIRE_API int32_t quire_abi_version(void) { return QUIRE_ABI_VERSION; }
QUIRE_API int32_t quire_library_tier(void) { return quire::kLibraryTier; }
QUIRE_API const char* quire_last_error(void) { return last_error.c_str(); }

QUIRE_API void quire_struct_sizes(int64_t sizes[7]) {
  sizes[0] = sizeof(quire_op);
  sizes[1] = sizeof(quire_model_spec);
  sizes[2] = sizeof(quire_part);
  sizes[3] = sizeof(quire_packing);
  sizes[4] = sizeof(quire_batch);
  sizes[5] = sizeof(quire_sampling);
  sizes[6] = sizeof(quire_output);
}

QUIRE_API quire_pool* quire_pool_create(int32_t num_threads, int32_t pin) {
  return guarded<quire_pool*>(nullptr, [&]() -> quire_pool* {
    if (!quire::linear_available()) throw std::runtime_error("the kernel refuses AMX tile state");
    return new quire_pool{{num_threads, pin != 0}};
  });
}

QUIRE_API void quire_pool_destroy(quire_pool* pool) { delete pool; }

QUIRE_API uint64_t quire_pool_progress(const quire_pool* pool) { return pool->pool.progress(); }

QUIRE_API int64_t quire_kv_block_bytes(const quire_kv_spec* spec) {
  return quire::kv_block_bytes(*spec);
}

QUIRE_API int64_t quire_matrix_bytes(const quire_matrix_spec* spec) {
  return guarded<int64_t>(-1, [&] { return static_cast<int64_t>(quire::matrix_bytes(*spec)); });
}

QUIRE_API const char* quire_format_layout(int32_t format) {
  thread_local std::string layout;
  return guarded<const char*>(nullptr, [&] {
    layout = quire::format_layout(format);
    return layout.c_str();
  });
}

QUIRE_API int32_t quire_pack(quire_pool* pool, const quire_packing* weights, int32_t num_weights) {
  return guarded(-1, [&] {
    quire::pack(pool->pool, weights, num_weights);
    return 0;
  });
}

QUIRE_API quire_model* quire_model_create(quire_pool* pool, const quire_model_spec* spec) {
  return guarded<quire_model*>(nullptr, [&] { return new quire_model{{pool->pool, *spec}}; });
}

QUIRE_API void quire_model_destroy(quire_model* model) { delete model; }

QUIRE_API int32_t quire_add_table(quire_model* model, const quire_table_spec* spec,
                                  const void* data) {
  return guarded(-1, [&] { return quire::add_table(model->model, *spec, data); });
}

QUIRE_API int32_t quire_add_matrix(quire_model* model, const quire_matrix_spec* spec,
                                   const void* data) {
  return guarded(-1, [&] { return quire::add_matrix(model->model, *spec, data); });
}

QUIRE_API int32_t quire_add_vector(quire_model* model, const float* values, int64_t size) {
  return guarded(-1, [&] { return quire::add_vector(model->model, values, size); });
}

QUIRE_API int32_t quire_add_rope(quire_model* model, const double* inv_freq, int32_t num_freqs,
                                 float scale, int32_t interleaved) {
  return guarded(-1, [&] {
    if (num_freqs < 1) throw std::invalid_argument("rope: no frequencies");
    auto& ropes = model->model.ropes;
    ropes.emplace_back(inv_freq, num_freqs, scale, interleaved != 0,
                       model->model.spec.max_model_len);
    return static_cast<int32_t>(ropes.size() - 1);
  });
}

QUIRE_API int32_t quire_set_rope_axes(quire_model* model, int32_t rope, const int32_t* axes) {
  return guarded(-1, [&] {
    auto& ropes = model->model.ropes;
    if (rope < 0 || rope >= static_cast<int32_t>(ropes.size())) {
      throw std::invalid_argument("rope: no such rope");
    }
    ropes[rope].set_axes(axes, model->model.spec.max_num_tokens);
    return 0;
  });
}

QUIRE_API int32_t quire_set_ops(quire_model* model, const quire_op* ops, int32_t num_ops) {
  return guarded(-1, [&] {
    quire::set_ops(model->model, ops, num_ops);
    return 0;
  });
}

QUIRE_API quire_adapter* quire_adapter_create(const quire_model* model,
                                              const quire_adapter_part* parts, int32_t num_parts,
                                              int32_t dtype) {
  return guarded<quire_adapter*>(nullptr, [&] {
    return new quire_adapter{quire::Adapter(model->model, parts, num_parts, dtype)};
  });
}

QUIRE_API void quire_adapter_destroy(quire_adapter* adapter) { delete adapter; }

QUIRE_API int64_t quire_adapter_bytes(const quire_adapter* adapter) {
  return adapter->adapter.bytes();
}

QUIRE_API int32_t quire_step(quire_model* model, const quire_batch* batch,
                             const quire_output* output) {
  return guarded(-1, [&] {
    quire::run_step(model->model, *batch, *output);
    return 0;
  });
}

QUIRE_API int32_t quire_sample(quire_model* model, const quire_sampling* sampling, int32_t num_rows,
                               float* logits, const quire_output* output) {
  return guarded(-1, [&] {
    quire::sample_rows(model->model, *sampling, num_rows, logits, *output);
    return 0;
  });
}

QUIRE_API int32_t quire_find_not_finite(quire_model* model, const quire_batch* batch,
                                        int32_t* ops) {
  return guarded(-1, [&] {
    quire::find_not_finite(model->model, *batch, ops);
    return 0;
  });
}

QUIRE_API int32_t quire_read_blocks(quire_model* model, const int32_t* ids, int32_t num_ids,
                                    uint8_t* data) {
  return guarded(-1, [&] {
    each_block(model->model, ids, num_ids, [&](uint8_t* block, int64_t at, int64_t bytes) {
      std::memcpy(data + at, block, bytes);
    });
    return 0;
  });
}

QUIRE_API int32_t quire_write_blocks(quire_model* model, const int32_t* ids, int32_t num_ids,
                                     const uint8_t* data) {
  return guarded(-1, [&] {
    each_block(model->model, ids, num_ids, [&](uint8_t* block, int64_t at, int64_t bytes) {
      std::memcpy(block, data + at, bytes);
    });
    return 0;
  });
}

QUIRE_API int32_t quire_clear_behind(const quire_model* model, int32_t layer_group,
                                     int32_t num_layers, int32_t num_tokens, uint8_t* block) {
  return guarded(-1, [&] {
    const quire::KvCache& cache = model->model.kv;
    if (layer_group < 0 || layer_group >= cache.num_layer_groups() || num_tokens < 0 ||
        num_tokens > cache.block_size || num_layers < 0 || num_layers > cache.num_slots) {
      throw std::invalid_argument(std::to_string(num_tokens) + " tokens of layer group " +
                                  std::to_string(layer_group) + " do not fit in a block");
    }
    quire::clear_behind(cache, layer_group, num_layers, num_tokens, block);
    return 0;
  });
}

QUIRE_API int64_t quire_block_bytes(const quire_model* model) {
  return model->model.kv.block_bytes;
}

QUIRE_API void quire_discard_kv(quire_model* model) { model->model.kv.discard(); }

QUIRE_API void quire_model_memory(const quire_model* model, quire_memory* memory) {
  const quire::Model& m = model->model;
  memory->weight_bytes = m.weight_bytes;
  memory->workspace_bytes = m.workspace_bytes();
  memory->kv_reserved_bytes = static_cast<int64_t>(m.kv.bytes());
}

QUIRE_API int64_t quire_reserved_bytes(void) { return quire::all_reserved_bytes; }

QUIRE_API void quire_profile_enable(quire_model* model, int32_t enabled) {
  quire::Model& m = model->model;
  m.profiling = enabled != 0;
  m.profiled_steps = 0;
  m.op_seconds.assign(m.ops.size(), 0.0);
}

QUIRE_API int64_t quire_profile_read(const quire_model* model, double* seconds, int32_t num_ops) {
  const quire::Model& m = model->model;
  for (int32_t i = 0; i < num_ops && i < static_cast<int32_t>(m.op_seconds.size()); ++i) {
    seconds[i] = m.op_seconds[i];
  }
  return m.profiled_steps;
}
