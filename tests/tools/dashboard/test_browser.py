"""The page in a real Chromium: a job that is disturbed while it watches, and who can read it."""

import re
import shutil

import pytest

from tests.jobs.running import PATIENCE, RunningJob
from tests.tools.dashboard.conftest import EVIL, LONG
from tests.tools.dashboard.dashboards import Dashboard

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("starlette", reason="the extra shoal[dashboard] is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here"),
]

FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage"
)

CONTRASTS = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const paint = (colour, over) => {
    canvas.fillStyle = `rgb(${over.join()})`;
    canvas.fillRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => rgb.map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
  const ground = (element) => {
    const behind = element.parentElement ? ground(element.parentElement) : [255, 255, 255];
    return paint(getComputedStyle(element).backgroundColor, behind);
  };
  const found = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.textContent.trim() || !element.checkVisibility()) continue;
    if (element.closest("svg, noscript, .u-over, .skip, option")) continue;
    const back = ground(element);
    const [one, other] = [paint(getComputedStyle(element).color, back), back].map(light).sort();
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    found.push([ratio, texts.currentNode.textContent.trim().slice(0, 40)]);
  }
  return found;
}"""
"""The contrast of each text to what is behind it, and the text."""

RIGHTS = """(selector) => Math.max(...[...document.querySelectorAll(selector)]
  .map((each) => each.getBoundingClientRect().right))"""
"""The right end of all elements of a selector."""


@pytest.fixture(scope="module")
def chromium():
    with playwright.sync_playwright() as made:
        browser = made.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        yield browser
        browser.close()


class Seen:
    """A page of the browser, and what it has complained of or asked others for."""

    def __init__(self, chromium, url, **context):
        self.context = chromium.new_context(**context)
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE * 1000)
        self.errors, self.asked = [], []
        self.page.on("console", lambda said: self.errors.append(said.text) if bad(said) else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", lambda dialog: self.errors.append(dialog.message))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(url)
        self.page.wait_for_selector("html[data-looks]", state="attached")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()

    def count(self, selector):
        return self.page.locator(selector).count()

    def text(self, selector):
        return self.page.locator(selector).inner_text()


def bad(said):
    return said.type in ("error", "warning")


@pytest.mark.job
def test_a_death_and_its_restart_are_seen_while_the_page_is_open(chromium, tmp_path, numbers):
    with RunningJob(
        "train",
        tmp_path,
        "watched",
        environment={"GATES": "step-3"},
        model_def="counting.custom_model",
        training_data=numbers,
        validation_data=numbers,
        batch_size=10,
        num_minibatches_per_task=4,
        servers="2",
    ) as job:
        job.at_gate("step-3")
        page_of = Dashboard(job.folder.path, tmp_path)
        with page_of as dashboard, Seen(chromium, dashboard.url) as seen:
            page = seen.page
            page.wait_for_selector("#state[data-state=training]")
            assert dashboard.token not in page.url
            page.wait_for_selector(".lanes .span.TRAIN", state="attached")
            assert seen.count(".lanes .death") == seen.count(".lanes .restart") == 0
            assert "0" in page.locator("#workers tbody tr").inner_text().split()

            job.kill("worker")
            page.wait_for_selector(".lanes .death", state="attached")
            page.wait_for_selector(".lanes .restart", state="attached")
            page.wait_for_selector("#events >> text=worker-0 died")
            page.wait_for_selector("#workers td.bad >> text=1")
            lanes = page.locator(".lanes").get_attribute("aria-label")
            assert re.search(r"worker-0: .*, died at [\d:]+, started again at [\d:]+", lanes)
            page.wait_for_selector("#lanes-legend >> text=started again")

            job.open("step-3")
            job.ended().succeeded()
            page.wait_for_selector("#state[data-state=succeeded]")
            assert seen.text("#sentence") == "The job has succeeded."
            assert "480" in seen.text("#ledger-legend")
            page.wait_for_selector("figure:has-text('Evaluation') .plot canvas")
            page.wait_for_selector("figure:has-text('Ledger') summary")
            page.locator("figure:has-text('Ledger') summary").click()
            page.wait_for_selector("figure:has-text('Ledger') td >> text=480")
            assert seen.errors == []
            own = f"http://127.0.0.1:{dashboard.port}/"
            assert [url for url in seen.asked if not url.startswith(own)] == []


@pytest.fixture(scope="module")
def dashboard(ended):
    with Dashboard("clicks", ended) as running:
        yield running


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_everybody_can_read_it(chromium, dashboard, scheme, width):
    context = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
    with Seen(chromium, dashboard.url, **context) as seen:
        page = seen.page
        page.wait_for_selector("#state[data-state=failed]")
        page.wait_for_selector("#log >> text=ten")
        contrasts = page.evaluate(CONTRASTS)
        assert len(contrasts) > 40
        assert [each for each in contrasts if each[0] < 4.5] == []
        # No text leaves the screen; tables scroll within themselves.
        assert page.evaluate("() => document.documentElement.scrollWidth") == width
        # The figures of a table are seen however long its name is, and no name lies over another.
        assert page.evaluate(RIGHTS, "#tables td") < width
        wide = "all => all.filter(each => each.scrollWidth > each.clientWidth).length"
        assert page.eval_on_selector_all("#tiles dt", wide) == 0
        shade = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", shade))) < 200) == (scheme == "dark")
        assert seen.errors == []


def test_texts_of_the_job_are_texts(chromium, dashboard):
    with Seen(chromium, dashboard.url) as seen:
        page = seen.page
        page.wait_for_selector("#log >> text=ten")  # the log that has the failure comes first
        for place in ("#failure", "#cause", "#events", "#log"):
            assert EVIL in seen.text(place)
        assert seen.count("main script, main img") == 0
        assert seen.errors == []


def test_a_screen_reader_finds_its_way(chromium, dashboard):
    with Seen(chromium, dashboard.url) as seen:
        page = seen.page
        page.wait_for_selector("#log >> text=ten")
        for role in ("banner", "main", "contentinfo"):
            assert page.get_by_role(role).count() == 1
        assert page.get_by_role("heading", level=1).inner_text() == "clicks"
        regions = page.get_by_role("region").all()
        assert len(regions) >= 7
        status = page.get_by_role("status")
        assert status.inner_text() == "The job has failed."
        assert status.get_attribute("aria-live") == "polite"
        ledger = page.locator("#ledger-bar").get_attribute("aria-label")
        assert ledger == "100 records: 90 trained once, 4 repeated, 1 failed, 5 pending"
        stage = page.get_by_role("img", name=re.compile("^step: "))
        assert stage.get_attribute("aria-label") == "step: wait for pull 10%, step 70%"
        for table in page.locator("table").all():
            assert table.locator("caption").inner_text() or not table.is_visible()
        assert page.locator("html").get_attribute("lang") == "en"


def test_the_keyboard_reaches_everything(chromium, dashboard):
    with Seen(chromium, dashboard.url) as seen:
        page = seen.page
        page.wait_for_selector("#log >> text=ten")
        page.keyboard.press("Tab")
        skip = page.locator(".skip:focus")
        assert skip.inner_text() == "Skip to the job's state"
        page.keyboard.press("Enter")
        assert page.evaluate("() => document.activeElement.id") == "now"
        reached = [""]
        while reached[-1] != "log":
            assert len(reached) < 30
            page.keyboard.press("Tab")
            reached.append(page.evaluate("() => document.activeElement.id"))
            if reached[-1] == "log-name":
                style = "() => getComputedStyle(document.activeElement).outlineStyle"
                assert page.evaluate(style) == "solid"
                page.keyboard.press("ArrowDown")
                page.wait_for_selector("#log >> text=99999")
        assert {"events", "log-name", "log"} <= set(reached)


def test_a_page_whose_server_is_gone_says_so(chromium, ended):
    with Dashboard("clicks", ended) as running, Seen(chromium, running.url) as seen:
        seen.page.wait_for_selector("#state[data-state=failed]")
        running.interrupted()
        seen.page.wait_for_selector("#lost >> text=The page has lost its server")


def test_two_jobs_are_seen_beside_each_other_from_their_list(chromium, ended, tmp_path):
    jobs = tmp_path / "shoal-jobs"
    for name, loss in (("one", 0.5), ("two", 0.25)):
        shutil.copytree(ended / "shoal-jobs" / "clicks", jobs / name)
        rows = [f"{at},training,{loss + 1 / at}" for at in (1, 2, 4)]
        (jobs / name / "metrics.csv").write_text("\n".join(["seconds,state,loss", *rows, ""]))
    with Dashboard("", tmp_path) as running, Seen(chromium, running.url) as seen:
        page = seen.page
        assert "failed" in seen.text("#jobs tr:has-text('two')")
        page.set_viewport_size({"width": 390, "height": 800})
        assert page.evaluate(RIGHTS, "#jobs td") < 390
        page.set_viewport_size({"width": 1280, "height": 800})
        page.get_by_role("link", name="one").click()
        page.wait_for_selector("#job >> text=one")
        page.wait_for_selector("figure:has-text('Training loss') .sum >> text=0.7500")
        page.get_by_label("beside").select_option("two")
        page.wait_for_selector("figure:has-text('Training loss') .sum >> text=two: 0.5")
        assert "two: 0.5000" in seen.text(f"#tiles div:has-text('{LONG}')")
        page.locator("figure:has-text('Training loss') summary").click()
        page.wait_for_selector("figure:has-text('Training loss') th >> text=two")
        assert seen.errors == []
        page.get_by_role("link", name="All jobs").click()
        page.wait_for_selector("#jobs")
