// Keeps the end of a growing list in view, until the user scrolls up.

import { byId } from "./dom.js";

const NEAR_PX = 60;

/** Follows the end of the conversation. */
export class EndFollower {
  constructor() {
    this.log = byId("log");
    this.isAtEnd = true;
    this.lastTop = 0;
    this.lastHeight = 0;
    this.log.addEventListener("scroll", () => this.note(), { passive: true });
    byId("messages").addEventListener("grown", () => this.keep());
    byId("to-end").addEventListener("click", () => this.go());
    new ResizeObserver(() => this.keep()).observe(this.log);
  }

  /** Scrolls to the end, and follows it from now on. */
  go() {
    this.isAtEnd = true;
    this.keep();
  }

  /** Scrolls to the end if it is followed. */
  keep() {
    if (this.isAtEnd) this.log.scrollTop = this.log.scrollHeight;
    this.remember();
  }

  // The event comes after the movement, and the list may have grown in between: only a movement
  // upwards means that the user has left the end.
  note() {
    const { scrollTop, scrollHeight, clientHeight } = this.log;
    const hasShrunk = scrollHeight < this.lastHeight;
    if (scrollTop < this.lastTop && !hasShrunk) this.isAtEnd = false;
    else if (scrollHeight - scrollTop - clientHeight < NEAR_PX) this.isAtEnd = true;
    this.remember();
  }

  remember() {
    this.lastTop = this.log.scrollTop;
    this.lastHeight = this.log.scrollHeight;
    byId("to-end").hidden = this.isAtEnd;
  }
}
