"""The one runner of all experiments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from freewheel._devices import find_device
from freewheel._errors import unknown, whole_number
from freewheel._files import write_json, write_text
from freewheel.bench._machine import gpu_machine
from freewheel.reproduce._experiment import Cell, Experiment, jobs_of
from freewheel.reproduce._markdown import markdown
from freewheel.reproduce._picture import check_pictures, save_pictures
from freewheel.reproduce._report import Report
from freewheel.reproduce._store import Record, Store
from freewheel.reproduce._tasks import Outcome, Task, Watcher, one_by_one, side_by_side
from freewheel.reproduce.experiments import EXPERIMENTS
from freewheel.reproduce.jobs import Context, Job

ELSEWHERE = "another process is measuring it: once that has ended, the same command has its result"
Records = dict[tuple[Job, int], Record]
Keep = Callable[[Task, Outcome], None]


@dataclass(frozen=True, kw_only=True)
class Run:
    """What `reproduce` is asked for; see there."""

    experiment: Experiment
    cells: tuple[Cell, ...]
    seeds: int
    quick: bool
    replaced: tuple[str, ...]
    context: Context
    store: Store
    command: str
    jobs: int = 1
    watcher: Watcher = field(default_factory=Watcher)

    @property
    def folder(self) -> Path:
        """Where the report goes."""
        return self.store.report_folder(self.experiment.name, quick=self.quick)

    def work(self) -> list[tuple[Job, int]]:
        """All jobs and seeds, a whole table with one seed first."""
        jobs = jobs_of(self.cells)
        return [(job, seed) for seed in range(self.seeds) for job in jobs if job.seeded or not seed]

    def execute(self) -> Report:
        """Run what has no result yet; Ctrl-C ends it with a report of the results so far."""
        work = self.work()
        records = {(job, seed): found for job, seed in work if (found := self.store.load(job, seed)) is not None}
        errors: dict[Job, str] = {}
        report = Report(
            experiment=self.experiment,
            cells=self.cells,
            records=records,
            seeds=self.seeds,
            quick=self.quick,
            replaced=self.replaced,
            errors=errors,
            machine=gpu_machine(self.context.device),
            command=self.command,
        )
        self.watcher.begin(len(records), len(work))
        todo = [place for place in work if place not in records]
        keep = partial(self._keep, report=report, records=records, errors=errors)
        try:
            for alone in (False, True):
                tasks = self._tasks([place for place in todo if place[0].timed == alone], records, errors, keep)
                for task, outcome in self._carried_out(tasks, alone=alone or self.jobs == 1):
                    keep(task, outcome)
        except KeyboardInterrupt:
            report = replace(report, interrupted=True)
        finally:
            self.store.release_all()
        self._take_over(work, records, errors)
        finished = replace(report)
        self._write(finished, save_pictures(finished, self.folder))
        return finished

    def _tasks(
        self, places: Sequence[tuple[Job, int]], records: Records, errors: Mapping[Job, str], keep: Keep
    ) -> Iterator[Task]:
        """One after the other, those left out that have failed, or that another process has measured or measures."""
        for job, seed in places:
            if job in errors:
                continue
            task = Task(job, seed, replace(self.context, folder=self.store.work_folder(job, seed)))
            if not self.store.hold(job, seed):
                self.watcher.job(task)
                keep(task, Outcome(0.0, error=ELSEWHERE))
            elif (found := self.store.load(job, seed)) is not None:
                records[job, seed] = found
                self.store.release(job, seed)
            else:
                yield task

    def _take_over(self, work: Sequence[tuple[Job, int]], records: Records, errors: dict[Job, str]) -> None:
        """Add what other processes have measured meanwhile."""
        for job, seed in work:
            if errors.get(job) == ELSEWHERE and (found := self.store.load(job, seed)) is not None:
                records[job, seed] = found
        for job in [job for job, error in errors.items() if error == ELSEWHERE]:
            if all((job, seed) in records for other, seed in work if other == job):
                del errors[job]

    def _carried_out(self, tasks: Iterator[Task], *, alone: bool) -> Iterator[tuple[Task, Outcome]]:
        return one_by_one(tasks, self.watcher) if alone else side_by_side(tasks, self.watcher, self.jobs)

    def _keep(self, task: Task, outcome: Outcome, *, report: Report, records: Records, errors: dict[Job, str]) -> None:
        if outcome.measures is None:
            errors[task.job] = outcome.error
        else:
            at_once = 1 if task.job.timed else self.jobs
            found = {"measures": outcome.measures, "machine": report.machine, "at_once": at_once}
            records[task.job, task.seed] = record = {"seconds": outcome.seconds, **found}
            self.store.save(task.job, task.seed, record)
        if outcome.error != ELSEWHERE:
            self.store.release(task.job, task.seed)
        self.watcher.end(task, outcome)
        self._write(replace(report), ())

    def _write(self, report: Report, pictures: Sequence[str]) -> None:
        write_json(self.folder / "results.json", report.as_dict())
        write_text(self.folder / "table.md", markdown(report, pictures))


def reproduce(
    name: str,
    *,
    quick: bool = False,
    cells: Sequence[str] = (),
    seeds: int | None = None,
    device: str = "cpu",
    data_root: Path | None = None,
    run_dir: Path = Path("runs"),
    compile: bool = False,
    jobs: int = 1,
    watcher: Watcher | None = None,
) -> Report:
    """Measure a table or picture of a paper again.

    Args:
        name: One of `EXPERIMENTS`.
        quick: Whether to run a scaled-down version, which ends within minutes on two cores.
        cells: Patterns of cells, such as `ResNet-20*`; all by default.
        seeds: Runs of each; by default as many as the paper has, with `quick` one.
        device: `cpu` or a GPU.
        data_root: The folder of data sets and pretrained weights.
        run_dir: The folder for results; what is there is not measured again.
        compile: Whether to compile the stages.
        jobs: How many trainings run at a time, each in a process of its own. What measures time runs alone.
        watcher: Shows the progress.

    Example:
        >>> import tempfile
        >>> report = reproduce("fdg-table2", cells=["FDG*"], run_dir=Path(tempfile.mkdtemp()))
        >>> [(row.column, row.paper.value, row.ours) for row in report.rows][:2]
        [('T_f', 0.0, 0.0), ('T_f/K', 1.0, 1.0)]
    """
    if name not in EXPERIMENTS:
        raise unknown("experiment", name, EXPERIMENTS)
    experiment = EXPERIMENTS[name]
    if seeds is not None:
        whole_number("seeds", seeds, least=1)
    whole_number("jobs", jobs, least=1)
    find_device(f"device={device!r}", device)
    check_pictures()
    context = Context(device=device, data_root=data_root, compile=compile)
    chosen = choose(experiment, cells, quick=quick)
    ready, replaced = prepare(chosen, context, quick=quick)
    store = Store(run_dir, device, compiled=compile)
    store.check()
    run = Run(
        experiment=experiment,
        cells=ready,
        seeds=seeds or (1 if quick else experiment.seeds),
        quick=quick,
        replaced=replaced,
        context=context,
        store=store,
        command=_command(name, quick=quick, cells=cells, seeds=seeds, device=device, compile=compile),
        jobs=jobs,
        watcher=watcher or Watcher(),
    )
    return run.execute()


def choose(experiment: Experiment, patterns: Sequence[str], *, quick: bool) -> tuple[Cell, ...]:
    """The cells that the patterns choose, anywhere in their names; without any, those of the quick version, or all."""
    wanted = patterns or (experiment.quick if quick else ("*",))
    chosen = tuple(cell for cell in experiment.cells if any(_matches(cell, pattern) for pattern in wanted))
    for pattern in patterns:
        if not any(_matches(cell, pattern) for cell in experiment.cells):
            names = ", ".join(repr(cell.name) for cell in experiment.cells[:3])
            raise ValueError(f"cells {pattern!r}: {experiment.name} has no such cell; its cells are {names} …")
    return chosen


def _matches(cell: Cell, pattern: str) -> bool:
    return fnmatchcase(cell.name.lower(), f"*{pattern.lower()}*")


def prepare(cells: Sequence[Cell], context: Context, *, quick: bool) -> tuple[tuple[Cell, ...], tuple[str, ...]]:
    """The cells with the jobs that can run here, scaled down where asked for, and what stands for what."""
    ready: dict[Job, Job] = {}
    words: dict[str, None] = {}
    for job in jobs_of(cells):
        small, replaced = job.quick() if quick else (job, ())
        ready[job], others = (small, ()) if quick else small.prepared(context)
        words |= dict.fromkeys((*replaced, *others))
    return tuple(replace(cell, measure=cell.measure.of(ready)) for cell in cells), tuple(words)


def _command(name: str, **options: Any) -> str:
    """The command that asks for the same."""
    return " ".join(["freewheel reproduce", name, *_typed(options)])


def _typed(options: Mapping[str, Any]) -> Iterator[str]:
    for key, value in options.items():
        if key == "cells":
            yield from (f"--cells '{pattern}'" for pattern in value)
        elif value is True:
            yield f"--{key}"
        elif value and value != "cpu":
            yield f"--{key} {value}"
