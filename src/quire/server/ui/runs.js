// The answers that are being written, in all conversations. The server writes them; one tab follows
// each, stores what comes, and tells the other tabs. If that tab goes away, another one follows.

import { ApiError, cancelResponse, forgetResponse, missedEvents, serverStart, statusOf, streamed } from "./api.js";
import { ended, explain, take } from "./answers.js";
import { isEnd, pieceOf } from "./responses.js";

export const MOST = 3; // a browser opens six connections to a server, for all tabs together
const SAVE_MS = 400;
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 10_000;
const ON_THE_WAY_MS = 20_000; // the request of another tab may not have arrived
const SILENCE_MS = 60_000; // a connection without an event for so long is opened again
const NEEDS_KEY = "The server did not accept the API key. The answer goes on there: reload the page to enter the key.";
const NOT_ANSWERING = [0, 502, 503, 504];

/** Follows answers; `onNews(answer, note)` is called when one has grown, or waits for the server. */
export class Runs {
  constructor(conversations, onNews) {
    this.conversations = conversations;
    this.onNews = onNews;
    this.requests = new Map(); // by id: the requests of this tab's answers
    this.followed = new Map(); // by id: how to end what this tab follows
    addEventListener("pagehide", () => this.saveAll());
  }

  /** Whether one more answer may begin. */
  get hasRoom() {
    return this.conversations.answers.size < MOST;
  }

  /** Stores that an answer begins, sends its request, and follows it. Resolves once it is stored. */
  begin(id, request, store) {
    this.requests.set(id, request);
    return new Promise((resolve, reject) => {
      this.follow(id, () => store().then(resolve)).catch(reject);
    });
  }

  /** Follows an answer, once no other tab does. `before`: comes first, and before other tabs know it. */
  async follow(id, before = null) {
    if (this.followed.has(id)) return;
    const run = { abort: new AbortController(), timer: 0 };
    this.followed.set(id, run);
    try {
      await exclusively(`quire.answer.${id}`, run.abort.signal, async () => {
        await before?.();
        const answer = await this.conversations.answer(id);
        if (answer) await this.write(answer, run);
        else this.conversations.hear({ ends: id }); // in another tab, which could not tell
      });
    } finally {
      this.followed.delete(id);
      this.requests.delete(id);
    }
  }

  /** Ends an answer in the server. What has come of it is kept. */
  stop(id, isOwn = true) {
    const answer = this.conversations.answers.get(id);
    if (isOwn) this.conversations.tell({ stop: id });
    if (isOwn && answer?.response) this.cancel(answer);
    const run = this.followed.get(id);
    if (run?.answer) run.abort.abort();
    else if (isOwn && answer && !run) this.conversations.endAnswer(answer, ended(answer, { isStopped: true }));
  }

  async cancel({ response, isBegun }) {
    const passing = isBegun ? NOT_ANSWERING : [404, ...NOT_ANSWERING]; // 404: its request is on the way
    for (let wait = FIRST_WAIT_MS; wait <= LONGEST_WAIT_MS; wait *= 2) {
      try {
        return await cancelResponse(response);
      } catch (error) {
        if (!passing.includes(error.status)) return;
      }
      await pause(wait);
    }
  }

  async write(answer, run) {
    run.answer = answer;
    const outcome = {};
    try {
      for await (const piece of this.pieces(answer, run)) {
        if (piece.error) throw new ApiError(piece.error, 500);
        outcome.isStopped = piece.isStopped;
        take(answer, piece);
        this.onNews(answer, "");
        run.timer ||= setTimeout(() => this.save(run), SAVE_MS);
      }
    } catch (error) {
      if (error.name === "AbortError") outcome.isStopped = true;
      else if (error.status === 401 && answer.isBegun) return this.onNews(answer, NEEDS_KEY);
      else outcome.error = await this.explained(error, answer);
    }
    clearTimeout(run.timer);
    await this.conversations.endAnswer(answer, ended(answer, outcome));
    if (answer.response) forgetResponse(answer.response).catch(() => {});
  }

