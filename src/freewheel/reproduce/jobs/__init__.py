"""The kinds of job that an experiment consists of, one file each."""

from __future__ import annotations

from freewheel.reproduce.jobs._job import Context as Context, Job as Job
from freewheel.reproduce.jobs.difference import Difference as Difference
from freewheel.reproduce.jobs.ideal import Ideal as Ideal
from freewheel.reproduce.jobs.memory import LayerMemory as LayerMemory, NetMemory as NetMemory
from freewheel.reproduce.jobs.passes import Passes as Passes
from freewheel.reproduce.jobs.speed import Speed as Speed
from freewheel.reproduce.jobs.straggler import Straggler as Straggler
from freewheel.reproduce.jobs.training import Training as Training
