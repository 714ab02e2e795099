// The live view: follows `/quire/live` and puts its numbers on the page.

import { liveView } from "./api.js";
import { byId, canvasContext, count, cssColor, duration, el, rate, uptime } from "./dom.js";
import { PoolMap } from "./pool.js";

const SAMPLES = 240; // two minutes, two snapshots a second
const FIRST_WAIT_MS = 1000;
const LONGEST_WAIT_MS = 20_000;
const NICE_STATE = {
  ready: "ready", loading: "loading", paused: "paused", draining: "finishing up",
  unloaded: "not loaded", unloading: "unloading", failed: "not loaded",
  stalled: "not responding", dead: "stopped", away: "not connected",
};

/** Follows the engine for as long as the page is open and visible. */
export class LiveView {
  /** `onSnapshot`: called with each snapshot, which also has the models and facts about the one. */
  constructor(onSnapshot) {
    this.onSnapshot = onSnapshot;
    this.pool = new PoolMap(byId("pool"), byId("pool-tip"));
    this.samples = [];
    this.abort = null;
    this.model = ""; // the first one
    this.shown = null; // the model of the last snapshot
    const leaves = byId("engine").querySelectorAll("p[id]:not(#live-note), span[id], dd[id]");
    this.atRest = [...leaves].map((node) => [node, node.textContent]);
    document.addEventListener("visibilitychange", () => (document.hidden ? this.pause() : this.run()));
    new ResizeObserver(() => this.redraw()).observe(byId("engine"));
  }

  /** Draws the canvases again, after a change of size or theme. */
  redraw() {
    this.pool.draw();
    this.drawSpark();
  }

  /** Follows another model's engine. */
  follow(model) {
    if (model === (this.model || this.shown)) return;
    this.pause();
    this.model = model;
    this.clear();
    this.run();
  }

  /** Removes all figures: they are of another model, or of one that was unloaded. */
  clear() {
    this.samples = [];
    this.drawSpark();
    for (const [node, text] of this.atRest) node.textContent = text;
    byId("prefix-bar").style.width = 0;
    for (const id of ["prefix-tiers", "processes"]) byId(id).hidden = true;
    this.pool.clear();
  }

  pause() {
    this.abort?.abort();
    this.abort = null;
  }

  async run() {
    if (this.abort) return;
    const abort = new AbortController();
    this.abort = abort;
    let wait = FIRST_WAIT_MS;
    while (this.abort === abort) {
      let problem = "The server closed the live view.";
      try {
        for await (const snapshot of liveView(this.model, abort.signal)) {
          wait = FIRST_WAIT_MS;
          this.show(snapshot);
        }
      } catch (error) {
        if (error.name === "AbortError") return;
        problem = error.status === 401 ? "The live view needs the API key." : error.message;
        if (error.status === 404) this.model = ""; // the chosen model has gone
      }
      if (this.abort !== abort) return;
      this.fail(problem, "away");
      await new Promise((resolve) => setTimeout(resolve, wait));
      wait = Math.min(2 * wait, LONGEST_WAIT_MS);
    }
  }

  fail(problem, state) {
    setState(state);
    byId("live-note").textContent = problem;
    byId("live-note").hidden = false;
  }

  show(snapshot) {
    byId("live-note").hidden = snapshot.shows_use !== false;
    byId("live-note").textContent = "Of several API keys, only the operator's show what runs.";
    setState(snapshot.state);
    this.shown = snapshot.model;
    this.onSnapshot(snapshot);
    if (!snapshot.requests) return this.clear(); // the model is not loaded
    this.showRates(snapshot.rates);
    showRequests(snapshot.requests);
    showLatency("ttft", snapshot.latency?.ttft_s);
    showLatency("itl", snapshot.latency?.itl_s);
    showPrefix(snapshot.prefix_cache);
    showTotals(snapshot);
    showProcesses(snapshot.ranks, snapshot.restarts);
    this.showPool(snapshot.kv);
  }

  showRates(rates) {
    byId("rate-out").textContent = rate(rates.generation_tokens_per_s);
    byId("rate-in").textContent = rate(rates.prompt_tokens_per_s);
    this.samples.push([rates.generation_tokens_per_s, rates.prompt_tokens_per_s]);
    if (this.samples.length > SAMPLES) this.samples.shift();
    this.drawSpark();
  }

