"use strict";
// One step, or one benchmark: what moved it, and its responses. They are text, and never markup.

const current = () => data.runs[by("run").selectedIndex];
const kept = (run = current()) => [...Object.keys(run.steps).map(Number), ...run.pieces.flatMap(([, steps]) => steps)].sort((a, b) => a - b);

// What was kept of a step: its numbers, and the responses of all ranks.
async function step_(run, step) {
  const [address] = run.pieces.find(([, steps]) => steps.includes(step)) ?? [];
  const found = run.steps[step] ?? (await load(address))[step];
  if (!found) throw new Error(lost(address));
  return found;
}
const sum = (values) => values.reduce((a, b) => a + b, 0);
const percent = (share) => `${number(+(100 * share).toPrecision(3))} %`;

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const lines = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  return lines.trimEnd().split("\n").map((line) => JSON.parse(line));
}

// Title, key, and what it is; the key's value is shown as a number but for a share.
const COLUMNS = data.columns;
const shown = (response, key) => (key === "share" && typeof response.share === "number" ? percent(response.share) : number(response[key]));

// Earlier versions have not written shares that sum to 1.
function normalised(responses) {
  const total = sum(responses.map(({ share }) => share ?? 0));
  return total > 1.001 ? responses.map((response) => ({ ...response, share: response.share === null ? null : response.share / total })) : responses;
}

// How much of the step's update is each response's, from 0 to 1 at the largest: by advantages where shares are not known.
function sizes(responses) {
  const known = responses.some(({ share }) => typeof share === "number");
  const of = (response) => (known ? response.share ?? 0 : Math.abs(response.advantage ?? 0));
  const largest = Math.max(...responses.map(of));
  return { known, of, strength: (response) => (largest > 0 ? of(response) / largest : 0) };
}

function paint(where, response, strength) {
  const judged = typeof response.right === "boolean", better = judged ? response.right : response.advantage > 0;
  where.style.background = `rgb(var(--${better ? "good" : "bad"}) / ${(judged ? 0.2 : 0.4 * strength).toFixed(3)})`;
}

// A response's text; of an empty one that there is none.
const saying = (text, attributes) => (text ? element("div", text, attributes) : element("div", "no text", { ...attributes, class: `${attributes.class} meaning` }));

// How a response begins and, where it ends.
const ends = (text, each) => (text.length > 2 * each ? `${text.slice(0, each)} … ${text.slice(-each)}` : text);

function row(response, strength) {
  const line = element("tr");
  paint(line, response, strength);
  const text = element("td", undefined, { class: "text" });
  text.append(saying(response.text.length > 4000 ? `${response.text.slice(0, 4000)}…` : response.text, { class: "clip", dir: "auto", ...(response.text.length > 400 ? { tabindex: "0" } : {}) }));
  if (response.text.length > 4000) text.append(element("p", `${response.text.length} characters, of which the first 4000 are shown`, { class: "meaning" }));
  line.append(text);
  const judged = typeof response.right === "boolean";
  const verdict = element("td", judged && response.verdict === "scored" ? (response.right ? "right" : "wrong") : response.verdict, { "data-title": "verdict" });
  if (judged) verdict.append(element("div", response.read === null ? "no answer found" : `answer read: ${response.read}`, { class: "meaning" }));
  line.append(verdict);
  for (const [title, key] of COLUMNS) line.append(element("td", shown(response, key), { class: "n", "data-title": title }));
  const parts = Object.entries(response.reward_parts || {});
  if (parts.length) line.children[2].append(element("div", parts.map(([name, value]) => `${name} ${number(value)}`).join(", "), { class: "meaning" }));
  return line;
}

// Of a group: its part of the update, how it was rewarded, and its prompt.
function heading(responses, total) {
  const [first] = responses;
  if (typeof first.right === "boolean") return `${responses.filter((response) => response.right).length} of ${responses.length} right — ${first.prompt.trim().slice(0, 200)}`;
  const mean = sum(responses.map((response) => response.reward)) / responses.length;
  const part = first.live === false ? "no gradient" : total > 0 ? `${percent(first.group_square / total)} of the squared gradients` : "";
  return `${[part, `mean reward ${number(mean)}`].filter(Boolean).join(", ")} — ${first.prompt.trim().slice(0, 200)}`;
}

function group(responses, total, strength) {
  const box = element("details", undefined, { "data-group": responses[0].group });
  box.append(element("summary", heading(responses, total)));
  box.addEventListener("toggle", () => {
    if (!box.open || box.children.length > 1) return;
    const inside = element("div", undefined, { class: "group", tabindex: "0", role: "region", "aria-label": `responses to prompt ${responses[0].group + 1}` });
    inside.append(element("p", `prompt ${responses[0].problem}, right answer ${responses[0].answer}`, { class: "meaning" }));
    const table = element("table"), head = element("tr");
    for (const [title, , what] of [["response"], ["verdict"], ...COLUMNS]) head.append(element("th", title, { scope: "col", ...(what ? { title: what } : {}) }));
    table.append(head, ...responses.map((response) => row(response, strength(response))));
    inside.append(table);
    box.append(inside);
  });
  return box;
}

const LARGEST = 10;

