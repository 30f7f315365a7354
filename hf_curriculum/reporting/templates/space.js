"use strict";
const SHOWN = 6; // examples of a phase
const at = (id) => document.getElementById(id);
const count = (value) => value.toLocaleString("en");
const share = (part, all) => `${((100 * part) / all).toFixed(1)} %`;
const digits = (value) => String(Math.abs(value) < 1e4 ? Number(value.toPrecision(4)) : value);

// Text goes in as text nodes and attributes alone: a caption cannot become markup.
function make(tag, attributes = {}, ...children) {
  const svg = ["rect", "line"].includes(tag) && "http://www.w3.org/2000/svg";
  const made = svg ? document.createElementNS(svg, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

let data, score;
let marks; // of each threshold, its place among score.values, which run from easy to hard
let ends; // the phases' ends in the order from easy to hard, the last one that of all rows
let moved; // whether a threshold has left the cut that the page began with

const numPhases = () => Number(at("phases").value);
const upTo = (mark) => `${score.name} ${score.easy === "low" ? "≤" : "≥"} ${digits(score.values[mark])}`;
const rule = (phase) => (phase < marks.length ? upTo(marks[phase]) : "all");

/** Puts the thresholds where `Phases` cuts. */
function reset() {
  const cut = at("cut").value;
  ends = [...score.cuts[numPhases()][cut], data.rows];
  marks = ends.slice(0, -1).map((end) => {
    const mark = score.ends.findIndex((other) => other >= end);
    return mark < 0 ? score.ends.length - 1 : mark;
  });
  moved = false;
  at("status").textContent = "";
  at("sliders").replaceChildren(at("sliders").firstElementChild, ...marks.map(slider));
  show();
}

function slider(mark, phase) {
  const input = make("input", {
    type: "range", id: `threshold-${phase + 1}`, min: 0, max: score.values.length - 1, value: mark,
    style: `accent-color: var(--phase-${phase + 1})`,
  });
  input.addEventListener("input", () => move(phase, Number(input.value)));
  const output = make("output", { for: input.id, dir: "auto" });
  return make("div", {}, make("label", { for: input.id }, `Phase ${phase + 1} ends at`, output), input);
}

/** Moves a threshold, and those that it meets on its way. */
function move(phase, mark) {
  marks = marks.map((other, k) => (k < phase ? Math.min(other, mark) : k > phase ? Math.max(other, mark) : mark));
  ends = [...marks.map((each) => score.ends[each]), data.rows];
  moved = true;
  at("status").textContent = `Phase ${phase + 1}: ${upTo(mark)}, ${count(ends[phase])} examples in the pool.`;
  show();
}

function show() {
  marks.forEach((mark, k) => {
    const input = at(`threshold-${k + 1}`);
    input.value = mark;
    input.setAttribute("aria-valuetext", upTo(mark));
    input.previousElementSibling.lastElementChild.textContent = upTo(mark);
  });
  at("counts").replaceChildren(...ends.map(row));
  at("examples").replaceChildren(...ends.flatMap(examples));
  showHistogram();
  showCurriculum();
}

const start = (phase) => (phase ? ends[phase - 1] : 0);
const dot = (phase) => make("span", { class: "dot", style: `--phase: var(--phase-${phase + 1})` });

function row(end, phase) {
  const added = end - start(phase);
  const head = make("th", { scope: "row", dir: "auto" }, dot(phase), `${phase + 1}: ${rule(phase)}`);
  const cells = [count(end), count(added), share(added, data.rows)];
  return make("tr", {}, head, ...cells.map((text) => make("td", {}, text)));
}

function examples(end, phase) {
  const added = end - start(phase);
  const inside = score.examples.filter(([position]) => start(phase) <= position && position < end);
  const many = Math.min(SHOWN, inside.length);
  const chosen = Array.from({ length: many }, (_, k) => inside[Math.floor(((k + 0.5) * inside.length) / many)]);
  const title = make("h2", { dir: "auto" }, dot(phase), `Phase ${phase + 1} adds ${count(added)}`);
  const none = added ? "None of the examples on this page is among them." : "No example is new in this phase.";
  return [title, many ? make("ul", { class: "gallery" }, ...chosen.map(example)) : make("p", { class: "quiet" }, none)];
}

function example([, value, caption, image]) {
  const text = make("p", { class: "text", dir: "auto" }, caption);
  const below = make("p", { class: "quiet", dir: "auto" }, `${score.name} ${digits(value)}`);
  const shown = image ? [make("img", { src: `thumbnails/${image}`, alt: caption, loading: "lazy" })] : [];
  return make("li", {}, ...shown, text, below);
}

function showHistogram() {
  const { low, high, counts } = score.histogram;
  const width = (high - low) / counts.length, most = Math.max(...counts);
  const harder = (one, other) => (score.easy === "low" ? one > other : one < other);
  const x = (value) => (score.easy === "low" ? value - low : high - value) / width;
  const bars = counts.map((many, bin) => {
    const middle = low + (bin + 0.5) * width, height = (100 * many) / most;
    const phase = marks.filter((mark) => harder(middle, score.values[mark])).length;
    const place = { x: x(middle) - 0.46, y: 100 - height, width: 0.92, height };
    return make("rect", { ...place, style: `fill: var(--phase-${phase + 1})` });
  });
  const lines = marks.map((mark) => {
    const place = x(score.values[mark]) + (score.histogram.whole ? 0.5 : 0); // behind a whole number's bar
    return make("line", { x1: place, x2: place, y1: 0, y2: 100 });
  });
  at("histogram").setAttribute("viewBox", `0 0 ${counts.length} 100`);
  at("histogram").setAttribute("aria-label", `Histogram of ${score.name}; thresholds: ${marks.map(upTo).join(", ")}`);
  at("histogram").replaceChildren(...bars, ...lines);
}

/** The settings that give these phases. */
function showCurriculum() {
  const curriculum = { type: "phases", num_phases: ends.length, cut: moved ? "value" : at("cut").value };
  if (moved) curriculum.thresholds = marks.map((mark) => score.values[mark]);
  at("curriculum").textContent = JSON.stringify({ score_column: score.name, curriculum }, null, 2);
}

/** What stays while thresholds move. */
function choose() {
  score = data.scores[at("score").value];
  at("easiest").textContent = `easy: ${digits(score.values[0])}`;
  at("hardest").textContent = `hard: ${digits(score.values[score.values.length - 1])}`;
  const notes = [`${count(score.scored)} of ${count(data.rows)} examples have ${score.name}.`];
  if (score.scored < data.rows) {
    notes.push(`The ${count(data.rows - score.scored)} not scored belong to the last phase (unscored="last").`);
  }
  if (score.values.length < score.distinct) {
    notes.push(`Thresholds move over ${count(score.values.length)} of ${count(score.distinct)} different values.`);
  }
  at("note").textContent = `${notes.join(" ")} All counts are exact; images are a sample.`;
  reset();
}

async function begin() {
  data = await (await fetch("data.json")).json();
  at("score").append(...data.scores.map(({ name }, k) => make("option", { value: k }, name)));
  at("phases").append(...Object.keys(data.scores[0].cuts).map((many) => make("option", { value: many }, many)));
  // As many as `Phases` has by default, or fewer where the first score would leave one of them empty.
  const full = (many) => new Set(data.scores[0].cuts[many]?.value).size === many - 1;
  at("phases").value = [4, 3].find(full) ?? 2;
  at("how").append(
    "Save this as ", make("code", {}, "phases.json"), ", then type ",
    make("code", {}, "hf-curriculum train scored run --config phases.json"),
    ". Unless the data has a split of its own for it, training holds out a few images for validation first.",
  );
  at("score").addEventListener("change", choose);
  for (const id of ["phases", "cut"]) at(id).addEventListener("change", reset);
  at("reset").addEventListener("click", reset);
  document.querySelector("main").hidden = false;
  choose();
}

begin().catch((error) => {
  at("about").textContent = `data.json could not be read (${error.message}). Look at this folder through a server: python -m http.server`;
});
