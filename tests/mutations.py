"""Deliberate errors in `src`, one at a time: `make test` must find every one of them.

    python tests/mutations.py                        # all of them, some minutes each
    python tests/mutations.py --only stash-not-copied --only fifo-becomes-lifo
    python tests/mutations.py --check                # only whether each text is still there, exactly once

Each error is made in a copy of this checkout, where the tests of `make test` run until the first one fails. It counts
as found if that test passes in the checkout as it is.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = (".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "build", "dist", "*.egg-info")
QUICK = ("-m", "not exhaustive", "--numprocesses=3", "--dist=worksteal")  # as `make test` has it
HANG_SECONDS = 120  # an error may make a test wait for ever


class Mutation(NamedTuple):
    """An error: in a file of `src/freewheel`, a text that occurs once, and what takes its place."""

    name: str
    file: str
    text: str
    replacement: str


MUTATIONS = [
    # -- the page of runs
    Mutation(
        "report-two-threads-in-one-row",
        "report/_timelines.py",
        "index[row_of(event, trace.meta)]",
        "index[row_of(event, {})]",
    ),
    Mutation(
        "report-drag-moves-nothing",
        "report/web/zoom.js",
        "if (this.pointers.size === 1) this.pan(",
        "if (this.pointers.size === 3) this.pan(",
    ),
    Mutation(
        "report-text-too-pale",
        "report/web/style.css",
        "--text: #1a1f26; --muted: #57606b;",
        "--text: #1a1f26; --muted: #a7b0bb;",
    ),
    Mutation(
        "report-wider-than-a-phone",
        "report/web/style.css",
        ".scroll { overflow-x: auto; max-width: 100%; }",
        ".scroll { overflow-x: visible; }",
    ),
    # -- forwards beside backwards
    Mutation(
        "overlap-update-does-not-wait",
        "runtime/_overlap.py",
        "        if action.op is Op.UPDATE:\n            self._thread.wait()\n",
        "        if action.op is Op.UPDATE:\n",
    ),
    Mutation(
        "overlap-on-one-module",
        "credit/_chain_stage.py",
        "other.module = copied(self.module, {id(p): p for p in self.module.parameters()})",
        "other.module = self.module",
    ),
    # -- CUDA graphs, by their stand-in
    Mutation(
        "graph-stage-on-another-stream",
        "runtime/_repeat.py",
        "            self._end(stage)\n            return",
        "            return",
    ),
    Mutation(
        "graph-receives-without-an-event",
        "runtime/_graph.py",
        "        self._script.do(self._receiver.wait_event, event)\n        if item",
        "        if item",
    ),
    Mutation(
        "graph-writes-what-is-being-read",
        "runtime/_capture.py",
        "script.do(self.stream.wait_event, self.next._read[slot])",
        "pass",
    ),
    Mutation(
        "graph-begins-before-the-caller", "runtime/_capture.py", "        self.stream.wait_stream(self.caller)\n", ""
    ),
    Mutation("graph-failed-capture-stays", "_cuda_graphs.py", "torch._C._cuda_endAllocateToPool(", "print("),
    Mutation(
        "graph-one-slot-too-few",
        "runtime/_graph.py",
        "    own = max(schedule.delays) + 1\n",
        "    own = max(schedule.delays)\n",
    ),
    Mutation(
        "graph-step-size-not-written",
        "runtime/_captured.py",
        "            script.do(self._sizes.fill)\n",
        "            self._sizes.fill()\n",
    ),
    Mutation(
        "graph-seeds-not-written",
        "runtime/_captured.py",
        "            script.note(self._seed_again, stage, script, unit[0] - script.batch)\n",
        "",
    ),
    Mutation(
        "graph-settings-of-the-capture",
        "runtime/_captured.py",
        "return self._sizes is None or self._sizes.holds()",
        "return True",
    ),
    Mutation(
        "graph-warm-up-leaves-a-trace",
        "runtime/_warm_up.py",
        "        if not torch.equal(tensor, value):",
        "        if False:",
    ),
    Mutation("graph-replaced-tensors-unseen", "runtime/_warm_up.py", "    if replaced:", "    if False:"),
    Mutation(
        "graph-any-input-is-repeated",
        "runtime/_repeat.py",
        "return not batch.cut and (Form.of(batch.x), Form.of(batch.target)) == self._forms",
        "return not batch.cut",
    ),
    Mutation("graph-repeats-past-an-epoch", "runtime/_repeat.py", "return not batch.cut and (Form", "return (Form"),
    # -- delays and order
    Mutation("delay-one-short", "plan/_streams.py", "if len(pending) > delay:", "if len(pending) >= max(1, delay):"),
    Mutation(
        "backward-first-as-forward-first",
        "plan/_streams.py",
        'if order == "backward" and delay and len(pending) == delay:',
        "if False:",
    ),
    Mutation("fdg-half-the-delay", "methods/fdg.py", "2 * (k - 1 - i)", "(k - 1 - i)"),
    Mutation(
        "epoch-not-counted",
        "runtime/_interpreter.py",
        "self.stage.epoch += 1",
        "pass",
    ),
    # -- versions
    Mutation(
        "derivative-with-the-last-micro-batch-but-one",
        "plan/_streams.py",
        "if j in (None, schedule.micro - 1):",
        "if j in (None, schedule.micro - 2):",
    ),
    Mutation(
        "broadcast-queue-too-short",
        "plan/_clock.py",
        "return 1 + max(more, schedule.delays[boundary])",
        "return max(more, schedule.delays[boundary])",
    ),
    Mutation(
        "loss-at-the-second-forward",
        "credit/_recording_stage.py",
        "return self._finish(valued(before, out), target), None",
        "return self._finish(out, target), None",
    ),
    Mutation(
        "step-size-not-ahead",
        "stage/_lead.py",
        "corrections.ahead < min(stage.delay, pending)",
        "corrections.ahead < min(1, pending)",
    ),
    Mutation(
        "measuring-shares-the-momentum",
        "trainer/_difference.py",
        "stage.load(deepcopy(state))",
        "stage.load(state)",
    ),
    Mutation(
        "stash-not-copied",
        "stage/_weights.py",
        "copy = [hooked(torch.empty_like(p).requires_grad_(), p) for p in self.live]",
        "copy = [hooked(p.detach().requires_grad_(), p) for p in self.live]",
    ),
    Mutation(
        "stash-one-copy-for-all-versions",
        "stage/_weights.py",
        "held = None if self._fixed else self._held.get(version)",
        "held = next(iter(self._held.values()), None)",
    ),
    Mutation(
        "recompute-on-other-buffers",
        "credit/_recording_stage.py",
        """        with scratch_buffers(self.module):
            self._record(unit, *arguments)""",
        """        self._record(unit, *arguments)""",
    ),
    Mutation(
        "predict-one-step-too-far",
        "stage/_weights.py",
        'gap = delay - (schedule.order == "backward")',
        "gap = delay",
    ),
    Mutation(
        "current-sees-the-forward-weights",
        "stage/_weights.py",
        """        for span, index in self._spans.get(tensor.untyped_storage().data_ptr(), ()):""",
        """        tensor = tensor.clone()
        for span, index in self._spans.get(tensor.untyped_storage().data_ptr(), ()):""",
    ),
    # -- stashes
    Mutation(
        "stash-released-too-early",
        "stage/_weights.py",
        "            self._held[version] = (copy, users - 1)\n",
        "            self._held[version] = (copy, users - 1)\n            self._spare.append(copy)\n",
    ),
    Mutation("stash-never-released", "credit/_chain_stage.py", "        self.weights.release(graph.version)\n", ""),
    Mutation(
        "graph-never-released", "credit/_chain_stage.py", "self._graphs.pop(unit, None)", "self._graphs.get(unit)"
    ),
    Mutation(
        "input-never-released", "credit/_recording_stage.py", "self._stored.pop(unit, None)", "self._stored.get(unit)"
    ),
    # -- keys of random numbers
    Mutation(
        "dropout-repeats-in-the-next-fit",
        "stage/_stage.py",
        "self.index, self.first_batch + batch, self.first_micro_batch + micro",
        "self.index, batch, self.first_micro_batch + micro",
    ),
    Mutation(
        "dropout-the-same-in-all-stages",
        "stage/_stage.py",
        "return self.config.seed, self.index, self.first_batch + batch,",
        "return self.config.seed, 0, self.first_batch + batch,",
    ),
    Mutation(
        "dropout-the-same-in-all-micro-batches",
        "stage/_stage.py",
        "self.first_batch + batch, self.first_micro_batch + micro\n",
        "self.first_batch + batch, 0\n",
    ),
    Mutation(
        "tangents-the-same-for-all-weights",
        "tangents/_directions.py",
        "(*self._key, pending.batch, index, *key)",
        "(*self._key, pending.batch, *key)",
    ),
    Mutation(
        "tangents-the-same-in-all-micro-batches",
        "tangents/_directions.py",
        "(*self._key, pending.batch, index, *key)",
        "(*self._key, pending.batch, index, key[1])",
    ),
    Mutation(
        "tangents-the-same-in-all-batches",
        "tangents/_directions.py",
        "(*self._key, pending.batch, index, *key)",
        "(*self._key, index, *key)",
    ),
    Mutation(
        "perturbations-the-same-for-all-uses",
        "tangents/_directions.py",
        "(*self._key, pending.batch, perturbation.weight, *key, perturbation.use)",
        "(*self._key, pending.batch, perturbation.weight, *key)",
    ),
    Mutation(
        "feedback-the-same-for-all-layers",
        "feedback/_weights.py",
        "seed_of(self._seed, _FEEDBACK, layer)",
        "seed_of(self._seed, _FEEDBACK)",
    ),
    # -- messages
    Mutation("fifo-becomes-lifo", "runtime/_channels.py", "self._items.popleft()", "self._items.pop()"),
    Mutation(
        "gradient-of-the-batch-before",
        "credit/_chain_stage.py",
        "            self._input_gradients = self.backward(unit, self._output_gradients)\n",
        """            found = self.backward(unit, self._output_gradients)
            self._input_gradients, self._older = getattr(self, "_older", found), found
