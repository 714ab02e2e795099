// The C ABI of Quire's CPU backend. Only the ops and the sampling columns are declared elsewhere: the
// build generates them from their declarations in Python.
//
// Read by the C++ sources and, through cffi, by src/quire/backends/cpu (tools strip the
// preprocessor lines, so keep declarations plain: no macros in them, no nested includes but the
// generated ones). A change of any struct or signature raises QUIRE_ABI_VERSION; struct sizes are compared at
// load as well.
//
// The calls for a model: pool_create, pack, model_create, add_table/add_vector/add_matrix/add_rope
// (ids are 0, 1, ... per kind, in the order of the calls), set_ops, then step after step, then the
// destroys in reverse. A model is not thread-safe; a pool may be shared by models that run in turn.
// Functions that can fail return 0 on success; otherwise quire_last_error() has the reason (per
// thread).
#ifndef QUIRE_H_
#define QUIRE_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_ABI_VERSION 21

// Tokens that are stored together in the KV cache: a block consists of whole groups.
#define QUIRE_KV_GROUP 16
#define QUIRE_X_BLOCK 32
#define QUIRE_MAX_AXES 3  // of positions
#define QUIRE_MAX_LAYER_GROUPS 16

// Only a quire_part may be GROUPED, which is a checkpoint's own groups of codes (see
// quire_grouping), or GGUF + a GGUF type number, which is blocks of that type.
enum quire_dtype {
  QUIRE_F32 = 0,
  QUIRE_BF16 = 1,
  QUIRE_F16 = 2,
  QUIRE_INT8 = 3,
  QUIRE_GROUPED = 4,
  QUIRE_INT4 = 5,  // of a KV cache only
  QUIRE_GGUF = 256
};

// How a matrix is stored and multiplied. The integer formats have one scale for each row of the
// matrix and one for each row of x; A8 rounds x to 8 bits, A16 to two planes of 8 bits, A8_BLOCKS
// to 8 bits with a scale for each QUIRE_X_BLOCK numbers of a row. The tables of GROUPED_A8 are U4, S4
// and S8. Groups of A8_BLOCKS are those of GGUF's types: 16 with S6, 16 or 32 with E2M1, else 32.
// 4-bit weights have whole steps within a row besides (int4_weights.h). Codes of GROUPED_BF16 and
// GROUPED_F32 stand for floats: x is multiplied as bfloat16 or as float32. HELD formats keep the
// 16-bit numbers of a checkpoint and multiply them as float32: the products are those of F32.
enum quire_format {
  QUIRE_FORMAT_F32 = 0,
  QUIRE_FORMAT_BF16 = 1,
  QUIRE_FORMAT_INT8_A8 = 2,
  QUIRE_FORMAT_INT8_A16 = 3,
  QUIRE_FORMAT_INT4_A8 = 4,
  QUIRE_FORMAT_INT4_A16 = 5,
  QUIRE_FORMAT_GROUPED_A8 = 6,
  QUIRE_FORMAT_GROUPED_A16 = 7,
  QUIRE_FORMAT_GROUPED_A8_BLOCKS = 8,
  QUIRE_FORMAT_GROUPED_BF16 = 9,
  QUIRE_FORMAT_GROUPED_F32 = 10,
  QUIRE_FORMAT_HELD_BF16 = 11,
  QUIRE_FORMAT_HELD_F16 = 12
};

// The grouped formats hold a quantised checkpoint's numbers as they are. A code stands for a whole
// number in a table; along K, groups of codes have a scale, and may have a zero and a minimum:
// weight = (table[code] - zero) * scale + minimum. What varies is in the bits of the format's
// number, above the number of its kind:
//   bits 8-11   log2 of the group, 4 to 7
//   bits 12-15  quire_table
//   bit 16      scales and minima are float16, otherwise float32
//   bit 17      groups have zeros, 0 to 15
//   bit 18      groups have minima
//   bit 19      a scale is a signed byte, times a float16 of 256 numbers along K; so is a minimum
//   bit 20      a scale is a float of 8 bits (E4M3), divided by a float32 of its row
//   bit 21      columns have an order: column i of the codes is column order[i] of the matrix
// A quire_part of dtype GROUPED is [rows, k] bytes of codes, then [rows, ceil(k / group)] scales,
// zeros of a byte and minima, then [rows] float32 that scales are divided by and [k] int32 of the
// order, those that the format has. Parts of one matrix have one order.
enum quire_grouping {
  QUIRE_GROUP_SHIFT = 8,
  QUIRE_TABLE_SHIFT = 12,
  QUIRE_GROUPS_HALF = 1 << 16,
  QUIRE_GROUPS_ZEROS = 1 << 17,
  QUIRE_GROUPS_MINIMA = 1 << 18,
  QUIRE_GROUPS_NESTED = 1 << 19,
  QUIRE_GROUPS_E4M3 = 1 << 20,
  QUIRE_GROUPS_ORDERED = 1 << 21
};

