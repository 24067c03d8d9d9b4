// A lane for each process: what it was at, its deaths (a cross) and restarts (a triangle).
import { clock, drawn, duration, fill, KINDS, make, plural, STEPS } from "./words.js";

const ROW = 24;
const SHOWN = 32;

function ticks(seconds, width) {
  const most = Math.max(2, Math.floor(width / 90));
  const step = STEPS.find((each) => seconds / each <= most) ?? seconds;
  const found = [];
  for (let at = 0; at <= seconds; at += step) found.push(at);
  return found;
}

function titled(element, text) {
  element.append(drawn("title", {}, text));
  return element;
}

function words([start, end, kind, tasks, records]) {
  const what = tasks > 1 ? `${plural(tasks, "task")} of ${KINDS[kind] ?? kind}` : KINDS[kind] ?? kind;
  const of = records ? `, ${plural(records, "record")}` : "";
  return `${what}${of}, ${clock(start)} to ${clock(end)} (${duration(end - start)})`;
}

export class Lanes {
  constructor(box, more, legend) {
    this.box = box;
    this.more = more;
    this.legend = legend;
    this.all = false;
    more.addEventListener("click", () => {
      this.all = !this.all;
      this.draw();
    });
    new ResizeObserver(() => this.draw()).observe(box);
  }

  show(lanes, seconds) {
    const text = JSON.stringify(lanes);
    if (text === this.text && seconds === this.seconds) return;
    this.text = text;
    this.lanes = lanes;
    this.seconds = seconds;
    this.draw();
  }

  draw() {
    const { lanes, box } = this;
    const width = Math.floor(box.clientWidth);
    if (!lanes?.length || !width) return;
    const shown = this.all ? lanes : lanes.slice(0, SHOWN);
    this.more.hidden = lanes.length <= SHOWN;
    this.more.textContent = this.all ? "Show fewer" : `Show all ${lanes.length} processes`;
    const last = Math.max(this.seconds ?? 0, 1, ...lanes.flatMap((lane) => lane.spans.slice(-1).map((span) => span[1])));
    const left = 70;
    const room = Math.max(40, width - left - 10);
    const x = (at) => left + (room * Math.min(at, last)) / last;
    const height = shown.length * ROW + 24;
    const svg = drawn("svg", { class: "lanes", viewBox: `0 0 ${width} ${height}`, height, role: "img" });
    svg.setAttribute("aria-label", this.summary(lanes));
    for (const at of ticks(last, room)) {
      const tick = drawn("g", { class: "tick" }, drawn("line", { x1: x(at), x2: x(at), y1: 0, y2: height - 20 }));
      const anchor = at === 0 ? "start" : x(at) > width - 24 ? "end" : "middle";
      tick.append(drawn("text", { x: x(at), y: height - 5, "text-anchor": anchor }, clock(at)));
      svg.append(tick);
    }
    shown.forEach((lane, row) => svg.append(this.lane(lane, row * ROW, x, left, room)));
    box.replaceChildren(svg);
    this.explain(lanes);
  }

  lane(lane, top, x, left, room) {
    const group = drawn("g", {});
    const thin = lane.name.startsWith("ps-");
    const [y, high] = thin ? [top + 8, 8] : [top + 4, 16];
    group.append(drawn("text", { x: 0, y: top + 16 }, lane.name));
    group.append(drawn("rect", { class: "rail", x: left, y, width: room, height: high, rx: 3 }));
    lane.spans.forEach((span, at) => {
      const next = lane.spans[at + 1];
      // A gap between tasks that follow at once, so that they can be told apart where there is room.
      const end = x(span[1]) - (next && next[0] - span[1] < 0.05 && x(span[1]) - x(span[0]) > 5 ? 1 : 0);
      const shape = { class: `span ${span[2]}`, x: x(span[0]), y, width: Math.max(1, end - x(span[0])), height: high, rx: 2 };
      group.append(titled(drawn("rect", shape), `${lane.name}: ${words(span)}`));
    });
    const middle = y + high / 2;
    for (const [at, kind] of lane.marks) {
      const text = `${lane.name}: ${kind === "death" ? "died" : "started again"} at ${clock(at)}`;
      if (kind === "death") {
        const cross = `M${x(at) - 5} ${middle - 5}l10 10m0 -10l-10 10`;
        group.append(drawn("path", { class: "halo", d: cross }), titled(drawn("path", { class: "death", d: cross }), text));
      } else {
        const from = x(at) + 7;
        const triangle = `M${from} ${middle - 5.5}l9 5.5l-9 5.5z`;
        group.append(titled(drawn("path", { class: "restart", d: triangle }), text));
      }
    }
    return group;
  }

  summary(lanes) {
    const told = lanes.map((lane) => {
      const tasks = lane.spans.reduce((sum, span) => sum + span[3], 0);
      const marks = (kind) => lane.marks.filter((mark) => mark[1] === kind).map((mark) => clock(mark[0]));
      const [deaths, restarts] = [marks("death"), marks("restart")];
      const work = tasks ? `, ${plural(tasks, "task")}` : "";
      const died = deaths.length ? `, died at ${deaths.join(" and ")}` : "";
      return `${lane.name}: ${lane.state}${work}${died}${restarts.length ? `, started again at ${restarts.join(" and ")}` : ""}`;
    });
    return `Processes over time. ${told.join(". ")}.`;
  }

  explain(lanes) {
    const kinds = new Set(lanes.flatMap((lane) => lane.spans.map((span) => span[2])));
    const items = [];
    for (const [kind, name] of [["TRAIN", "training"], ["EVALUATE", "evaluation"], ["starting", "starting"], ["alive", "serving"]]) {
      if (kinds.has(kind)) items.push(make("li", { class: `c-${kind}` }, name));
    }
    const others = [...kinds].filter((kind) => !/^(TRAIN|EVALUATE|FINISH_EVALUATION|starting|alive)$/.test(kind));
    if (others.length) items.push(make("li", { class: "c-other" }, "data, predictions and export"));
    const marks = new Set(lanes.flatMap((lane) => lane.marks.map((mark) => mark[1])));
    if (marks.has("death")) items.push(make("li", { class: "mark c-death", "data-mark": "✕" }, "died"));
    if (marks.has("restart")) items.push(make("li", { class: "mark c-restart", "data-mark": "▶" }, "started again"));
    fill(this.legend, items);
  }
}
