"""``dpft export push_to_hub=`` against a local server that answers as the Hugging Face Hub does."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
import yaml
from huggingface_hub import metadata_load

from tests.slowness import exhaustive_but
from tests.stories.tiny import TRAINING, Workspace, make_workspace

pytestmark = pytest.mark.slow
TOKEN = "hf_secret"


class Hub(BaseHTTPRequestHandler):
    """The endpoints that an upload uses; the server's attributes keep what it received."""

    server: Any

    def _answer(self, status: int, content: Any = None, **headers: str) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _is_allowed(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def do_HEAD(self) -> None:
        self._answer(200)

    def do_GET(self) -> None:
        name = self.path.removeprefix("/api/models/").partition("/revision/")[0]
        if name not in self.server.repositories:
            return self._answer(404, {"error": "not found"}, X_Error_Code="RepoNotFound")
        private = self.server.repositories[name]
        return self._answer(200, {"id": name, "private": private, "siblings": []})

    def do_POST(self) -> None:
        body = self._body()
        if not self._is_allowed():
            return self._answer(403, {"error": "The token has no permission to write."})
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            if name in self.server.repositories:
                return self._answer(409, {"url": f"{self.server.url}/{name}"})
            self.server.repositories[name] = asked.get("visibility") == "private"
            return self._answer(200, {"url": f"{self.server.url}/{name}"})
        if self.path == "/api/validate-yaml":
            yaml.safe_load(json.loads(body)["content"].split("---")[1])
            return self._answer(200, {"errors": [], "warnings": []})
        if "/preupload/" in self.path:
            files = json.loads(body)["files"]
            modes = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                }
                for file in files
            ]
            return self._answer(200, {"files": modes})
        if self.path.endswith("/info/lfs/objects/batch"):
            objects = [
                {
                    **wanted,
                    "actions": {"upload": {"href": f"{self.server.url}/blob/{wanted['oid']}"}},
                }
                for wanted in json.loads(body)["objects"]
            ]
            return self._answer(200, {"transfer": "basic", "objects": objects})
        if "/commit/" in self.path:
            lines = [json.loads(line) for line in body.splitlines()]
            self.server.files += [
                line["value"]["path"] for line in lines if line["key"] in ("file", "lfsFile")
            ]
            return self._answer(
                200, {"commitUrl": f"{self.server.url}/acme/mine/commit/1", "commitOid": "1" * 40}
            )
        return self._answer(404, {"error": self.path})

    def do_PUT(self) -> None:
        self.server.blobs.append(len(self._body()))
        self._answer(200)

    def log_message(self, *arguments: object) -> None:
        """Print no line for each request."""


@pytest.fixture
def hub() -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.url = f"http://127.0.0.1:{server.server_port}"
    server.repositories, server.files, server.blobs = {"acme/public": False}, [], []
    Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace with a finished run ``run`` of LoRA."""
    workspace = make_workspace(tmp_path_factory.mktemp("push"))
    words = ("method=lora", "train.steps=1", "privacy.noise_multiplier=1", "eval.limit=2")
    outcome = workspace.run(
        "train", *TRAINING, *words, "decode.max_new_tokens=4", "hydra.run.dir=run"
    )
    assert outcome.code == 0, outcome.err
    return workspace


def push(
    workspace: Workspace, hub: Any, *words: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Export the run in a process of its own, because the library reads its variables once."""
    variables = {
        "HF_ENDPOINT": hub.url,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_OFFLINE": "0",
        "HF_TOKEN": TOKEN,
        "HF_HOME": str(workspace.root / "cache"),
        **environment,
    }
    command = [sys.executable, "-m", "dpft", "export", "run=run", "base_model=acme/tiny", *words]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=workspace.root, env=os.environ | variables
    )


