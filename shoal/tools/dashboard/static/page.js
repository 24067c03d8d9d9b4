// Asks for the job's facts each second and shows them.
import { Charts } from "./charts.js";
import { Lanes } from "./lanes.js";
import { $, bar, brief, bytes, clock, count, dot, duration, exact, fill, get, KINDS, make, percent, plural, say, table } from "./words.js";

const SECOND = 1000;
const charts = new Charts($("charts"), $("no-charts"));
const lanes = new Lanes($("lanes"), $("lanes-more"), $("lanes-legend"));
const LEDGER = [["trained_once", "trained once", "c-once"], ["repeated", "repeated", "c-repeated"], ["failed", "failed", "c-failed"]];
const END = {
  succeeded: "The job has succeeded.",
  degraded: "The job came to its end, and some updates stay lost.",
  failed: "The job has failed.",
  stopped: "The job was stopped.",
  killed: "The job was killed.",
};
let asked = 0;

// Of the page's address: the job, and one whose curves and figures are drawn beside.
const given = new URLSearchParams(location.search);
const queryOf = (job) => `?${new URLSearchParams({ job })}`;
const [query, besideQuery] = [queryOf(given.get("job")), given.get("beside") && queryOf(given.get("beside"))];
let beside = null;  // what is known of it

// ------------------------------------------------------------ now

function sentence(facts) {
  if (facts.silent) {
    // In steps: it is read out when it changes.
    const least = [300, 120, 60, 30, 10].find((seconds) => facts.silent >= seconds);
    const time = least ? `for more than ${duration(least)}` : "for some seconds";
    return `The job has not answered ${time}: ${facts.silent_why}.`;
  }
  if (facts.ended) return END[facts.state] ?? `The job has ended: ${facts.state}.`;
  const waits = facts.waits_for ? `, waiting for ${facts.waits_for}` : "";
  const state = facts.state === "training" && facts.epochs > 1 && facts.epoch ? `Training, epoch ${facts.epoch} of ${facts.epochs}` : capital(facts.state);
  return `${state}${waits}.`;
}

const capital = (text) => (text ?? "").replace(/^./, (first) => first.toUpperCase());

function showNow(facts) {
  say($("job"), facts.job);
  say($("place"), facts.place);
  const pill = $("state");
  say(pill, facts.state ?? "");
  pill.dataset.state = facts.state ?? "";
  pill.toggleAttribute("data-live", !facts.ended && !facts.silent);
  say($("sentence"), sentence(facts));
  // Apart, as what changes each second is not to be read out.
  const far = facts.waits_for && facts.waits_progress ? `${facts.waits_progress} so far` : "";
  say($("far"), facts.output ? `Its output is in ${facts.output}` : far);
  $("cause").hidden = !facts.cause;
  say($("cause"), facts.cause ?? "");
  const trouble = [facts.failure, facts.trouble].filter(Boolean).join("\n");
  $("failure").hidden = !trouble;
  say($("failure"), trouble);
  const [done, total] = facts.ledger?.total ? [facts.ledger.total - facts.ledger.pending, facts.ledger.total] : facts.records ?? [0, 0];
  document.title = `${total && !facts.ended ? `${percent(done / total)} · ` : ""}${facts.state ?? ""} · ${facts.job} · shoal`;
}

function showLedger(facts) {
  const ledger = facts.ledger ?? {};
  const [done, all] = ledger.total ? [0, ledger.total] : facts.records ?? [0, 0];
  $("progress").hidden = !all;
  if (!all) return;
  const parts = ledger.total ? LEDGER.map(([name, word, shade]) => [word, ledger[name], shade]) : [["done", done, "c-once"]];
  if (ledger.total) parts.push(["pending", ledger.pending, ""]);
  else parts.push(["to come", all - done, ""]);
  bar($("ledger-bar"), parts.slice(0, -1).map(([word, n, shade]) => [shade, n / all, `${word}: ${count(n)}`]));
  const told = parts.filter(([, n], at) => n || at === 0);
  const text = `${count(all)} records: ${told.map(([word, n]) => `${count(n)} ${word}`).join(", ")}`;
  if ($("ledger-bar").getAttribute("aria-label") === text) return;
  $("ledger-bar").setAttribute("aria-label", text);
  const items = told.map(([word, n, shade]) => make("li", { class: shade }, make("b", {}, count(n)), ` ${word}`, n ? ` · ${percent(n / all)}` : ""));
  fill($("ledger-legend"), items);
}

