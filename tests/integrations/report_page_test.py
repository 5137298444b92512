"""The page in a real browser: Debian's chromium, headless."""

import os
import re
import shutil
import subprocess
import time

import numpy
import pytest

from pictures import read_png
from support import run, train

CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("no chromium here", allow_module_level=True)

DARK, LIGHT = 0, 1

# Tells the window around it what the page is like inside: its widths, what it holds.
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
    result = subprocess.run(
        [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr",
         "--virtual-time-budget=3000", *arguments], capture_output=True, text=True, timeout=120, errors="replace",
        env=os.environ | {"HOME": os.environ.get("TMPDIR", "/tmp")})
    assert result.returncode == 0, result.stderr
    assert "CONSOLE" not in result.stderr, result.stderr
    return result.stdout


def frame(page, width, height=4000):
    """The page in a frame as wide as a phone, which a window cannot be made."""
    path = page.with_name(f"frame-{width}.html")
    path.write_text(f"""<!doctype html><meta charset=utf-8><style>body{{margin:0}}iframe{{border:0}}</style>
<p id=said></p><iframe src="{page.name}" width={width} height={height}></iframe>
<script>addEventListener("message", function (e) {{ document.getElementById("said").textContent = e.data; }});</script>""")
    return path


def probed(page):
    """A copy of the page that tells about itself; only who knows the page's number can add a script."""
    text = page.read_text()
    nonce = re.search(r'<script nonce="(\w+)">', text)[1]
    path = page.with_name("probed.html")
    path.write_text(text.replace("</body>", f'<script nonce="{nonce}">{PROBE}</script></body>'))
    return path


def numbers_of(page, width):
    dom = chromium(f"--window-size={max(width, 500)},1000", "--dump-dom", frame(probed(page), width).as_uri())
    said = re.search(r'<p id="said">([-\d ]+)</p>', dom)
    assert said, dom[:2000]
    return dict(zip(("overflow", "cut", "broken", "images", "charts", "selects"),
                    map(int, said[1].split())))


def screenshot(page, width, scheme, path):
    chromium(f"--window-size={width},1400", f"--blink-settings=preferredColorScheme={scheme}", f"--screenshot={path}",
             page.as_uri())
    return read_png(path.read_bytes())[:, :, :3]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    changes = {"epochs": 2, "model": {"name": "lenet"}, "test_batch_size": 100,
               "data": {"limit_train": 1280, "limit_test": 1000}}
    return [train(folder, changes | {"epochs": 50}, processes=2, output="one").path,
            train(folder, changes | {"learning_rate": 0.05}, processes=1, output="two").path]


@pytest.mark.parametrize("width", [400, 1400])
def test_a_page_fits_its_window(runs, width):
    found = numbers_of(runs[0] / "report.html", width)
    assert found["overflow"] <= 0 and found["cut"] == 0 and found["broken"] == 0
    assert found["images"] == 320 and found["charts"] == 7 and found["selects"] == 2


def opening_seconds(page, picture):
    """Of the browser, from its start to a picture of the page; the best of some, since other tests run beside this one."""
    def once():
        begin = time.monotonic()
        subprocess.run([CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,1400",
                        f"--screenshot={picture}", page.as_uri()], check=True, timeout=60, capture_output=True,
                       env=os.environ | {"HOME": os.environ.get("TMPDIR", "/tmp")})
        return time.monotonic() - begin

    return min(once() for _ in range(4))


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
    assert run("report", *runs, "--output", page).returncode == 0
    for width in (400, 1400):
        found = numbers_of(page, width)
        assert found["overflow"] <= 0 and found["cut"] == 0 and found["charts"] == 6


def test_a_page_is_light_or_dark_as_its_reader_wishes(runs, tmp_path):
    light = screenshot(runs[0] / "report.html", 1400, LIGHT, tmp_path / "light.png")
    dark = screenshot(runs[0] / "report.html", 1400, DARK, tmp_path / "dark.png")
    assert light[5, 5].min() > 240 and dark[5, 5].max() < 60
    for picture in (light, dark):
        # Something is drawn, with contrast: curves and letters, not a blank sheet.
        assert (numpy.abs(picture.astype(int) - picture[5, 5].astype(int)).max(axis=2) > 90).mean() > 0.01


def test_nothing_that_a_run_is_called_runs(runs, tmp_path):
    evil = tmp_path / "<img src=x onerror=document.title='owned'>"
    shutil.copytree(runs[0], evil)
    (evil / "summary.json").write_text('{"status":"<script>document.title=\'owned\'</script>"}')
    page = tmp_path / "page.html"
    assert run("report", evil, "--output", page).returncode == 0
    dom = chromium("--dump-dom", page.as_uri())
    assert "<title>owned" not in dom and "onerror=document" in dom


def test_a_page_is_whole_without_its_script(runs, tmp_path):
    text = (runs[0] / "report.html").read_text()
    page = tmp_path / "plain.html"
    page.write_text(re.sub(r"<script.*</script>", "", text, flags=re.S))
    dom = chromium("--dump-dom", page.as_uri())
    assert dom.count("<img ") == 320 and "What exactly was run?" in dom