def test_a_push_creates_a_private_repository_with_the_files_of_the_export(
    workspace: Workspace, hub: Any
) -> None:
    result = push(workspace, hub, "push_to_hub=acme/mine", "to=pushed")
    assert result.returncode == 0, result.stderr
    assert hub.repositories["acme/mine"] is True
    exported = {
        path.relative_to(workspace.root / "pushed").as_posix()
        for path in (workspace.root / "pushed").rglob("*")
        if path.is_file()
    }
    assert set(hub.files) == exported and "adapter_model.safetensors" in exported
    assert hub.blobs == [(workspace.root / "pushed/adapter_model.safetensors").stat().st_size]
    assert f"{hub.url}/acme/mine" in result.stderr and TOKEN not in result.stderr


def test_a_push_publishes_only_if_it_is_asked_to(workspace: Workspace, hub: Any) -> None:
    result = push(workspace, hub, "push_to_hub=acme/public")
    assert result.returncode == 2 and "private=false" in result.stderr and not hub.files
    result = push(workspace, hub, "push_to_hub=acme/public", "private=false")
    assert result.returncode == 0, result.stderr
    assert hub.files and not (workspace.root / "run" / "export").exists()


REJECTED_BY_THE_HUB = [
    ("acme/mine", {"HF_TOKEN": "hf_wrong"}, "no permission"),
    ("acme/mine", {"HF_TOKEN": ""}, "hf auth login"),
    ("acme/mine", {"HF_ENDPOINT": "http://127.0.0.1:9"}, "does not answer"),
    ("acme/my model", {}, "my model"),
]


@pytest.mark.parametrize(
    ("name", "environment", "said"), exhaustive_but(REJECTED_BY_THE_HUB[:1], REJECTED_BY_THE_HUB)
)
def test_a_push_that_cannot_succeed_is_rejected_and_uploads_nothing(
    workspace: Workspace, hub: Any, name: str, environment: dict[str, str], said: str
) -> None:
    result = push(workspace, hub, f"push_to_hub={name}", **environment)
    assert result.returncode == 2 and said in result.stderr, result.stderr
    assert hub.files == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("acme/mine", "HF_HUB_OFFLINE=1"),  # tests run offline
        ("mine", "USER/NAME"),
        ("a/b/c", "USER/NAME"),
    ],
)
def test_a_push_that_needs_no_network_to_fail_is_rejected(
    workspace: Workspace, name: str, said: str
) -> None:
    outcome = workspace.run("export", "run=run", "base_model=acme/tiny", f"push_to_hub={name}")
    assert outcome.code == 2 and said in outcome.err, outcome.err


def test_a_dry_run_lists_the_files_and_the_card_and_writes_nothing(workspace: Workspace) -> None:
    before = set(workspace.root.rglob("*"))
    dry = ("push_to_hub=acme/dry", "dry_run=true")
    outcome = workspace.run("export", "run=run", "base_model=acme/tiny", *dry)
    assert outcome.code == 0, outcome.err
    listing, _, card = outcome.out.partition("\n---\n")
    names = [line.split()[0] for line in listing.splitlines() if line]
    assert "adapter_model.safetensors" in names and "ledger.jsonl" in names
    assert not any(name.startswith("private") for name in names)
    assert "base_model: acme/tiny" in card and 'folder = "acme/dry"' in card
    assert set(workspace.root.rglob("*")) == before


def test_the_card_has_the_metadata_that_the_library_reads(workspace: Workspace) -> None:
    outcome = workspace.run("export", "run=run", "to=carded", "base_model=acme/tiny")
    assert outcome.code == 0, outcome.err
    metadata = metadata_load(workspace.root / "carded" / "README.md")
    assert metadata is not None
    assert metadata["license"] == "apache-2.0" and metadata["library_name"] == "peft"
    assert metadata["base_model_relation"] == "adapter"
    assert metadata["pipeline_tag"] == "text-generation"
    assert {"differential-privacy", "dp-sgd", "dpft"} <= set(metadata["tags"])
    assert "model-index" not in metadata and "datasets" not in metadata, "the data is the user's"