function tilesOf(facts) {
  const alive = (list) => (list ?? []).filter((each) => each.state === "alive").length;
  const deaths = (list) => (list ?? []).reduce((sum, each) => sum + each.deaths, 0);
  const died = (list) => (deaths(list) ? `${count(deaths(list))} died` : "");
  const tiles = [];
  if (facts.samples_per_second || !facts.ended) tiles.push([facts.ended ? "mean records/s" : "records/s", count(facts.samples_per_second)]);
  if (facts.loss != null) tiles.push(["training loss", exact(facts.loss)]);
  for (const [name, value] of Object.entries(facts.evaluation?.metrics ?? {}).slice(0, 4)) {
    tiles.push([`evaluation ${name}`, exact(value), `at version ${count(facts.evaluation.version)}`]);
  }
  if (!facts.ended) {
    tiles.push(["workers", `${alive(facts.workers)} of ${facts.workers_wanted}`, died(facts.workers)]);
    tiles.push(["servers", `${alive(facts.servers)} of ${(facts.servers ?? []).length}`, died(facts.servers)]);
  }
  if (facts.tables?.length) {
    const sum = (name) => facts.tables.reduce((total, each) => total + each[name], 0);
    tiles.push(["rows", brief(sum("rows")), bytes(sum("bytes"))]);
  }
  if (facts.ledger?.total && facts.staleness != null) tiles.push(["staleness", facts.staleness.toFixed(2), "pushes"]);
  const machine = facts.machine;
  if (machine?.cores != null) tiles.push(["machine", machine.cores.toFixed(1), `of ${plural(machine.of_cores, "core")}, ${bytes(machine.bytes)} of ${bytes(machine.of_bytes)}`]);
  tiles.push([facts.ended ? "took" : "running for", facts.seconds == null ? "–" : clock(facts.seconds)]);
  if (facts.time_left) tiles.push(["time left, about", facts.time_left.replace("about ", "")]);
  if (facts.bad_records) tiles.push(["bad records", count(facts.bad_records), "", "bad"]);
  if (facts.left_out) tiles.push(["left out", count(facts.left_out), "minibatches, not finite", "bad"]);
  return tiles;
}

function showTiles(facts) {
  const others = new Map(beside ? tilesOf(beside.facts) : []);
  const small = (text) => (text ? make("small", {}, text) : null);
  fill($("tiles"), tilesOf(facts).map(([name, value, more, shade]) =>
    make("div", { class: shade }, make("dt", {}, name),
      make("dd", {}, value, small(more), small(others.has(name) && `${beside.facts.job}: ${others.get(name)}`)))));
}

// ------------------------------------------------------------ processes

function at(worker) {
  const task = worker.task;
  if (!task) return "";
  const all = task.end - task.start;
  const box = make("span", { title: all ? `records ${count(task.start)} to ${count(task.end - 1)} of ${task.source}` : null });
  if (task.kind === "TRAIN" && all) {
    box.append(make("progress", { max: all, value: task.done, "aria-label": `task ${task.id}` }));
  }
  box.append(`${KINDS[task.kind] ?? task.kind}, task ${task.id}${all ? ` of ${plural(all, "record")}` : ""}`);
  return box;
}

const cores = (each) => (each.cores == null ? "–" : each.cores.toFixed(2));

function deathsOf(each) {
  return { text: each.deaths ? count(each.deaths) : "0", class: each.deaths ? "n bad" : "n" };
}

