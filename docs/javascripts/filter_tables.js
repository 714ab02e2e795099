// A field that filters the rows of all tables of a page with <div class="filter-tables">. Without JavaScript there is no field.
document.addEventListener("DOMContentLoaded", () => {
  const place = document.querySelector(".filter-tables");
  if (!place) return;
  const tables = [...document.querySelectorAll("article table")];
  const rows = tables.flatMap((table) =>
    [...table.tBodies[0].rows].map((row) => ({ row, text: row.textContent.toLowerCase().replaceAll("-", "_") })),
  );
  const field = document.createElement("input");
  Object.assign(field, { type: "search", placeholder: "Search the names", ariaLabel: "Search the names" });
  field.style.cssText = "font: inherit; width: 60%; padding: .4em; border: 1px solid; border-radius: .2em; color: inherit; background: none";
  const count = document.createElement("p");
  count.setAttribute("role", "status");
  place.append(field, count);
  const filter = () => {
    const words = field.value.toLowerCase().replaceAll("-", "_").split(/\s+/).filter(Boolean);
    const found = rows.filter(({ text }) => words.every((word) => text.includes(word))).map(({ row }) => row);
    for (const { row } of rows) row.style.display = "none";
    for (const table of tables) table.style.display = "none";
    for (const row of found) row.style.display = row.closest("table").style.display = "";
    count.textContent = `${found.length} of ${rows.length} names`;
  };
  field.addEventListener("input", filter);
  filter();
});