  showPool(kv) {
    if (!kv) return;
    this.pool.show(kv);
    const held = kv.used + kv.shared;
    byId("kv-usage").textContent =
      `${(100 * kv.usage).toFixed(kv.usage < 0.1 ? 1 : 0)} % of ${count(kv.num_blocks)} blocks held`;
    for (const name of ["used", "shared", "cached", "free"]) {
      byId(`kv-${name}`).textContent = count(kv[name]);
    }
    byId("pool").setAttribute("aria-label",
      `KV pool: ${held} blocks held, ${kv.shared} of them shared, ${kv.cached} cached, ${kv.free} free`);
  }

  drawSpark() {
    const { context, width, height } = canvasContext(byId("spark"));
    context.clearRect(0, 0, width, height);
    if (this.samples.length < 2) return;
    const top = 1.15 * Math.max(1, ...this.samples.map(([out]) => out));
    const x = (i) => width - ((this.samples.length - 1 - i) / (SAMPLES - 1)) * width;
    const y = (value) => height - 1 - (value / top) * (height - 4);
    context.beginPath();
    this.samples.forEach(([out], i) => (i ? context.lineTo(x(i), y(out)) : context.moveTo(x(i), y(out))));
    context.strokeStyle = cssColor("--accent");
    context.lineWidth = 1.75;
    context.lineJoin = "round";
    context.stroke();
    context.lineTo(width, height);
    context.lineTo(x(0), height);
    context.globalAlpha = 0.13;
    context.fillStyle = cssColor("--accent");
    context.fill();
    context.globalAlpha = 1;
  }
}

function setState(state) {
  const node = byId("state");
  if (node.dataset.state === state) return;
  node.dataset.state = state;
  node.textContent = NICE_STATE[state] ?? state;
}

function showRequests({ running, waiting, max_num_seqs: most }) {
  byId("running").textContent = count(running);
  byId("running-of").textContent = `of ${count(most)} at once`;
  byId("waiting").textContent = count(waiting);
  byId("waiting-of").textContent = waiting ? "in the queue" : "no queue";
}

function showLatency(id, latency) {
  byId(id).textContent = duration(latency?.p50);
  byId(`${id}-p`).textContent = latency ? `99 % within ${duration(latency.p99)}` : "no request yet";
}

function showPrefix({ queried_tokens: asked, hit_tokens: hit, loaded_tokens: loaded }) {
  const share = asked ? hit / asked : 0;
  byId("prefix-bar").style.width = `${100 * share}%`;
  byId("prefix-rate").textContent = asked ? `${Math.round(100 * share)} % found` : "–";
  if (asked) {
    byId("prefix-note").textContent =
      `${count(hit)} of ${count(asked)} prompt tokens did not have to be computed again.`;
  }
  showTiers(hit, Object.entries(loaded ?? {}));
}

/** Where found tokens came from: the KV pool, then each tier of the KV store. */
function showTiers(hit, loaded) {
  const fromPool = Math.max(0, loaded.reduce((left, [, tokens]) => left - tokens, hit));
  byId("prefix-tiers").hidden = !loaded.length;
  byId("prefix-tiers").replaceChildren(
    ...[["pool", fromPool], ...loaded].map(([tier, tokens]) =>
      el("div", {}, el("dt", {}, tier), el("dd", { "data-tier": tier }, count(tokens)))),
  );
}

/** The ranks of all engines, with the time that each has waited for others. */
function showProcesses(ranks, restarts) {
  byId("processes").hidden = !ranks?.length;
  if (!ranks?.length) return;
  byId("restarts").textContent = restarts ? `${count(restarts)} started again` : "";
  byId("process-list").replaceChildren(...ranks.map((rank) =>
    el("div", {}, el("dt", {}, `Engine ${rank.engine}, stage ${rank.stage}, part ${rank.part}`),
      el("dd", {}, `waited ${duration(rank.waited_s)}`))));
}

function showTotals(snapshot) {
  const done = snapshot.requests.finished;
  byId("uptime").textContent = uptime(snapshot.uptime_s);
  byId("device").textContent = snapshot.device;
  byId("total-out").textContent = count(snapshot.tokens.generation);
  byId("total-in").textContent = count(snapshot.tokens.prompt);
  byId("finished").textContent = count(done.stop + done.length + done.repetition);
  byId("aborted").textContent = count(done.abort);
  byId("preemptions").textContent = count(snapshot.preemptions);
  const { num_drafts: drafts, num_accepted: accepted } = snapshot.drafts;
  byId("tokens-per-step").textContent = drafts ? (1 + accepted / drafts).toFixed(2) : "–";
}
