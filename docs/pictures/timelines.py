"""Draws the picture of the README: `python docs/pictures/timelines.py`."""

from pathlib import Path

import freewheel as fw
from freewheel.plan import save_picture

if __name__ == "__main__":
    plans = [fw.plan("bp", k=3, batches=3), fw.plan("pipedream", k=3, batches=7), fw.plan("fdg", k=3, batches=6)]
    save_picture(plans, Path(__file__).with_name("timelines.svg"))