// What a code stands for. IQ4_NL and E2M1 (doubled: 0 1 2 3 4 6 8 12) are tables of 16 numbers.
enum quire_table {
  QUIRE_TABLE_U4 = 0,  // the code
  QUIRE_TABLE_S4 = 1,  // the code less 8
  QUIRE_TABLE_IQ4 = 2,
  QUIRE_TABLE_E2M1 = 3,
  QUIRE_TABLE_S8 = 4,  // the code, of 8 bits, less 128
  QUIRE_TABLE_S6 = 5,  // of 6 bits, less 32
  QUIRE_TABLE_U5 = 6,  // of 5 bits
  QUIRE_TABLE_S5 = 7,  // of 5 bits, less 16
  // Floats, of GROUPED_BF16 and GROUPED_F32. Only E4M3 is exact in bfloat16.
  QUIRE_TABLE_E4M3 = 8,  // of 8 bits: a sign, 4 bits of exponent, 3 of mantissa, no infinity
  QUIRE_TABLE_NF4 = 9,   // bitsandbytes' tables of 16 float32
  QUIRE_TABLE_FP4 = 10
};

// Instruction-set tiers, each a library of its own built from the same sources.
enum quire_tier {
  QUIRE_TIER_GENERIC = 0,
  QUIRE_TIER_AVX2 = 1,
  QUIRE_TIER_AVX_VNNI = 2,
  QUIRE_TIER_AVX512 = 3,
  QUIRE_TIER_AVX512_BF16 = 4,
  QUIRE_TIER_AMX = 5,
  QUIRE_TIER_NEON_DOTPROD = 6,
  QUIRE_TIER_NEON_I8MM = 7  // with bfloat16
};

// How many rows an op works on: all tokens of the step, or only those whose results are wanted.
enum quire_rows { QUIRE_ROWS_TOKENS = 0, QUIRE_ROWS_LOGITS = 1 };

// ---------------------------------------------------------------- values and ops

// A value [rows, dim] in the workspace. Row r begins at offset + r * stride * itemsize.
typedef struct quire_view {
  int64_t offset;  // bytes from the start of the workspace; -1: the value is absent
  int64_t stride;  // elements
  int32_t dim;
  int32_t dtype;
} quire_view;

// Place of a layer's K and V: a slot in the blocks of its layer group's table.
typedef struct quire_kv_place {
  int32_t layer_group;
  int32_t slot;
} quire_kv_place;

// Where the state of a recurrent layer lies: piece 0 in entry first_entry of the request's table
// for the layer group, after first_offset bytes of the block, the others after it. A piece that
// does not fit in the rest of a block begins the next one.
typedef struct quire_state {
  int64_t first_offset;
  int64_t piece_bytes;
  int32_t layer_group;
  int32_t first_entry;
  int32_t num_pieces;
} quire_state;

enum quire_state_sizes { QUIRE_STATE_CHUNK = 16, QUIRE_STATE_CHANNELS = 256 };

// quire_op, with a struct for each op, generated from the ops' declarations in Python: KernelOp of
// program/, NativeOp of backends/cpu/lowering/. Weights and ropes are ids, -1 where there is none; a
// matrix of several, such as those of experts, is the first of them. `exchange`: number of an
// exchange with other ranks, -1: there is none; `first`: this rank's first column.
#include "quire_ops.h"

// ---------------------------------------------------------------- building a model

// Layers with the same window form a group. A request has a block table for each group. All groups
// take their blocks from one pool. Every block has the same number of slots, each as wide as the
// widest group needs.
typedef struct quire_kv_spec {
  int32_t num_layer_groups;
  int32_t windows[QUIRE_MAX_LAYER_GROUPS];  // positions that each of them keeps; 0: all
  int32_t num_slots;                        // layers that a block holds
  int32_t num_blocks;
  int32_t block_size;                            // a multiple of QUIRE_KV_GROUP
  int32_t num_kv_heads[QUIRE_MAX_LAYER_GROUPS];  // of each layer group
  int32_t key_dim[QUIRE_MAX_LAYER_GROUPS];       // numbers of a head of K
  int32_t value_dim[QUIRE_MAX_LAYER_GROUPS];     // of V; attention needs those of K; latent: 0
  int32_t state_blocks[QUIRE_MAX_LAYER_GROUPS];  // entries of a table of states; 0: K and V
  int64_t least_block_bytes;                     // what a piece of a state needs
  int32_t dtype;  // QUIRE_F32, QUIRE_BF16, QUIRE_INT8 or QUIRE_INT4; latent: not the last
} quire_kv_spec;

