"""The experiments of the papers, one file for each paper."""

from __future__ import annotations

from collections.abc import Mapping

from freewheel.reproduce._experiment import Experiment
from freewheel.reproduce.experiments import async_lu, asyncfgd, dsp, fdg

EXPERIMENTS: Mapping[str, Experiment] = {
    experiment.name: experiment for paper in (asyncfgd, fdg, dsp, async_lu) for experiment in paper.EXPERIMENTS
}
