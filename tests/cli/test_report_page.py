"""`distill report` in a real browser: everything is drawn, controls and pointer work, at any width."""

import io
import json
import shutil

import pytest
from PIL import Image
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

import run_folders
from browser import browser, complaints, painted, resize

SECTIONS = ["summary", "curves", "evaluation", "phases", "memory", "events", "samples", "configuration"]


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture
def show(distill, driver, tmp_path):
    """show(run, ...) opens the report of run folders and checks that no script failed."""

    def show(*runs, width=1600):
        made = distill(tmp_path, "report", *map(str, runs), "--output", "page.html")
        assert made.returncode == 0, made.stderr
        resize(driver, width)
        complaints(driver)
        driver.get((tmp_path / "page.html").as_uri())
        painted(driver)
        assert complaints(driver) == []
        return driver

    return show


def all_of(driver, selector):
    return driver.find_elements(By.CSS_SELECTOR, selector)


def one(driver, selector):
    return driver.find_element(By.CSS_SELECTOR, selector)


def line_of(driver, chart="#chart-loss"):
    return [path.get_attribute("d") for path in all_of(driver, f"{chart} path.line")]


def click(driver, selector):
    """A click that needs no scrolling."""
    driver.execute_script("arguments[0].click()", one(driver, selector))
    painted(driver)


def check_all_drawn(driver):
    assert [node.get_attribute("id") for node in all_of(driver, "main > section")] == SECTIONS
    charts = all_of(driver, ".chart")
    assert len(charts) >= 18
    for chart in charts:
        title = chart.get_attribute("data-title")
        shapes = chart.find_elements(By.CSS_SELECTOR, "path[d^=M], rect.bar, circle.event-mark")
        assert any(shape.rect["height"] > 0 or shape.rect["width"] > 0 for shape in shapes), (
            f"{title}: nothing is drawn"
        )
        assert "NaN" not in chart.get_attribute("innerHTML"), title
        assert len(chart.find_elements(By.CSS_SELECTOR, ".axis-text")) >= 2, f"{title}: no ticks"


def check_width(driver):
    wide, shown = driver.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert wide <= shown, "the page is wider than the window"


def colours_of(driver):
    image = Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")
    return len(image.getcolors(maxcolors=image.width * image.height))


@pytest.mark.parametrize("width", [400, 1600])
@pytest.mark.parametrize("count", [1, 3])
def test_every_chart_of_one_and_of_three_runs_is_drawn_at_any_width(show, tmp_path, width, count):
    runs = [run_folders.write_run(tmp_path / f"run{i}", lr=f"0.00{i + 1}") for i in range(count)]
    for run in runs:
        run_folders.add_events(run)
        run_folders.add_samples(run)
    driver = show(*runs, width=width)
    check_all_drawn(driver)
    check_width(driver)
    assert len(line_of(driver)) == count
    assert len(all_of(driver, "#legend button")) == count
    assert colours_of(driver) > 50, "the screenshot is empty"
    assert one(driver, "#summary-title").text == ("Run" if count == 1 else "Runs")
    kinds = {row.get_attribute("data-kind") for row in all_of(driver, "table.events tbody tr")}
    assert kinds == {"loss_spike", "non_finite_step", "teacher_worse_than_student", "resumption", "warning", "end"}
    groups = [heading.text for heading in all_of(driver, "#curves > h3")]
    assert groups == ["Loss", "Teacher and student", "Optimizer", "Speed"]
    differing = [row.get_attribute("data-key") for row in all_of(driver, "tr.differs")]
    assert differing == ([] if count == 1 else ["optimizer.lr"])
    assert len(all_of(driver, "#samples .sample")) == 2 * count
    assert "return y50" in one(driver, "#samples").text and "return y25" not in one(driver, "#samples").text


