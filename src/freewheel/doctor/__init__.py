"""What works on this computer: each thing tried in a process of its own, so that a crash is an answer."""

from freewheel.doctor._facts import Facts as Facts, facts as facts, processor as processor
from freewheel.doctor._trials import TRIALS as TRIALS, Finding as Finding, Trial as Trial, try_all as try_all
