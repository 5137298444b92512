"""Tests the report page in a real browser: Debian's chromium, headless."""

import collections
import html
import json
import os
import re
import shutil
import time

import numpy
import pytest

from pictures import read_png
from support import RunFolder, json_lines, run, run_program, train

CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("chromium is not installed", allow_module_level=True)

HEADLESS = (CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu")
HOME = os.environ | {"HOME": os.environ.get("TMPDIR", "/tmp")}
DARK, LIGHT = 0, 1

# Posts widths and element counts of the page to its parent window.
PROBE = """
window.addEventListener("load", function () {
  setTimeout(function () {
    var wide = document.documentElement;
    var cut = Array.prototype.filter.call(document.querySelectorAll("svg text, .tile dd, h1, h2"), function (part) {
      var box = part.getBoundingClientRect();
      return box.width > 0 && (box.right > innerWidth + 1 || box.left < -1);
    });
    var broken = Array.prototype.filter.call(document.images, function (image) {
      return image.complete && image.naturalWidth === 0;
    });
    parent.postMessage([wide.scrollWidth - innerWidth, cut.length, broken.length, document.images.length,
      document.querySelectorAll("figure.chart > svg").length, document.querySelectorAll("select").length].join(" "), "*");
  }, 50);
});
"""


def chromium(*arguments):
    result = run_program(*HEADLESS, "--hide-scrollbars", "--enable-logging=stderr", "--virtual-time-budget=3000", *arguments, env=HOME)
    assert "CONSOLE" not in result.stderr, result.stderr
    return result.stdout


def frame(page, width, height=4000):
    """Returns a page with `page` in a frame, which can be as narrow as a phone, unlike a window."""
    path = page.with_name(f"frame-{width}.html")
    path.write_text(f"""<!doctype html><meta charset=utf-8><style>body{{margin:0}}iframe{{border:0}}</style>
<p id=said></p><iframe src="{page.name}" width={width} height={height}></iframe>
<script>addEventListener("message", function (e) {{ document.getElementById("said").textContent = e.data; }});</script>""")
    return path


def with_script(page, script):
    """Returns a copy of the page with an additional script, which needs the page's nonce."""
    text = page.read_text()
    nonce = re.search(r'<script nonce="(\w+)">', text)[1]
    path = page.with_name("with_script.html")
    path.write_text(text.replace("</body>", f'<script nonce="{nonce}">{script}</script></body>'))
    return path


def numbers_of(page, width):
    dom = chromium(f"--window-size={max(width, 500)},1000", "--dump-dom", frame(with_script(page, PROBE), width).as_uri())
    said = re.search(r'<p id="said">([-\d ]+)</p>', dom)
    assert said, dom[:2000]
    return dict(zip(("overflow", "cut", "broken", "images", "charts", "selects"), map(int, said[1].split())))


def screenshot(page, width, scheme, path):
    chromium(f"--window-size={width},1400", f"--blink-settings=preferredColorScheme={scheme}", f"--screenshot={path}", page.as_uri())
    return read_png(path.read_bytes())[:, :, :3]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    changes = {"epochs": 2, "model": {"name": "lenet"}, "test_batch_size": 100, "data": {"limit_train": 1280, "limit_test": 1000}}
    return [train(folder, changes | {"epochs": 50}, processes=2, output="one").path,
            train(folder, changes | {"learning_rate": 0.05}, processes=1, output="two").path]


@pytest.mark.parametrize("width", [400, 1400])
def test_a_page_fits_its_window(runs, width):
    found = numbers_of(runs[0] / "report.html", width)
    assert found["overflow"] <= 0 and found["cut"] == 0 and found["broken"] == 0
    assert found["images"] >= 24 and found["charts"] == 6 and found["selects"] == 2


def asked(page, script):
    """Runs a script in the page and returns the argument of its last call of say(…)."""
    script = f'const say = what => {{ document.title = "said " + JSON.stringify(what) + " end"; }};{script}'
    path = with_script(page, script)
    title = re.search(r"<title>said (.*) end</title>", chromium("--dump-dom", path.as_uri()))[1]
    return json.loads(html.unescape(title))


def test_a_cell_of_the_matrix_filters_the_images_and_more_are_shown_on_demand(runs):
    mistakes = json_lines((runs[0] / "mistakes.jsonl").read_text())
    kinds = collections.Counter((row["truth"], row["guess"]) for row in mistakes)
    (truth, guess), images = kinds.most_common(1)[0]
    found = asked(runs[0] / "report.html", f"""
      const seen = () => [...document.querySelectorAll("#wrong-images li")].filter(item => !item.hidden).map(item => item.dataset.truth + item.dataset.guess);
      const press = text => [...document.querySelectorAll("button")].find(button => !button.hidden && button.textContent.startsWith(text)).click();
      const first = seen().length;
      press("Show ");
      const second = seen().length;
      document.querySelector('a[data-truth="{truth}"][data-guess="{guess}"]').click();
      const chosen = seen(), selects = [...document.querySelectorAll("select")].map(select => select.value);
      press("Show all kinds");
      say([first, second, chosen, selects, seen().length]);""")
    assert found == [24, min(48, len(mistakes)), [f"{truth}{guess}"] * min(24, images), [str(truth), str(guess)], 24]


def test_a_chart_shows_its_values_on_touch_and_by_keyboard(runs):
    accuracies = [100 * epoch["test_accuracy"] for epoch in RunFolder(runs[0]).epochs()]
    found = asked(runs[0] / "report.html", """
      const figure = document.querySelector("figure.chart"), svg = figure.querySelector(":scope > svg"), box = svg.getBoundingClientRect();
      const read = () => [figure.querySelector(".at").textContent, figure.querySelector(".legend b").textContent];
      const before = read();
      svg.dispatchEvent(new PointerEvent("pointerdown", {pointerType: "touch", clientX: box.left + 1, clientY: box.top + 50}));
      const touched = read();
      for (const key of ["ArrowRight", "ArrowRight", "ArrowLeft"]) svg.dispatchEvent(new KeyboardEvent("keydown", {key}));
      const second = read();
      svg.dispatchEvent(new KeyboardEvent("keydown", {key: "End"}));
      say([before, touched, second, read(), svg.tabIndex, svg.getAttribute("role"), svg.getAttribute("aria-valuetext")]);""")
    text = [f"{accuracy:.2f} %" for accuracy in accuracies]
    assert found[:4] == [["epoch 50", text[-1]], ["epoch 1", text[0]], ["epoch 2", text[1]], ["epoch 50", text[-1]]]
    assert found[4:6] == [0, "slider"] and found[6].startswith(f"epoch 50, test {text[-1]}")


def test_all_charts_have_the_same_font_size(runs):
    sizes = asked(runs[0] / "report.html", """say([...document.querySelectorAll("figure.chart > svg .tick")].map(text =>
      13 * text.ownerSVGElement.getBoundingClientRect().width / text.ownerSVGElement.viewBox.baseVal.width));""")
    assert max(sizes) - min(sizes) < 0.1 and 11 < min(sizes) < 15


def opening_seconds(page, picture):
    """Returns the seconds from the browser's start to a screenshot: the minimum of four, since other tests run concurrently."""
    def once():
        begin = time.monotonic()
        run_program(*HEADLESS, "--window-size=1400,1400", f"--screenshot={picture}", page.as_uri(), env=HOME)
        return time.monotonic() - begin

    return min(once() for _ in range(4))


@pytest.mark.clock
def test_the_page_of_fifty_epochs_and_320_predictions_is_small_and_opens_within_a_second(runs, tmp_path):
    page = runs[0] / "report.html"
    assert len((runs[0] / "accuracies.json").read_text().split(",")) == 50
    assert len((runs[0] / "predictions.jsonl").read_text().splitlines()) == 320
    assert page.stat().st_size <= 3e6
    empty = tmp_path / "empty.html"
    empty.write_text("<!doctype html><title>empty</title>")
    picture = tmp_path / "picture.png"
    assert opening_seconds(page, picture) - opening_seconds(empty, picture) <= 1


def test_a_comparison_fits_its_window(runs, tmp_path):
    page = tmp_path / "both.html"
    run("report", *runs, "--output", page, expect=0)
    for width in (400, 1400):
        found = numbers_of(page, width)
        assert found["overflow"] <= 0 and found["cut"] == 0 and found["charts"] == 6


def test_a_page_follows_the_preferred_colour_scheme(runs, tmp_path):
    light = screenshot(runs[0] / "report.html", 1400, LIGHT, tmp_path / "light.png")
    dark = screenshot(runs[0] / "report.html", 1400, DARK, tmp_path / "dark.png")
    assert light[5, 5].min() > 240 and dark[5, 5].max() < 60
    for picture in (light, dark):
        # The page is not blank: curves and text have contrast.
        assert (numpy.abs(picture.astype(int) - picture[5, 5].astype(int)).max(axis=2) > 90).mean() > 0.01


def test_names_in_a_run_cannot_inject_scripts(runs, tmp_path):
    evil = tmp_path / "<img src=x onerror=document.title='owned'>"
    shutil.copytree(runs[0], evil)
    (evil / "summary.json").write_text('{"status":"<script>document.title=\'owned\'</script>"}')
    page = tmp_path / "page.html"
    run("report", evil, "--output", page, expect=0)
    dom = chromium("--dump-dom", page.as_uri())
    assert "<title>owned" not in dom and "onerror=document" in dom


def test_a_page_is_complete_without_its_script(runs, tmp_path):
    text = (runs[0] / "report.html").read_text()
    page = tmp_path / "plain.html"
    page.write_text(re.sub(r"<script.*</script>", "", text, flags=re.S))
    dom = chromium("--dump-dom", page.as_uri())
    kept = len((runs[0] / "mistakes.jsonl").read_text().splitlines())
    assert kept >= 24 and dom.count("<li data-truth=") == kept and dom.count("<img ") == kept
    assert "What exactly was run?" in dom and f"<summary>{kept - 24} more</summary>" in dom
