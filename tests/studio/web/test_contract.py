"""The REST API keeps its contract: what OpenAPI allows is answered as it says, and never by a fault of the server."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra jitdnn[studio] is not installed")
pytest.importorskip("schemathesis", reason="schemathesis is not installed")

from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import checks, openapi
from schemathesis.specs.openapi import checks as openapi_checks

from jitdnn.studio import nets
from jitdnn.studio.web.app import make_app
from studio_pages import Here

EXAMPLES = 3


@pytest.fixture(scope="module")
def contract(tmp_path_factory: pytest.TempPathFactory) -> Any:
    app = make_app(tmp_path_factory.mktemp("studio"), serve_queue=False)
    studio = app.state.studio
    studio.inspector = Here()
    store = studio.store
    store.set_setting("roots", [str(tmp_path_factory.mktemp("roots"))])
    dataset = store.insert("dataset", name="d", classes=["a", "b"], shape=[1, 8, 8], train=4, test=2)
    for state in ("done", "running", "queued", "failed"):
        run = store.insert(
            "run", name=state, dataset=dataset, state=state, options={"epochs": 1, "batch": 2}, max_iter=2
        )
        store.folder(run).mkdir(parents=True)
        (store.folder(run) / "original.prototxt").write_text(nets.gallery()[0]["text"])
        store.add_points(run, [("loss", 1, 1.0), ("loss", 2, float("nan"))])
    found = openapi.from_asgi("/api/openapi.json", app)
    # a stream has no end
    return found.exclude(path_regex="/events$")


CHECKS = [
    checks.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_schema_conformance,
]


def test_answers_keep_the_contract(contract: Any) -> None:
    wrong: list[str] = []
    seen: dict[int, set[str]] = {}
    for found in contract.get_all_operations():
        operation = found.ok()

        @settings(
            max_examples=EXAMPLES, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck),
            derandomize=True, database=None,
        )  # fmt: skip
        @given(case=operation.as_strategy())
        def asked(case: Any) -> None:
            answer = case.call()
            seen.setdefault(answer.status_code, set()).add(case.operation.label)
            case.validate_response(answer, checks=CHECKS)

        try:
            asked()
        except Exception as error:
            wrong.append(f"{operation.label}: {error}")
    assert not wrong, "\n\n".join(wrong)
    # most of it was asked in a way that is let in
    assert len(seen[200]) > 10
    assert len(set().union(*seen.values())) > 30
