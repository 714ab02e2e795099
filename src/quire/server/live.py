"""`GET /quire/live`: one small picture of the engine, for the page's live view.

Called by the route of that name; reads `metrics` and asks the engine for its block states.
Knows nothing of how a page draws it.

Plain GET answers one JSON object. With `Accept: text/event-stream` the same object comes as
server-sent events (`data: {...}\\n\\n`), twice a second, until the client leaves. Guarded by
the API key like every other route (use `fetch` with the header, not `EventSource`).

    {
      "state": "ready",            loading | ready | paused | draining | stalled | dead
      "model": "demo",             the first served model name
      "uptime_s": 12.5,
      "requests": {"running": 2, "waiting": 0, "max_num_seqs": 128,
                   "finished": {"stop": 5, "length": 1, "abort": 0, "error": 0}},
      "tokens": {"prompt": 900, "cached": 512, "generation": 450},      counters since start
      "rates": {"prompt_tokens_per_s": 0.0, "generation_tokens_per_s": 41.5},
                                   over the last two seconds or so
      "latency": {"ttft_s": {"last": 0.03, "p50": 0.03, "p99": 0.05},   the last 256 requests;
                  "itl_s": {"last": 0.01, "p50": 0.01, "p99": 0.02}},   null before the first
      "prefix_cache": {"queried_tokens": 900, "hit_tokens": 512},
      "kv": {"block_size": 16, "num_blocks": 2048,
             "free": 2000, "cached": 30, "used": 14, "shared": 4,       sum is num_blocks
             "usage": 0.0088,                                           (used + shared) / all
             "blocks_per_cell": 1,
             "map": "f120u3s1c4f1920"},
      "preemptions": 0
    }

`kv.map` is run-length coded in order of block id, a state letter and a count of cells:
`f` free and empty; `c` cached: no request holds it, a prefix hit could revive it;
`u` held by one request; `s` shared by several. A pool of more than 4,096 blocks is shown in
cells of `blocks_per_cell` blocks each (the last may stand for fewer), a cell showing the
first of s, u, c, f that occurs in it. `kv` is null until the engine has answered once.
"""

from __future__ import annotations
