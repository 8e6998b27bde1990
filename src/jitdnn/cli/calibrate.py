"""`jitdnn calibrate`: a device file for this processor."""

from __future__ import annotations

from pathlib import Path

from jitdnn.bench import calibrate
from jitdnn.bench.choices import summary_lines
from jitdnn.cli.console import progress, say
from jitdnn.devices.cpu import host
from jitdnn.errors import InvalidArgument
from jitdnn.settings import settings


def run_calibrate(out: Path, threads: int | None, seconds: float) -> int:
    """Measure and write. Returns 1 if a result was wrong, and writes nothing then."""
    if not out.absolute().parent.is_dir():
        raise InvalidArgument(
            f"{str(out)!r} cannot be written: there is no folder {str(out.absolute().parent)!r}"
        )
    with settings(**({} if threads is None else {"threads": threads})) as values:
        device = host(values.threads, values.cpu)
        problems = calibrate.layers()
        with progress(len(problems), "measuring", is_quiet=True) as advance:
            rows = calibrate.measure(problems, seconds, advance)
    failures = [row for row in rows if row.failure is not None or row.wrong]
    for row in failures:
        say(f"{row.problem}: {row.failure or row.wrong}")
    for line in summary_lines(rows):
        say(line)
    if failures:
        return 1
    calibrate.write(out, calibrate.device_file(device, rows))
    say(f"wrote {out}: set JITDNN_DEVICE_FILE={out.absolute()}")
    return 0
