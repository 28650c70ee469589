/* Draws the charts, with as many panels side by side as the page has room for, and sorts a table by the column whose heading is pressed. */
const dark = matchMedia("(prefers-color-scheme: dark)").matches;
const LEGEND_ENTRY = 150, LEGEND_SYMBOL = 40, PADDING = 14;  // pixels
for (const place of document.querySelectorAll(".chart")) {
  const spec = JSON.parse(place.nextElementSibling.textContent);
  spec.config.background = null;
  spec.config.legend.columns = Math.max(1, Math.min(6, Math.floor(place.clientWidth / LEGEND_ENTRY)));
  spec.config.legend.labelLimit = place.clientWidth - LEGEND_SYMBOL;
  if (spec.autosize) spec.width = place.clientWidth - PADDING;
  draw(place, spec).catch((error) => { console.error(error); place.textContent = String(error); });
}
async function draw(place, spec) {
  await vegaEmbed(place, spec, {
    mode: "vega-lite", renderer: "svg", tooltip: {theme: dark ? "dark" : "light"},
    actions: {export: true, source: false, compiled: false, editor: false},
  });
  const width = place.querySelector("svg").width.baseVal.value;  // before the style sheet scales it to the page
  if (spec.columns > 1 && width > place.clientWidth) await draw(place, {...spec, columns: spec.columns - 1});
}
for (const heading of document.querySelectorAll("thead th button")) {
  heading.addEventListener("click", () => {
    const cell = heading.parentElement, table = cell.closest("table"), column = cell.cellIndex;
    const descending = cell.ariaSort === "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    cell.ariaSort = descending ? "descending" : "ascending";
    const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
    const compare = (a, b) => (a === "") - (b === "") || (descending ? -1 : 1) * (isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b);
    table.tBodies[0].append(...[...table.tBodies[0].rows].sort((a, b) => compare(key(a), key(b))));
  });
}
