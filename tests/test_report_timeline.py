"""The timelines of a run's page are zoomed and moved by wheel, pointer, fingers, keys and buttons, each by itself."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import NamedTuple

import pytest
from playwright.sync_api import Page

import freewheel as fw
from browser import Window, browser as browser, frame, opened, theme_colour, window
from freewheel.report import page as html, report_data
from report_runs import GPU, reported
from spread import exhaustive, rarely

OTHER = {"measured": "planned", "planned": "measured"}
IN = ("+", "+", "+")
# Where the longest stretch of a colour begins and ends in the first row of a timeline.
LONGEST = """(canvas, colour) => {
  const scale = canvas.width / canvas.clientWidth;
  const { data } = canvas.getContext("2d").getImageData(0, 20 * scale, canvas.width, 1);
  const wanted = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
  let best = [0, 0], from = 0;
  for (let x = 0; x <= canvas.width; x++) {
    if (x < canvas.width && wanted.every((value, i) => data[4 * x + i] === value)) continue;
    if (x - from > best[1] - best[0]) best = [from, x];
    from = x + 1;
  }
  return best.map((x) => x / scale);
}"""


class Gesture(NamedTuple):
    """What is done, after which keys, and what must come of it."""

    name: str
    first: tuple[str, ...]
    act: Callable[[Page, str], None]
    check: Callable[[Window, Window], None]


@pytest.fixture(scope="module")
def page(tmp_path_factory, browser):
    """The page of a stored run on a GPU, on a screen that can be touched."""
    path = reported(tmp_path_factory.mktemp("gpu"), GPU)
    with opened(browser, path, has_touch=True) as page:
        yield page


def middle(page: Page, which: str) -> tuple[float, float]:
    """The middle of the first row of a timeline, which is scrolled to."""
    drawing = page.locator(f"#{which}-timeline")
    drawing.evaluate("(element) => element.scrollIntoView({ block: 'center', behavior: 'instant' })")
    frame(page)
    at = drawing.bounding_box()
    assert at is not None
    return at["x"] + at["width"] / 2, at["y"] + 20


def press(*keys):
    def act(page, which):
        page.locator(f"#{which}-timeline").focus()
        for key in keys:
            page.keyboard.press(key)

    return act


def wheel(x=0, y=0):
    def act(page, which):
        across, down = middle(page, which)
        page.mouse.move(across - 5, down)
        page.mouse.move(across, down)
        page.mouse.wheel(x, y)

    return act


def drag(page, which):
    across, down = middle(page, which)
    page.mouse.move(across, down)
    page.mouse.down()
    page.mouse.move(across - 60, down, steps=3)
    page.mouse.up()


def touch(*steps):
    """Fingers at these places right of the middle, one step after the other."""

    def act(page, which):
        across, down = middle(page, which)
        session = page.context.new_cdp_session(page)
        for i, places in enumerate(steps):
            points = [{"x": across + place, "y": down, "id": finger} for finger, place in enumerate(places)]
            kind = "touchMove" if i else "touchStart"
            session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
        session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})

    return act


def click(label):
    return lambda page, which: page.get_by_role("button", name=f"{which.capitalize()}: {label}").click()


def zoomed_in(before, after):
    assert length(after) < 0.9 * length(before)
    assert before[0] <= after[0] < after[1] <= before[1]


def zoomed_out(before, after):
    assert length(after) > 1.1 * length(before)
    assert after[0] <= before[0] < before[1] <= after[1]


def moved_on(before, after):
    assert length(after) == pytest.approx(length(before))
    assert after[0] > before[0] + 0.02 * length(before)


def moved_back(before, after):
    moved_on(after, before)


def length(window: Window) -> float:
    return window[1] - window[0]


GESTURES = [
    Gesture("wheel", (), wheel(y=-200), zoomed_in),
    rarely(Gesture("wheel back", IN, wheel(y=100), zoomed_out)),
    rarely(Gesture("wheel sideways", IN, wheel(x=150), moved_on)),
    Gesture("drag", IN, drag, moved_on),
    Gesture("one finger", IN, touch([0], [-30], [-60], [-90]), moved_on),
    Gesture("two fingers apart", (), touch([-20, 20], [-40, 40], [-80, 80]), zoomed_in),
    rarely(Gesture("two fingers together", IN, touch([-80, 80], [-60, 60], [-40, 40]), zoomed_out)),
    rarely(Gesture("plus", (), press("+"), zoomed_in)),
    rarely(Gesture("minus", IN, press("-"), zoomed_out)),
    Gesture("right", IN, press("ArrowRight"), moved_on),
    rarely(Gesture("left", IN, press("ArrowLeft"), moved_back)),
    rarely(Gesture("page down", IN, press("PageDown"), moved_on)),
    rarely(Gesture("page up", IN, press("PageUp"), moved_back)),
    rarely(Gesture("end", IN, press("End"), moved_on)),
    rarely(Gesture("home", IN, press("Home"), moved_back)),
    rarely(Gesture("zero", IN, press("0"), zoomed_out)),
    rarely(Gesture("button +", (), click("zoom in"), zoomed_in)),
    rarely(Gesture("button −", IN, click("zoom out"), zoomed_out)),
    rarely(Gesture("button ←", IN, click("earlier"), moved_back)),
    Gesture("button →", IN, click("later"), moved_on),
    rarely(Gesture("button Whole", IN, click("show the whole"), zoomed_out)),
]


def picture(page: Page, which: str) -> str:
    frame(page)
    return page.locator(f"#{which}-timeline canvas").first.evaluate("(canvas) => canvas.toDataURL()")


@pytest.mark.parametrize("which", ["measured", rarely("planned")])
@pytest.mark.parametrize("gesture", GESTURES, ids=lambda gesture: gesture.name)
def test_a_timeline_follows(gesture, which, page):
    press("0", *gesture.first)(page, which)
    before, other, drawn = window(page, which), window(page, OTHER[which]), picture(page, which)
    said = page.locator(f"#{which}-where").inner_text()
    gesture.act(page, which)
    page.wait_for_function(
        "([id, begin, end]) => document.getElementById(id).dataset.window !== `${begin} ${end}`",
        arg=[f"{which}-timeline", *before],
    )
    frame(page)
    gesture.check(before, window(page, which))
    assert window(page, OTHER[which]) == other
    assert picture(page, which) != drawn
    assert page.locator(f"#{which}-where").inner_text() != said


@exhaustive
def test_the_wheel_scrolls_past_a_timeline(page):
    """A pointer that rests while the page is scrolled under it does not zoom."""
    before = window(page, "measured"), window(page, "planned")
    page.evaluate("() => scrollTo({ top: 0, behavior: 'instant' })")
    page.mouse.move(600, 400)
    for _ in range(40):
        at = page.evaluate("() => scrollY")
        page.mouse.wheel(0, 100)
        page.wait_for_function(
            "(at) => scrollY > at || scrollY + innerHeight >= document.body.scrollHeight - 1", arg=at
        )
    assert page.evaluate("() => scrollY + innerHeight >= document.body.scrollHeight - 1")
    assert (window(page, "measured"), window(page, "planned")) == before


@exhaustive
@pytest.mark.parametrize("which", OTHER)
def test_a_block_tells_what_it_is(which, page):
    press("0")(page, which)
    _, down = middle(page, which)
    canvas = page.locator(f"#{which}-timeline canvas").first
    begin, end = canvas.evaluate(LONGEST, theme_colour(page, "backward"))
    page.mouse.move(canvas.bounding_box()["x"] + (begin + end) / 2, down)
    told = page.locator(f"#{which}-timeline div", has_text="version").last
    told.wait_for()
    assert told.inner_text().splitlines()[0] == "backward, stage 0"
    page.mouse.move(0, 0)


@pytest.mark.parametrize(("width", "before"), [(1280, 0), rarely(390, 0), rarely(1280, 100)])
def test_a_timeline_opens_where_it_can_be_read(width, before, tmp_path, browser):
    """It opened with what a GPU does once: 12 batches in 118 ms, and all but four of them were a pixel wide.

    Of a trace that began with a later batch than the plan has, a microsecond was shown.
    """
    data = report_data([fw.Run.open(GPU)])
    measured = data["runs"][0]["measured"]
    measured["batch"] = [batch + before for batch in measured["batch"]]
    measured["opens"] += before
    path = tmp_path / "page.html"
    path.write_text(html(data))
    events = fw.Run.open(GPU).trace().events
    first = min(event.begin for event in events if event.batch == measured["opens"] - before)
    with opened(browser, path, width=width) as page:
        begin, end = window(page, "measured")
        assert begin == pytest.approx(1e6 * first, abs=1)
        drawn = page.locator("#measured-timeline").bounding_box()["width"]
    shown = [event for event in events if event.is_compute and begin < 1e6 * event.end <= end + 1]
    assert {event.stage for event in shown} == {0, 1, 2, 3}
    pixels = [1e6 * event.seconds * drawn / (end - begin) for event in shown if event.name == "F"]
    assert median(pixels) > 10


def test_moments_in_a_long_trace_are_told_apart(tmp_path, browser):
    """After 25 s a window of a millisecond was told as from 25 s to 25 s, and so was a block in the table."""
    data = report_data([fw.Run.open(GPU)])
    measured = data["runs"][0]["measured"]
    measured["begin"] = [begin + 25_000_000 for begin in measured["begin"]]
    measured["end"] += 25_000_000
    path = tmp_path / "late.html"
    path.write_text(html(data))
    with opened(browser, path) as late:
        press("End", *["+"] * 40, "End")(late, "measured")
        frame(late)
        begin, end = window(late, "measured")
        assert 25e6 < begin < end < begin + 1000
        told = late.locator("#measured-where").inner_text().replace(" s", "").split(" ")
        said = [1e6 * float(told[place]) for place in (0, 2)]
        assert said == pytest.approx([begin, end], abs=(end - begin) / 20)
        rows = late.locator("#timeline figure").first.locator("tbody tr")
        for row, first, size in zip(rows.all()[:20], measured["begin"], measured["length"]):
            moments = [1e6 * float(cell.removesuffix(" s")) for cell in row.locator("td").all_text_contents()[-2:]]
            assert moments == pytest.approx([first, first + size], abs=0.6 + size / 10)
