// Curves over the job's seconds, drawn by uPlot. Each has a sentence with its main figures, and its
// numbers as a table for those who do not see it.
import { brief, clock, count, exact, fill, make, STEPS, table } from "./words.js";

const HEIGHT = 170;
const BESIDE = "--beside";  // the colour of the job beside this one
const ROWS = 12;
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Opaque, so that what lies above hides what lies below: parts of a sum are drawn over it.
const faint = (value) => `color-mix(in srgb, ${value} 20%, ${colour("--card")})`;

class Chart {
  constructor(title, names, options) {
    this.options = options;
    this.names = names;
    this.sum = make("span", { class: "sum" });
    this.plot = make("div", { class: "plot", "aria-hidden": "true" });
    this.numbers = make("table", {}, make("caption", { class: "hidden" }, `${title}, over time`));
    const details = make("details", {}, make("summary", {}, "as a table"));
    details.append(make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${title}, as a table` }, this.numbers));
    details.addEventListener("toggle", () => this.tell());
    this.details = details;
    const caption = make("figcaption", {}, make("h3", {}, title), this.sum);
    this.figure = make("figure", { class: "card chart" }, caption, this.plot, details);
    new ResizeObserver(() => this.fit()).observe(this.plot);
  }

  fit() {
    const width = Math.floor(this.plot.clientWidth);
    if (this.drawn && width && width !== this.drawn.width) this.drawn.setSize({ width, height: HEIGHT });
  }

  show(data, sentence, seconds, range) {
    this.data = data;
    this.seconds = seconds;
    if (range) this.options.range = range;
    this.sentence = sentence.map((each) => (each instanceof Node ? each : document.createTextNode(each)));
    if (this.at == null) this.pointed(null);
    if (!this.drawn) this.draw();
    else this.drawn.setData(data);
    this.tell();
  }

  tell() {
    if (!this.details.open || !this.data) return;
    const [times] = this.data;
    const step = Math.max(1, Math.ceil((times.length - 1) / (ROWS - 1)));
    const chosen = [...times.keys()].filter((at) => at % step === 0 || at === times.length - 1);
    const values = this.options.columns ?? this.data.slice(1);
    const text = this.options.text ?? brief;
    table(
      this.numbers,
      ["time", ...this.names.map((name) => ({ text: name, class: "n" }))],
      chosen.map((at) => [clock(times[at]), ...values.map((each) => ({ text: text(each[at]), class: "n" }))]),
    );
  }

  draw() {
    this.drawn?.destroy();
    const soft = colour("--soft");
    const line = colour("--line");
    const axis = { stroke: soft, grid: { stroke: line, width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const { paint, points, fills, text = brief } = this.options;
    const series = paint.map((name, at) => ({
      stroke: colour(name),
      width: 2,
      fill: fills || (at === 0 && !points) ? faint(colour(name)) : undefined,
      dash: name === BESIDE ? [6, 4] : undefined,
      points: { show: Boolean(points), size: 7, fill: colour(name) },
      spanGaps: true,
    }));
    const options = {
      width: Math.max(200, Math.floor(this.plot.clientWidth)),
      height: HEIGHT,
      padding: [8, 16, 0, 0],
      scales: { x: { time: false, range: () => [0, Math.max(1, this.seconds)] }, y: { range: (u, low, high) => this.options.range?.(low, high) ?? room(low, high) } },
      series: [{}, ...series],
      axes: [
        { ...axis, size: 26, space: 60, incrs: STEPS, values: (u, at) => at.map(clock) },
        { ...axis, size: 50, space: 34, values: (u, at) => at.map((value) => text(value)) },
      ],
      cursor: { y: false, drag: { x: false, y: false }, sync: { key: "job" }, points: { size: 7 } },
      legend: { show: false },
      hooks: { setCursor: [(u) => this.pointed(u.cursor.idx)] },
    };
    this.drawn = new uPlot(options, this.data, this.plot);
  }

  // The figures below the pointer take the place of the sentence.
  pointed(at) {
    this.at = at;
    if (at == null || !this.data[0].length) return fill(this.sum, this.sentence.map((each) => each.cloneNode(true)));
    const values = this.options.columns ?? this.data.slice(1);
    const text = this.options.text ?? count;
    const told = this.names.map((name, n) => `${this.names.length > 1 ? `${name} ` : ""}${text(values[n][at])}`);
    fill(this.sum, [document.createTextNode(`at ${clock(this.data[0][at])}: `), bold(told.join(", "))]);
  }
}

function room(low, high) {
  if (low == null) return [0, 1];
  const more = (high - low || Math.abs(high) || 1) * 0.08;
  return [low - more, high + more];
}

const lengthOf = ({ course, facts }) =>
  facts.seconds ?? Math.max(1, ...[course.throughput, course.loss, course.ledger].map(([times]) => times.at(-1) ?? 0));

const four = (value) => (value == null ? "–" : String(+value.toPrecision(4)));

const fromZero = (low, high) => [0, (high || 1) * 1.08];

const bold = (text) => make("b", {}, text);

export class Charts {
  constructor(box, none) {
    this.box = box;
    this.none = none;
    this.charts = new Map();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.charts.forEach((each) => each.draw()));
  }

  // The chart of a title, whose place among the others is its rank, whichever has figures first.
  chart(title, rank, names, options) {
    if (!this.charts.has(title)) {
      const after = [...this.box.children].find((figure) => Number(figure.dataset.rank) > rank);
      const made = new Chart(title, names, options);
      made.figure.dataset.rank = rank;
      this.box.insertBefore(made.figure, after ?? null);
      this.charts.set(title, made);
    }
    return this.charts.get(title);
  }

  forget() {
    this.box.replaceChildren();
    this.charts.clear();
  }

  // beside: {course, facts} of another job, whose curves are drawn beside; or null.
  show(course, facts, beside) {
    // One span for all: what is above one another was at the same time.
    this.seconds = Math.max(...[{ course, facts }, beside].map((each) => (each ? lengthOf(each) : 0)));
    this.speed = facts.ended ? null : facts.samples_per_second;
    this.jobs = [facts.job, beside?.facts.job];
    const other = beside?.course;
    this.throughput(course.throughput, other?.throughput);
    this.loss(course.loss, other?.loss);
    this.evaluations(course.evaluations, other?.evaluations);
    this.ledger(course.ledger);
    this.none.hidden = this.charts.size > 0;
  }

  // A curve of the job and that of the one beside it, whose last value joins the sentence.
  curve(title, rank, name, mine, theirs, options, sentence) {
    const names = theirs ? this.jobs : [name];
    const paint = theirs ? [options.paint[0], BESIDE] : options.paint;
    const last = theirs?.[1].at(-1);
    const told = last == null ? [] : [` · ${this.jobs[1]}: `, bold((options.text ?? count)(last))];
    this.chart(title, rank, names, { ...options, paint }).show(
      theirs ? uPlot.join([mine, theirs]) : mine, [...sentence, ...told], this.seconds);
  }

  throughput(data, other) {
    if (data[0].length < 2) return;
    const values = data[1].filter((value) => value > 0);
    const sorted = [...values].sort((one, other) => one - other);
    const middle = sorted[Math.floor(sorted.length / 2)] ?? 0;
    const told = `median ${brief(middle)} · peak ${brief(Math.max(0, ...values))}`;
    const sentence = this.speed == null ? [told] : [bold(count(this.speed)), ` · ${told}`];
    this.curve("Records per second", 1, "records/s", data, other, { paint: ["--accent"], range: fromZero, text: brief }, sentence);
  }

  loss(data, other) {
    if (data[0].length < 2) return;
    const known = data[1].filter((value) => value != null);
    const sentence = [bold(exact(known.at(-1))), ` · least ${exact(Math.min(...known))}`];
    this.curve("Training loss", 2, "loss", data, other, { paint: ["--step"], text: four }, sentence);
  }

  evaluations(found, others) {
    const timed = found.filter((each) => each.t != null);
    const names = [...new Set(timed.flatMap((each) => Object.keys(each.metrics)))].sort();
    for (const name of names.slice(0, 6)) {
      const of = (list) => {
        const points = list.filter((each) => each.t != null && name in each.metrics);
        return [points.map((each) => each.t), points.map((each) => each.metrics[name]), points.at(-1)?.version];
      };
      const [times, values, version] = of(timed);
      const options = { paint: ["--evaluate"], points: true, text: four };
      const sentence = [bold(exact(values.at(-1))), ` · at version ${count(version)}`];
      this.curve(`Evaluation: ${name}`, 3, name, [times, values], others && of(others).slice(0, 2), options, sentence);
    }
  }

  ledger([times, once, repeated, failed, pending]) {
    if (times.length < 2) return;
    const trained = once.map((n, at) => n + repeated[at]);
    const over = trained.map((n, at) => n + failed[at]);
    const total = over.at(-1) + pending.at(-1);
    const paint = ["--bad", "--other", "--train"];
    const chart = this.chart("Ledger of records", 4, ["trained once", "repeated", "failed", "pending"], { paint, fills: true });
    chart.options.columns = [once, repeated, failed, pending];
    const sentence = [bold(count(trained.at(-1))), ` of ${count(total)} trained`];
    chart.show([times, over, trained, once], sentence, this.seconds, () => [0, (total || 1) * 1.02]);
  }
}
