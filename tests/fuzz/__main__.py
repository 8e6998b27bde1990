"""The command line of the fuzzer: see the docstring of the package."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE.parent)  # the folder of the package, in place of the package itself
os.environ.setdefault("JITDNN_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("JITDNN_LOG", "off")
os.environ.setdefault("POCL_EXTRA_BUILD_FLAGS", "-cl-opt-disable")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/fuzz", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="random problems until there were enough")
    running.add_argument("--seed", type=int, default=int(datetime.date.today().strftime("%Y%m%d")))
    running.add_argument("--operations", help="names, separated by commas, or kernels; all by default")
    running.add_argument("--target", default="cpu", help="cpu, opencl, cuda or emulated")
    running.add_argument("--problems", type=int, help="stop after so many")
    running.add_argument("--seconds", type=float, help="stop after so many")
    running.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    running.add_argument("--group", type=int, default=16, help="problems that share a structure")
    running.add_argument("--faults", type=Path, help="file that gets a line of JSON for each fault")
    again = commands.add_parser("repeat", help="one problem again")
    again.add_argument("seed", type=int)
    again.add_argument("operation")
    again.add_argument("number", type=int)
    again.add_argument("--target", default="cpu")
    again.add_argument("--group", type=int, default=16)
    again.add_argument("--shrink", action="store_true", help="and the simplest one that fails alike")
    commands.add_parser("list", help="the operations and the public functions that they call")
    worker = commands.add_parser("worker")
    for name in ("seed", "target", "group", "current"):
        worker.add_argument(name)
    trying = commands.add_parser("try")
    for name in ("seed", "operation", "number", "target", "group"):
        trying.add_argument(name)
    given = parser.parse_args()

    # only now, so that --help is quick
    from fuzz import campaign, shrink
    from fuzz.draw import Draw
    from fuzz.operations import OPERATIONS
    from fuzz.run import attempt
    from fuzz.targets import target

    if given.command == "worker":
        campaign.work(int(given.seed), given.target, int(given.group), given.current)
        return 0
    if given.command == "try":
        tapes = json.loads(sys.stdin.read())
        found = shrink.fails_here(
            int(given.seed), given.operation, int(given.number), given.target, tapes, int(given.group)
        )
        sys.stdout.write(f"{found}\n" if found else "")
        return 0
    if given.command == "list":
        for name, one in sorted(OPERATIONS.items()):
            sys.stdout.write(f"{name:28} {', '.join(one.functions)}\n")
        return 0
    if given.command == "repeat":
        tapes = None
        outcome = None
        if given.shrink:
            pid = os.fork()  # it may die
            if pid == 0:
                outcome = attempt(
                    given.seed, given.operation, given.number, target(given.target), None, given.group
                )
                os._exit(0 if outcome.fault is None else 1)
            died = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) < 0
            made = shrink.tapes_of(given.seed, given.operation, given.number, given.group)
            kind = "crash" if died else shrink.fails_here(
                given.seed, given.operation, given.number, given.target, made, given.group
            )  # fmt: skip
            if kind is None:
                sys.stdout.write("no fault\n")
                return 0
            tapes = shrink.shrink(
                given.seed, given.operation, given.number, given.target, made, kind, group=given.group
            )
            sys.stdout.write(f"tapes {json.dumps(tapes)}\n")
            sys.stdout.write(f"{OPERATIONS[given.operation].make(Draw('', tapes[0]))}\n")
            sys.stdout.flush()
        outcome = attempt(given.seed, given.operation, given.number, target(given.target), tapes, given.group)
        sys.stdout.write(shrink.describe(outcome) + "\n")
        return 1 if outcome.fault is not None else 0
    names = given.operations.split(",") if given.operations else sorted(OPERATIONS)
    if names == ["kernels"]:  # those beneath the public functions
        names = sorted(name for name, one in OPERATIONS.items() if one.targets)
    unknown = [name for name in names if name not in OPERATIONS]
    if unknown:
        parser.error(f"no operation {', '.join(unknown)}: see the list")
    names = [name for name in names if OPERATIONS[name].runs_on(given.target)]
    if not names:
        parser.error(f"none of these runs on {given.target}")
    if given.problems is None and given.seconds is None:
        given.seconds = 180.0
    sys.stdout.write(f"seed {given.seed}, target {given.target}, {len(names)} operations\n")
    sys.stdout.flush()
    tally = campaign.run(
        given.seed, names, given.target, given.problems, given.seconds, given.workers, sys.stdout, given.group,
        given.faults,
    )  # fmt: skip
    sys.stdout.write(tally.table() + "\n")
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
