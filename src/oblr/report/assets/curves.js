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

// One line a tag of a single run; of several runs one tag alone, with a line for the mean of each configuration and a
// band from the lowest to the highest of its seeds. A line is its configuration, its steps, and values at these.
function lines(tags, of) {
  if (!several) return tags.flatMap((tag, i) => of[tag].map((points) => ({ points, label: named(tag), stroke: COLOURS[i % COLOURS.length] })));
  const firsts = configurations.map((key) => data.runs.find((run) => KEY(run) === key));
  return of[tags[0]].map((points) => ({ points, label: label(firsts[points[0]]), stroke: colour(firsts[points[0]]) }));
}

// All steps of some lines, and a column of values for each, with none where a line has no point.
function aligned(found) {
  const steps = [...new Set(found.flatMap(({ points: [, at] }) => at))].sort((a, b) => a - b);
  const place = new Map(steps.map((step, i) => [step, i]));
  const filled = (at, values) => {
    const made = new Array(steps.length).fill(null);
    at.forEach((step, i) => (made[place.get(step)] = values[i]));
    return made;
  };
  const means = found.map(({ points: [, at, mean] }) => filled(at, mean));
  const ends = found.flatMap(({ points: [, at, , ...others] }) => others.map((values) => filled(at, values)));
  return [steps, ...means, ...ends];
}

// --- pieces: what stands beside the page ---------------------------------------------------------------------------

// Each is a script that calls `piece` with a text of JSON; a page on a disk can load nothing else.
const pieces = new Map();
const HELD = 40; // pieces of about a megabyte
function piece(text) {
  document.currentScript.text_ = text;
}

function load(address) {
  if (!pieces.has(address)) {
    pieces.set(address, new Promise((resolve, reject) => {
      const script = element("script", undefined, { src: address });
      const ended = () => {
        script.remove();
        if (script.text_ !== undefined) return resolve(JSON.parse(script.text_));
        pieces.delete(address);
        reject(new Error(lost(address)));
      };
      script.addEventListener("load", ended);
      script.addEventListener("error", ended);
      document.head.append(script);
    }));
    if (pieces.size > HELD) pieces.delete(pieces.keys().next().value);
  }
  return pieces.get(address);
}

const lost = (address) => `It should be in ${address}, which cannot be read: ${location.protocol === "file:" ? `${address.split("/")[0]} belongs beside this page, as it was written with it` : "load this page again"}.`;

// The lines of a tag between two steps, with all points there: these of the pieces and, elsewhere, those of the page.
async function exactly(tag, low, high) {
  const near = (data.exact[tag] ?? []).filter(([first, last]) => first <= high && last >= low);
  const found = await Promise.all(near.map(([, , address]) => load(address)));
  const rest = (data.curves[tag] ?? []).map(([of, at, ...columns]) => {
    const kept = at.map((step) => !near.some(([first, last]) => first <= step && step <= last));
    return [of, at, ...columns].map((column, i) => (i ? column.filter((_, j) => kept[j]) : column));
  });
  const whole = new Map();
  for (const [of, ...columns] of [...rest, ...found.flat()]) whole.set(of, (whole.get(of) ?? columns.map(() => [])).map((column, i) => column.concat(columns[i])));
  return [...whole].sort(([a], [b]) => a - b).map(([of, [at, ...columns]]) => {
    const order = at.map((_, i) => i).sort((a, b) => at[a] - at[b]);
    return [of, ...[at, ...columns].map((column) => order.map((i) => column[i]))];
  });
}

// --- charts -------------------------------------------------------------------------------------------------------

// Ticks of a logarithmic axis.
const decades = (plot, axis, low, high) => {
  const first = Math.ceil(Math.log10(low)), count = Math.floor(Math.log10(high)) - first + 1;
  return Array.from({ length: Math.max(count, 0) }, (_, i) => 10 ** (first + i));
};

// Which tag of several runs a chart shows is chosen in it.
function choice(title, tags, tag, figure) {
  const select = element("select", undefined, { "aria-label": title });
  for (const other of tags) select.append(element("option", named(other), { value: other }));
  select.value = tag;
  select.addEventListener("change", () => draw(title, select.value, figure).querySelector("select").focus());
  return select;
}

// What governs a curve, in words: of several runs each once.
const governed = { "train/lr": [...new Set(data.runs.map((run) => run.method?.["learning rate"]).filter(Boolean))].join("; ") };

// Where a line has no point at a step, the nearest one that it has.
function nearest(plot, series, i) {
  const values = plot.data[series];
  for (let away = 0; away < values.length; away++) for (const j of [i - away, i + away]) if (values[j] !== null && values[j] !== undefined) return j;
  return i;
}

function extent(columns) {
  let least = Infinity, most = -Infinity;
  for (const column of columns) for (const x of column) if (x !== null) {
    if (x < least) least = x;
    if (x > most) most = x;
  }
  return [least, most];
}

