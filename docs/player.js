// The player of programs on the front page. Times are in forwards; a backward takes two.
"use strict";
(() => {
  const methods = JSON.parse(document.getElementById("programs").textContent);
  const player = document.querySelector(".player");
  const LENGTH = { F: 1, B: 2 }, ROW = 44, BOX = 26, LEFT = 58, LAST = 60;
  let stages, accumulate, program, time = 0, timer = null;

  // A program: when batch n starts at a stage, and the staleness of its gradient.
  function start(kind, stage, n) {
    const row = program[kind][stage], more = n - row.length;
    if (more < 0) return row[n];
    const { repeats, period } = program;
    return row[row.length - repeats + more % repeats] + period * (1 + Math.floor(more / repeats));
  }
  function updates(stage, until) {
    let n = 0;
    while (start("B", stage, n) + LENGTH.B <= until) n++;
    return Math.floor(n / accumulate);
  }
  function version(stage, n) {
    const seen = program.versions;
    if (!seen) return updates(stage, start("F", stage, n));
    const more = Math.max(0, Math.ceil((n + 1 - seen.length) / program.repeats));
    return seen[n - more * program.repeats] + more * program.repeats / accumulate;
  }
  const staleness = (stage, n) => updates(stage, start("B", stage, n)) - version(stage, n);

  // What a stage has done until now: its actions, and the counts below the picture.
  function actions(stage, until) {
    const found = [];
    for (const kind of "FB")
      for (let n = 0; start(kind, stage, n) <= until; n++)
        found.push({ kind, n, from: start(kind, stage, n), to: start(kind, stage, n) + LENGTH[kind] });
    return found;
  }
  function counts(stage) {
    const done = actions(stage, time), full = program.full;
    const running = done.find(a => a.to > time);
    const back = done.filter(a => a.kind === "B");
    const steady = back.filter(a => a.from >= full && a.from < time).map(a => staleness(stage, a.n));
    const busy = done.reduce((sum, a) => sum + Math.max(0, Math.min(a.to, time) - Math.max(a.from, full)), 0);
    const mean = steady.reduce((sum, s) => sum + s, 0) / steady.length;
    return {
      now: running ? { F: "forward ", B: "backward " }[running.kind] + running.n : "waits",
      stale: back.length ? staleness(stage, back.at(-1).n) : "–",
      mean: steady.length ? +mean.toFixed(2) : "–",
      idle: time > full ? Math.round(100 * (1 - busy / (time - full))) + " %" : "fills",
      keeps: done.filter(a => a.kind === "F").length - back.filter(a => a.to <= time).length,
    };
  }
  const trained = () => {
    let n = 0;
    while (start("B", 0, n) + LENGTH.B <= time) n++;
    return n;
  };

  // The picture: time ends at the right, and packets travel between the rows.
  function draw() {
    const width = player.clientWidth - 26, unit = width < 500 ? 18 : 24;
    const now = Math.min(width - 24, LEFT + time * unit), x = t => now - (time - t) * unit, y = stage => 4 + stage * ROW;
    const parts = [];
    const rect = (a, top, width) =>
      `<rect class="${a.kind}" x="${x(a.from)}" y="${top}" width="${width}" height="${BOX}"/>`;
    for (let stage = 0; stage < stages; stage++) {
      parts.push(`<rect class="idle" x="${Math.max(LEFT, x(0))}" y="${y(stage)}" width="${now - Math.max(LEFT, x(0))}" height="${BOX}"/>`);
      for (const a of actions(stage, time)) {
        const to = Math.min(a.to, time), middle = x((a.from + a.to) / 2);
        if (x(a.to) > LEFT) {
          parts.push(rect(a, y(stage), Math.max(0, (to - a.from) * unit - 1)));
          if (middle < now) parts.push(`<text x="${middle}" y="${y(stage) + 18}" text-anchor="middle">${a.n}</text>`);
          if (a.kind === "B" && (a.n + 1) % accumulate === 0 && a.to <= time)
            parts.push(`<rect class="U" x="${x(a.to) - 4}" y="${y(stage) - 3}" width="4" height="${BOX + 6}"/>`);
        }
        const next = stage + (a.kind === "F" ? 1 : -1);
        const sends = next >= 0 && next < stages && (a.kind === "F" || program.gradients);
        if (sends && a.to <= time) parts.push(packet(a, stage, next, x, y));
      }
    }
    player.querySelector("svg").outerHTML =
      `<svg width="${width}" height="${stages * ROW - 10}" role="img" aria-label="${sentence()}">` +
      `${parts.join("")}<rect class="names" width="${LEFT}" height="100%"/>` +
      [...Array(stages).keys()].map(k => `<text x="0" y="${y(k) + 18}">stage ${k}</text>`).join("") +
      `<path class="now" d="M${now} 0V${stages * ROW - 14}"/></svg>`;
  }
  function packet(a, stage, next, x, y) {
    const down = next > stage, sent = a.to, used = start(a.kind, next, a.n);
    const share = used > sent ? Math.min(1, (time - sent) / (used - sent)) : 1;
    const from = y(stage) + (down ? BOX : 0), to = y(next) + (down ? 0 : BOX);
    const end = Math.min(used, time), tip = from + share * (to - from);
    if (x(end) < LEFT) return "";
    const dot = share < 1 ? `<circle class="${a.kind}" cx="${x(end)}" cy="${tip}" r="5"/>` : "";
    return `<path class="${a.kind}" d="M${x(sent)} ${from}L${x(end)} ${tip}"/>${dot}`;
  }

  function sentence() {
    const all = [...Array(stages).keys()].map(k => `stage ${k}: ${counts(k).now}`);
    return `time ${Math.floor(time)}, ${trained()} batches trained; ${all.join(", ")}`;
  }
  function show() {
    draw();
    player.querySelector("tbody").innerHTML = [...Array(stages).keys()].map(k => {
      const c = counts(k);
      return `<tr><th scope="row">${k}<td>${c.now}<td>${c.stale}<td>${c.mean}<td>${c.idle}<td>${c.keeps}`;
    }).join("");
    const told = player.querySelector("output");
    told.textContent = `Time ${Math.floor(time)}: ${trained()} batches trained.`;
    told.setAttribute("aria-live", timer ? "off" : "polite");
    player.querySelector("[data-do=play]").textContent = timer ? "Pause" : "Play";
  }

  // Choices and controls.
  const field = id => player.querySelector(`[name=${id}]`);
  function choose() {
    const all = methods[field("method").value].programs, keys = Object.keys(all);
    const allow = (id, wanted) => {
      for (const o of field(id).options) o.disabled = !keys.some(key => key.startsWith(wanted(o.value)));
      if (field(id).selectedOptions[0].disabled) field(id).value = [...field(id).options].find(o => !o.disabled).value;
    };
    allow("stages", value => `${value},`);
    allow("accumulate", value => `${field("stages").value},${value}`);
    stages = +field("stages").value;
    accumulate = +field("accumulate").value;
    program = all[`${stages},${accumulate}`];
    player.querySelector(".says").textContent = methods[field("method").value].says;
    time = timer ? 0 : program.full + program.period;
    show();
  }
  function play(on) {
    clearInterval(timer);
    timer = on ? setInterval(() => { time = time < program.full + LAST ? time + 0.1 : 0; show(); }, 50) : null;
    if (!on) time = Math.round(time);
    show();
  }
  const tasks = {
    play: () => play(!timer),
    back: () => { play(false); time = Math.max(0, time - 1); show(); },
    step: () => { play(false); time += 1; show(); },
    start: () => { time = 0; show(); },
  };
  const KEYS = { " ": "play", ArrowLeft: "back", ArrowRight: "step", Home: "start" };

  const options = values => values.map(v => `<option>${v}</option>`).join("");
  player.innerHTML =
    `<form><label>method <select name="method">${options(Object.keys(methods))}</select></label>
    <label>stages <select name="stages">${options([2, 3, 4])}</select></label>
    <label>gradients per update <select name="accumulate">${options([1, 2, 4])}</select></label></form>
    <p class="says"></p><svg></svg>
    <p class="key"><i class="F"></i>forward <i class="B"></i>backward <i class="U"></i>update
    <i class="idle"></i>idle <span>time →</span></p>
    <div class="controls"><button data-do="play">Play</button><button data-do="back">Step back</button><button
    data-do="step">Step</button><button data-do="start">Restart</button><output></output></div>
    <table class="counts"><thead><tr><th scope="col">stage<th scope="col">now<th scope="col">stale<th
    scope="col">mean<th scope="col">idle<th scope="col">keeps</thead><tbody></tbody></table>
    <p class="key">Stale: updates between forward and backward. Mean and idle: since the stages are
    full. Keeps: batches in flight.</p>`;
  player.tabIndex = 0;
  player.setAttribute("role", "group");
  player.setAttribute("aria-label", "Player of programs. Space plays, arrows step.");
  field("method").value = "fdg";
  field("stages").value = 3;
  player.addEventListener("change", choose);
  player.addEventListener("click", e => tasks[e.target.dataset.do]?.());
  player.addEventListener("keydown", e => {
    const inner = e.target.closest("select, button");
    if (!(e.key in KEYS) || inner?.tagName === "SELECT" || (inner && e.key === " ")) return;
    e.preventDefault();
    tasks[KEYS[e.key]]();
  });
  new ResizeObserver(show).observe(player);
  choose();
  if (!matchMedia("(prefers-reduced-motion: reduce)").matches) play(true);
})();
