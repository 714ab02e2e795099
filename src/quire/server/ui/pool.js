// The map of the KV pool: one cell a block (or a few), coloured by its state. A cell that
// changes is highlighted for a moment, to show prompts being computed and blocks being freed.

import { canvasContext, cssColor, count } from "./dom.js";

const MAX_CELLS = 4096;
const GLOW_MS = 700;
const NAMES = { f: "free", c: "cached", u: "in use", s: "shared by several requests" };

/** `"f120u3"` -> 123 letters. Throws for invalid input. */
export function decodeMap(text) {
  const cells = [];
  for (const [, letter, times] of text.matchAll(/([fcus])(\d+)/g)) {
    const n = Number(times);
    if (cells.length + n > MAX_CELLS) throw new RangeError("the block map is too long");
    for (let i = 0; i < n; i += 1) cells.push(letter);
  }
  return cells;
}

const FEWEST_SHOWN = 256;

/**
 * Number of cells to draw: all, unless the end of a large pool was never used. That end is
 * left out by powers of two, so that the cells in use are larger.
 */
export function cellsToShow(cells) {
  let touched = cells.length;
  while (touched > 0 && cells[touched - 1] === "f") touched -= 1;
  let shown = FEWEST_SHOWN;
  while (shown < 1.25 * touched) shown *= 2;
  return Math.min(shown, cells.length);
}

/** Columns and cell size that fill a width and are close to a height. */
export function layout(cells, width) {
  const wanted = Math.sqrt((width * 190) / Math.max(1, cells));
  const pitch = Math.max(4, Math.min(16, Math.floor(wanted)));
  const columns = Math.max(1, Math.floor(width / pitch));
  return { pitch, columns, rows: Math.ceil(cells / columns) };
}

export class PoolMap {
  constructor(canvas, tip) {
    this.canvas = canvas;
    this.tip = tip;
    this.tipAtRest = tip.textContent;
    this.cells = [];
    this.changedAt = [];
    this.kv = null;
    this.frame = 0;
    this.isCalm = matchMedia("(prefers-reduced-motion: reduce)");
    canvas.addEventListener("pointermove", (event) => this.point(event));
    canvas.addEventListener("pointerleave", () => (this.tip.textContent = this.tipAtRest));
  }

  /** Takes the `kv` part of a live snapshot. */
  show(kv) {
    const now = performance.now();
    const all = decodeMap(kv.map);
    const cells = all.slice(0, cellsToShow(all));
    const isNew = this.cells.length === 0;
    this.changedAt = cells.map((cell, i) =>
      isNew ? -GLOW_MS : cell === (this.cells[i] ?? "f") ? (this.changedAt[i] ?? -GLOW_MS) : now);
    this.cells = cells;
    this.kv = kv;
    const blocks = kv.blocks_per_cell === 1 ? "one block" : `${kv.blocks_per_cell} blocks`;
    const left = kv.num_blocks - cells.length * kv.blocks_per_cell;
    const rest = left > 0 ? ` ${count(left)} free blocks more are not drawn.` : "";
    const isAtRest = this.tip.textContent === this.tipAtRest;
    this.tipAtRest = `One cell is ${blocks} of ${kv.block_size} tokens.${rest}`;
    if (isNew || isAtRest) this.tip.textContent = this.tipAtRest;
    this.animate();
  }

  /** Shows no blocks. */
  clear() {
    this.cells = [];
    this.kv = null;
    this.tipAtRest = this.tip.textContent;
    const { context, width, height } = canvasContext(this.canvas);
    context.clearRect(0, 0, width, height);
  }

  animate() {
    if (this.frame) return;
    const step = () => {
      this.draw();
      const isGlowing = this.changedAt.some((at) => performance.now() - at < GLOW_MS);
      this.frame = isGlowing && !this.isCalm.matches ? requestAnimationFrame(step) : 0;
    };
    this.frame = requestAnimationFrame(step);
  }

  draw() {
    if (!this.cells.length || !this.canvas.clientWidth) return;
    const grid = layout(this.cells.length, this.canvas.clientWidth);
    const height = grid.rows * grid.pitch;
    if (this.canvas.style.height !== `${height}px`) this.canvas.style.height = `${height}px`;
    const { context, width } = canvasContext(this.canvas);
    context.clearRect(0, 0, width, height);
    const colors = {
      f: cssColor("--block-free"), c: cssColor("--block-cached"),
      u: cssColor("--block-used"), s: cssColor("--block-shared"),
    };
    const gap = grid.pitch > 6 ? 2 : 1;
    const now = performance.now();
    this.cells.forEach((cell, i) => {
      const x = (i % grid.columns) * grid.pitch;
      const y = Math.floor(i / grid.columns) * grid.pitch;
      context.fillStyle = colors[cell];
      context.fillRect(x, y, grid.pitch - gap, grid.pitch - gap);
    });
    if (!this.isCalm.matches) this.drawGlow(context, grid, gap, now);
    this.grid = grid;
  }

  drawGlow(context, grid, gap, now) {
    context.fillStyle = cssColor("--glow");
    this.changedAt.forEach((at, i) => {
      const age = (now - at) / GLOW_MS;
      if (age >= 1) return;
      context.globalAlpha = 0.85 * (1 - age) ** 2;
      const x = (i % grid.columns) * grid.pitch;
      const y = Math.floor(i / grid.columns) * grid.pitch;
      context.fillRect(x, y, grid.pitch - gap, grid.pitch - gap);
    });
    context.globalAlpha = 1;
  }

  point(event) {
    if (!this.grid || !this.kv) return;
    const column = Math.floor(event.offsetX / this.grid.pitch);
    const cell = Math.floor(event.offsetY / this.grid.pitch) * this.grid.columns + column;
    if (column >= this.grid.columns || cell >= this.cells.length) return;
    const first = cell * this.kv.blocks_per_cell;
    const last = Math.min(first + this.kv.blocks_per_cell, this.kv.num_blocks) - 1;
    const which = first === last ? `Block ${count(first)}` : `Blocks ${count(first)} to ${count(last)}`;
    this.tip.textContent = `${which}: ${NAMES[this.cells[cell]]}`;
  }
}
