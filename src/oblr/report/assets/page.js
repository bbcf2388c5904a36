"use strict";
// Text is set as text and never as markup: responses are whatever a model has written.
const data = JSON.parse(document.getElementById("data").textContent);
const by = (id) => document.getElementById(id);
const COLOURS = ["#0b7285", "#c2410c", "#6d28d9", "#15803d", "#b91c1c", "#a16207", "#1d4ed8", "#be185d"];
const ink = () => getComputedStyle(document.body).color;
const number = (x) => (x === null || x === undefined ? "–" : Math.abs(x) >= 1e5 || (x !== 0 && Math.abs(x) < 1e-3) ? x.toExponential(2).replace(/\.?0+e/, "e") : String(+x.toPrecision(4)));

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// --- curves -------------------------------------------------------------------------------------------------------

const KEY = (run) => JSON.stringify(run.configuration);
const configurations = [...new Set(data.runs.map(KEY))];
const several = data.runs.length > 1;
const evaluation = "words" in data; // whose benchmarks stand where a run has steps
const colour = (run) => COLOURS[configurations.indexOf(KEY(run)) % COLOURS.length];

function tagsOf(patterns) {
  const all = Object.keys(data.meanings);
  return [...new Set(patterns.flatMap((pattern) => all.filter((tag) => new RegExp(`^(?:${pattern})$`).test(tag))))];
}

// One line a tag of a single run; of several runs one tag alone, with a line for the mean of each configuration and a
// band from the lowest to the highest of its seeds.
function lines(tags) {
  if (!several) {
    const [run] = data.runs;
    return tags.filter((tag) => run.curves[tag]).map((tag, i) => ({ curves: [run.curves[tag]], label: tag, stroke: COLOURS[i % COLOURS.length] }));
  }
  const [tag] = tags;
  return configurations.map((key) => data.runs.filter((run) => KEY(run) === key && run.curves[tag])).filter((runs) => runs.length)
    .map((runs) => ({ curves: runs.map((run) => run.curves[tag]), label: label(runs[0]), stroke: colour(runs[0]) }));
}

const OF = { mean: (values) => values.reduce((a, b) => a + b) / values.length, low: (values) => Math.min(...values), high: (values) => Math.max(...values) };

// A column of plotted values: at each step what `of` makes of the curves that have one there.
function column(curves, steps, of) {
  const found = new Map(steps.map((step) => [step, []]));
  for (const [at, values] of curves) at.forEach((step, i) => found.get(step).push(values[i]));
  return steps.map((step) => (found.get(step).length ? of(found.get(step)) : null));
}

// Ticks of a logarithmic axis.
const decades = (plot, axis, low, high) => {
  const first = Math.ceil(Math.log10(low)), count = Math.floor(Math.log10(high)) - first + 1;
  return Array.from({ length: Math.max(count, 0) }, (_, i) => 10 ** (first + i));
};

// Which tag of several runs a chart shows is chosen in it; at first these.
const SHOWN = ["snr/factor_ema", "baseline/gradient_weighted", "gradnorm/q50", "time/step"];
function choice(title, patterns, tags, tag, figure) {
  const select = element("select", undefined, { "aria-label": title });
  for (const other of tags) select.append(element("option", other));
  select.value = tag;
  select.addEventListener("change", () => draw(title, patterns, select.value, figure).querySelector("select").focus());
  return select;
}

