// Loads the page again once the runs have changed; the browser keeps its place.
(() => {
  const shown = document.querySelector('meta[name="version"]').content;
  const note = document.querySelector("#follow");
  async function look() {
    try {
      const answer = await fetch("version", { cache: "no-store" });
      const ended = !answer.ok;
      note.hidden = !ended;
      if (!ended && (await answer.text()) !== shown) location.reload();
    } catch {
      note.hidden = false; // the server has ended; what is shown stays
    }
  }
  setInterval(look, 2000);
})();
