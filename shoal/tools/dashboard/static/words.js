// Numbers and names as people read them, and small helpers to build the page. Texts of the job
// (names, messages, logs) only ever become text nodes.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

export const count = (n) => (n == null ? "–" : whole.format(n));
export const brief = (n) => (n == null ? "–" : Math.abs(n) < 1000 ? String(+n.toPrecision(3)) : short.format(n));
export const exact = (n) => (n == null ? "–" : n !== 0 && Math.abs(n) < 0.001 ? n.toExponential(2) : n.toFixed(4));
export const percent = (part) => `${(100 * part).toFixed(part < 0.095 && part > 0 ? 1 : 0)}%`;

export function duration(seconds) {
  if (seconds == null) return "–";
  if (seconds < 60) return `${seconds < 9.95 ? +seconds.toFixed(1) : Math.round(seconds)} s`;
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const left = Math.round(seconds);
  const at = parts.findIndex(([size]) => left >= size);
  const [size, name] = parts[at];
  const rest = Math.floor((left % size) / parts[at + 1][0]);
  return `${Math.floor(left / size)} ${name}${rest ? ` ${rest} ${parts[at + 1][1]}` : ""}`;
}

export function clock(seconds) {
  const s = Math.round(seconds);
  const two = (n) => String(n).padStart(2, "0");
  const hours = Math.floor(s / 3600);
  const minutes = Math.floor((s % 3600) / 60);
  return hours ? `${hours}:${two(minutes)}:${two(s % 60)}` : `${minutes}:${two(s % 60)}`;
}

export function bytes(n) {
  if (n == null) return "–";
  for (const [size, name] of [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
    if (n >= size) return `${(n / size).toFixed(1)} ${name}`;
  }
  return `${n} bytes`;
}

export const plural = (n, word, more = `${word}s`) => `${count(n)} ${n === 1 ? word : more}`;

// Between two ticks of an axis, in seconds.
export const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400, 172800, 604800];

export const KINDS = {
  TRAIN: "training",
  EVALUATE: "evaluation",
  FINISH_EVALUATION: "evaluation",
  PREDICT: "prediction",
  FINISH_PREDICTION: "prediction",
  EXPORT: "export",
  DESCRIBE_DATA: "a look at the data",
  starting: "starting",
  alive: "serving",
};

export async function get(path) {
  const answer = await fetch(path, { credentials: "same-origin" });
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

export const $ = (id) => document.getElementById(id);

// An element with attributes and children; strings become text.
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value != null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((each) => each != null));
  return element;
}

export function drawn(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Only what has changed is set, so that screen readers and selections are left alone.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export const dot = (state) => make("span", {}, make("span", { class: `dot ${state}`, "aria-hidden": "true" }), state);

// The children of an element, of which those that are there already stay: who reads or selects
// them is not disturbed.
export function fill(element, children) {
  const old = [...element.childNodes];
  children.forEach((child, at) => {
    if (at >= old.length) element.append(child);
    else if (!old[at].isEqualNode(child)) old[at].replaceWith(child);
  });
  old.slice(children.length).forEach((each) => each.remove());
}

// Rows of a table below its caption: cells are texts, elements, or {text, class}.
export function table(element, titles, rows) {
  const cell = (tag, value, more) => {
    const given = value instanceof Node || typeof value !== "object" || value == null ? { text: value } : value;
    const made = make(tag, { class: given.class, ...more });
    made.append(given.text instanceof Node ? given.text : String(given.text ?? ""));
    return made;
  };
  if (!element.tBodies.length) element.append(make("thead"), make("tbody"));
  fill(element.tHead, [make("tr", {}, ...titles.map((title) => cell("th", title, { scope: "col" })))]);
  const body = element.tBodies[0];
  fill(body, rows.map(([name, ...rest]) =>
    make("tr", {}, cell("th", name, { scope: "row" }), ...rest.map((each) => cell("td", each)))));
}

// A bar of parts [class, share, title], whose shares are of 1.
export function bar(element, parts) {
  const old = [...element.children];
  parts.forEach(([name, share, title], at) => {
    const part = old[at] ?? element.appendChild(make("span"));
    if (part.className !== name) part.className = name;
    part.style.width = `${100 * share}%`;
    if (part.title !== title) part.title = title;
  });
  old.slice(parts.length).forEach((part) => part.remove());
}
