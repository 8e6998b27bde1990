"""The commands of `jitdnn studio` that ask one that is served."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="the extra jitdnn[studio] is not installed")

import uvicorn

import studio_trained
from command_line import call
from jitdnn.studio import nets
from jitdnn.studio.web.app import make_app
from jitdnn.studio.web.guard import Guard
from jitdnn.studio.web.serve import _only_server
from jitdnn.studio.work.inspector import Inspector
from studio_trained import Case

TOKEN = "a-token-of-the-test-0123456789abcdef"


@pytest.fixture(scope="module")
def case() -> Iterator[Case]:
    """A home with a data set and a trained run, served; what is queued stays queued."""
    made = studio_trained.digits()

    async def inspect(self, function, *arguments, seconds=None):  # type: ignore[no-untyped-def]
        return function(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Inspector, "inspect", inspect)
        server = uvicorn.Server(
            uvicorn.Config(
                Guard(make_app(made.home, serve_queue=False), TOKEN, set(), "c"),
                port=0,
                log_level="warning",
                ws="none",
            )
        )
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        (made.home / "token").write_text(TOKEN + "\n")
        with _only_server(made.home) as note:
            note.write(f"http://127.0.0.1:{port}")
            note.flush()
            yield made
        server.should_exit = True
        thread.join(10)


def test_a_run_from_its_order_to_its_end(
    case: Case, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    studio = ("studio", "--home", case.home)
    code, out, _ = call(capsys, *studio, "datasets")
    assert (code, out.splitlines()[0].split("\t")[:2]) == (0, ["id", "name"])
    assert case.dataset["name"] in out
    code, out, err = call(
        capsys, *studio, "submit", "lenet", "--data", case.dataset["name"], "--name", "By hand", "--on", "cpu",
        "--set", "epochs=3", "--set", "steps=50, 75", "--set", "freeze=conv1", "--set", "mirror=false",
        "--set", "class_weights=balanced",
    )  # fmt: skip
    assert (code, err) == (0, "")
    run = int(out)
    code, out, _ = call(capsys, *studio, "status", run, "--json")
    row = json.loads(out)
    assert (row["name"], row["state"], row["wants"]) == ("By hand", "queued", "cpu")
    assert row["options"]["steps"] == [50, 75]
    assert row["options"]["freeze"] == ["conv1"]
    assert (row["options"]["epochs"], row["options"]["mirror"]) == (3, False)
    code, out, _ = call(capsys, *studio, "runs", "by", "hand")
    assert [line.split("\t")[:3] for line in out.splitlines()[1:]] == [[str(run), "By hand", "queued"]]
    code, out, _ = call(capsys, *studio, "pause", run)
    assert (code, out.split("\t")[0]) == (0, str(run))
    code, out, err = call(capsys, *studio, "wait", run)
    assert (code, "paused" in err) == (1, True)
    assert call(capsys, *studio, "resume", run)[0] == 0
    assert call(capsys, *studio, "stop", run)[0] == 0
    net = tmp_path / "net.prototxt"
    net.write_text(nets.gallery()[0]["text"])
    code, out, _ = call(capsys, *studio, "submit", net, "--data", case.dataset["id"], "--json")
    assert json.loads(out)["dataset"] == case.dataset["id"]


def test_what_was_learned_is_exported(case: Case, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "w.safetensors"
    code, out, _ = call(
        capsys, "studio", "--home", case.home, "export", case.run["id"], "safetensors", target
    )
    assert code == 0
    assert out.splitlines()[0] == f"{target}\t{target.stat().st_size} bytes"
    assert "checked by" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("status", 99), "no run 99"),
        (("submit", "lenet", "--data", "nothing"), "there is no data set 'nothing': there are"),
        (("submit", "no_such_net", "--data", "1"), "no net of the gallery: there are lenet"),
        (("submit", "lenet", "--data", "1", "--set", "epochs"), "OPTION=VALUE"),
        (("submit", "lenet", "--data", "1", "--set", "epochs=many"), "epochs"),
        (("export", 1, "zip", "a"), "bundle"),
    ],
)
def test_refusals(
    case: Case, capsys: pytest.CaptureFixture[str], arguments: tuple[object, ...], said: str
) -> None:
    code, out, err = call(capsys, "studio", "--home", case.home, *arguments)
    assert (code, out) == (1, "")
    assert err.startswith("jitdnn: ")
    assert said in err
    assert err.count("\n") == 1


def test_no_studio_is_served(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = call(capsys, "studio", "--home", tmp_path, "runs")
    assert code == 1
    assert "start `jitdnn studio`" in err
