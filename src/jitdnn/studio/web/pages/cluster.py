"""Trainings on other machines: the address that they know this one by, which holds from the server's next start on."""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import APIRouter, Form
from fastapi.responses import RedirectResponse, Response
from pydantic import BaseModel, Field

from jitdnn.errors import InvalidArgument
from jitdnn.studio import texts
from jitdnn.studio.web.context import Here, Route

router = APIRouter(route_class=Route)
_HOST = re.compile(r"[A-Za-z0-9.:_-]{0,253}")


class Cluster(BaseModel):
    """How machines of a cluster reach this one."""

    host: str = Field(default="", max_length=253, description="name or address; empty: no other machines")
    scheduler_port: int = Field(default=8786, ge=1, le=65535, description="Dask's scheduler, TLS")
    gateway_port: int = Field(default=8787, ge=1, le=65535, description="reports and files, TLS")


@router.get("/api/cluster")
def read_cluster(studio: Here) -> dict[str, Any]:
    """The setting, and the command that gives another machine's places to this studio."""
    found = Cluster(**(studio.store.setting("cluster") or {}))
    command = (
        f"dask worker tls://{found.host}:{found.scheduler_port} --tls-ca-file ca.pem --tls-cert worker.pem "
        '--tls-key worker.pem --nthreads 1 --resources "cpu=1"'
    )
    return found.model_dump() | {"command": command if found.host else ""}


@router.put("/api/cluster")
def change_cluster(studio: Here, cluster: Cluster) -> dict[str, Any]:
    """Set it; the next start of the server makes certificates in the home's folder `tls`, and listens."""
    if not _HOST.fullmatch(cluster.host):
        raise InvalidArgument(
            texts.text("host is %(host)s: give a name or an address", host=repr(cluster.host[:60]))
        )
    if cluster.scheduler_port == cluster.gateway_port:
        raise InvalidArgument(texts.text("both ports are %(port)d: give two", port=cluster.gateway_port))
    studio.store.set_setting("cluster", cluster.model_dump() if cluster.host else None)
    return read_cluster(studio)


@router.post("/cluster", include_in_schema=False)
def cluster_form(studio: Here, host: Annotated[str, Form(max_length=253)] = "") -> Response:
    change_cluster(studio, Cluster(**(studio.store.setting("cluster") or {}) | {"host": host.strip()}))
    return RedirectResponse("/settings?saved=true", 303)
