"""`jitdnn studio`: data sets, training and a look inside, in a browser."""

from __future__ import annotations

from pathlib import Path

from jitdnn.errors import NotSupported


def run_studio(home: Path | None, host: str, port: int, browse: bool | None, slots: int | None) -> None:
    """Serve the studio until it is interrupted. Raises NotSupported without the packages of the extra."""
    try:
        from jitdnn.studio.web.serve import default_home, serve
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "jitdnn":
            raise
        raise NotSupported(
            f'the studio needs {error.name}, which is not installed: pip install "jitdnn[studio]"'
        ) from error
    serve(home or default_home(), host, port, slots, browse, lambda line: print(line, flush=True))
