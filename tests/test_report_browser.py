"""The page of runs in a browser: it shows all that it should, to everyone, and loads nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch import nn

import freewheel as fw
from browser import browser as browser, colours, frame, opened, theme_colour, violations
from report_runs import GPU, evened, recorded, reported, trained
from spread import exhaustive, rarely

SECTIONS = ["overview", "curves", "timeline", "time", "staleness", "memory", "configuration"]
PHONE = 390
LONG = "a-name-" * 16
OVERFLOW = """() => [...document.querySelectorAll("body *")].filter((each) => !each.closest(".scroll, .skip, svg *")
  && each.getBoundingClientRect().right > innerWidth + 1).map((each) => each.outerHTML.slice(0, 90))"""
COMPUTATIONS = {"F": "forward", "R": "recomputation", "B": "backward", "U": "update"}
MOVING = """() => [...document.querySelectorAll("*")].map(getComputedStyle).filter((style) =>
  parseFloat(style.transitionDuration) || style.animationName !== "none").map((style) => style.transitionProperty)"""
PRINTED = ["Method", "Network and data", "Optimizer", "Where it ran"]  # headings of the configuration
NOTHING = {"validate": None, "trace": False}


def cpu(folder):
    run = trained(folder / "run", "--method", "fdg", "--validation", "0.2", "--runtime", "threads", "--trace")
    return reported(folder, evened(run))


def gpu(folder):
    return reported(folder, GPU)


def three(folder):
    """A run on a GPU, one without a trace and with a long name, and one with replicas."""
    bare, replicated = recorded(folder / LONG, "ddg", **NOTHING), recorded(folder / "replicated", replicas=2)
    return reported(folder, GPU, bare, evened(replicated))


def simulated(folder):
    return reported(folder, recorded(folder / "run", "pipedream"))


def in_processes(folder):
    return reported(folder, recorded(folder / "run", "1f1b", runtime="processes"))


def race(folder):
    stages = [nn.Linear(6, 12), nn.Sequential(nn.Tanh(), nn.Linear(12, 3))]
    return reported(folder, recorded(folder / "run", fw.AsyncLU(), stages=stages, runtime="threads"))


def overlapped(folder):
    return reported(folder, recorded(folder / "run", "dsp", runtime="threads", overlap=True))


def bare(folder):
    return reported(folder, recorded(folder / LONG, "ddg", epochs=1, **NOTHING))


def lost(folder):
    """A process that was killed within its first epoch."""
    run = recorded(folder / "run", epochs=1)
    for name in ("final.json", "trace.json.gz", "history.jsonl"):
        (run / name).unlink()
    return reported(folder, run)


def failed(folder):
    run = recorded(folder / "run")
    final = json.loads((run / "final.json").read_text()) | {"status": "failed", "error": "no more <b>disk</b> & so on"}
    (run / "final.json").write_text(json.dumps(final))
    return reported(folder, run)


def five(folder):
    return reported(folder, *(recorded(folder / f"run-{i}", count=3, **NOTHING) for i in range(5)))


def seeds(folder):
    return reported(folder, trained(folder / "seeds", "--seeds", "2", "--method", "ddg"))


PAGES = [three, *map(rarely, (cpu, gpu, simulated, in_processes, race, overlapped, bare, lost, failed, five, seeds))]
pages = pytest.mark.parametrize("made", PAGES, indirect=True, ids=lambda made: made.__name__)


@pytest.fixture(scope="module")
def made(request, tmp_path_factory) -> Path:
    """The page that a function makes in a folder."""
    return request.param(tmp_path_factory.mktemp(request.param.__name__))


def lines(figure) -> list[str]:
    """The paths of the curves of a figure."""
    return figure.locator("svg path[stroke-width='2'][fill='none']").evaluate_all(
        "(all) => all.map((each) => each.getAttribute('d'))"
    )


def check_timeline(page, which):
    """Blocks are drawn; times are made up, since one that takes long may leave others no pixel of their own."""
    drawn = colours(page, which)
    counts = [drawn.get(theme_colour(page, name), 0) for name in ("forward", "backward")]
    assert min(counts) > 50, which
    assert page.locator(f"#{which}-where").inner_text().count(" of ") == 1


@pytest.mark.parametrize("made", [gpu, rarely(cpu)], indirect=True, ids=lambda made: made.__name__)
def test_all_sections_of_a_run_are_filled(made, browser):
    run = made.parent / "run" if (made.parent / "run").exists() else GPU
    facts = json.loads((run / "run.json").read_text())
    with opened(browser, made) as page:
        assert page.locator("section").evaluate_all("(all) => all.map((each) => each.id)") == SECTIONS
        assert page.locator(".missing").count() == 0
        drawn = [len(lines(figure)) for figure in page.locator("#curves figure").all()]
        assert drawn == [2, 1, 1], "training and validation loss, accuracy, samples per second"
        for which in ("measured", "planned"):
            check_timeline(page, which)
        stages = facts["stages"]
        for section in ("time", "staleness"):
            assert page.locator(f"#{section} figure tbody tr").count() == stages
            assert page.locator(f"#{section} svg path").count() > 2 * stages
        memory = page.locator("#memory").inner_text()
        assert ("cuda:0" in memory) == (run == GPU)
        assert [each for each in memory.split() if each.endswith("iB")]
        assert page.locator("#configuration pre").all_inner_texts() == [facts["repeat"], facts["command"]]


@pages
def test_a_page_is_small_and_drawn_for_everyone(made, browser):
    """No complaint, no request; on a phone nothing stands out; axe finds nothing in light and in dark."""
    assert made.stat().st_size < 2_000_000
    with opened(browser, made, width=PHONE) as page:
        assert page.evaluate("() => document.documentElement.scrollWidth") == PHONE
        assert page.evaluate(OVERFLOW) == []
        assert violations(page) == []
        page.get_by_role("button", name="Show the page dark").click()
        page.set_viewport_size({"width": 1280, "height": 900})
        frame(page)
        assert page.evaluate(OVERFLOW) == []
        assert violations(page) == []


@exhaustive
@pages
def test_every_drawing_is_told_in_words_and_as_a_table(made, browser):
    with opened(browser, made) as page:
        for figure in page.locator("figure").all():
            drawing = figure.locator(".chart")
            title = figure.locator("h3").inner_text()
            assert drawing.get_attribute("role") in ("img", "application")
            assert len(drawing.get_attribute("aria-label")) > len(title) + 10
            assert figure.locator("details table").get_attribute("aria-label")
            assert figure.locator("details tbody tr").count() >= 1
        for region in page.locator("[role=region]").all():
            assert region.get_attribute("tabindex") == "0", "what scrolls is reached by keys"
        page.locator("details").evaluate_all("(all) => all.forEach((each) => (each.open = true))")
        assert page.evaluate(OVERFLOW) == []
        assert violations(page) == []


@exhaustive
@pytest.mark.parametrize("made", [three], indirect=True, ids=["three"])
def test_on_paper_a_page_is_light_and_has_no_buttons(made, browser):
    with opened(browser, made, color_scheme="dark", width=760) as page:
        page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
        page.emulate_media(media="print")
        frame(page)
        assert page.locator("html").get_attribute("data-theme") == "light"
        assert page.locator("button:visible, fieldset:visible, summary:visible").all_inner_texts() == PRINTED
        assert page.evaluate(OVERFLOW.replace(".scroll, ", "")) == [], "what scrolls on a screen is whole on paper"
        check_timeline(page, "measured")
        assert page.locator("#measured-where").is_visible()
        page.emulate_media(media="screen")
        page.evaluate("() => dispatchEvent(new Event('afterprint'))")
        assert page.locator("html").get_attribute("data-theme") == "dark"
        assert page.pdf(format="A4").startswith(b"%PDF")


@exhaustive
@pytest.mark.parametrize("made", [gpu], indirect=True, ids=["gpu"])
@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_nothing_moves_for_those_who_do_not_want_it(made, motion, browser):
    with opened(browser, made, reduced_motion=motion) as page:
        moving = page.evaluate(MOVING)
        assert (moving == []) == (motion == "reduce")


@exhaustive
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("made", [three, five])
def test_the_details_are_those_of_the_run_that_is_chosen(made, scheme, browser, tmp_path):
    with opened(browser, made(tmp_path), color_scheme=scheme) as page:
        assert page.locator("html").get_attribute("data-theme") == scheme
        names = page.locator(".chooser label").all_inner_texts()
        shown = page.locator("#overview table").inner_text()
        for name in names:
            assert name in shown
            page.locator(".chooser label", has_text=name).click()
            frame(page)
            folder = page.locator("#configuration .note code").inner_text()
            assert Path(folder).name == name
            traced = (Path(folder) / "trace.json.gz").exists()
            assert page.locator("#measured-timeline").count() == traced
            if traced:
                check_timeline(page, "measured")
        assert len(lines(page.locator("#curves figure").first)) >= len(names)


@exhaustive
@pytest.mark.parametrize(
    "made", [simulated, in_processes, overlapped, cpu, gpu], indirect=True, ids=lambda f: f.__name__
)
def test_the_measured_timeline_has_the_order_of_the_plan(made, browser):
    """A trace of each runtime, as the page lists it."""
    run = fw.Run.open(GPU if made.parent.name.startswith("gpu") else made.parent / "run")
    trace = run.trace()
    plan = fw.plan(run.facts["method"]["name"], k=run.facts["stages"], batches=1 + max(e.batch for e in trace.events))
    with opened(browser, made) as page:
        cells = (
            page.locator("#timeline figure", has_text="Measured")
            .locator("tbody tr")
            .evaluate_all("(all) => all.map((row) => [...row.children].map((cell) => cell.textContent))")
        )
    compared = 0
    for row in {row for row, *_ in cells}:
        stage, beside = int(row.split()[1].strip(",")), row.endswith(", forwards")
        only = {"F"} if beside else {"R", "B", "U"} if stage in trace.meta["overlaps"] else set(COMPUTATIONS)
        found = [tuple(cell[1:4]) for cell in cells if cell[0] == row and cell[1] in COMPUTATIONS.values()]
        wanted = [
            (COMPUTATIONS[a.op.value], f"{a.batch}" if a.micro is None else f"{a.batch}.{a.micro}", f"{a.version}")
            for a in plan.streams[stage]
            if a.op.value in only
        ]
        assert found == wanted[: len(found)], row
        compared += len(found)
    assert compared >= 36