// Exchanges value `number` of the step: `rows` rows, `row_bytes` from one to the next, of which this
// rank has its part. Returns 0 on success.
typedef int32_t (*quire_exchange_fn)(int32_t number, uint8_t* data, int64_t rows,
                                     int64_t row_bytes);

// The ranks of a stage, each of which runs its part of one program. Ranks that share memory write
// their parts of a value to one place and wait for each other; others call `exchange`.
typedef struct quire_ranks {
  int32_t rank;
  int32_t num_ranks;
  int32_t shared_fd;      // file of the shared memory, at first empty; -1: there is none
  int64_t shared_offset;  // exchanged values lie in the workspace from here on; whole pages
  quire_exchange_fn exchange;
} quire_ranks;

typedef struct quire_model_spec {
  quire_kv_spec kv;
  quire_ranks ranks;
  int64_t workspace_bytes;
  int32_t max_num_tokens;
  int32_t max_num_seqs;
  int32_t max_model_len;
  int32_t vocab_size;
  int32_t max_adapter_width;  // most numbers of a row between the two matrices of an adapter, for
                              // one weight; 0: the model takes no adapters
} quire_model_spec;

// Rows of one checkpoint tensor that go, in order, into a matrix or a table.
typedef struct quire_part {
  const void* data;
  int64_t rows;
  int32_t dtype;
  int32_t transposed;  // the tensor is stored as [k, rows]
  int32_t mapped;  // a view of a read-only file mapping: pages may be dropped once they are read
} quire_part;

// Several matrices of one shape lie one after the other, such as those of a layer's experts.
typedef struct quire_matrix_spec {
  int64_t n;  // rows of one of them
  int64_t k;
  int32_t format;
  int32_t glu;
  int64_t count;
} quire_matrix_spec;

// An embedding table, row by row.
typedef struct quire_table_spec {
  int64_t rows;
  int64_t width;
  int32_t dtype;  // QUIRE_F32 or QUIRE_BF16
} quire_table_spec;

// A weight to be packed: a matrix or a table, the other one is null.
typedef struct quire_packing {
  const quire_matrix_spec* matrix;
  const quire_table_spec* table;
  const quire_part* parts;
  int32_t num_parts;
  void* out;            // at a multiple of 64
  uint8_t* not_finite;  // [num_parts]; becomes 1 where a number as it is stored is NaN or infinite
} quire_packing;

// ---------------------------------------------------------------- adapters

// A low-rank change of some rows of a weight: y += scale * (B (A x) + bias), then y *= gains. For
// an embedding, A x is the row of A of the token id.
typedef struct quire_adapter_part {
  int32_t matrix;       // of add_matrix, or -1
  int32_t table;        // of add_table, or -1
  int32_t is_embedding;  // 1: rows of the weight are looked up; 0: x is multiplied with the matrix
  int32_t rank;
  int64_t first_row;    // of the matrix; 0 for an embedding
  int64_t rows;         // of B: rows of the matrix, or the width of an embedding
  float scale;
  const float* a;       // [rank, k], or [ids, rank] for an embedding
  const float* b;       // [rows, rank]
  const float* bias;    // [rows] or null
  const float* gains;   // [rows] or null
} quire_adapter_part;

typedef struct quire_adapter quire_adapter;

// ---------------------------------------------------------------- a step

// TokenLists of sampling/columns.py: row l has the tokens ids[starts[l]] .. ids[starts[l + 1] - 1],
// and a number for each where `values` is not null. Null starts: no row has any.
typedef struct quire_token_lists {
  const int32_t* starts;
  const int32_t* ids;
  const float* values;
} quire_token_lists;

// TokenMasks of sampling/columns.py: row l may choose token t if bit t % 32 of word t / 32 of line
// index[l] is set; -1: any token. Null index: every row may choose any.
typedef struct quire_token_masks {
  const int32_t* index;   // [L]
  const uint32_t* words;  // [num_masks, (V + 31) / 32]
  int32_t num_masks;
} quire_token_masks;