function draw(title, patterns, chosen, before) {
  const tags = tagsOf(patterns).filter((tag) => data.runs.some((run) => run.curves[tag]));
  const tag = several ? chosen ?? tags.find((other) => SHOWN.includes(other)) ?? tags[0] : tags[0];
  const shown = lines(several ? [tag] : tags);
  if (!shown.length) return;
  const steps = [...new Set(shown.flatMap(({ curves }) => curves.flatMap(([at]) => at)))].sort((a, b) => a - b);
  const columns = shown.map(({ curves }) => column(curves, steps, OF.mean));
  const bands = [], edges = [];
  shown.forEach(({ curves, stroke }) => {
    if (curves.length < 2) return;
    const first = 1 + columns.length;
    columns.push(column(curves, steps, OF.high), column(curves, steps, OF.low));
    edges.push({ label: "highest", width: 0, points: { show: false } }, { label: "lowest", width: 0, points: { show: false } });
    bands.push({ series: [first, first + 1], fill: `${stroke}2e` });
  });
  // A value of a single run between the ends of its interval, as a line in a band.
  const margin = !several && shown.length === 3 && tags[1].endsWith("_low") && tags[2].endsWith("_high");
  if (margin) bands.push({ series: [3, 2], fill: `${shown[0].stroke}2e` });
  const values = columns.flat().filter((x) => x !== null), least = Math.min(...values);
  const wide = least > 0 && Math.max(...values) > 1e4 * least; // such as a noise scale where the signal is lost
  const figure = element("figure", undefined, { "data-chart": title });
  figure.append(element("h3", title), element("p", data.meanings[tag], { class: "meaning" }));
  if (several && tags.length > 1) figure.append(choice(title, patterns, tags, tag, figure));
  if (before) before.replaceWith(figure);
  else by("charts").append(figure);
  const axis = { stroke: ink, grid: { stroke: "#8884" }, ticks: { stroke: "#8884" } };
  const options = {
    width: figure.clientWidth - 20, height: 210, scales: { x: { time: false }, y: { distr: wide ? 3 : 1 } },
    axes: [{ ...axis, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 1e4, 1e5] }, { ...axis, size: 56, values: (_, ticks) => ticks.map((x) => (x === null ? "" : number(x))), ...(wide ? { splits: decades, filter: (_, ticks) => ticks } : {}) }],
    legend: { live: !several, show: !several },
    bands,
    hooks: { draw: [mark] },
    series: [{ label: "step" }, ...shown.map(({ label, stroke }, i) => ({ label, stroke: margin ? shown[0].stroke : stroke, width: margin && i ? 0 : 1.5, spanGaps: true, points: { show: steps.length < 30 && !(margin && i) }, value: (_, x) => number(x) })), ...edges],
  };
  const plot = new uPlot(options, [steps.map((step) => step + 1), ...columns], figure);
  plot.over.addEventListener("click", () => plot.cursor.idx !== null && open(plot.cursor.idx === undefined ? 0 : steps[plot.cursor.idx], true));
  new ResizeObserver(() => plot.setSize({ width: figure.clientWidth - 20, height: 210 })).observe(figure);
  return figure;
}

// Warnings that name a step, as broken lines.
function mark(plot) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.strokeStyle = "#c2410c";
  ctx.setLineDash([4, 4]);
  for (const run of data.runs) for (const [step] of run.warnings) {
    if (step === null || several) continue;
    const x = plot.valToPos(step, "x", true);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

// --- configurations -----------------------------------------------------------------------------------------------

const varied = data.varied ?? data.differs.filter((path) => path !== "seed");
const label = (run) => run.configuration.map((value, i) => `${varied[i]}=${value}`).join(" ") || "all";
const between = ({ low, high }, digits = number) => (low === null ? "" : ` [${digits(low)}, ${digits(high)}]`);

function verdict(difference) {
  const words = difference.low === null ? "too few seeds to tell" : difference.p_value > 0.05 ? "a tie" : "no tie";
  return `${difference.mean > 0 ? "+" : ""}${number(difference.mean)}${between(difference)}, p = ${number(difference.p_value)}: ${words}`;
}

function compare() {
  const titles = [...new Set(data.comparison.flatMap((row) => Object.keys(row.columns)))];
  const head = element("tr");
  for (const title of [...(varied.length ? varied : ["configuration"]), evaluation ? data.words.count : "seeds", ...titles]) head.append(element("th", title, { scope: "col" }));
  by("rows").append(head);
  for (const row of data.comparison) {
    const line = element("tr");
    for (const value of row.configuration.length ? row.configuration : ["all"]) line.append(element("td", `${value}`));
    line.append(element("td", `${row.seeds}`, { class: "n" }));
    for (const title of titles) {
      const cell = element("td"), mean = row.columns[title], difference = row.against[title];
      if (mean) cell.append(element("div", number(mean.mean) + between(mean)));
      if (difference) cell.append(element("div", verdict(difference), { class: "meaning" }));
      line.append(cell);
    }
    by("rows").append(line);
  }
  by("comparison").hidden = !data.comparison.length;
}

// --- one step -----------------------------------------------------------------------------------------------------

const current = () => data.runs[by("run").selectedIndex];
const kept = () => Object.keys(current().rollouts).map(Number);

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const lines = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  return lines.trimEnd().split("\n").map((line) => JSON.parse(line));
}

