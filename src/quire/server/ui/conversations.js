// All conversations, in the browser's IndexedDB, and the answers that are being written. Every
// change is a function that is applied to what is stored, in one transaction, so that two tabs
// never overwrite each other. What cannot be stored stays in this tab's memory.

import { openDatabase, resultOf, transaction } from "./database.js";
import { allMessages, checkedConversation, entryOf, findMessage, titleOf } from "./records.js";
import { takeOldConversations } from "./store.js";

const CHANNEL = "quire.conversations";
const UNDO_MS = 60_000; // after this time a deleted conversation is removed, at the next start

export class Conversations {
  /**
   * `onChange(id)` is called after a change by any tab (null: of many), `onAnswer(answer)` with what
   * another tab has read of an answer, `onStop(id)` when another tab stops it, `onTrouble(error)`
   * when something could not be stored (null: it could again).
   */
  constructor({ onChange, onAnswer, onStop, onTrouble }) {
    Object.assign(this, { onChange, onAnswer, onStop, onTrouble });
    this.db = null;
    this.shelf = new Map(); // by id: what the list shows
    this.answers = new Map(); // by the id of the message: the answers that are being written
    this.memory = new Map(); // by id: conversations that are temporary, or could not be stored
    this.channel = typeof BroadcastChannel === "function" ? new BroadcastChannel(CHANNEL) : null;
    this.channel?.addEventListener("message", ({ data }) => this.hear(data));
  }

  /** Opens the storage; takes over what an earlier version of the page stored. */
  async start() {
    try {
      this.db = await openDatabase();
      await takeOldConversations(checkedConversation, (found) => this.add(found));
    } catch (error) {
      this.onTrouble(error);
    }
    await this.refresh();
    const isOld = (one) => one.deleted <= Date.now() - UNDO_MS;
    await this.purge([...this.shelf.values()].filter(isOld).map((one) => one.id));
  }

  /** Reads the list again: this tab may have slept while others changed it. */
  async refresh() {
    const [shelf, answers] = (await this.store(async (stores) =>
      [await resultOf(stores.shelf.getAll()), await resultOf(stores.answers.getAll())], "readonly")) ?? [[], []];
    const kept = [...this.memory.values()].filter((one) => !one.temporary)
      .map((one) => this.shelf.get(one.id) ?? entryOf(one));
    this.shelf = new Map([...shelf, ...kept].map((one) => [one.id, one]));
    const own = [...this.answers.values()].filter((one) => this.memory.has(one.conversation));
    this.answers = new Map([...answers, ...own].map((one) => [one.id, one]));
    this.onChange(null);
  }

  /** What the list shows, the newest first. */
  list() {
    const shown = [...this.shelf.values()].filter((one) => !one.deleted);
    return shown.sort((a, b) => (b.updated ?? 0) - (a.updated ?? 0));
  }

  /** The whole conversation, or null. */
  async load(id) {
    return this.shelf.get(id)?.deleted ? null : this.find(id);
  }

  /** The same, also for one that is deleted and not removed yet. */
  async find(id) {
    const held = this.memory.get(id);
    if (held) return structuredClone(held);
    return (await this.store((stores) => resultOf(stores.conversations.get(id)), "readonly")) ?? null;
  }

  /** The answer as it is stored, or undefined if it has ended. */
  async answer(id) {
    const held = this.answers.get(id);
    if (!this.db || !held || this.memory.has(held.conversation)) return held;
    return this.store((stores) => resultOf(stores.answers.get(id)), "readonly");
  }

  /**
   * Applies `mutate` to the stored conversation, or to `conversation` if it is not stored yet, and
   * returns the result. `begins`: an answer that begins with this change; `ends`: the id of one
   * that ends, which does not bring back a deleted conversation. `mutate` may be called twice.
   */
  async change(conversation, mutate, { begins = null, ends = null, isNews = true } = {}) {
    const { id } = conversation;
    let { deleted } = this.shelf.get(id) ?? {};
    const shown = (one) => (ends && deleted ? { ...entryOf(one), deleted } : entryOf(one));
    const apply = (stored) => {
      const changed = structuredClone(stored);
      mutate(changed);
      changed.title ||= titleOf(changed);
      if (isNews) changed.updated = Math.max(Date.now(), (stored.updated ?? 0) + 1);
      return changed;
    };
    const held = this.memory.get(id);
    const work = async (stores) => {
      ({ deleted } = (await resultOf(stores.shelf.get(id))) ?? {}); // another tab may have deleted it
      const result = apply(held ?? (await resultOf(stores.conversations.get(id))) ?? conversation);
      stores.conversations.put(result);
      stores.shelf.put(shown(result));
      if (begins) stores.answers.put(begins);
      if (ends) stores.answers.delete(ends);
      return result;
    };
    let changed = conversation.temporary ? null : await this.store(work);
    if (changed && this.memory.delete(id)) this.onTrouble(null);
    if (!changed) {
      changed = apply((await this.find(id)) ?? conversation);
      this.memory.set(id, changed);
    }
    if (begins) this.answers.set(begins.id, begins);
    if (ends) this.answers.delete(ends);
    if (!changed.temporary) {
      this.shelf.set(id, shown(changed));
      this.tell({ changed: shown(changed), begins, ends });
    }
    this.onChange(id);
    return structuredClone(changed);
  }

