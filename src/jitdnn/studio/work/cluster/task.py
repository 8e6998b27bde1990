"""What a Dask worker does for one start of a run: a process that trains, in a session of its own, waited for."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from jitdnn.cluster.engine import is_wanted
from jitdnn.studio.work.cluster.remote import TLS, TOKEN

_PERIOD = 0.2


def run_task(address: str, run: int, lease: int, token: str) -> int:
    """Start the training and wait for its end; its exit code. RuntimeError with what it printed last if it fails."""
    import distributed

    security = distributed.get_worker().security
    environment = {**os.environ, TOKEN: token}
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as log:
        tls = Path(folder)
        (tls / "ca.pem").write_bytes(Path(security.tls_ca_file).read_bytes())
        parts = dict.fromkeys([security.tls_worker_cert, security.tls_worker_key])
        (tls / "worker.pem").touch(mode=0o600)
        (tls / "worker.pem").write_bytes(b"\n".join(Path(part).read_bytes() for part in parts if part))
        environment[TLS] = folder
        command = [sys.executable, "-m", "jitdnn.studio.work", address, str(run), str(lease)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
        key, is_told = distributed.worker.thread_state.key, False
        while (code := process.poll()) is None:
            if not is_told and not is_wanted(key):  # its lease is over: it takes a snapshot, and leaves
                process.terminate()
                is_told = True
            time.sleep(_PERIOD)
        if code:
            log.seek(max(0, log.tell() - 4000))
            raise RuntimeError(f"the worker ended with {code}: {log.read().decode('utf-8', 'replace')}")
        return code