def test_the_evaluation_table_has_before_after_and_teacher(show, tmp_path):
    driver = show(run_folders.write_run(tmp_path / "run"))
    rows = {row.find_element(By.TAG_NAME, "th").text: [cell.text for cell in row.find_elements(By.TAG_NAME, "td")]
            for row in all_of(driver, "table.evaluation tbody tr")}  # fmt: skip
    before, after = run_folders.losses(0), run_folders.losses(50)
    hard = rows["Student's cross-entropy on the labels nats/token"]
    assert [float(text) for text in hard[:2]] == pytest.approx([before["hard"], after["hard"]], abs=1e-3)
    assert hard[3] == "2.25", "the teacher's cross-entropy"
    change = 100 * (after["hard"] / before["hard"] - 1)
    assert float(hard[2].replace("−", "-").replace(" %", "")) == pytest.approx(change, rel=1e-2)
    assert rows["KL(teacher, student) nats/token"][3] == "0"
    assert rows["Agreement: same most probable token"][3] == "100 %"


def test_rounds_have_bars_positions_and_coloured_tokens(show, tmp_path):
    run = run_folders.write_run(tmp_path / "run")
    run_folders.add_rounds(run)
    driver = show(run)
    assert [row.get_attribute("data-round") for row in all_of(driver, "table.rounds tbody tr")] == ["0", "1", "2"]
    assert "1.625" in one(driver, "table.rounds tr[data-round='1']").text, "the KL on held-out prompts"
    bars = [bar.rect["width"] for bar in all_of(driver, "table.rounds tr[data-round='0'] .stack span")]
    train = sum(step["seconds"] for step in map(run_folders.step_metrics, range(1, 21)))
    shares = [part / (6 + train) for part in (1, 4, 0.5, 0.5, train)]
    assert [bar / sum(bars) for bar in bars] == pytest.approx(shares, abs=0.03)
    for chart in ("#positions-reverse-kl-0", "#positions-agreement-0"):
        assert len(all_of(driver, f"{chart} path.line")) == 3
        assert "NaN" not in one(driver, chart).get_attribute("innerHTML")
        heights = [float(dot.get_attribute("cy")) for dot in all_of(driver, f"{chart} circle")[:4]]
        assert heights == sorted(heights, reverse=chart == "#positions-reverse-kl-0")  # the KL grows, agreement falls
    panel = all_of(driver, ".judged")[0]
    tokens = panel.find_elements(By.CSS_SELECTOR, ".token")
    assert [token.text for token in tokens][:3] == [" <w0>", "[101]", " <w2>"], "text as it is, ids where there is none"
    shown = [float(token.get_attribute("data-share")) for token in tokens]
    assert shown == pytest.approx([0.1 * i / 3 for i in range(8)], abs=1e-3)
    colours = {token.value_of_css_property("background-color") for token in tokens}
    assert len(colours) == 8
    told = tokens[7].get_attribute("title")
    assert "id 107" in told and "KL(student, teacher): 0.7" in told and "most probable token is another one" in told
    Select(one(driver, "select[aria-label='What gives a token its colour']")).select_by_value("logprob")
    assert {token.get_attribute("data-share") for token in all_of(driver, ".judged .token")} == {"0.083"}
    Select(one(driver, ".judged-samples select")).select_by_value("1")
    assert len(all_of(driver, ".judged")) == 2
    for width in (400, 1600):
        resize(driver, width)
        painted(driver)
        check_width(driver)
    assert complaints(driver) == []


def test_a_run_without_rounds_has_no_such_section(show, tmp_path):
    assert not all_of(show(run_folders.write_run(tmp_path / "run")), "#rounds")


def test_the_pointer_and_the_keys_show_values(show, tmp_path):
    driver = show(run_folders.write_run(tmp_path / "run"))
    click(driver, "#log-x")
    click(driver, "#log-x")
    plot = one(driver, "#chart-loss .plot")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", plot)
    ActionChains(driver).move_to_element(plot).perform()
    tip = one(driver, "#chart-loss .tip")
    assert tip.is_displayed() and "recorded" in tip.text
    assert len(all_of(driver, "#chart-loss .cursor-dot")) == 1
    driver.execute_script("arguments[0].focus()", plot)
    plot.send_keys(Keys.HOME, Keys.ARROW_RIGHT)
    assert tip.text.startswith("Step 1\n"), "after the evaluation before step 1"
    assert float(tip.text.split("recorded ")[1]) == pytest.approx(run_folders.losses(1)["loss"], rel=1e-3)
    plot.send_keys(Keys.ESCAPE)
    assert not tip.is_displayed()
    assert complaints(driver) == []


