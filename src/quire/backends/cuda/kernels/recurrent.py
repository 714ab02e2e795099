"""Recurrent layers, whose state of a request lies in pieces in blocks of the KV cache: gated delta,
Mamba 2 and Mamba 1.

Row rule: a program has one head (or some channels) of one request, and computes its rows one after
the other. A row's result follows from the state before its chunk of ROWS tokens and from the rows
of the chunk, in arrays of fixed size; both are stored, so a cut of the request changes no bit.
"""

import triton
import triton.language as tl

UNIT = tl.constexpr(16)
"""Numbers of a unit in which the begins of pieces are given."""


@triton.jit
def piece_of(cache, tables, entries, begins, request, piece, table_width, stride_block):
    """The address of a piece of a request's state."""
    block = tl.load(tables + request * table_width + tl.load(entries + piece)).to(tl.int64)
    return cache + block * stride_block + tl.load(begins + piece) * UNIT


@triton.jit
def _softplus(x):
    return tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def _sigmoid(x):
    small = tl.exp(-tl.abs(x))
    return tl.where(x >= 0.0, 1.0, small) / (1.0 + small)


@triton.jit
def prepare(
    k, a, a_log, dt_bias, keys, totals, cache, tables, entries, begins, requests, num_key_heads,
    key_dim, value_dim, decay_dim, is_tiled, dt_min, dt_max, table_width, stride_block, stride_k,
    stride_a, DELTA: tl.constexpr, BLOCK_K: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The keys of a head and the sums of its decays in each chunk, for all rows of one request:
    `keys` [rows, heads, key_dim] and `totals` [rows, heads, decay_dim]. `requests` has four numbers
    of each request: its first row, the end of its rows, the first row's position, and 0."""
    request, head, num_heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    begin, end = tl.load(requests + 4 * request), tl.load(requests + 4 * request + 1)
    if begin < end:
        place = tl.load(requests + 4 * request + 2) % ROWS
        key_head = head * num_key_heads // num_heads
        if is_tiled:
            key_head = head % num_key_heads
        piece = piece_of(cache, tables, entries, begins, request, head, table_width, stride_block)
        ks = tl.arange(0, BLOCK_K)
        is_k, is_decay = ks < key_dim, ks < decay_dim
        decays_at = piece + key_dim * value_dim + ROWS * (key_dim + value_dim)
        last = decays_at + tl.maximum(place - 1, 0) * decay_dim
        total = tl.load(last + ks, mask=is_decay, other=0.0)
        rate = -tl.exp(tl.load(a_log + head))
        bias = tl.load(dt_bias + head * decay_dim + ks, mask=is_decay, other=0.0)
        for row in range(begin, end):
            at = tl.zeros([], tl.int64) + row
            k_row = tl.load(k + at * stride_k + key_head * key_dim + ks, mask=is_k, other=0.0)
            k_row = k_row.to(tl.float32)
            a_at = a + at * stride_a + head * decay_dim
            step = _softplus(tl.load(a_at + ks, mask=is_decay, other=0.0).to(tl.float32) + bias)
            if DELTA:
                k_row = k_row / tl.sqrt(tl.sum(k_row * k_row, 0) + 1.0e-6)
            else:
                step = tl.where(step != step, step, tl.minimum(tl.maximum(step, dt_min), dt_max))
            total = tl.where(place == 0, 0.0, total) + rate * step
            line = at * num_heads + head
            tl.store(keys + line * key_dim + ks, k_row, mask=is_k)
            tl.store(totals + line * decay_dim + ks, total, mask=is_decay)
            place = (place + 1) % ROWS


@triton.jit
def _matrix(begin, rows, width, columns, is_row, is_column):
    """Rows of a piece that have `width` numbers each; zeros where nothing is read."""
    at = begin + rows[:, None] * width + columns[None, :]
    return tl.load(at, mask=is_row[:, None] & is_column[None, :], other=0.0)


@triton.jit
def _delta_update(k_row, v_row, b_at, own, grown, states, updates, rows, place):
    """The difference between a row's values and those that are known for its key, by its beta."""
    known = tl.sum((own * k_row)[:, None] * states, 0)
    scores = tl.sum(grown * k_row[None, :], 1)
    scores = tl.where(rows < place, scores, 0.0)
    known += tl.sum(scores[:, None] * updates, 0)
    return _sigmoid(tl.load(b_at).to(tl.float32)) * (v_row - known)


@triton.jit
def _ssd_update(v_row, a_at, bias_at, dt_min, dt_max):
    """A row's values, by its step."""
    step = _softplus(tl.load(a_at).to(tl.float32) + tl.load(bias_at))
    bounded = tl.minimum(tl.maximum(step, dt_min), dt_max)
    return tl.where(step != step, step, bounded) * v_row


@triton.jit
def scan(
    q, keys, v, a, b, a_log, dt_bias, d, totals, out, cache, tables, entries, begins, requests,  # noqa: ARG001
    num_key_heads, key_dim, value_dim, decay_dim, is_tiled, q_scale, dt_min, dt_max, table_width,
    stride_block, stride_q, stride_v, stride_a, stride_b, stride_out, DELTA: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """`GatedDelta` (DELTA) or `Ssd` for BLOCK_V numbers of the values of one head of one request.
    `keep` stores the keys and decays of the chunk later, because other programs read them here."""
    request, head, num_heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    begin, end = tl.load(requests + 4 * request), tl.load(requests + 4 * request + 1)
    if begin < end:
        position = tl.load(requests + 4 * request + 2)
        key_head = head * num_key_heads // num_heads
        if is_tiled:
            key_head = head % num_key_heads
        piece = piece_of(cache, tables, entries, begins, request, head, table_width, stride_block)
        ks, rows = tl.arange(0, BLOCK_K), tl.arange(0, ROWS)
        vs = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
        is_k, is_v = ks < key_dim, vs < value_dim
        decay_at = tl.where(decay_dim > 1, ks, 0)
        state_at = piece + ks[:, None] * value_dim + vs[None, :]
        is_state = is_k[:, None] & is_v[None, :]
        keys_at = piece + key_dim * value_dim
        updates_at = keys_at + ROWS * key_dim
        decays_at = updates_at + ROWS * value_dim
        place = position % ROWS
        is_old = rows < place
        # Nothing of the block's last user is read: a request begins with zeros.
        is_kept = (tl.zeros([BLOCK_K], tl.int32) + position > 0)[:, None]
        states = tl.load(state_at, mask=is_state & is_kept, other=0.0)
        if position == 0:
            tl.store(state_at, states, mask=is_state)
        chunk_keys = _matrix(keys_at, rows, key_dim, ks, is_old, is_k)
        updates = _matrix(updates_at, rows, value_dim, vs, is_old, is_v)
        decays = _matrix(decays_at, rows, decay_dim, decay_at, is_old, is_k)
        for row in range(begin, end):
            at = tl.zeros([], tl.int64) + row
            line = at * num_heads + head
            k_row = tl.load(keys + line * key_dim + ks, mask=is_k, other=0.0)
            total = tl.load(totals + line * decay_dim + decay_at, mask=is_k, other=0.0)
            q_row = tl.load(q + at * stride_q + key_head * key_dim + ks, mask=is_k, other=0.0)
            v_row = tl.load(v + at * stride_v + head * value_dim + vs, mask=is_v, other=0.0)
            q_row, v_row = q_row.to(tl.float32), v_row.to(tl.float32)
            is_first = place == 0
            is_row, is_seen = (rows == place)[:, None], (rows <= place)[:, None]
            chunk_keys = tl.where(is_row, k_row[None, :], tl.where(is_first, 0.0, chunk_keys))
            updates = tl.where(is_first, 0.0, updates)
            decays = tl.where(is_row, total[None, :], decays)
            # Masked twice: what a later row of an earlier chunk has left could be infinite.
            ratios = tl.exp(tl.where(is_seen, total[None, :] - decays, 0.0))
            grown = tl.where(is_seen, chunk_keys * ratios, 0.0)
            own = tl.exp(total)
            if DELTA:
                q_row = q_row / tl.sqrt(tl.sum(q_row * q_row, 0) + 1.0e-6) * q_scale
                update = _delta_update(
                    k_row, v_row, b + at * stride_b + head, own, grown, states, updates, rows, place
                )
            else:
                update = _ssd_update(
                    v_row, a + at * stride_a + head, dt_bias + head, dt_min, dt_max
                )
            updates = tl.where(is_row, update[None, :], updates)
            scores = tl.sum(grown * q_row[None, :], 1)
            result = tl.sum((own * q_row)[:, None] * states, 0)
            result += tl.sum(scores[:, None] * updates, 0)
            if not DELTA:
                result += tl.load(d + head) * v_row
            target = out + at * stride_out + head * value_dim + vs
            tl.store(target, result.to(out.dtype.element_ty), mask=is_v)
            tl.store(updates_at + place * value_dim + vs, update, mask=is_v)
            if place == ROWS - 1:
                added = tl.dot(tl.trans(grown), updates, input_precision="ieee")
                states = own[:, None] * states + added
                tl.store(state_at, states, mask=is_state)
            place = (place + 1) % ROWS


@triton.jit
def keep(
    keys, totals, cache, tables, entries, begins, requests, request_of, key_dim, value_dim,
    decay_dim, table_width, stride_block, BLOCK_K: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Stores a key and a sum of decays of one head of one token, if the token is in the last chunk
    of its request."""
    token, head = tl.program_id(0), tl.program_id(1)
    request = tl.load(request_of + token)
    begin, end = tl.load(requests + 4 * request), tl.load(requests + 4 * request + 1)
    position = tl.load(requests + 4 * request + 2) + token - begin
    if position // ROWS == (position + end - token - 1) // ROWS:
        piece = piece_of(cache, tables, entries, begins, request, head, table_width, stride_block)
        ks, place = tl.arange(0, BLOCK_K), position % ROWS
        line = token.to(tl.int64) * tl.num_programs(1) + head
        keys_at = piece + key_dim * value_dim
        decays_at = keys_at + ROWS * (key_dim + value_dim)
        key = tl.load(keys + line * key_dim + ks, mask=ks < key_dim, other=0.0)
        total = tl.load(totals + line * decay_dim + ks, mask=ks < decay_dim, other=0.0)
        tl.store(keys_at + place * key_dim + ks, key, mask=ks < key_dim)
        tl.store(decays_at + place * decay_dim + ks, total, mask=ks < decay_dim)


@triton.jit
def mamba(
    x, dt, b, c, a_log, dt_bias, d, out, cache, tables, entries, begins, requests, dim, state_dim,
    channels, table_width, stride_block, stride_x, stride_dt, stride_b, stride_c, stride_out,
    BLOCK_C: tl.constexpr, BLOCK_S: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """`Mamba` for some channels of a piece of one request."""
    request, number = tl.program_id(0), tl.program_id(1)
    begin, end = tl.load(requests + 4 * request), tl.load(requests + 4 * request + 1)
    if begin < end:
        position = tl.load(requests + 4 * request + 2)
        piece = piece_of(cache, tables, entries, begins, request, number, table_width, stride_block)
        cs, ss = tl.program_id(2) * BLOCK_C + tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_S)
        channel = number * channels + cs
        is_c, is_s = (cs < channels) & (channel < dim), ss < state_dim
        is_state = is_c[:, None] & is_s[None, :]
        state_at = piece + cs[:, None] * state_dim + ss[None, :]
        chunk_at = state_at + channels * state_dim
        source = state_at
        if position % ROWS == 0:
            source = chunk_at
        # Nothing of the block's last user is read: a request begins with zeros.
        is_kept = (tl.zeros([BLOCK_C], tl.int32) + position > 0)[:, None]
        state = tl.load(source, mask=is_state & is_kept, other=0.0)
        rates = -tl.exp(
            tl.load(a_log + channel[:, None] * state_dim + ss[None, :], mask=is_state, other=0.0)
        )
        bias = tl.load(dt_bias + channel, mask=is_c, other=0.0)
        skip = tl.load(d + channel, mask=is_c, other=0.0)
        for row in range(begin, end):
            at = tl.zeros([], tl.int64) + row
            x_row = tl.load(x + at * stride_x + channel, mask=is_c, other=0.0).to(tl.float32)
            dt_row = tl.load(dt + at * stride_dt + channel, mask=is_c, other=0.0).to(tl.float32)
            b_row = tl.load(b + at * stride_b + ss, mask=is_s, other=0.0).to(tl.float32)
            c_row = tl.load(c + at * stride_c + ss, mask=is_s, other=0.0).to(tl.float32)
            step = _softplus(dt_row + bias)
            kept = tl.exp(rates * step[:, None]) * state
            state = tl.where(is_state, kept + (step * x_row)[:, None] * b_row[None, :], 0.0)
            result = tl.sum(state * c_row[None, :], 1) + skip * x_row
            target = out + at * stride_out + channel
            tl.store(target, result.to(out.dtype.element_ty), mask=is_c)
            position += 1
            if position % ROWS == 0:
                tl.store(chunk_at, state, mask=is_state)
        tl.store(state_at, state, mask=is_state)
