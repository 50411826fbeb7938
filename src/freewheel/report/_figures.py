"""The headline figures of a run, in words and as numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from freewheel.report import _words as words
from freewheel.runs import Run
from freewheel.trainer import Epoch, History

STATUS = {
    "running": "Running",
    "complete": "Complete",
    "interrupted": "Interrupted",
    "failed": "Failed",
    "lost": "Lost",
}
MEANING = {
    "running": "It goes on; these are the figures so far.",
    "complete": "",
    "interrupted": "It was stopped before its end; these are the figures up to there.",
    "lost": "Its process ended without a word; these are the figures it had written.",
}
Figure = dict[str, Any]


def status_of(run: Run) -> dict[str, Any]:
    """How it has ended, in a word and in a sentence, and how far it is."""
    status, final, progress = run.status, run.final or {}, run.progress
    done = None
    if status == "running" and progress is not None and progress.get("batches"):
        done = min(1.0, progress["batch"] / progress["batches"])
    said = f"It ended with an error: {final.get('error')}" if status == "failed" else MEANING[status]
    return {"name": status, "text": STATUS[status], "sentence": said, "done": done}


def figures_of(run: Run, epochs: Sequence[Epoch], shares: dict[str, Any]) -> list[Figure]:
    """The headline figures, in the order in which they are shown; `shares` is where the time of each stage went."""
    final, facts = run.final or {}, run.facts
    return [*_scores(final, epochs), *_speed(run, final, epochs), *_busy(shares), *_memory(final), *_what(facts)]


def metric_name(epochs: Sequence[Epoch], score: dict[str, Any] | None = None) -> str | None:
    """The name of the first metric, if there is one."""
    scores = [score.get("metrics")] if score else []
    scores += [epoch.validation.metrics for epoch in epochs if epoch.validation is not None]
    known = [metrics for metrics in scores if metrics]
    return next((name for metrics in known for name, value in metrics.items() if value is not None), None)


def is_share(name: str | None) -> bool:
    """Whether a metric is a share, by its name."""
    return name is not None and "accuracy" in name


def metric_text(name: str | None, value: float) -> str:
    """The value of a metric in words.

    Example:
        >>> metric_text("accuracy", 0.5), metric_text("F1", 0.5)
        ('50.00%', '0.5')
    """
    return words.share(value) if is_share(name) else f"{value:.4g}"


def _figure(key: str, label: str, value: Any, text: str, note: str = "") -> Figure:
    return {"key": key, "label": label, "value": value, "text": text, "note": note}


def _scores(final: dict[str, Any], epochs: Sequence[Epoch]) -> Iterator[Figure]:
    """The score on test samples, or the last one between epochs; and the training loss."""
    score, note = final.get("score"), "on test samples, at the end"
    last = next((epoch for epoch in reversed(epochs) if epoch.validation is not None), None)
    if score is None and last is not None and last.validation is not None:
        score, note = vars(last.validation), f"after epoch {last.epoch + 1}"
    name = metric_name(epochs, score)
    metric = None if score is None else score.get("metric")
    label = (name or "metric").capitalize() if name != "metric" else "Metric"
    if metric is not None:
        yield _figure("metric", label, metric, metric_text(name, metric), note)
    if score is not None and score.get("loss") is not None:
        yield _figure("loss", "Loss", score["loss"], f"{score['loss']:.4f}", note)
    done = [epoch for epoch in epochs if epoch.loss is not None]
    if done:
        yield _figure(
            "train_loss", "Training loss", done[-1].loss, f"{done[-1].loss:.4f}", f"mean of epoch {done[-1].epoch + 1}"
        )


def _speed(run: Run, final: dict[str, Any], epochs: Sequence[Epoch]) -> Iterator[Figure]:
    trained = sum(epoch.seconds for epoch in epochs)
    if epochs:
        asked = run.facts.get("epochs")
        of = f" of {asked:,}" if asked else ""
        whole = sum(epoch.complete for epoch in epochs)
        done = words.plural(epochs[-1].batches, "batch", "batches")
        yield _figure("epochs", "Epochs", whole, f"{whole:,}{of}", done)
        yield _figure("seconds", "Time", trained, words.seconds(trained), "training, with the scoring between epochs")
    rate = final.get("images_per_second") or History(list(epochs)).images_per_second
    if rate is not None:
        yield _figure("rate", "Samples per second", rate, words.count(rate), "median over the epochs")
    if final.get("speedup") is not None:
        yield _figure("speedup", "Speedup", final["speedup"], f"{final['speedup']:.2f}×", "over one core")


def _busy(shares: dict[str, Any]) -> Iterator[Figure]:
    """How much of the time is computed, over all stages."""
    if "missing" not in shares:
        busy = fmean(values[0] for values in shares["values"])
        yield _figure("busy", "Busy", busy, f"{busy:.0%}", f"of the time, mean of all {shares['of']}s")


def _memory(final: dict[str, Any]) -> Iterator[Figure]:
    """The peak of memory: of the GPUs where there are any."""
    peaks = final.get("memory") or {}
    allocated = [each["allocated"] for each in (peaks.get("devices") or {}).values()]
    host, worker = peaks.get("host"), peaks.get("worker")
    if allocated:
        yield _figure("memory", "Peak memory", sum(allocated), words.size(sum(allocated)), "allocated on GPUs")
    elif host and worker:
        text = f"{words.size(host)}, {words.size(worker)}"
        yield _figure("memory", "Peak memory", host, text, "of this process, of the largest worker")
    elif host:
        yield _figure("memory", "Peak memory", host, words.size(host), "of this process")


def _what(facts: dict[str, Any]) -> Iterator[Figure]:
    method, model = facts.get("method") or {}, facts.get("model") or {}
    if method.get("name"):
        yield _figure("method", "Method", method["name"], method["name"], _locks(method))
    if facts.get("stages"):
        replicas = facts.get("replicas") or 1
        note = f"{replicas} replicas of each" if replicas > 1 else ""
        yield _figure("stages", "Stages (K)", facts["stages"], str(facts["stages"]), note)
    if "delays" in method:
        note = "updates, by stage" if any(method["delays"] or ()) else "" if method["delays"] else "workers race"
        yield _figure("delays", "Delays", method["delays"], words.delays(method["delays"]), note)
    if facts.get("runtime"):
        devices = ", ".join(dict.fromkeys(facts.get("devices") or ()))
        yield _figure("runtime", "Runtime", facts["runtime"], facts["runtime"], devices and f"on {devices}")
    if model.get("parameters") is not None:
        name = model.get("name") or ""
        yield _figure("parameters", "Parameters", model["parameters"], words.count(model["parameters"]), f"{name}")


def _locks(method: dict[str, Any]) -> str:
    locks = method.get("locks")
    if locks is None:
        return ""
    return f"locks: {', '.join(locks)}" if locks else "no locks"
