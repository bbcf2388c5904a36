"use strict";
// The page: what it is of, its settings, and what happens when somebody does something.

// --- what it is of ------------------------------------------------------------------------------------------------

// What runs say of themselves: each thing once, whichever of them say it.
const said = (of) => [...new Set(data.runs.map(of).filter((words) => words !== undefined && words !== null && words !== ""))];

function duration(total) {
  const [hours, minutes, rest] = [Math.floor(total / 3600), Math.floor(total / 60) % 60, total % 60];
  return hours ? `${hours} h ${minutes} min` : minutes ? `${minutes} min ${Math.floor(rest)} s` : `${number(+rest.toFixed(1))} s`;
}

// Where the curves of a run end, in words.
function final(run) {
  return ["eval/sampled_accuracy", "eval/greedy_accuracy", "eval/sampled_reward", "eval/greedy_reward", "train/reward"].filter((tag) => run.last[tag]).map((tag) => {
    const [step, value] = run.last[tag], ends = (bands[tag] ?? []).map((end) => number(run.last[end]?.[1]));
    return `${named(tag)} ${number(value)}${ends.length ? ` [${ends.join(", ")}]` : ""} ${tag.startsWith("eval/") ? "after" : "in"} step ${step}`;
  }).join("; ");
}

function about() {
  const parts = [...new Set(data.runs.flatMap((run) => Object.keys(run.method ?? {})))];
  const steps = sum(data.runs.map((run) => run.took[0])), time = sum(data.runs.map((run) => run.took[1]));
  const lines = [
    ["doctor", several ? [] : first.doctor ?? []],
    ["command", said((run) => run.command)],
    ["model", said((run) => run.model)],
    ...parts.map((part) => [part, said((run) => run.method?.[part])]),
    ["final figures", several ? [] : said(final)],
    ["went on", several ? [] : (first.resumed ?? []).map(([after, changed]) => `after step ${after}: ${changed.join("; ") || "with nothing changed"}`)],
    ["duration", time ? [`${steps} steps in ${duration(time)}, ${number(time / steps)} s a step`] : []],
  ];
  for (const [name, words] of lines.filter(([, words]) => words.length)) {
    const value = element("dd");
    for (const one of words.slice(0, 6)) value.append(element("div", one));
    if (words.length > 6) value.append(element("div", `and ${words.length - 6} others`));
    by("about").append(element("dt", name), value);
  }
}

// Of several runs what differs comes first; the rest is told once.
function settings() {
  const all = [...new Set(data.runs.flatMap((run) => Object.keys(run.settings)))];
  const differs = several ? [...data.differs, ...all.filter((path) => !data.differs.includes(path) && said((run) => JSON.stringify(run.settings[path]) ?? "left out").length > 1)] : [];
  const head = element("tr");
  for (const title of ["setting", ...data.runs.map((run) => run.name)]) head.append(element("th", title, { scope: "col" }));
  by("settings").append(head);
  for (const path of [...differs, ...all.filter((path) => !differs.includes(path))]) {
    const line = element("tr", undefined, differs.includes(path) ? { class: "differs" } : {});
    const shown = !several || differs.includes(path) ? data.runs.map((run) => element("td", JSON.stringify(run.settings[path]))) : [element("td", JSON.stringify(first.settings[path]), { colspan: data.runs.length })];
    line.append(element("th", path, { scope: "row" }), ...shown);
    by("settings").append(line);
  }
}

// On a phone the responses come first.
const phone = matchMedia("(max-width: 40rem)");
function arrange() {
  if (phone.matches) by("curves").before(by("one"), by("about"));
  else {
    document.querySelector("header").append(by("about"));
    by("h-warnings").parentElement.before(by("one"));
  }
}

// --- the page -----------------------------------------------------------------------------------------------------

const [first] = data.runs;
by("title").textContent = several ? `${data.runs.length} runs` : first.name;
if (!evaluation) about();
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
Object.keys(data.charts).forEach((title) => draw(title));
for (const run of data.runs) for (const [after, changed] of run.resumed ?? []) {
  const item = element("li");
  item.append(leading(run, after + 1, `went on after step ${after}${changed.length ? `: ${changed.join("; ")}` : ""}`));
  by("warnings").append(item);
}
for (const run of data.runs) for (const [step, text] of run.warnings) {
  const item = element("li");
  item.append(step === null ? `${several ? `${run.name}: ` : ""}${text}` : leading(run, step, text));
  by("warnings").append(item);
}
if (!by("warnings").children.length) by("warnings").append(element("li", "none"));
settings();
by("slider").addEventListener("input", () => visit(kept()[+by("slider").value]));
by("before").addEventListener("click", () => move(-1));
by("after").addEventListener("click", () => move(1));
by("before").setAttribute("aria-label", "step before");
by("after").setAttribute("aria-label", "step after");
by("run").addEventListener("change", () => visit(kept()[0] ?? 0));
phone.addEventListener("change", arrange);
arrange();
window.addEventListener("hashchange", follow);
if (!follow()) open(kept()[0] ?? 0);

// --- runs under way -----------------------------------------------------------------------------------------------

// Of a page that is served, the stamp changes when a run goes on. Nobody is interrupted who reads a group.
async function look(stamp) {
  const answer = await fetch(location.pathname, { method: "HEAD" }).catch(() => null);
  const now = answer && answer.headers.get("ETag");
  if (stamp && now && now !== stamp) {
    if (!document.querySelector("details[open]")) return location.reload();
    by("newer").hidden = false;
  }
  setTimeout(look, 3000, stamp || now);
}
by("newer").addEventListener("click", () => location.reload());
if (location.protocol === "http:") look();