// What is reported for a row. Processed logits are those from which the token is chosen, after all
// adjustments. A row whose token is given by the caller has only raw logits.
enum quire_logprobs_kind {
  QUIRE_RAW_LOGPROBS = 0,
  QUIRE_RAW_LOGITS = 1,
  QUIRE_PROCESSED_LOGPROBS = 2,
  QUIRE_PROCESSED_LOGITS = 3
};

// quire_sampling, generated from SamplingColumns of sampling/columns.py.
#include "quire_sampling.h"

// StepBatch of backends/base.py.
typedef struct quire_batch {
  const int32_t* token_ids;
  const int32_t* positions;
  const int32_t* seq_starts;
  const int32_t* context_lens;
  const int32_t* block_tables;  // [num_seqs, num_layer_groups, table_width]
  const int32_t* logits_rows;
  const quire_sampling* sampling;  // null: choose nothing
  const int32_t* token_types;      // null: all are 0
  const int32_t* adapter_of;       // [num_seqs]; which of `adapters` a request has, -1: none. Null:
                                   // no request has one
  const quire_adapter* const* adapters;
  int32_t num_adapters;
  int32_t num_tokens;
  int32_t num_seqs;
  int32_t table_width;
  int32_t num_logits_rows;
  // [num_tokens]; for each token `input_scale` times these numbers take the place of a row of an
  // embedding table, and of its scale; null: it has none. Null: no token has any.
  const float* const* input_rows;
  float input_scale;
  // [num_tokens]; for each token the K and V that are written to the cache in place of those that
  // the layers compute; null: it has none. Null: no token has any.
  const float* const* given_kv;
  // [num_layer_groups, num_slots]; where K of a layer begins in such a row. V follows K.
  const int32_t* given_kv_at;
  // [num_tokens, num_axes]; the positions of ropes that have axes. Null: those of `positions`.
  const int32_t* axis_positions;
  int32_t num_axes;
  // [num_tokens]; the first and the last position of the span that a token is in. A span lies
  // within the step. Null: each token is a span.
  const int32_t* span_firsts;
  const int32_t* span_lasts;
} quire_batch;

typedef struct quire_output {
  int32_t* sampled;              // [L]; unused without sampling
  float* logits;                 // rows of V, or of vectors; or null
  int32_t* logprob_ids;          // [L, K], or null when none are wanted
  float* logprobs;               // [L, K]
  int32_t* logprob_ranks;        // [L, K]
  float* sampled_logprobs;       // [L]
  int32_t* sampled_ranks;        // [L]
  int32_t logprobs_width;        // K
  uint8_t* not_finite;           // [L]; 1: the row has a NaN, +infinity or no finite logit, so that
                                 // nothing is chosen and reported; unused without sampling
  uint8_t* no_choice;            // [L]; 1: all tokens are forbidden, so that nothing is chosen and
                                 // reported; unused without sampling
  const int32_t* logits_places;  // [L]; which row of `logits` each goes to, -1: none. Null: its own
} quire_output;

typedef struct quire_memory {
  int64_t weight_bytes;
  int64_t workspace_bytes;  // maximum for steps, in addition to weights and KV cache; memory is
                            // committed when it is written, in pages of 2 MiB
  int64_t kv_reserved_bytes;
} quire_memory;

// ---------------------------------------------------------------- functions

typedef struct quire_pool quire_pool;
typedef struct quire_model quire_model;

// The next functions are in libquire_machine alone, which every processor can run; that library
// has quire_abi_version and quire_last_error besides them. All other functions are in each tier's
// library.

// Bit (1 << tier) is set for each tier that this processor and kernel can run.
int32_t quire_cpu_tiers(void);
int32_t quire_cpu_is_intel(void);
// The fastest tier of a non-empty set of bits.
int32_t quire_best_tier(int32_t tiers, int32_t is_intel);

// Guards a mapped file whose pages may turn out to be missing: where the file was cut short, or its
// disk fails, zeros are read instead of the process ending by SIGBUS. Returns a slot, or -1 if all
// slots are taken or quire_last_error() says why. `name` is the file's, for messages.
int32_t quire_watch_mapping(const void* data, int64_t bytes, const char* name);
// Call it before the mapping is removed.
void quire_forget_mapping(int32_t slot);
// The first byte of the mapping that could not be read; what was computed since is then wrong.
// -1: all bytes could be read.
int64_t quire_mapping_fault(int32_t slot);

int32_t quire_abi_version(void);
int32_t quire_library_tier(void);
// sizeof of quire_op, quire_model_spec, quire_part, quire_packing, quire_batch, quire_sampling,
// quire_output.
void quire_struct_sizes(int64_t sizes[7]);
const char* quire_last_error(void);