  /** The pieces of an answer; asks for it again for as long as the server does not answer. */
  async *pieces(answer, run) {
    const { signal } = run.abort;
    let request = this.requests.get(answer.id);
    let isResumed = !request;
    let wait = FIRST_WAIT_MS;
    while (answer.response) {
      try {
        const open = isResumed
          ? (one) => missedEvents(answer.response, answer.after, one) : (one) => streamed(request, one);
        for await (const event of unlessSilent(open, signal)) {
          answer.isBegun = true;
          answer.isResumed ||= isResumed;
          answer.after = event.sequence_number;
          wait = FIRST_WAIT_MS;
          const piece = pieceOf(event);
          if (piece) yield piece;
          if (isEnd(event)) return;
        }
        isResumed = true;
        if ((await statusOf(answer.response, signal)) === "cancelled") return yield STOPPED;
      } catch (error) {
        if (error.param === "background" && !isResumed) { // the server keeps no responses
          const { background: _, request_id: __, ...body } = request.body;
          request = { ...request, body: { ...body, store: false } };
          answer.response = null;
          this.save(run);
          break;
        }
        const isNew = !answer.isBegun && (request || Date.now() - answer.sent < ON_THE_WAY_MS);
        const isUnsent = error.status === 404 && isNew && isResumed;
        const isSent = error.param === "request_id" && !isResumed;
        const isAway = NOT_ANSWERING.includes(error.status) && (isResumed || error.status !== 503);
        if (!isUnsent && !isSent && !isAway) throw error;
        isResumed = !isUnsent || !request;
        if (isAway) this.onNews(answer, "The server does not answer. Trying again…");
      }
      await pause(wait, signal);
      wait = Math.min(2 * wait, LONGEST_WAIT_MS);
    }
    if (!request) throw new ApiError("The page was left while this answer was written.");
    for await (const event of streamed(request, signal)) {
      const piece = event.type ? pieceOf(event) : pieceOfText(event);
      if (piece) yield piece;
      if (event.type ? isEnd(event) : event.usage) return;
    }
    throw new ApiError("The connection broke before the answer ended.");
  }

  async explained(error, answer) {
    if (error.status !== 404 || !answer.response) return explain(error);
    const start = await serverStart().catch(() => 0);
    return start > answer.sent
      ? "The server was started again while it wrote this answer. What had come by then is kept."
      : "The server no longer has this answer. What had come by then is kept.";
  }

  save(run) {
    clearTimeout(run.timer);
    run.timer = 0;
    if (run.answer) return this.conversations.keepAnswer(structuredClone(run.answer));
  }

  saveAll() {
    for (const run of this.followed.values()) this.save(run);
  }
}

const NOTHING = { text: "", reasoning: "", calls: [], finishReason: null, usage: null };
const STOPPED = { ...NOTHING, isStopped: true };

/** The piece in an event of `/v1/completions`. */
function pieceOfText({ choices, usage }) {
  const [choice] = choices;
  const counts = usage && {
    completion: usage.completion_tokens, prompt: usage.prompt_tokens,
    cached: usage.prompt_tokens_details?.cached_tokens ?? 0,
  };
  return { ...NOTHING, text: choice?.text ?? "", finishReason: choice?.finish_reason ?? null, usage: counts ?? null };
}

/** Runs `work` while no other tab runs work of this name, where the browser knows about tabs. */
async function exclusively(name, signal, work) {
  if (!navigator.locks) return work(); // an address without https: each tab follows by itself
  try {
    await navigator.locks.request(name, { signal }, work);
  } catch (error) {
    if (error.name !== "AbortError") throw error;
  }
}

/** Waits; less if the network comes back. Rejects if the signal aborts. */
function pause(ms, signal = null) {
  return new Promise((resolve, reject) => {
    const end = () => {
      clearTimeout(timer);
      removeEventListener("online", end);
      signal?.removeEventListener("abort", end);
      if (signal?.aborted) reject(new DOMException("Stopped.", "AbortError"));
      else resolve();
    };
    const timer = setTimeout(end, ms);
    addEventListener("online", end);
    signal?.addEventListener("abort", end);
    if (signal?.aborted) end();
  });
}

/** The events of the stream that `open` opens; it breaks if none comes for a while, or without network. */
async function* unlessSilent(open, signal) {
  const connection = new AbortController();
  const end = () => connection.abort();
  let timer = setTimeout(end, SILENCE_MS);
  addEventListener("offline", end);
  try {
    for await (const event of open(AbortSignal.any([signal, connection.signal]))) {
      clearTimeout(timer);
      timer = setTimeout(end, SILENCE_MS);
      yield event;
    }
  } catch (error) {
    if (error.name === "AbortError" && !signal.aborted) throw new ApiError("The network is lost.");
    throw error;
  } finally {
    clearTimeout(timer);
    removeEventListener("offline", end);
  }
}
