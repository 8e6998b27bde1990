"""A traced kernel of one's own with a parameter, and the parameter's best value found by measuring."""

import numpy as np

import jitdnn as jd

RUN = 1 << 14  # elements of a task
x = np.random.default_rng(0).standard_normal(64 * RUN).astype(np.float32)
sums = np.zeros(64, np.float32)


def sum_of_squares(accumulators):
    """One task sums the squares of its run in several vectors, whose additions do not wait for each other."""

    def trace(module):
        with module.task("squares") as (k, args, task, thread):
            lanes = k.lanes("f32")
            run = k.pointer(args, 0, "f32") + task * RUN
            totals = [k.register(k.constant(0.0, "f32", lanes)) for _ in range(accumulators)]
            for i in k.range(0, RUN, lanes * accumulators):
                for number, total in enumerate(totals):
                    value = run.load(i + number * lanes, lanes)
                    total.set(k.fma(value, value, total.get()))
            whole = totals[0].get()
            for total in totals[1:]:
                whole = whole + total.get()
            (k.pointer(args, 1, "f32") + task).store(k.reduce(whole))

    return jd.module(trace)["squares"]


def build(accumulators):
    kernel = sum_of_squares(accumulators)
    return lambda: kernel(x, sums, tasks=64)


found = jd.autotune(build, {"accumulators": [1, 2, 4, 8]}, key=f"squares {x.size}", seconds=0.5)
print(found.explain())
build(**found.config)()
print("sum of squares:", sums.sum(), "and by NumPy:", float(x @ x))
