// The list of conversations: which are being answered, search, names, deletion, files.

import { byId, el } from "./dom.js";
import { asJson, asMarkdown, download, fileName, newOnes, readFile } from "./files.js";
import { showShortly } from "./notices.js";

const SHOWN = 100; // a longer list is drawn as it is scrolled
const SEARCH_MS = 200;
const DRAW_MS = 30;

export class Shelf {
  /** `openOne(id)` opens a conversation, `opened()` gives the id of the open one. */
  constructor(conversations, runs, { openOne, opened, onRemoved }) {
    Object.assign(this, { conversations, runs, openOne, opened, onRemoved });
    this.list = byId("conversations");
    this.menu = byId("conversation-menu");
    this.shown = SHOWN;
    this.found = null; // the ids that a search has found
    this.frame = null;
    this.isNaming = false; // a name is being written, which drawing would end
    this.search = { timer: 0, abort: null };
    this.wire();
  }

  wire() {
    byId("search").addEventListener("input", () => {
      clearTimeout(this.search.timer);
      this.search.timer = setTimeout(() => this.find(byId("search").value.trim()), SEARCH_MS);
    });
    this.list.addEventListener("scroll", () => {
      const { scrollTop, scrollHeight, clientHeight } = this.list;
      if (scrollHeight - scrollTop - clientHeight > 400 || this.shown >= this.conversations.shelf.size) return;
      this.shown += SHOWN;
      this.draw();
    }, { passive: true });
    byId("forget").addEventListener("click", () => {
      const ids = this.conversations.list().map((one) => one.id);
      if (confirm(`Delete all ${ids.length} conversations from this browser?`)) this.remove(ids, `${ids.length} conversations`);
    });
    byId("export-all").addEventListener("click", () => this.exportAll());
    byId("import").addEventListener("click", () => byId("import-file").click());
    byId("import-file").addEventListener("change", ({ target }) => {
      const [file] = target.files;
      if (file) this.import(file).catch((error) => showShortly(error.message));
      target.value = "";
    });
    document.addEventListener("click", () => this.closeMenu());
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.closeMenu());
  }

  /** Draws once for several changes. */
  drawSoon() {
    this.frame ??= setTimeout(() => this.draw(), DRAW_MS);
  }

  draw() {
    clearTimeout(this.frame);
    this.frame = null;
    if (this.isNaming) return;
    const all = this.conversations.list();
    const listed = this.found ? all.filter((one) => this.found.has(one.id)) : all;
    const running = new Set([...this.conversations.answers.values()].map((one) => one.conversation));
    const rows = listed.slice(0, this.shown).map((one) => [one, running.has(one.id), one.id === this.opened()]);
    const drawn = JSON.stringify(rows.map(([{ id, title }, ...marks]) => [id, title, ...marks]));
    if (drawn !== this.drawn) this.list.replaceChildren(...rows.map((row) => this.row(...row))); // else the focus stays
    this.drawn = drawn;
    byId("search-note").hidden = !this.found;
    byId("search-note").textContent = listed.length === 1 ? "1 conversation" : `${listed.length} conversations`;
    byId("search").hidden = all.length < 2 && !this.found;
    for (const id of ["forget", "export-all"]) byId(id).hidden = all.length === 0;
  }

  row(entry, isRunning, isOpen) {
    const title = entry.title || "Untitled";
    return el("li", { className: isRunning ? "running" : "" },
      el("button", {
        type: "button", className: "conversation", "aria-current": isOpen ? "true" : null, title,
        onclick: () => this.openOne(entry.id),
      }, isRunning ? el("span", { className: "pulse", role: "img", "aria-label": "An answer is being written" }) : "", title),
      el("button", {
        type: "button", className: "more", "aria-label": `More about “${title}”`, "aria-haspopup": "menu",
        onclick: (event) => { event.stopPropagation(); this.openMenu(event.currentTarget, entry); },
      }, "⋯"),
      el("button", {
        type: "button", className: "remove", "aria-label": `Delete “${title}”`,
        onclick: () => this.remove([entry.id], `“${title}”`),
      }, "×"));
  }

  openMenu(button, entry) {
    const item = (label, run) => el("button", { type: "button", role: "menuitem", onclick: run }, label);
    this.menu.replaceChildren(
      item("Rename", () => this.rename(entry, button.closest("li"))),
      item("Export as Markdown", () => this.export(entry, "md")),
      item("Export as JSON", () => this.export(entry, "json")));
    this.menu.hidden = false;
    const { right, bottom } = button.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = this.menu;
    this.menu.style.left = `${Math.max(8, right - width)}px`;
    this.menu.style.top = `${Math.min(bottom + 4, innerHeight - height - 8)}px`;
    this.menu.firstChild.focus();
  }

  closeMenu() {
    this.menu.hidden = true;
  }

  /** Shows a box for the name in place of the row's button. */
  rename({ id, title }, row) {
    const end = async (isGiven) => {
      if (!this.isNaming) return;
      this.isNaming = false;
      const name = box.value.trim();
      const conversation = isGiven && name && name !== title ? await this.conversations.find(id) : null;
      if (conversation) await this.conversations.change(conversation, (one) => { one.title = name; }, { isNews: false });
      else this.draw();
    };
    const box = el("input", {
      value: title, maxLength: 300, "aria-label": "Name of the conversation", onblur: () => end(true),
      onkeydown: (event) => {
        if (event.key === "Enter" || event.key === "Escape") end(event.key === "Enter");
        if (event.key === "Escape") event.stopPropagation();
      },
    });
    this.isNaming = true;
    this.drawn = "";
    row.replaceChildren(box);
    box.select();
  }

  async export(entry, ending) {
    const conversation = await this.conversations.load(entry.id);
    if (!conversation) return;
    const blob = ending === "md" ? asMarkdown(conversation) : asJson([conversation]);
    download(blob, fileName(entry.title, ending));
  }

  async exportAll() {
    const all = [];
    await this.conversations.each((one) => all.push(one));
    download(asJson(all), `quire-${new Date().toISOString().slice(0, 10)}.json`);
  }

  async import(file) {
    const { conversations, numRefused } = await readFile(file);
    const added = await newOnes(conversations, (id) => this.conversations.find(id));
    await this.conversations.add(added);
    const present = conversations.length - added.length;
    showShortly([
      `Imported ${added.length} conversations.`,
      present ? `${present} are here already.` : "",
      numRefused ? `${numRefused} cannot be read.` : "",
    ].join(" "));
  }

  /** Deletes conversations; for a few seconds the user can take it back. */
  async remove(ids, what) {
    const running = [...this.conversations.answers.values()].filter((one) => ids.includes(one.conversation));
    for (const answer of running) this.runs.stop(answer.id);
    await this.conversations.remove(ids);
    const isOpen = ids.includes(this.opened());
    const opened = this.opened();
    if (isOpen) this.onRemoved();
    showShortly(`Deleted ${what}.`, { label: "Undo", run: async () => {
      await this.conversations.restore(ids);
      if (isOpen) this.openOne(opened);
    } }, () => this.conversations.purge(ids));
  }

  async find(text) {
    this.search.abort?.abort();
    const abort = new AbortController();
    this.search.abort = abort;
    const found = text ? await this.conversations.search(text, abort.signal) : null;
    if (abort.signal.aborted) return;
    this.found = found;
    this.shown = SHOWN;
    this.draw();
  }
}