""",
    ),
    Mutation(
        "activation-of-the-batch-before",
        "runtime/_interpreter.py",
        "        message, self._activation = compact(self._activation), None\n",
        """        now, self._activation = compact(self._activation), None
        message, self._older = getattr(self, "_older", now), now
""",
    ),
    Mutation(
        "input-not-copied",
        "credit/_recording_stage.py",
        "used = copies(given) if self._edits else given",
        "used = given",
    ),
    Mutation(
        "dual-not-copied",
        "tangents/_duals.py",
        "own = [leaf.clone() if copied else leaf for leaf, copied in zip(leaves, shared)]",
        "own = leaves",
    ),
    Mutation(
        "message-read-after-its-slot-is-free",
        "runtime/_layout.py",
        "v.clone().as_strided(slot.shape, slot.stride)",
        "v.as_strided(slot.shape, slot.stride)",
    ),
    Mutation("loss-counted-in-the-next-epoch", "runtime/_losses.py", "batch < batches]", "batch < batches - 1]"),
    # -- resume
    Mutation(
        "resume-messages-in-another-order",
        "runtime/_interpreter.py",
        "self._resend.pop((op, unit))",
        "self._resend.popitem()[1]",
    ),
    Mutation("resume-without-random-state", "runtime/_generators.py", "_set_generators(remembered)", "pass"),
    Mutation(
        "resume-without-counts",
        "runtime/_interpreter.py",
        "self._lanes[-1].busy, self._gaps, self._updates, losses, later = snapshot.counts",
        "losses, later = snapshot.counts[3:]",
    ),
    Mutation("resume-without-momentum", "checkpoint/_snapshot.py", "state[len(sources)] = states[name]", "pass"),
    Mutation(
        "resume-without-corrections",
        "checkpoint/_snapshot.py",
        "stage.corrections.load(to_device(snapshots[k].corrections, stage.device))",
        "pass",
    ),
    Mutation(
        "resume-on-the-buffers-of-now",
        "credit/_recording_stage.py",
        "with scratch_buffers(self.module, buffers), self.weights.replaying(saved):",
        "with scratch_buffers(self.module), self.weights.replaying(saved):",
    ),
    Mutation(
        "dropout-without-seed",
        "stage/_random.py",
        'if given["generator"] is not None or _active.draws is None or _traced():',
        "if True:",
    ),
    Mutation(
        "resume-with-steps-exchanged",
        "stage/_weights.py",
        'self._before, self._now = list(pending["before"]), list(pending["now"])',
        'self._now, self._before = list(pending["before"]), list(pending["now"])',
    ),
    # -- corrections and clipping
    Mutation("shrink-twice", "corrections/shrink.py", "g * self.beta, gradients", "g * self.beta**2, gradients"),
    Mutation(
        "shrink-where-nothing-is-late", "corrections/shrink.py", "return self.beta != 1", "return site.delay == 0"
    ),
    Mutation("staleness-one-ahead", "corrections/staleness.py", "step.number / self", "(step.number + 1) / self"),
    Mutation("drift-the-wrong-way", "corrections/discrepancy.py", "[w - site.delay", "[w + site.delay"),
    Mutation("compensation-the-wrong-way", "corrections/compensation.py", "[now - then for", "[then - now for"),
    Mutation("accumulated-sum", "corrections/accumulate.py", "lambda g: g / self.every", "lambda g: g"),
    Mutation(
        "global-norm-of-one-stage",
        "stage/_stage.py",
        "return torch.cat([norms, self._later_norms.to(norms)])",
        "return norms",
    ),
    # -- replicas
    Mutation(
        "replicas-not-weighted", "credit/_recording_stage.py", "self._forward, share * weight,", "self._forward, share,"
    ),
    Mutation(
        "replicas-leave-one-out",
        "credit/_chain_stage.py",
        "for gradients in contributions]",
        "for gradients in contributions[:1]]",
    ),
    Mutation(
        "replicas-share-their-dropout",
        "stage/_stage.py",
        "self.first_micro_batch = self.replica * schedule.micro",
        "self.first_micro_batch = 0",
    ),
    # -- checks of plans
    Mutation("check-misses-unread-messages", "plan/_check.py", "    if left_over:\n", "    if False:\n"),
    Mutation(
        "check-misses-staleness",
        "plan/_check.py",
        "if ahead != self.delay and not (drained and ahead <= self.delay + to_come):",
        "if False:",
    ),
    Mutation(
        "check-misses-the-order-of-messages",
        "plan/_check.py",
        "if sent.unit != action.unit:",
        "if False:",
    ),
    # -- tied weights and recorded models
    Mutation(
        "lent-weight-gets-no-gradient", "split/_tied.py", "return weight.clone()", "return weight.detach().clone()"
    ),
    Mutation(
        "lent-weight-aliases-the-live-one", "split/_tied.py", "return weight.clone()", "return weight.view_as(weight)"
    ),
    Mutation(
        "recorded-without-no-grad",
        "split/_recorder.py",
        "if not torch.is_grad_enabled() and holds_tensor(out) and not edited:",
        "if False:",
    ),
    Mutation(
        "traced-without-no-grad",
        "split/_tracer.py",
        "if torch.is_grad_enabled() != self._grad_enabled or self.autocast.entered:",
        "if False:",
    ),
    # -- data
    Mutation(
        "augmentation-of-another-batch",
        "data/_loader.py",
        "yield [None if each is None else each[i] for each in parts]",
        "yield [None if each is None else each[i // 2] for each in parts]",
    ),
    # -- races
    Mutation(
        "crop-of-every-epoch",
        "data/_images.py",
        "generator_for(self.seed, epoch, file)",
        "generator_for(self.seed, 0, file)",
    ),
    Mutation(
        "coarse-and-fine-labels-swapped",
        "data/_files.py",
        '{"coarse": 20, "fine": 100}',
        '{"fine": 100, "coarse": 20}',
    ),
    Mutation(
        "predictions-change-running-statistics",
        "credit/synthetic.py",
        "with torch.no_grad(), scratch_buffers(own.module):",
        "with torch.no_grad():",
    ),
    Mutation(
        "received-layers-not-counted",
        "racing/_copy.py",
        "        self.changes.add(worker, layer.index)\n",
        "",
    ),
    Mutation("sends-count-as-backward", "racing/_worker.py", "spans.whole() - sending", "spans.whole()"),
    Mutation(
        "gradients-wait-for-the-end-of-their-update",
        "racing/_times.py",
        "self._used[layer.index] = used = self.clock.mark(step=True)",
        "self._used[layer.index] = used = self.clock.mark()",
    ),
    # -- the papers' tables
    Mutation("dgl-with-small-heads", "reproduce/experiments/fdg.py", '"DGL": MLP_SR_AUX', '"DGL": DGL()'),
    Mutation(
        "duration-of-the-last-run-alone",
        "reproduce/jobs/training.py",
        "self._earlier + time.perf_counter() - started",
        "time.perf_counter() - started",
    ),
    Mutation(
        "two-commands-train-the-same", "reproduce/_runner.py", "if not self.store.hold(job, seed):", "if not job.title:"
    ),
    Mutation(
        "any-error-about-a-loss-is-a-divergence",
        "reproduce/jobs/training.py",
        "if not isinstance(error.__cause__ or error, FloatingPointError):",
        'if "loss" not in str(error):',
    ),
    Mutation(
        "equal-accuracies-differ",
        "reproduce/jobs/training.py",
        "round(100 * (share or 0.0), PLACES)",
        "100 * (share or 0.0)",
    ),
    Mutation(
        "pools-count-as-layers", "reproduce/_networks.py", "if any(weight.dim() > 1", "if True or any(weight.dim() > 1"
    ),
    Mutation("compiled-is-not-compiled", "reproduce/_store.py", '"-compiled" * self.compiled', '""'),
    Mutation(
        "gradients-as-they-come", "stage/_gradients.py", "return with_strides(gradient, weight)", "return gradient"
    ),
    Mutation("any-attribute-may-change", "trainer/_settings.py", "vars(module).keys() & used", "set()"),
    Mutation(
        "an-assigned-name-may-change-anywhere", "stage/_reads.py", "(own if on_first else others).add", "others.add"
    ),
    Mutation("callbacks-may-write", "trainer/_guard.py", "if positions or names:", "if False:"),
    Mutation("callbacks-may-set-data", "trainer/_guard.py", "if func == _SET_DATA and", "if False and"),
    Mutation("arrays-may-be-written", "trainer/_guard.py", "result.flags.writeable = False", "pass"),
    Mutation("callbacks-may-register", "trainer/_guard.py", "if threading.get_ident() == self._thread", "if False"),
    Mutation("other-threads-are-guarded", "trainer/_guard.py", "threading.get_ident() == self._thread and ", ""),
    Mutation(
        "callbacks-may-set-step-sizes",
        "stage/_groups.py",
        'if (see := getattr(_local, "see", None)) is not None:',
        "if see := None:",
    ),
    Mutation(
        "callbacks-may-replace-states",
        "trainer/_guard.py",
        "if list(map(id, _parts_of(optimizer))) !=",
        "if [] and [] !=",
    ),
    Mutation("hidden-changes-pass", "trainer/_guard.py", "if call.refusal is not None:", "if False:"),
    Mutation("stand-ins-before-a-callback", "stage/_stand_ins.py", "found += list(_present.values())", "pass"),
    Mutation("stand-ins-beside-a-callback", "stage/_stand_ins.py", "found.append(stand_ins)", "pass"),
    Mutation(
        "copies-in-flight-may-be-written",
        "stage/_weights.py",
        "(copy, self.live) for copy in",
        "(copy, copy) for copy in",
    ),
]


def occurrences(mutation: Mutation, checkout: Path) -> int:
    """How often the text is in its file: it must be there once."""
    file = checkout / "src/freewheel" / mutation.file
    return file.read_text().count(mutation.text) if file.exists() else 0


def first_failure(checkout: Path, *arguments: str) -> str | None:
    """The first test that fails, or file of tests that cannot be read, with what it says; None if there is none."""
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", f"--timeout={HANG_SECONDS}", *arguments]
    path = os.pathsep.join(str(checkout / folder) for folder in ("src", "tests"))
    environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "250"}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, cwd=checkout, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        process.wait()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what a test that hung has left
        log.seek(0)
        output = log.read()
    failed = re.search(r"^(?:FAILED|ERROR) (.+)$", output, re.MULTILINE)
    if failed is None and process.returncode != 0:
        raise RuntimeError(f"the tests did not run:\n{output[-3000:]}")
    return None if failed is None else failed[1]


def try_out(mutation: Mutation, checkout: Path) -> tuple[bool, str]:
    """Whether `make test` finds an error, and by what."""
    file = checkout / "src/freewheel" / mutation.file
    original = file.read_text()
    changed = original.replace(mutation.text, mutation.replacement)
    if file.suffix == ".py":
        compile(changed, mutation.file, "exec")  # it is an error in what the code does
    file.write_text(changed)
    try:
        failure = first_failure(checkout, *QUICK)
    finally:
        file.write_text(original)
    if failure is None:
        return False, "all tests pass"
    test = failure.partition(" - ")[0]
    if first_failure(checkout, test) is not None:
        return False, f"{test} fails without the error, too"
    return True, failure


def main() -> int:
    """Tries them out, one after the other, and says which are missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", choices=[m.name for m in MUTATIONS])
    parser.add_argument("--check", action="store_true", help="only look for the texts")
    arguments = parser.parse_args()
    chosen = [m for m in MUTATIONS if arguments.only is None or m.name in arguments.only]
    lost = {m.name: (m.file, count) for m in chosen if (count := occurrences(m, ROOT)) != 1}
    for name, (file, count) in lost.items():
        print(f"{name}: its text is in {file} {count} times instead of once: adapt it", file=sys.stderr)
    if lost:
        return 2
    if arguments.check:
        print(f"{len(chosen)} texts, each there once")
        return 0
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(shutil.copytree(ROOT, Path(folder) / "copy", ignore=shutil.ignore_patterns(*LEFT_OUT)))
        for mutation in chosen:
            began = time.monotonic()
            found, how = try_out(mutation, checkout)
            missed += not found
            seconds = time.monotonic() - began
            print(f"{'found ' if found else 'MISSED'} {mutation.name} ({seconds:.0f} s): {how[:200]}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} found")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
