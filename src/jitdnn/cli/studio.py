"""`jitdnn studio`: data sets, training and a look inside, in a browser; `jitdnn serve`: a trained net that answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Final

from jitdnn.errors import NotSupported


def run_studio(home: Path | None, host: str, port: int, browse: bool | None, slots: int | None) -> None:
    """Serve the studio until it is interrupted. Raises NotSupported without the packages of the extra."""
    with _naming_the_extra():
        from jitdnn.studio.store.folders import default_home
        from jitdnn.studio.web.serve import serve
    serve(home or default_home(), host, port, slots, browse, lambda line: print(line, flush=True))


def run_serve(bundle: Path, host: str, port: int, token: str) -> None:
    """Serve a bundle until it is interrupted. Raises NotSupported without the packages of the extra."""
    with _naming_the_extra():
        from jitdnn.studio.web.bundle_server import serve_bundle
    serve_bundle(bundle, host, port, token, lambda line: print(line, flush=True))


_PACKAGES: Final = ("fastapi", "uvicorn", "jinja2", "python_multipart", "PIL")


@contextmanager
def _naming_the_extra() -> Iterator[None]:
    try:
        # some are imported when the first page is made, and by others in words of their own
        for name in _PACKAGES:
            import_module(name)
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "jitdnn":
            raise
        raise NotSupported(
            f'the studio needs {error.name}, which is not installed: pip install "jitdnn[studio]"'
        ) from error
