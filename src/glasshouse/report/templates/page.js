"use strict";
(() => {
  const make = (name, into, fields) => into.appendChild(Object.assign(document.createElement(name), fields));
  const text = (cell) => cell.innerText.replace(/\s+/g, " ").replace(/−/g, "-").trim();
  const number = (t) => parseFloat(t.replace(/,/g, "").replace(/^[^\d.+-]+/, ""));
  const order = (a, b) => {
    const x = number(a), y = number(b);
    return isNaN(x) || isNaN(y) ? a.localeCompare(b) : x - y;
  };
  // A spreadsheet must not take a cell for a formula.
  const quote = (t) => '"' + (/^[=@\t]|^[+-](?![\d.,]+( [\w%[\],. -]*)?$)/.test(t) ? "'" : "") + t.replace(/"/g, '""') + '"';

  for (const box of document.querySelectorAll(".scroll")) {
    const table = box.querySelector("table:not(.sheet)");
    if (!table) continue;
    const head = [...table.tHead.rows[0].cells], body = table.tBodies[0], rows = [...body.rows];
    const names = head.map(text);
    const bar = document.createElement("div");
    bar.className = "bar";
    box.before(bar);
    if (rows.length > 4) {
      const find = make("input", bar, { type: "search", placeholder: "filter rows" });
      find.setAttribute("aria-label", "Filter rows of: " + box.getAttribute("aria-label"));
      find.addEventListener("input", () => {
        for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(find.value.toLowerCase());
      });
    }
    const link = make("a", bar, { textContent: "CSV", href: "#", download: "table.csv" });
    link.download = (box.getAttribute("aria-label") || "table").replace(/[^\w]+/g, "-") + ".csv";
    link.addEventListener("click", () => {
      const lines = [names, ...[...body.rows].filter((r) => !r.hidden).map((r) => [...r.cells].map(text))];
      link.href = "data:text/csv;charset=utf-8,"
        + encodeURIComponent(lines.map((line) => line.map(quote).join(",")).join("\r\n") + "\r\n");
    });
    if (rows.length > 1) head.forEach((cell, i) => {
      if (!text(cell)) return;  // a button without a name says nothing to a screen reader
      const button = document.createElement("button");
      button.append(...cell.childNodes);
      cell.append(button);
      button.addEventListener("click", () => {
        const down = cell.getAttribute("aria-sort") === "ascending";
        for (const other of head) other.removeAttribute("aria-sort");
        cell.setAttribute("aria-sort", down ? "descending" : "ascending");
        rows.sort((a, b) => (down ? -1 : 1) * order(text(a.cells[i]), text(b.cells[i])));
        body.append(...rows);
      });
    });
  }

  // One victim alone: its row under every attack and setting, and its pictures.
  for (const part of document.querySelectorAll(".victims")) {
    const section = part.closest("section"), rows = [...part.querySelectorAll("tbody tr")];
    const names = [...new Set(rows.map((row) => row.cells[0].textContent))];
    if (names.length < 2) continue;
    const bar = document.createElement("div");
    bar.className = "bar";
    part.querySelector("details").before(bar);
    const choice = make("select", make("label", bar, { textContent: "Show " }), {});
    for (const name of ["every victim", ...names]) make("option", choice, { textContent: name });
    choice.addEventListener("change", () => {
      const one = choice.selectedIndex ? choice.value : "";
      for (const row of rows) row.hidden = one && row.cells[0].textContent !== one;
      for (const fold of part.querySelectorAll("details")) fold.open = !!fold.querySelector("tbody tr:not([hidden])");
      for (const sheet of section.querySelectorAll("table.sheet")) {
        const at = [...sheet.tHead.rows[0].cells].findIndex((cell) => cell.textContent === one);
        for (const row of sheet.rows) [...row.cells].forEach((cell, i) => { cell.hidden = at > 0 && i > 0 && i !== at; });
      }
    });
  }
})();
