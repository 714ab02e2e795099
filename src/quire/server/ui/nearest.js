// The texts that are nearest to a query, for servers whose model embeds or ranks. Takes the place
// of the chat, which such a model cannot have. Nothing of it is stored.

import { explain } from "./answers.js";
import { rank } from "./api.js";
import { byId, el } from "./dom.js";

const EXAMPLES = [
  "The ferry to the island leaves every morning at nine.",
  "Add the eggs and stir until the dough is smooth.",
  "The engine needs new oil after ten thousand kilometres.",
  "Their first album was recorded in a kitchen.",
];

/** Wires the form; `model()` names the model that is asked. */
export function wireNearest(model) {
  const texts = byId("texts");
  if (!texts.value) texts.value = EXAMPLES.join("\n");
  byId("nearest-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const documents = texts.value.split("\n").filter((line) => line.trim());
    const query = byId("query").value;
    if (!query.trim() || !documents.length) return;
    byId("rank").disabled = true;
    try {
      const ranks = await rank(model(), query, documents);
      byId("nearest-error").textContent = "";
      byId("ranks").replaceChildren(...ranks.map(({ index, score }) =>
        el("li", {}, el("span", { className: "score" }, score.toFixed(4)), documents[index])));
    } catch (error) {
      byId("nearest-error").textContent = explain(error);
    }
    byId("rank").disabled = false;
  });
}
