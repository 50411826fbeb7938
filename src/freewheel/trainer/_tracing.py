"""What the trace of a fit is made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from freewheel.runtime import Cut
from freewheel.trace import Recording
from freewheel.trainer._setup import Setup


def recorded(cut: Cut) -> Iterator[Recording]:
    """What all stages have recorded since the cut before."""
    for snapshot in cut.snapshots:
        yield from snapshot.recordings


def traced_facts(setup: Setup) -> dict[str, Any]:
    """What was traced, as plain data."""
    schedule = setup.options.schedule
    return {
        "method": setup.method.name,
        "runtime": setup.config.runtime,
        "delays": list(schedule.delays) if setup.method.planned else None,
        "rows": list(setup.method.rows or (f"stage {k}" for k in range(schedule.stages))),
        "devices": [str(blueprint.device) for blueprint in setup.blueprints[: schedule.stages]],
        "overlaps": [stage for stage in range(schedule.stages) if setup.options.overlaps(stage)],
        "ways": {message.letter: message.way for message in schedule.messages},
    }