def test_the_controls_change_the_curves(show, tmp_path):
    driver = show(run_folders.write_run(tmp_path / "a"), run_folders.write_run(tmp_path / "b", steps=30, lr="0.1"))
    smooth = line_of(driver)
    assert len(all_of(driver, "#chart-loss path.raw")) == 2
    set_range = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))"
    driver.execute_script(set_range, one(driver, "#smoothing"), "0")
    painted(driver)
    recorded = line_of(driver)
    assert recorded != smooth and not all_of(driver, "#chart-loss path.raw")

    for axis in ("tokens", "seconds"):
        before = one(driver, "#chart-loss svg").get_attribute("innerHTML")
        Select(one(driver, "#axis")).select_by_value(axis)
        painted(driver)
        assert one(driver, "#chart-loss svg").get_attribute("innerHTML") != before
    assert "h:mm:ss" in one(driver, "#chart-loss .axis-title").text
    for box in ("#log-x", "#log-y", "#outliers"):
        before = line_of(driver)
        click(driver, box)
        assert line_of(driver) != before, box
        assert "NaN" not in one(driver, "#curves").get_attribute("innerHTML")

    click(driver, "#legend button:first-child")
    assert len(line_of(driver)) == 1
    assert one(driver, "#legend button").get_attribute("aria-pressed") == "false"
    assert complaints(driver) == []


def test_one_spike_among_many_steps_is_seen(show, tmp_path):
    """A point stands for 32 steps: without the stroke, the spike is a tip of the band that fades into the page."""
    run = run_folders.write_run(tmp_path / "run", steps=3)
    text = json.dumps(run_folders.step_metrics(1))
    loss = run_folders.losses(1)["loss"]
    with open(run / "metrics.jsonl", "w") as file:
        for step in range(1, 20001):
            value = 12.5 if step == 14003 else run_folders.losses(step)["loss"]
            record = text.replace('"step": 1,', f'"step": {step},', 1).replace(f'"loss": {loss}', f'"loss": {value}', 1)
            file.write(record.replace('"tokens": 512,', f'"tokens": {512 * step},', 1) + "\n")
    driver = show(run)
    strokes = all_of(driver, "#chart-loss path.extreme")
    assert len(strokes) == 1 and len(all_of(driver, "#chart-loss .extreme-dot")) == 1
    plot, stroke = one(driver, "#chart-loss .plot").rect, strokes[0].rect
    assert stroke["height"] > 0.5 * plot["height"], "from the mean of about 2 to the spike at 12.5"
    assert stroke["x"] - plot["x"] == pytest.approx(0.7 * plot["width"], abs=0.1 * plot["width"])
    style = "const s = getComputedStyle(arguments[0]); return [s.opacity, s.strokeOpacity, parseFloat(s.strokeWidth)]"
    opacity, stroke_opacity, width = driver.execute_script(style, strokes[0])
    assert float(opacity) == float(stroke_opacity) == 1 and width >= 1.5
    # Charts without such a value have no stroke, also those with much noise.
    assert not all_of(driver, "#chart-hard path.extreme, #chart-grad_norm path.extreme, #chart-lr path.extreme")


def test_a_drag_zooms_in_and_escape_shows_everything(show, tmp_path):
    driver = show(run_folders.write_run(tmp_path / "run"))
    plot = one(driver, "#chart-loss .plot")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", plot)
    whole = line_of(driver)
    ActionChains(driver).move_to_element_with_offset(plot, -60, 0).click_and_hold().move_by_offset(
        60, 0
    ).move_by_offset(60, 0).release().perform()
    painted(driver)
    assert line_of(driver) != whole and one(driver, "#reset-zoom").is_displayed()
    one(driver, "#reset-zoom").click()
    painted(driver)
    assert line_of(driver) == whole