// The responses that moved the step most, with what they say.
function moved(responses, { known, of, strength }) {
  const first = responses.filter((response) => of(response) > 0).sort((a, b) => of(b) - of(a)).slice(0, LARGEST);
  by("moved").hidden = evaluation || !first.length;
  by("h-moved").textContent = known ? `The ${first.length} largest updates` : `The ${first.length} largest advantages`;
  by("of-moved").textContent = known
    ? `Together ${percent(sum(first.map(of)))} of the step's update. Green responses become likelier, red ones less likely; the stronger, the more.`
    : "How much of the update is whose was not measured in this step. Green responses become likelier, red ones less likely.";
  by("largest").replaceChildren(...first.map((response) => {
    const item = element("li"), part = known ? `${percent(response.share)} of the update` : `advantage ${number(response.advantage)}`;
    paint(item, response, strength(response));
    item.append(saying(ends(response.text, 150), { class: "said", dir: "auto" }));
    const about = element("div", `${part}, reward ${number(response.reward)}${known ? `, advantage ${number(response.advantage)}` : ""}, ${response.tokens} tokens, `, { class: "meaning" });
    const prompt = element("button", `prompt ${response.prompt.trim().slice(0, 80)}`, { type: "button", class: "link" });
    prompt.addEventListener("click", () => reveal(response.group));
    about.append(prompt);
    item.append(about);
    return item;
  }));
}

// Open a group, wherever it stands.
function reveal(number_) {
  for (let box; ; ) {
    if ((box = document.querySelector(`details[data-group="${number_}"]`))) {
      box.open = true;
      box.scrollIntoView();
      return box.querySelector("summary").focus({ preventScroll: true });
    }
    const more = document.querySelector("#groups > button");
    if (!more) return;
    more.click();
  }
}

const WANTED = [() => true, (responses) => responses.some(({ reward }) => reward < 1), (responses) => responses.every(({ reward }) => reward < 1)];
const ROWS = 200; // that are made at a time

function show(groups, made) {
  by("groups").append(...groups.slice(0, ROWS).map(made));
  if (groups.length <= ROWS) return;
  const more = element("button", `${groups.length - ROWS} more`, { type: "button" });
  more.addEventListener("click", () => {
    more.remove();
    show(groups.slice(ROWS), made);
    by("groups").children[by("groups").children.length - 1].querySelector("summary")?.focus({ preventScroll: true });
  });
  by("groups").append(more);
}

// No responses to show, and why.
function nothing(why) {
  by("nearest").textContent = why;
  by("moved").hidden = by("sorted").hidden = true;
  by("numbers").textContent = by("legend").textContent = "";
  by("groups").replaceChildren();
}

let asked = 0;
async function open(step, scroll = false) {
  const steps = kept(), own = ++asked;
  if (!steps.length) {
    by("step").textContent = "";
    nothing("No responses were kept.");
    return;
  }
  const nearest = steps.reduce((a, b) => (Math.abs(b - step) < Math.abs(a - step) ? b : a));
  by("slider").max = steps.length - 1;
  by("slider").value = steps.indexOf(nearest);
  let numbers, ranks, unreadable;
  try {
    const found = await step_(current(), nearest);
    numbers = found.numbers;
    ranks = await Promise.all(found.ranks.map(unpack));
  } catch (error) {
    unreadable = error;
  }
  if (own !== asked) return; // another one was asked for in the meantime
  const name = evaluation ? current().places[nearest] : `step ${nearest}`;
  by("step").textContent = evaluation ? name : `${nearest}`; // not before what it names
  if (unreadable) {
    nothing(`The responses of ${name} cannot be shown. ${unreadable.message}`);
    return nearest;
  }
  const responses = normalised(ranks.flat()).sort((a, b) => a.group - b.group || a.response - b.response);
  by("nearest").textContent = nearest === step ? "" : `The responses of step ${step} are not on this page: these are of step ${nearest}.`;
  by("numbers").textContent = Object.entries(numbers).map(([tag, value]) => `${named(tag)} ${number(value)}`).join(" · ");
  const groups = new Map();
  for (const response of responses) groups.set(response.group, [...(groups.get(response.group) || []), response]);
  const size = sizes(responses), squares = ([first]) => first.group_square ?? 0;
  moved(responses, size);
  const sorted = evaluation ? [...groups.values()] : [...groups.values()].sort((a, b) => squares(b) - squares(a));
  const total = sum(sorted.map(squares));
  by("groups").replaceChildren();
  show(sorted.filter(WANTED[by("which").selectedIndex]), (members) => group(members, total, size.strength));
  by("legend").textContent = COLUMNS.map(([title, , what]) => `${title}: ${what}`).join(". ") + ".";
  by("sorted").hidden = evaluation;
  if (scroll) by("h-step").scrollIntoView();
  return nearest;
}

// --- its address --------------------------------------------------------------------------------------------------

const PLACE = evaluation ? "benchmark" : "step", WHOSE = evaluation ? "model" : "run";

// Open a step that somebody has asked for: the address then leads here.
async function visit(step, scroll = false) {
  const nearest = await open(step, scroll);
  if (nearest === undefined) return;
  const address = new URLSearchParams(several ? { [WHOSE]: current().name } : {});
  address.set(PLACE, evaluation ? current().places[nearest] : nearest);
  history.replaceState(null, "", `#${address}`);
}

// Open the step that the address names, if it does.
function follow() {
  const address = new URLSearchParams(location.hash.slice(1)), place = address.get(PLACE);
  const run = data.runs.findIndex(({ name }) => name === address.get(WHOSE));
  if (run >= 0) by("run").selectedIndex = run;
  const step = evaluation ? current().places.indexOf(place) : /^\d+$/.test(place) ? Number(place) : -1;
  if (step < 0 || place === null) return false;
  open(step, true);
  return true;
}

function move(by_) {
  const slider = by("slider");
  slider.value = +slider.value + by_;
  visit(kept()[+slider.value]);
}

// A warning that leads to its step.
function leading(run, step, text) {
  const made = element("button", `${several ? `${run.name}: ` : ""}${text}`, { type: "button", class: "link" });
  made.addEventListener("click", () => {
    by("run").selectedIndex = data.runs.indexOf(run);
    visit(step, true);
  });
  return made;
}