function numbers(step) {
  const found = [];
  for (const [tag, [steps, values]] of Object.entries(current().curves)) {
    const i = steps.indexOf(step);
    if (i >= 0 && /^(train|rollout|snr|eval)\//.test(tag)) found.push(`${tag} ${number(values[i])}`);
  }
  return found.join(" · ");
}

const COLUMNS = evaluation ? [["reward", "reward"], ["tokens", "tokens"]] : [["reward", "reward"], ["advantage", "advantage"], ["n_i", "square_norm"], ["ρ_i", "ratio"], ["weight", "weight"], ["baseline", "baseline"], ["share of ‖ĝ‖", "share"], ["tokens", "tokens"]];

function row(response, largest) {
  const line = element("tr");
  const judged = typeof response.right === "boolean", better = judged ? response.right : response.advantage > 0;
  const strength = judged ? 0.2 : largest > 0 && response.advantage ? (0.35 * Math.abs(response.advantage)) / largest : 0;
  line.style.background = `rgb(var(--${better ? "good" : "bad"}) / ${strength.toFixed(3)})`;
  for (const [, key] of COLUMNS) line.append(element("td", number(response[key]), { class: "n" }));
  const parts = Object.entries(response.reward_parts || {});
  if (parts.length) line.firstChild.append(element("div", parts.map(([name, value]) => `${name} ${number(value)}`).join(", "), { class: "meaning" }));
  const verdict = element("td", judged && response.verdict === "scored" ? (response.right ? "right" : "wrong") : response.verdict);
  if (judged) verdict.append(element("div", response.read === null ? "no answer found" : `answer read: ${response.read}`, { class: "meaning" }));
  line.append(verdict);
  const cell = element("td", undefined, { class: "text" });
  const long = response.text.length > 4000;
  cell.append(element("div", long ? `${response.text.slice(0, 4000)}…` : response.text, { class: "clip", dir: "auto", ...(response.text.length > 400 ? { tabindex: "0" } : {}) }));
  if (long) cell.append(element("p", `${response.text.length} characters, of which the first 4000 are shown`, { class: "meaning" }));
  line.append(cell);
  return line;
}

function group(responses) {
  const rewards = responses.map((response) => response.reward);
  const mean = rewards.reduce((a, b) => a + b, 0) / rewards.length;
  const box = element("details", undefined, { "data-group": responses[0].group });
  const right = typeof responses[0].right === "boolean" ? `${responses.filter((response) => response.right).length} of ${responses.length} right` : `mean reward ${number(mean)}`;
  box.append(element("summary", `${responses[0].live === false ? "(no gradient) " : ""}${right} — ${responses[0].prompt.trim().slice(0, 200)}`));
  box.addEventListener("toggle", () => {
    if (!box.open || box.children.length > 1) return;
    const inside = element("div", undefined, { class: "group", tabindex: "0", role: "region", "aria-label": `responses to prompt ${responses[0].group + 1}` });
    inside.append(element("p", `prompt ${responses[0].problem}, right answer ${responses[0].answer}`, { class: "meaning" }));
    const table = element("table"), head = element("tr");
    for (const [title] of [...COLUMNS, ["verdict"], ["response"]]) head.append(element("th", title, { scope: "col" }));
    const largest = Math.max(...responses.map((response) => Math.abs(response.advantage || 0)));
    table.append(head, ...responses.map((response) => row(response, largest)));
    inside.append(table);
    box.append(inside);
  });
  return box;
}

const WANTED = [() => true, (responses) => responses.some(({ reward }) => reward < 1), (responses) => responses.every(({ reward }) => reward < 1)];
const ROWS = 200; // that are made at a time

function show(groups) {
  by("groups").append(...groups.slice(0, ROWS).map(group));
  if (groups.length <= ROWS) return;
  const more = element("button", `${groups.length - ROWS} more`, { type: "button" });
  more.addEventListener("click", () => {
    more.remove();
    show(groups.slice(ROWS));
    by("groups").children[by("groups").children.length - 1].querySelector("summary")?.focus({ preventScroll: true });
  });
  by("groups").append(more);
}

let asked = 0;
async function open(step, scroll = false) {
  const steps = kept();
  by("numbers").textContent = steps.length ? "" : "No responses were kept.";
  if (!steps.length) return;
  const nearest = steps.reduce((a, b) => (Math.abs(b - step) < Math.abs(a - step) ? b : a));
  const own = ++asked;
  const ranks = await Promise.all(current().rollouts[nearest].map(unpack));
  const responses = ranks.flat().sort((a, b) => a.group - b.group || a.response - b.response);
  if (own !== asked) return; // another one was asked for in the meantime
  by("slider").max = steps.length - 1;
  by("slider").value = steps.indexOf(nearest);
  by("step").textContent = evaluation ? current().places[nearest] : `${nearest + 1}`;
  by("numbers").textContent = numbers(nearest);
  const groups = new Map();
  for (const response of responses) groups.set(response.group, [...(groups.get(response.group) || []), response]);
  by("groups").replaceChildren();
  show([...groups.values()].filter(WANTED[by("which").selectedIndex]));
  if (scroll) by("h-step").scrollIntoView();
}

function move(by_) {
  const slider = by("slider");
  slider.value = +slider.value + by_;
  open(kept()[+slider.value]);
}

// A warning that leads to its step.
function leading(run, step, text) {
  const made = element("button", `${several ? `${run.name}: ` : ""}${text}`, { type: "button", class: "link" });
  made.addEventListener("click", () => {
    by("run").selectedIndex = data.runs.indexOf(run);
    open(step - 1, true);
  });
  return made;
}

// --- the page -----------------------------------------------------------------------------------------------------

const [first] = data.runs;
by("title").textContent = several ? `${data.runs.length} runs` : first.name;
if (evaluation) {
  for (const [id, word] of Object.entries({ "h-comparison": "comparison", compared: "hint", "h-step": "step", place: "place", "h-warnings": "warnings" })) by(id).textContent = data.words[word];
  by("of").textContent = "model";
  by("curves").hidden = true;
  by("wanted").hidden = false;
  by("which").addEventListener("change", () => open(kept()[+by("slider").value]));
  compare();
}
by("state").textContent = data.runs.every((run) => run.finished) ? "finished" : "not finished";
if (several) for (const key of configurations) {
  const runs = data.runs.filter((run) => KEY(run) === key), item = element("li"), open_ = runs.filter((run) => !run.finished).length;
  const words = `${label(runs[0])} (${runs.length} ${runs.length > 1 ? "runs" : "run"}${open_ ? `, ${open_} not finished` : ""})`;
  item.append(element("span", undefined, { class: "dot", style: `background:${colour(runs[0])}` }), words);
  by("runs").append(item);
}
if (several && !evaluation) compare();
for (const run of data.runs) by("run").append(element("option", run.name));
Object.entries(data.charts).forEach(([title, patterns]) => draw(title, patterns));
for (const run of data.runs) for (const [step, text] of run.warnings) {
  const item = element("li");
  item.append(step === null ? `${several ? `${run.name}: ` : ""}${text}` : leading(run, step, text));
  by("warnings").append(item);
}
if (!by("warnings").children.length) by("warnings").append(element("li", "none"));
const paths = several ? data.differs : Object.keys(first.settings);
const head = element("tr");
for (const title of ["setting", ...data.runs.map((run) => run.name)]) head.append(element("th", title, { scope: "col" }));
by("settings").append(head);
for (const path of paths) {
  const line = element("tr");
  line.append(element("th", path, { scope: "row" }), ...data.runs.map((run) => element("td", JSON.stringify(run.settings[path]))));
  by("settings").append(line);
}
by("slider").addEventListener("input", () => open(kept()[+by("slider").value]));
by("before").addEventListener("click", () => move(-1));
by("after").addEventListener("click", () => move(1));
by("before").setAttribute("aria-label", "step before");
by("after").setAttribute("aria-label", "step after");
by("run").addEventListener("change", () => open(0));
open(kept()[0] ?? 0);

// --- runs under way -----------------------------------------------------------------------------------------------

// Of a page that is served, the stamp changes when a run goes on. Nobody is interrupted who reads a group.
async function look(stamp) {
  const answer = await fetch("/", { method: "HEAD" }).catch(() => null);
  const now = answer && answer.headers.get("ETag");
  if (stamp && now && now !== stamp) {
    if (!document.querySelector("details[open]")) return location.reload();
    by("newer").hidden = false;
  }
  setTimeout(look, 3000, stamp || now);
}
by("newer").addEventListener("click", () => location.reload());
if (location.protocol === "http:") look();
