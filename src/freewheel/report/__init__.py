"""The page of a run: what it was, how it went and where the time went, in one HTML file that needs no network."""

from freewheel.report._data import no_data as no_data, report_data as report_data
from freewheel.report._page import page as page
