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

const named = (tag) => data.names[tag] ?? tag;
const bands = data.bands ?? {};

function tagsOf(patterns) {
  const all = Object.keys(data.meanings);
  return [...new Set(patterns.flatMap((pattern) => all.filter((tag) => new RegExp(`^(?:${pattern})$`).test(tag))))];
}

// One line a tag of a single run; of several runs one tag alone, with a line for the mean of each configuration and a
// band from the lowest to the highest of its seeds.
function lines(tags) {
  if (!several) {
    const [run] = data.runs;
    return tags.filter((tag) => run.curves[tag]).map((tag, i) => ({ curves: [run.curves[tag]], label: named(tag), stroke: COLOURS[i % COLOURS.length] }));
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
  for (const other of tags) select.append(element("option", named(other), { value: other }));
  select.value = tag;
  select.addEventListener("change", () => draw(title, patterns, select.value, figure).querySelector("select").focus());
  return select;
}

// What governs a curve, in words: of several runs each once.
const governed = { "train/lr": [...new Set(data.runs.map((run) => run.method?.["learning rate"]).filter(Boolean))].join("; ") };

function draw(title, patterns, chosen, before) {
  const tags = tagsOf(patterns).filter((tag) => data.runs.some((run) => run.curves[tag]));
  const tag = several ? chosen ?? tags.find((other) => SHOWN.includes(other)) ?? tags[0] : tags[0];
  const shown = lines(several ? [tag] : tags);
  if (!shown.length) return;
  const steps = [...new Set(shown.flatMap(({ curves }) => curves.flatMap(([at]) => at)))].sort((a, b) => a - b);
  const columns = shown.map(({ curves }) => column(curves, steps, OF.mean));
  const between_ = [], edges = [];
  shown.forEach(({ curves, stroke }) => {
    if (curves.length < 2) return;
    const first = 1 + columns.length;
    columns.push(column(curves, steps, OF.high), column(curves, steps, OF.low));
    edges.push({ label: "highest", width: 0, points: { show: false } }, { label: "lowest", width: 0, points: { show: false } });
    between_.push({ series: [first, first + 1], fill: `${stroke}2e` });
  });
  // A value of a single run between the ends of its interval, as a line in a band.
  const margin = !several && shown.length === 3 && `${bands[tags[0]]}` === `${tags.slice(1)}`;
  if (margin) between_.push({ series: [3, 2], fill: `${shown[0].stroke}2e` });
  const values = columns.flat().filter((x) => x !== null), least = Math.min(...values);
  const wide = least > 0 && Math.max(...values) > 1e4 * least; // such as a noise scale where the signal is lost
  const figure = element("figure", undefined, { "data-chart": title });
  figure.append(element("h3", !several && governed[tag] ? `${title}: ${governed[tag]}` : title), element("p", data.meanings[tag], { class: "meaning" }));
  if (several && governed[tag]) figure.append(element("p", governed[tag], { class: "meaning" }));
  if (several && tags.length > 1) figure.append(choice(title, patterns, tags, tag, figure));
  if (before) before.replaceWith(figure);
  else by("charts").append(figure);
  const axis = { stroke: ink, grid: { stroke: "#8884" }, ticks: { stroke: "#8884" } };
  const options = {
    width: figure.clientWidth - 20, height: 210, scales: { x: { time: false }, y: { distr: wide ? 3 : 1 } },
    axes: [{ ...axis, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 1e4, 1e5] }, { ...axis, size: 56, values: (_, ticks) => ticks.map((x) => (x === null ? "" : number(x))), ...(wide ? { splits: decades, filter: (_, ticks) => ticks } : {}) }],
    legend: { live: !several, show: !several },
    bands: between_,
    hooks: { draw: [mark] },
    series: [{ label: "step" }, ...shown.map(({ label, stroke }, i) => ({ label, stroke: margin ? shown[0].stroke : stroke, width: margin && i ? 0 : 1.5, spanGaps: true, points: { show: steps.length < 30 && !(margin && i) }, value: (_, x) => number(x) })), ...edges],
  };
  const plot = new uPlot(options, [steps, ...columns], figure);
  plot.over.addEventListener("click", () => plot.cursor.idx !== null && visit(steps[plot.cursor.idx ?? 0], true));
  new ResizeObserver(() => plot.setSize({ width: figure.clientWidth - 20, height: 210 })).observe(figure);
  return figure;
}

// Warnings that name a step, as broken lines; and whole ones where a run went on, with a mark where something was another.
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
  ctx.setLineDash([]);
  ctx.strokeStyle = ctx.fillStyle = "#6d28d9";
  ctx.font = `${11 * devicePixelRatio}px sans-serif`;
  for (const run of several ? [] : data.runs) for (const [after, changed] of run.resumed ?? []) {
    const x = plot.valToPos(after + 0.5, "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.fillText(changed.length ? "resumed, changed" : "resumed", x + 4, bbox.top + 12 * devicePixelRatio);
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
