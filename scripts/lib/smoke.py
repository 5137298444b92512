#!/usr/bin/env python3
"""Runs a short multi-process training and checks parity with a single process, output files and resume.

usage: scripts/smoke [--gpus N] [--cpu | --share-gpu] [--wiring] [--keep DIR]

Default: two processes on two GPUs over NCCL. Fails if there are fewer GPUs than --gpus, unless --cpu (Gloo, no GPU) or
--share-gpu (the processes share the available GPUs, over Gloo) is given. --wiring is for mock GPUs: it skips the checks of
computed values and reports which ones. Exits 0 if all checks pass.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
import runs  # noqa: E402

# A GPU finishes about 40 steps before the script can interrupt it; a mock GPU is slower.
LONGER = {"epochs": 3, "data": {"limit_train": 60000}}
LONGER_ON_MOCKS = {"epochs": 3, "data": {"limit_train": 5120}}
# Weight differences after 20 steps, relative to a tensor's norm. cuDNN's fp32 weight gradients have errors of up to 1.6e-3.
TOLERANCES = {"cpu": 1e-4, "cuda": 1e-3}
FILES = ("config.json", "accuracies.json", "model.pt", "metrics.jsonl", "summary.json", "logs/rank-0.log")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--gpus", type=int, default=2, metavar="N", help="number of processes and GPUs (default 2)")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--cpu", action="store_true", help="run on the CPU, over Gloo")
    how.add_argument("--share-gpu", action="store_true", help="allow fewer GPUs than processes, over Gloo")
    parser.add_argument("--wiring", action="store_true", help="skip checks of computed values (for mock GPUs)")
    parser.add_argument("--keep", metavar="DIR", help="keep the run folders in DIR, which must not exist yet")
    arguments = parser.parse_args()
    if arguments.gpus < 1:
        parser.error("--gpus must be at least 1")
    return arguments


def require_gpus(arguments):
    found = runs.gpu_names()
    needed = 0 if arguments.cpu else 1 if arguments.share_gpu else arguments.gpus
    if len(found) < needed:
        sys.exit(
            f"smoke: found {len(found)} GPUs, need {needed}; use a machine with enough GPUs, or --cpu"
            + (" or --share-gpu" if found else "")
        )


def expected_backend(arguments):
    shared = arguments.share_gpu and len(runs.gpu_names()) < arguments.gpus
    return "gloo" if arguments.cpu or shared else "nccl"


class Smoke:
    def __init__(self, arguments, folder):
        self.processes = arguments.gpus
        self.backend = expected_backend(arguments)
        self.device = "cpu" if arguments.cpu else "cuda"
        self.wiring = arguments.wiring
        self.folder = folder
        self.failures = 0

    def run(self, name, processes, **changes):
        changes = {"device": self.device, **changes}
        if processes > 1 and self.backend == "nccl":
            changes["backend"] = "nccl"
        return runs.Run(self.folder / name, runs.merged(runs.SMALL, changes), processes)

    def report(self, ok, what):
        self.failures += not ok
        print(f"{'ok    ' if ok else 'FAILED'}  {what}", flush=True)

    def report_difference(self, name, run, reference, tolerance):
        if self.wiring:
            print(f"skipped {name}: mock GPUs do not compute", flush=True)
            return
        difference = runs.relative_difference(run, reference)
        self.report(difference <= tolerance, f"{name}: weights differ by {difference:.1e} (at most {tolerance:.0e})")

    def check_parity(self):
        several = self.run("several", self.processes, max_steps=20).finish()
        one = self.run("one", 1, max_steps=20).finish()
        self.report_difference(f"parity of {self.processes} processes with one, 20 steps", several, one, TOLERANCES[self.device])

    def check_files(self, run):
        missing = [name for name in FILES if not (run.folder / name).exists()]
        missing += [] if list((run.folder / "checkpoints").glob("*")) else ["checkpoints/*"]
        self.report(not missing, f"files: {', '.join(missing) + ' missing' if missing else 'complete'}")
        summary, accuracies = run.summary(), run.read_json("accuracies.json")
        facts = {key: summary[key] for key in ("status", "world_size", "backend", "device", "epochs")}
        wanted = {"status": "finished", "world_size": self.processes, "backend": self.backend}
        agree = all(facts[key] == value for key, value in wanted.items())
        self.report(agree and facts["device"].startswith(self.device), f"summary: {json.dumps(facts)}")
        learned = self.wiring or 0.5 < accuracies[-1] <= 1
        self.report(
            learned and accuracies == [line["test_accuracy"] for line in run.epochs()],
            f"accuracies: {accuracies}" + (" (values not checked on mock GPUs)" if self.wiring else ""),
        )

    def long_run(self, name):
        changes = {} if self.device == "cpu" else LONGER_ON_MOCKS if self.wiring else LONGER
        return self.run(name, self.processes, **changes)

    def check_resume(self, whole):
        broken = self.long_run("interrupted").interrupt_after(5)
        before = len(broken.steps())
        broken.finish("--resume", "auto")
        steps = [line["step"] for line in broken.steps()]
        self.report(
            steps == [line["step"] for line in whole.steps()],
            f"resume: interrupted after step {before}; {len(steps)} step records, expected each step once",
        )
        self.report_difference("resumed run compared with an uninterrupted one", broken, whole, 0)


def main():
    arguments = parse_arguments()
    require_gpus(arguments)
    with tempfile.TemporaryDirectory(prefix="mnist-train-smoke-") as temporary:
        folder = Path(arguments.keep or temporary)
        if arguments.keep:
            folder.mkdir(parents=True)
        smoke = Smoke(arguments, folder)
        print(f"smoke: {smoke.processes} processes on {smoke.device}, backend {smoke.backend}", flush=True)
        try:
            smoke.check_parity()
            whole = smoke.long_run("whole").finish()
            smoke.check_files(whole)
            smoke.check_resume(whole)
        except (RuntimeError, OSError, KeyError, ValueError) as error:
            smoke.report(False, str(error))
    print("smoke: " + (f"failed checks: {smoke.failures}" if smoke.failures else "passed"))
    return 1 if smoke.failures else 0


if __name__ == "__main__":
    sys.exit(main())
