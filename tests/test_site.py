"""The documentation as pages: built, then looked at, in a real Chromium where there is one."""

import html
import json
import re
import subprocess
from pathlib import Path

import browser as chromium
import pytest

from microtrain.common.threads import LAUNCH

ROOT = Path(__file__).resolve().parent.parent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(LAUNCH.parallel, reason="builds one site, so it runs on one process"),
]
looked_at = pytest.mark.skipif(bool(chromium.missing()), reason=chromium.missing() or "-")


@pytest.fixture(scope="module")
def site():
    subprocess.run([ROOT / "scripts" / "docs"], check=True, timeout=500)
    return ROOT / "site"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with chromium.Browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


def text_of(path):
    article = path.read_text(encoding="utf-8").partition("<article")[2].partition("</article")[0]
    return html.unescape(re.sub(r"<[^>]+>", "", article))


def test_examples_of_docstrings_are_code(site):
    pages = list((site / "api").glob("*.html"))
    assert len(pages) > 7
    for path in pages:
        found = path.read_text(encoding="utf-8")
        assert "<blockquote" not in found, path.name
        assert '<details class="example"' not in found, path.name
        assert "Annotated" not in found, path.name
    train = (site / "api" / "train.html").read_text(encoding="utf-8")
    prompts = re.findall(r'<span class="gp">(&gt;&gt;&gt;|\.\.\.) ', train)
    assert len(prompts) > 15  # as the highlighter marks them


def test_pages_of_the_api_show_what_is_public_alone(site):
    for path in (site / "api").glob("*.html"):
        ids = re.findall(r'<h[23] id="([^"]+)"', path.read_text(encoding="utf-8"))
        assert not [name for name in ids if re.search(r"\._[a-z]", name)], path.name
    parallel = "microtrain.distributed.data_parallel.DataParallel"
    names = (site / "api" / "distributed.html").read_text(encoding="utf-8")
    assert f'id="{parallel}.no_sync"' in names
    assert f'id="{parallel}.denominators"' not in names


def test_what_a_key_expects_is_not_taken_for_an_attribute_list(site):
    assert "{type: NAME, ...arguments}" in text_of(site / "configuration.html")


@looked_at
@pytest.mark.parametrize("dark", [False, True])
def test_colors_follow_the_system(site, page, dark):
    page.emulate(1280, 800, dark=dark)
    page.open(site / "index.html")
    paper = page.run("return getComputedStyle(document.body).backgroundColor")
    light = sum(map(int, re.findall(r"\d+", paper)[:3]))
    assert light < 150 if dark else light > 600


@looked_at
@pytest.mark.parametrize("width, height", [(1280, 800), (360, 800)])
def test_the_front_page_begins_with_what_to_type_and_a_picture(site, page, width, height):
    page.emulate(width, height)
    page.logged("browser"), page.logged("performance")
    page.open(site / "index.html")
    *words, picture = page.run(
        "return [...document.querySelectorAll('.hero h1, .hero pre, .hero img')]"
        ".map(node => node.getBoundingClientRect().bottom)"
    )
    assert len(words) == 3
    assert max(words) < height
    assert picture < height or width < 1000
    assert page.run("return document.querySelector('.hero img').naturalWidth") > 1000
    typed = page.run("return document.querySelector('.hero').textContent")
    assert "pip install" in typed and "microtrain train" in typed
    assert page.logged("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in page.logged("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if "request" in m["params"]]
    assert asked and all(url.startswith(("file:", "data:")) for url in asked)


@looked_at
def test_no_page_is_wider_than_a_phone_and_every_meaning_can_be_read(site, page):
    page.emulate(360, 800)
    for path in sorted(site.rglob("*.html")):
        page.open(path)
        assert page.run("return document.documentElement.scrollWidth") == 360, path.name
    page.open(site / "api" / "components.html")
    right = page.run(
        "return [...document.querySelectorAll('.keys td:last-child')]"
        ".map(cell => [cell.getBoundingClientRect().left, cell.getBoundingClientRect().right])"
    )
    assert len(right) > 100
    assert all(a >= 0 and a + 200 < b <= 360 for a, b in right)


@looked_at
def test_the_search_finds_a_name_in_a_page_that_was_opened_from_a_folder(site, page):
    page.emulate(1280, 800)
    page.open(site / "index.html")
    page.run(
        "const q = document.querySelector('[data-md-component=search-query]'); q.focus();"
        "q.value = 'clip_grad_norm_'; q.dispatchEvent(new Event('keyup', {bubbles: true}));"
    )
    found = page.wait(
        "return [...document.querySelectorAll('.md-search-result a')].map(a => a.href)"
    )
    assert any("api/nn.html" in link for link in found)