def test_a_live_run_says_how_far_it_is(show, tmp_path):
    fcntl = pytest.importorskip("fcntl")
    run = run_folders.write_run(tmp_path / "run", steps=40, ended=False)
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 41, "lo')
    with open(run / ".lock", "w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        driver = show(run)
    assert "live" in one(driver, "#summary .state").text
    assert "up to step 40" in one(driver, "#subtitle").text
    check_all_but(driver, {"Events"})


def check_all_but(driver, empty):
    for chart in all_of(driver, ".chart"):
        if chart.get_attribute("data-title") not in empty:
            assert chart.find_elements(By.CSS_SELECTOR, "path[d^=M], rect.bar"), chart.get_attribute("data-title")


def test_a_run_without_a_step_shows_its_sections(show, tmp_path):
    run = run_folders.write_run(tmp_path / "run", steps=0)
    run_folders.write_lines(run / "metrics.jsonl", [])
    driver = show(run)
    assert [node.get_attribute("id") for node in all_of(driver, "main > section")] == SECTIONS
    assert "No step was recorded yet" in one(driver, "#curves").text
    assert "NaN" not in one(driver, "main").get_attribute("innerHTML")


def test_values_that_are_not_known_interrupt_the_line(show, tmp_path):
    unknown = {name: None for name in run_folders.losses(1)} | {"valid_tokens": 0, "grad_norm": None, "empty_steps": 1}
    driver = show(run_folders.write_run(tmp_path / "run", changes={10: unknown, 30: {"loss": None}}))
    assert line_of(driver)[0].count("M") == 3
    assert "NaN" not in one(driver, "main").get_attribute("innerHTML")
    assert [row.get_attribute("data-kind") for row in all_of(driver, "table.events tbody tr")] == ["empty_step", "end"]


def test_what_a_run_has_written_is_never_markup(show, tmp_path):
    evil = (
        "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">'\"&amp;\u2028"
    )
    run = run_folders.write_run(tmp_path / "a'b\"c<b>&amp;")
    run_folders.add_samples(run, text=evil)
    (run / "config.yaml").write_text(f'student:\n  path: "{evil}"\n')
    (run / "log.txt").write_text(f"2026-01-02 03:04:05 W {evil}\n")
    sessions = [json.loads(line) for line in (run / "sessions.jsonl").read_text().splitlines()]
    sessions[0]["device"] = sessions[0]["host"] = evil
    run_folders.write_lines(run / "sessions.jsonl", sessions)
    driver = show(run)
    assert driver.title.startswith("a'b\"c<b>&amp;")
    shown = evil.replace("\u2028", "").strip()
    assert one(driver, "#samples pre").get_attribute("textContent").startswith(shown)
    assert not all_of(driver, "main img") and not all_of(driver, "main script")
    for part in ("#configuration", "#events", "#summary"):
        assert shown in one(driver, part).get_attribute("textContent"), part


def test_every_metric_of_a_real_run_has_a_title(distill, show, job, tmp_path):
    shutil.copytree(job, tmp_path / "job")
    more = ["train.steps=6", "eval.every=3", "eval.at_start=true"]
    assert distill(tmp_path / "job", "--config", "config.yaml", "--set", *more).returncode == 0
    run = tmp_path / "job" / "run"
    driver = show(run)
    groups = [heading.text for heading in all_of(driver, "#curves > h3")]
    assert groups == ["Loss", "Teacher and student", "Optimizer", "Speed"], "a name that metrics.js does not list"
    check_all_drawn(driver)
    assert "distill " in one(driver, "#summary").text
    assert "tensors at the predicted peak" in one(driver, "#memory").text

    # The run's own report is the same page.
    resize(driver, 1600)
    driver.get((run / "report.html").as_uri())
    painted(driver)
    assert complaints(driver) == []
    assert one(driver, "#summary .state").text == "finished"