function draw(title, chosen = data.chosen[title], before) {
  const tags = several ? [chosen] : data.charts[title], [tag] = tags;
  const figure = element("figure", undefined, { "data-chart": title });
  figure.append(element("h3", !several && governed[tag] ? `${title}: ${governed[tag]}` : title), element("p", data.meanings[tag], { class: "meaning" }));
  if (several && governed[tag]) figure.append(element("p", governed[tag], { class: "meaning" }));
  if (several && data.charts[title].length > 1) figure.append(choice(title, data.charts[title], tag, figure));
  if (before) before.replaceWith(figure);
  else by("charts").append(figure);
  const some = tags.some((one) => data.exact[one]); // of their points are not on the page
  if (some) figure.append(element("p", undefined, { class: "meaning", role: "status" }));
  if (data.curves[tag]) plotted(figure, tags, data.curves);
  if (some) points(figure, tags);
  return figure;
}

function plotted(figure, tags, of) {
  const shown = lines(tags, of), [steps, ...columns] = aligned(shown), [tag] = tags;
  const between_ = [], edges = [];
  shown.forEach(({ points, stroke }) => {
    if (points.length < 4) return;
    const first = 1 + shown.length + edges.length;
    edges.push({ label: "highest", width: 0, points: { show: false } }, { label: "lowest", width: 0, points: { show: false } });
    between_.push({ series: [first, first + 1], fill: `${stroke}2e` });
  });
  // A value of a single run between the ends of its interval, as a line in a band.
  const margin = !several && shown.length === 3 && `${bands[tag]}` === `${tags.slice(1)}`;
  if (margin) between_.push({ series: [3, 2], fill: `${shown[0].stroke}2e` });
  const [least, most] = extent(columns);
  const wide = least > 0 && most > 1e4 * least; // such as a noise scale where the signal is lost
  const axis = { stroke: ink, grid: { stroke: "#8884" }, ticks: { stroke: "#8884" } };
  const options = {
    width: figure.clientWidth - 20, height: 210, scales: { x: { time: false }, y: { distr: wide ? 3 : 1 } },
    axes: [{ ...axis, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 1e4, 1e5] }, { ...axis, size: 56, values: (_, ticks) => ticks.map((x) => (x === null ? "" : number(x))), ...(wide ? { splits: decades, filter: (_, ticks) => ticks } : {}) }],
    legend: { live: !several, show: !several },
    cursor: { dataIdx: (plot, series, i) => (series ? nearest(plot, series, i) : i) },
    bands: between_,
    hooks: { draw: [mark], setScale: [(plot, scale) => scale === "x" && figure.zoomed?.(plot)] },
    series: [{ label: "step" }, ...shown.map(({ label, stroke }, i) => ({ label, stroke: margin ? shown[0].stroke : stroke, width: margin && i ? 0 : shown.length > COLOURS.length ? 1 : 1.5, spanGaps: true, points: { show: steps.length < 30 && !(margin && i) }, value: (plot, x, _, i) => (x === null || x === undefined || plot.cursor.idx === i ? number(x) : `${number(x)} at ${plot.data[0][i]}`) })), ...edges.map((edge) => ({ ...edge, spanGaps: true }))],
  };
  const plot = new uPlot(options, [steps, ...columns], figure);
  plot.over.addEventListener("click", () => plot.cursor.idx !== null && visit(plot.data[0][plot.cursor.idx ?? 0], true));
  new ResizeObserver(() => plot.width !== figure.clientWidth - 20 && plot.setSize({ width: figure.clientWidth - 20, height: 210 })).observe(figure);
  figure.plot = plot;
}

// A chart of which not all points are on the page: those of a part that somebody looks at come from beside it.
function points(figure, tags) {
  const words = figure.querySelector("[role=status]"), every = Math.max(...tags.map((tag) => data.every[tag] ?? 1));
  const says = element("span", every > 1 ? `Every ${every === 2 ? "2nd" : every === 3 ? "3rd" : `${every}th`} point is drawn, and all spikes are. Drag across a part to see all of it. ` : "");
  const all = element("button", "all points", { type: "button" });
  words.append(says, all);
  async function see(low, high) {
    try {
      const found = Object.fromEntries(await Promise.all(tags.map(async (tag) => [tag, await exactly(tag, low, high)])));
      if (!figure.plot) plotted(figure, tags, found);
      else {
        const { min, max } = figure.plot.scales.x;
        figure.plot.setData(aligned(lines(tags, found)), false);
        figure.plot.setScale("x", { min, max });
      }
      says.textContent = low === -Infinity ? "Every point is drawn." : `Every point from step ${Math.ceil(low)} to ${Math.floor(high)} is drawn. Click twice to see the others. `;
      all.hidden = low === -Infinity;
    } catch (error) {
      says.textContent = `Not all points can be drawn. ${error.message} `;
    }
  }
  let seen = "";
  figure.zoomed = (plot) => {
    const { min, max } = plot.scales.x, steps = plot.data[0], part = `${min} ${max}`;
    if (all.hidden || part === seen || (min <= steps[0] && max >= steps.at(-1))) return;
    seen = part;
    see(min, max);
  };
  all.addEventListener("click", () => see(-Infinity, Infinity));
  if (!figure.plot) all.click();
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
