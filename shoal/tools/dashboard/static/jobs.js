// The list of jobs, each with a link to its page.
import { $, clock, dot, duration, exact, get, make, say, table } from "./words.js";

async function look() {
  try {
    const { place, jobs, error } = await get("jobs");
    say($("place"), place);
    say($("none"), error ?? (jobs.length ? "" : "There are no jobs yet."));
    $("none").hidden = !error && jobs.length > 0;
    $("jobs").closest(".scroll").hidden = !jobs.length;
    table($("jobs"), ["job", "state", "begun", "took", "metrics"], jobs.map((each) => [
      { text: make("a", { href: `?${new URLSearchParams({ job: each.name })}` }, each.name), class: "name" },
      { text: dot(each.state) },
      `${duration(each.age).split(" ", 2).join(" ")} ago`,
      each.took == null ? "" : clock(each.took),
      { text: Object.entries(each.metrics ?? {}).sort().map(([name, value]) => `${name} ${exact(value)}`).join(", "), class: "wide" },
    ]));
    $("lost").hidden = true;
    document.documentElement.dataset.looks = "1";
  } catch (error) {
    say($("lost"), error instanceof TypeError ? "The page has lost its server: run shoal dashboard again." : error.message);
    $("lost").hidden = false;
  }
  setTimeout(look, 5000);
}

look();