function showProcesses(facts) {
  const n = (text) => ({ text, class: "n" });
  $("workers-box").hidden = !facts.workers?.length;
  if (facts.workers?.length) {
    const waits = facts.workers.some((each) => each.waits_for);
    const used = !facts.ended && facts.workers.some((each) => each.bytes);
    table($("workers"), ["worker", "state", n("starts"), n("deaths"), ...(used ? [n("cores"), n("memory")] : []), facts.ended ? "" : "at", ...(waits ? ["waits for"] : [])], facts.workers.map((each) => [
      each.name, { text: dot(each.state) }, n(count(each.starts)), deathsOf(each), ...(used ? [n(cores(each)), n(bytes(each.bytes))] : []), { text: at(each) },
      ...(waits ? [{ text: each.waits_for, class: "wide" }] : []),
    ]));
  }
  if (facts.servers?.length) {
    const note = (each) => each.progress || (each.unprotected ? `no log protects it: ${each.unprotected}` : each.doubt || "");
    const notes = facts.servers.some(note);
    const speeds = (cells) => (facts.ended ? [] : cells.map(n));
    table($("servers"), ["server", "state", n("deaths"), n("rows"), n("memory"), ...speeds(["pulls/s", "pushes/s", "cores"]), ...(notes ? ["note"] : [])], facts.servers.map((each) => [
      each.name, { text: dot(each.state) }, deathsOf(each), n(count(each.rows)), n(bytes(each.bytes)),
      ...speeds([brief(each.pulls), brief(each.pushes), cores(each)]), ...(notes ? [{ text: note(each), class: "wide" }] : []),
    ]));
  }
  $("no-servers").hidden = Boolean(facts.servers?.length || facts.tables?.length);
  $("servers").closest(".scroll").hidden = !facts.servers?.length;
  $("tables").closest(".scroll").hidden = !facts.tables?.length;
  if (facts.tables?.length) {
    // Of tables that count ids, or remove rows.
    const more = ["counted", "removed"].filter((name) => facts.tables.some((each) => each[name]));
    table($("tables"), ["table", n("rows"), ...more.map(n), n("memory")], facts.tables.map((each) => [
      { text: each.name, class: "name" }, n(count(each.rows)), ...more.map((name) => n(count(each[name]))), n(bytes(each.bytes)),
    ]));
  }
}

const SHADES = ["read", "feed", "ids", "pull", "step", "push"];

function showStages(facts) {
  const bars = facts.stages ?? [];
  say($("bottleneck"), facts.bottleneck ? `${capital(facts.bottleneck)}.` : "");
  say($("advice"), facts.advice ? `Next step: ${facts.advice}` : "");
  const none = facts.ended ? (facts.stages ? "Nothing was trained." : "This is not known of a job that was killed.") : "Nothing was trained yet.";
  const over = facts.stages_over ? `Of the last ${duration(facts.stages_over)}` : "Of the whole job";
  say($("stages-hint"), bars.length ? `${over}, as shares of the workers’ time in training. The threads of a worker do these at the same time; hatched parts are waiting.` : none);
  const box = $("stages");
  const made = bars.map(({ thread, parts }) => {
    const sum = Math.max(1, parts.reduce((total, part) => total + part[1], 0));
    const shade = (name) => (name.startsWith("wait") ? "c-wait" : `c-${SHADES.includes(name) ? name : "more"}`);
    const text = parts.map(([name, share]) => `${name} ${percent(share)}`).join(", ");
    const line = make("div", { class: "bar", role: "img", "aria-label": `${thread}: ${text}` });
    bar(line, parts.map(([name, share]) => [shade(name), share / sum, `${name} ${percent(share)}`]));
    const legend = parts.map(([name, share]) => make("li", { class: shade(name) }, make("b", {}, percent(share)), ` ${name}`));
    return make("div", { class: "stage" }, make("b", {}, thread), line, make("ul", { class: "legend" }, ...legend));
  });
  fill(box, made);
}

// ------------------------------------------------------------ events and logs

const BAD = /\b(died|killed|kill|fail(ed|s)?|lost|warning|error|hangs?|not answered|bad record)\b/i;
let eventsShown = "";

function showEvents({ messages = [], ended }) {
  const text = JSON.stringify([messages, ended]);
  if (text === eventsShown) return;
  eventsShown = text;
  const items = [...messages].reverse().map((each) =>
    make("li", { class: BAD.test(each.text) ? "bad" : null }, make("time", {}, each.t == null ? "" : clock(each.t)), make("span", {}, each.text)));
  fill($("events"), (items.length ? items : [make("li", {}, make("span"), make("span", {}, ended ? "Nothing was told." : "Nothing yet."))]));
}