  /** Stores or reads, and returns the result of `work`; if that is not possible, says so and returns null. */
  async store(work, mode = "readwrite", mayReopen = true) {
    if (!this.db) return null;
    try {
      return await transaction(this.db, mode, work);
    } catch (error) {
      if (!(error instanceof DOMException)) throw error; // a mistake of the page
      if (error.name === "InvalidStateError" && mayReopen) { // the user has cleared the storage
        this.db = await openDatabase().catch(() => this.db);
        return this.store(work, mode, false);
      }
      this.onTrouble(error);
      return null;
    }
  }

  /** Keeps what has come of an answer so far. */
  async keepAnswer(answer) {
    if (!this.answers.has(answer.id)) return;
    this.answers.set(answer.id, answer);
    if (this.memory.has(answer.conversation)) return;
    this.tell({ answer });
    await this.store(async (stores) => {
      if (await resultOf(stores.answers.count(answer.id))) stores.answers.put(answer);
    });
  }

  /** Ends an answer: its message gets these fields. */
  async endAnswer(answer, fields) {
    const finish = (conversation) => {
      const message = findMessage(conversation, answer.id);
      if (!message?.running) return; // another tab has ended it
      Object.assign(message, fields);
      delete message.running;
    };
    const conversation = await this.find(answer.conversation);
    if (conversation) return this.change(conversation, finish, { ends: answer.id });
    this.answers.delete(answer.id);
    await this.store((stores) => resultOf(stores.answers.delete(answer.id)));
    this.tell({ ends: answer.id });
    return null;
  }

  /** Marks conversations as deleted; `restore` brings them back until they are removed. */
  async remove(ids) {
    await this.mark(ids, { deleted: Date.now() });
  }

  async restore(ids) {
    await this.mark(ids, {});
  }

  async mark(ids, mark) {
    const marked = ids.map((id) => this.shelf.get(id)).filter(Boolean).map(({ deleted: _, ...one }) => ({ ...one, ...mark }));
    await this.store((stores) => { for (const one of marked) stores.shelf.put(one); });
    for (const one of marked) this.shelf.set(one.id, one);
    this.tell({ many: true });
    this.onChange(null);
  }

  /** Removes deleted conversations for good. */
  async purge(ids) {
    const gone = ids.filter((id) => this.shelf.get(id)?.deleted);
    if (!gone.length) return;
    await this.store((stores) => {
      for (const id of gone) { stores.shelf.delete(id); stores.conversations.delete(id); }
    });
    for (const id of gone) {
      this.shelf.delete(id);
      this.memory.delete(id);
    }
    this.tell({ many: true });
  }

  /** Adds checked conversations, all or none; one whose id exists is left as it is. */
  async add(conversations) {
    if (!this.db) for (const one of conversations) this.memory.set(one.id, one);
    else {
      await transaction(this.db, "readwrite", async (stores) => {
        for (const one of conversations) {
          if (await resultOf(stores.conversations.count(one.id))) continue;
          stores.conversations.put(one);
          stores.shelf.put(entryOf(one));
        }
      });
    }
    this.tell({ many: true });
    await this.refresh();
  }

  /** Calls `visit` with each conversation that is not deleted, one after the other. */
  async each(visit, signal) {
    for (const { id } of this.list()) {
      if (signal?.aborted) return;
      const conversation = await this.load(id);
      if (conversation) visit(conversation);
    }
  }

  /** The ids of the conversations that contain this text. */
  async search(text, signal) {
    const wanted = text.toLocaleLowerCase();
    const found = new Set();
    const isIn = (value) => value?.toLocaleLowerCase().includes(wanted);
    await this.each((one) => {
      let isFound = isIn(one.title);
      for (const { content } of allMessages(one)) isFound ||= isIn(content);
      if (isFound) found.add(one.id);
    }, signal);
    return found;
  }

  tell(news) {
    this.channel?.postMessage(news);
  }

  hear({ changed, begins, ends, answer, stop, many }) {
    if (many) this.refresh();
    if (changed) this.shelf.set(changed.id, changed);
    if (begins) this.answers.set(begins.id, begins);
    if (ends) this.answers.delete(ends);
    if (changed || ends) this.onChange(changed?.id ?? null);
    if (begins ?? answer) this.onAnswer(begins ?? answer);
    if (stop) this.onStop(stop);
  }
}
