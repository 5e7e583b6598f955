// The player of programs on the front page. Times are in forwards; a backward takes two.
"use strict";
(() => {
  const methods = JSON.parse(document.getElementById("programs").textContent);
  const player = document.querySelector(".player");
  const LENGTH = { F: 1, B: 2 }, LAST = 60; // it starts again so long after all stages are full
  const ROW = 44, BOX = 26, LEFT = 58; // pixels
  let stages, accumulate, program, time = 0, timer = null;
  const rows = () => [...Array(stages).keys()];

  // The program: the entry for batch n of a list that repeats, and what follows from it.
  function entry(list, n, more) {
    const turns = Math.max(0, Math.ceil((n + 1 - list.length) / program.repeats));
    return list[n - turns * program.repeats] + turns * more;
  }
  const start = (kind, stage, n) => entry(program[kind][stage], n, program.period);
  function returned(stage, until) {
    let n = 0;
    while (start("B", stage, n) + LENGTH.B <= until) n++;
    return n;
  }
  const updates = (stage, until) => Math.floor(returned(stage, until) / accumulate);
  function staleness(stage, n) {
    const seen = program.versions
      ? entry(program.versions, n, program.repeats / accumulate)
      : updates(stage, start("F", stage, n));
    return updates(stage, start("B", stage, n)) - seen;
  }
  function actions(stage) {
    const found = [];
    for (const kind of "FB")
      for (let n = 0, from; (from = start(kind, stage, n)) <= time; n++)
        found.push({ kind, stage, n, from, to: from + LENGTH[kind] });
    return found;
  }

  // The counts below the picture.
  function counts(stage) {
    const done = actions(stage), full = program.full;
    const running = done.find(a => a.to > time);
    const back = done.filter(a => a.kind === "B");
    const steady = back.filter(a => a.from >= full && a.from < time);
    const total = steady.reduce((sum, a) => sum + staleness(stage, a.n), 0);
    const busy = done.reduce(
      (sum, a) => sum + Math.max(0, Math.min(a.to, time) - Math.max(a.from, full)), 0);
    return [
      running ? { F: "forward ", B: "backward " }[running.kind] + running.n : "waits",
      back.length ? staleness(stage, back.at(-1).n) : "–",
      steady.length ? +(total / steady.length).toFixed(2) : "–",
      time > full ? Math.round(100 * (1 - busy / (time - full))) + " %" : "fills",
      done.length - back.length - returned(stage, time),
    ];
  }

  // The picture: it ends now, and packets travel between the rows.
  function draw() {
    const width = player.clientWidth - 26, unit = width < 500 ? 18 : 24;
    const now = Math.min(width - 24, LEFT + time * unit), begin = Math.max(LEFT, now - time * unit);
    const x = t => now - (time - t) * unit, y = stage => 4 + stage * ROW;
    const box = (kind, left, top, width, height) =>
      `<rect class="${kind}" x="${left}" y="${top}" width="${Math.max(0, width)}" height="${height}"/>`;
    const word = (left, stage, text, anchor) =>
      `<text x="${left}" y="${y(stage) + 18}" text-anchor="${anchor}">${text}</text>`;

    function cell(a) {
      if (x(a.to) <= LEFT) return "";
      const middle = (a.from + a.to) / 2, last = a.kind === "B" && (a.n + 1) % accumulate === 0;
      return box(a.kind, x(a.from), y(a.stage), (Math.min(a.to, time) - a.from) * unit - 1, BOX)
        + (middle < time ? word(x(middle), a.stage, a.n, "middle") : "")
        + (last && a.to <= time ? box("U", x(a.to) - 4, y(a.stage) - 3, 4, BOX + 6) : "");
    }
    function packet(a) {
      const next = a.stage + (a.kind === "F" ? 1 : -1);
      const sent = next >= 0 && next < stages && (a.kind === "F" || program.gradients);
      if (!sent || a.to > time) return "";
      const used = start(a.kind, next, a.n), end = Math.min(used, time);
      const from = y(a.stage) + (next > a.stage ? BOX : 0), to = y(next) + (next > a.stage ? 0 : BOX);
      const tip = from + (used > a.to ? (end - a.to) / (used - a.to) : 1) * (to - from);
      const dot = `<circle class="${a.kind}" cx="${x(end)}" cy="${tip}" r="5"/>`;
      return x(end) < LEFT ? "" :
        `<path class="${a.kind}" d="M${x(a.to)} ${from}L${x(end)} ${tip}"/>${used > time ? dot : ""}`;
    }
    const done = rows().flatMap(actions);
    player.querySelector("svg").outerHTML =
      `<svg width="${width}" height="${stages * ROW - 10}" role="img" aria-label="${sentence()}">`
      + rows().map(stage => box("idle", begin, y(stage), now - begin, BOX)).join("")
      + done.map(cell).join("") + done.map(packet).join("") + box("names", 0, 0, LEFT, stages * ROW)
      + rows().map(stage => word(0, stage, `stage ${stage}`, "start")).join("")
      + `<path class="now" d="M${now} 0V${stages * ROW - 14}"/></svg>`;
  }
  const trained = () => `Time ${Math.floor(time)}: ${returned(0, time)} batches trained`;
  const sentence = () =>
    `${trained()}; ${rows().map(stage => `stage ${stage}: ${counts(stage)[0]}`).join(", ")}`;
  function show() {
    draw();
    player.querySelector("tbody").innerHTML = rows().map(stage =>
      `<tr><th scope="row">${stage}</th><td>${counts(stage).join("</td><td>")}</td></tr>`).join("");
    const told = player.querySelector("output");
    told.setAttribute("aria-live", timer ? "off" : "polite");
    told.textContent = `${trained()}.`;
    player.querySelector("[data-do=play]").textContent = timer ? "Pause" : "Play";
  }

  // Choices: what a method does not allow cannot be chosen.
  const field = name => player.querySelector(`[name=${name}]`);
  function allow(name, allowed) {
    const options = [...field(name).options];
    for (const option of options) option.disabled = !allowed(option.value);
    if (field(name).selectedOptions[0].disabled)
      field(name).value = options.find(option => !option.disabled).value;
    return +field(name).value;
  }
  function choose() {
    const { says, programs } = methods[field("method").value];
    stages = allow("stages", k => Object.keys(programs).some(key => key.startsWith(`${k},`)));
    accumulate = allow("accumulate", m => `${stages},${m}` in programs);
    program = programs[`${stages},${accumulate}`];
    player.querySelector(".says").textContent = says;
    time = timer ? 0 : program.full + program.period;
    show();
  }

  // Controls.
  function tick() {
    time = time < program.full + LAST ? time + 0.1 : 0;
    show();
  }
  function play(on) {
    clearInterval(timer);
    timer = on ? setInterval(tick, 50) : null;
    if (!on) time = Math.round(time);
    show();
  }
  function go(to) {
    time = Math.max(0, to);
    show();
  }
  const tasks = {
    play: () => play(!timer),
    back: () => { play(false); go(time - 1); },
    step: () => { play(false); go(time + 1); },
    start: () => go(0),
  };
  const KEYS = { " ": "play", ArrowLeft: "back", ArrowRight: "step", Home: "start" };
  const choice = (label, name, values) =>
    `<label>${label} <select name="${name}"><option>${values.join("<option>")}</select></label>`;
  const button = (task, label) => `<button data-do="${task}">${label}</button>`;
  const heads = ["stage", "now", "stale", "mean", "idle", "keeps"];
  player.innerHTML = `
    <form>${choice("method", "method", Object.keys(methods))} ${choice("stages", "stages", [2, 3, 4])}
    ${choice("gradients per update", "accumulate", [1, 2, 4])}</form>
    <p class="says"></p><svg></svg>
    <p class="key"><i class="F"></i>forward <i class="B"></i>backward <i class="U"></i>update
    <i class="idle"></i>idle <span>time →</span></p>
    <div class="controls">${button("play", "Play")}${button("back", "Step back")}
    ${button("step", "Step")}${button("start", "Restart")}<output></output></div>
    <table class="counts"><thead><tr><th scope="col">${heads.join('</th><th scope="col">')}</th></tr>
    </thead><tbody></tbody></table>
    <p class="key">Stale: updates between forward and backward. Mean and idle: since the stages are
    full. Keeps: batches in flight.</p>`;
  player.tabIndex = 0;
  player.setAttribute("role", "group");
  player.setAttribute("aria-label", "Player of programs. Space plays, arrows step.");
  field("method").value = "fdg";
  field("stages").value = 3;
  player.addEventListener("change", choose);
  player.addEventListener("click", event => tasks[event.target.dataset.do]?.());
  player.addEventListener("keydown", event => {
    const inner = event.target.closest("select, button");
    const used = inner?.tagName === "SELECT" || (inner && event.key === " ");
    if (used || !(event.key in KEYS)) return;
    event.preventDefault();
    tasks[KEYS[event.key]]();
  });
  new ResizeObserver(show).observe(player);
  choose();
  if (!matchMedia("(prefers-reduced-motion: reduce)").matches) play(true);
})();