// The page has the time and the text of a line of shoal's log; its level where it is none of all days.
const LINE = /^\S+ (\d\d:\d\d:\d\d),\d+ (?:INFO +|(\w+ ))\s*\S+ \S+ (\S+): /;
let chosen = "";  // the log that was shown as it has the failure

async function showLogs(facts) {
  const pick = $("log-name");
  const { lines: names } = await get(`logs${query}`);
  const known = [...pick.options].map((option) => option.value);
  if (names.join() !== known.join()) {
    const before = pick.value;
    pick.replaceChildren(...names.map((name) => make("option", { value: name }, name)));
    if (names.includes(before)) pick.value = before;
  }
  if (facts?.cause_log && facts.cause_log !== chosen) pick.value = chosen = facts.cause_log;
  if (!pick.value) return;
  const { lines, error } = await get(`logs/${encodeURIComponent(pick.value)}${query}`);
  const log = $("log");
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 30;
  const text = error ?? (lines.length ? lines.map((line) => line.replace(LINE, "$1 $2")).join("\n") : "(empty)");
  if (log.textContent === text) return;
  log.textContent = text;
  if (atEnd) log.scrollTop = log.scrollHeight;
}

// ------------------------------------------------------------ each second

let began = null;
let over = "";  // the name of a job that has ended

async function offerOthers(job) {
  const names = (await get("jobs")).jobs.map((each) => each.name).filter((name) => name !== job);
  $("beside-pick").hidden = !names.length;
  fill($("beside"), ["", ...names].map((name) => make("option", { value: name, selected: name === given.get("beside") }, name || "no other")));
}

$("beside").addEventListener("change", ({ target }) => {
  location.search = new URLSearchParams({ job: given.get("job"), ...(target.value && { beside: target.value }) });
});

async function look() {
  let ended = false;
  try {
    const facts = await get(`facts${query}`);
    over = facts.ended ? facts.job : "";
    if (besideQuery) beside = { facts: await get(`facts${besideQuery}`), course: beside?.course };
    showNow(facts);
    showLedger(facts);
    showTiles(facts);
    showProcesses(facts);
    showStages(facts);
    showEvents(facts);
    if (began != null && facts.course !== began) charts.forget();
    began = facts.course;
    if (asked % 30 === 0) await offerOthers(facts.job);
    if (asked % 2 === 0 || facts.ended) {
      const course = await get(`course${query}`);
      if (beside) beside.course = await get(`course${besideQuery}`);
      charts.show(course, facts, beside);
      lanes.show(course.lanes, facts.seconds);
      const untold = facts.untold ? `The job’s past is not known: ${facts.untold}` : "";
      $("no-lanes").hidden = !untold && course.lanes.length > 0;
      say($("no-lanes"), untold || (facts.reading ? "The job’s journal is being read …" : "Nothing is known of the job’s processes."));
      if (facts.ended) say($("no-charts"), course.lanes.length ? "The job ended before its first training step." : "No course of the job is known.");
      await showLogs(facts);
    }
    asked += 1;
    ended = facts.ended && !facts.reading;
    $("lost").hidden = true;
    say($("asked"), `asked at ${new Date().toLocaleTimeString()}`);
    document.documentElement.dataset.looks = asked;
  } catch (error) {
    const gone = error instanceof TypeError;
    const lost = over ? `and shows the end of the job. To see it again, run shoal dashboard ${over}.` : "so what it shows is old. Run shoal dashboard again.";
    say($("lost"), gone ? `The page has lost its server, ${lost}` : String(error.message));
    $("lost").hidden = false;
    $("state").removeAttribute("data-live");
  }
  setTimeout(look, (ended ? 5 : 1) * SECOND);
}

$("log-name").addEventListener("change", () => {
  $("log").textContent = "";
  showLogs().then(() => { $("log").scrollTop = $("log").scrollHeight; }, () => {});
});
look();
