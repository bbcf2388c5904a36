"use strict";
// Text is set as text and never as markup: responses are whatever a model has written.
const data = JSON.parse(document.getElementById("data").textContent);
const by = (id) => document.getElementById(id);
const COLOURS = ["#0b7285", "#c2410c", "#6d28d9", "#15803d", "#b91c1c", "#a16207", "#1d4ed8", "#be185d"];
const ink = () => getComputedStyle(document.body).color;
const number = (x) => (x === null || x === undefined ? "–" : Math.abs(x) >= 1e5 || (x !== 0 && Math.abs(x) < 1e-3) ? x.toExponential(2) : String(+x.toPrecision(4)));

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
const colour = (run) => COLOURS[configurations.indexOf(KEY(run)) % COLOURS.length];

function tagsOf(patterns) {
  const all = Object.keys(data.meanings);
  return [...new Set(patterns.flatMap((pattern) => all.filter((tag) => new RegExp(`^(?:${pattern})$`).test(tag))))];
}

// One line a tag of a single run; of several runs the first tag alone, a line each, coloured by configuration.
function lines(tags) {
  if (several) return data.runs.filter((run) => run.curves[tags[0]]).map((run) => ({ run, tag: tags[0], label: run.name, stroke: colour(run) }));
  const [run] = data.runs;
  return tags.filter((tag) => run.curves[tag]).map((tag, i) => ({ run, tag, label: tag, stroke: COLOURS[i % COLOURS.length] }));
}

function draw(title, patterns) {
  const shown = lines(tagsOf(patterns));
  if (!shown.length) return;
  const steps = [...new Set(shown.flatMap(({ run, tag }) => run.curves[tag][0]))].sort((a, b) => a - b);
  const place = new Map(steps.map((step, i) => [step, i]));
  const columns = shown.map(({ run, tag }) => {
    const column = new Array(steps.length).fill(null);
    run.curves[tag][0].forEach((step, i) => (column[place.get(step)] = run.curves[tag][1][i]));
    return column;
  });
  const figure = element("figure", undefined, { "data-chart": title });
  figure.append(element("h3", title), element("p", data.meanings[shown[0].tag], { class: "meaning" }));
  by("charts").append(figure);
  const axis = { stroke: ink, grid: { stroke: "#8884" }, ticks: { stroke: "#8884" } };
  const options = {
    width: figure.clientWidth - 20, height: 210, scales: { x: { time: false } },
    axes: [{ ...axis }, { ...axis, size: 56, values: (_, ticks) => ticks.map(number) }],
    legend: { live: !several, show: !several },
    series: [{ label: "step" }, ...shown.map(({ label, stroke }) => ({ label, stroke, width: 1.5, spanGaps: true, points: { show: steps.length < 30 }, value: (_, x) => number(x) }))],
  };
  const plot = new uPlot(options, [steps, ...columns], figure);
  plot.over.addEventListener("click", () => plot.cursor.idx !== null && open(plot.cursor.idx === undefined ? 0 : steps[plot.cursor.idx], true));
  new ResizeObserver(() => plot.setSize({ width: figure.clientWidth - 20, height: 210 })).observe(figure);
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

const COLUMNS = [["reward", "reward"], ["advantage", "advantage"], ["n_i", "square_norm"], ["ρ_i", "ratio"], ["weight", "weight"], ["baseline", "baseline"], ["share of ‖ĝ‖", "share"], ["tokens", "tokens"]];

function row(response, largest) {
  const line = element("tr");
  const strength = largest > 0 && response.advantage ? (0.35 * Math.abs(response.advantage)) / largest : 0;
  line.style.background = `rgb(var(--${response.advantage > 0 ? "good" : "bad"}) / ${strength.toFixed(3)})`;
  for (const [, key] of COLUMNS) line.append(element("td", number(response[key]), { class: "n" }));
  line.append(element("td", response.verdict));
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
  box.append(element("summary", `${responses[0].live ? "" : "(no gradient) "}mean reward ${number(mean)} — ${responses[0].prompt.trim().slice(0, 200)}`));
  box.addEventListener("toggle", () => {
    if (!box.open || box.children.length > 1) return;
    const inside = element("div", undefined, { class: "group", tabindex: "0", role: "region", "aria-label": "responses" });
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
  by("step").textContent = `${nearest + 1}`;
  by("numbers").textContent = numbers(nearest);
  const groups = new Map();
  for (const response of responses) groups.set(response.group, [...(groups.get(response.group) || []), response]);
  by("groups").replaceChildren(...[...groups.values()].map(group));
  if (scroll) by("h-step").scrollIntoView();
}

function move(by_) {
  const slider = by("slider");
  slider.value = +slider.value + by_;
  open(kept()[+slider.value]);
}

// --- the page -----------------------------------------------------------------------------------------------------

const [first] = data.runs;
by("title").textContent = several ? `${data.runs.length} runs` : first.name;
by("state").textContent = data.runs.every((run) => run.finished) ? "finished" : "not finished";
if (several) for (const run of data.runs) {
  const item = element("li");
  item.append(element("span", undefined, { class: "dot", style: `background:${colour(run)}` }), `${run.name}`);
  by("runs").append(item);
}
for (const run of data.runs) by("run").append(element("option", run.name));
Object.entries(data.charts).forEach(([title, patterns]) => draw(title, patterns));
for (const run of data.runs) for (const [step, text] of run.warnings) by("warnings").append(element("li", `${several ? `${run.name}: ` : ""}${text}`));
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