quire_pool* quire_pool_create(int32_t num_threads, int32_t pin);
void quire_pool_destroy(quire_pool* pool);
// A number that changes with every piece of work that the threads take or finish, so that another
// thread can see whether a long step advances. May be called at any time.
uint64_t quire_pool_progress(const quire_pool* pool);

int64_t quire_kv_block_bytes(const quire_kv_spec* spec);

// Bytes of all its matrices once packed; -1 for a spec that add_matrix would refuse.
int64_t quire_matrix_bytes(const quire_matrix_spec* spec);
// How matrices of a format lie in memory, as text: libraries of which it is the same can use each
// other's packed matrices. Null for an unknown format.
const char* quire_format_layout(int32_t format);
// Packs weights, all threads on all of them at once.
int32_t quire_pack(quire_pool* pool, const quire_packing* weights, int32_t num_weights);

quire_model* quire_model_create(quire_pool* pool, const quire_model_spec* spec);
void quire_model_destroy(quire_model* model);
// Tables and matrices stay where they were packed: `data`, at a multiple of 64, is only read, and
// outlives the model. Vectors are copied. Of several matrices the first id is returned; the others
// follow it.
int32_t quire_add_table(quire_model* model, const quire_table_spec* spec, const void* data);
int32_t quire_add_matrix(quire_model* model, const quire_matrix_spec* spec, const void* data);
int32_t quire_add_vector(quire_model* model, const float* values, int64_t size);
int32_t quire_add_rope(quire_model* model, const double* inv_freq, int32_t num_freqs, float scale,
                       int32_t interleaved);
// Gives each frequency of a rope the axis whose positions turn it, 0 to QUIRE_MAX_AXES - 1.
int32_t quire_set_rope_axes(quire_model* model, int32_t rope, const int32_t* axes);
int32_t quire_set_ops(quire_model* model, const quire_op* ops, int32_t num_ops);

// Copies the parts of an adapter for this model, whose ops are set. `dtype`: how A and B are kept,
// QUIRE_F32 or QUIRE_BF16. Any thread, also while a step computes. No step may use the adapter when
// it is destroyed; the model may be destroyed before it.
quire_adapter* quire_adapter_create(const quire_model* model, const quire_adapter_part* parts,
                                    int32_t num_parts, int32_t dtype);
void quire_adapter_destroy(quire_adapter* adapter);
int64_t quire_adapter_bytes(const quire_adapter* adapter);

int32_t quire_step(quire_model* model, const quire_batch* batch, const quire_output* output);
// Chooses a token from each row of `logits` [num_rows, V], and reports, as a step does of its own
// rows. The logits are written to: afterwards those that a mask forbids are -inf, the others what
// they were.
int32_t quire_sample(quire_model* model, const quire_sampling* sampling, int32_t num_rows,
                     float* logits, const quire_output* output);
// Runs a step again, up to the logits. `ops` [R]: for each request the first op (index of set_ops)
// of which one of its rows is not finite, -1 where there is none. The heads op is not looked at
// where it writes to the cache: attention is, which reads it.
int32_t quire_find_not_finite(quire_model* model, const quire_batch* batch, int32_t* ops);

// Whole blocks, all slots: quire_kv_block_bytes each.
int32_t quire_read_blocks(quire_model* model, const int32_t* ids, int32_t num_ids, uint8_t* data);
int32_t quire_write_blocks(quire_model* model, const int32_t* ids, int32_t num_ids,
                           const uint8_t* data);
// Zeroes everything in a copy of a block except the first `num_tokens` tokens of the layers of one
// group: later tokens, and slots that these `num_layers` layers do not use.
int32_t quire_clear_behind(const quire_model* model, int32_t layer_group, int32_t num_layers,
                           int32_t num_tokens, uint8_t* block);
int64_t quire_block_bytes(const quire_model* model);
// Returns the memory of all blocks to the system; they hold zeros afterwards.
void quire_discard_kv(quire_model* model);
// Valid once the ops are set. The weights are not read, so that a model without real weights
// reports the same sizes as one that runs.
void quire_model_memory(const quire_model* model, quire_memory* memory);
// What the workspaces and KV caches of all models of this library may take, but for lists of
// samplers and rotary tables: for tests of quire_model_memory.
int64_t quire_reserved_bytes(void);

// Per-op times. `seconds` has one entry per op of set_ops, summed since profiling was last enabled.
void quire_profile_enable(quire_model* model, int32_t enabled);
int64_t quire_profile_read(const quire_model* model, double* seconds, int32_t num_ops);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // QUIRE_H_
