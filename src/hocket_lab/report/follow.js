// Loads the page again once the runs have changed. The browser keeps its place; what the
// reader has chosen is kept here: colours, hidden groups, the order of tables and zooms.
(() => {
  const shown = document.querySelector('meta[name="version"]').content;
  const note = document.querySelector("#follow");
  // A page of many runs takes long to make: to load it again takes at most a part of the time.
  const pause = Math.min(20000, Math.max(2000, 5 * performance.now()));
  const name = (head) => `${head.closest("section").firstChild.textContent}: ${head.textContent}`;
  function keep() {
    sessionStorage.setItem("choices", JSON.stringify({
      theme: document.documentElement.dataset.theme,
      hidden: all('[data-toggle][aria-pressed="false"]').map((b) => b.dataset.digest),
      orders: Object.fromEntries(all("th[aria-sort]").map((th) => [name(th), th.ariaSort])),
      windows: Object.fromEntries(spanViews.map((each) => [each.name, each.chosen])),
    }));
  }
  function restore({ theme, hidden, orders, windows }) {
    if (theme) document.documentElement.dataset.theme = theme;
    hidden.forEach((digest) => document.querySelector(`[data-digest="${digest}"]`)?.click());
    for (const head of all("table.sortable thead th")) {
      const order = orders[name(head)];
      if (order) head.firstChild.click();
      if (order === "descending") head.firstChild.click();
    }
    for (const each of spanViews) each.chosen = windows[each.name];
  }
  async function look() {
    try {
      const answer = await fetch("version", { cache: "no-store" });
      note.hidden = answer.ok;
      if (answer.ok && (await answer.text()) !== shown) {
        keep();
        location.reload();
      }
    } catch {
      note.hidden = false; // the server has ended; what is shown stays
    }
  }
  const kept = sessionStorage.getItem("choices");
  sessionStorage.removeItem("choices");
  if (kept) restore(JSON.parse(kept));
  setInterval(look, pause);
})();
