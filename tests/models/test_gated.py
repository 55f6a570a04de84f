"""A gated model of the Hub, which a local server stands for, can be planned but not trained."""

import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest


class Gate(BaseHTTPRequestHandler):
    """Answers as the Hub does without a token that has access."""

    def do_GET(self) -> None:
        is_reachable = self.path == "/"
        self.send_response(200 if is_reachable else 401)
        if not is_reachable:
            self.send_header("X-Error-Code", "GatedRepo")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *arguments: object) -> None:
        """Print no line for each request."""


@pytest.fixture
def hub() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Gate)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_a_gated_model_is_planned_and_its_training_is_refused(hub: str, tmp_path: Path) -> None:
    words = ["task=e2e", "task.source=embedded", "model=llama-3.2-1b", "method=lora"]
    words += ["privacy.noise_multiplier=1", "train.micro_batch_size=1"]
    environment = os.environ | {
        "HF_ENDPOINT": hub,
        "HF_HOME": str(tmp_path / "cache"),
        "HF_HUB_OFFLINE": "0",
    }

    def dpft(command: str, *more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "dpft", command, *words, *more],
            capture_output=True,
            text=True,
            env=environment,
            cwd=tmp_path,
        )

    planned = dpft("plan", "plan.measure=false")
    assert planned.returncode == 0, planned.stderr
    assert "1,236,240,384" in planned.stdout
    refused = dpft("train")
    assert refused.returncode == 2
    assert (
        "https://huggingface.co/meta-llama/Llama-3.2-1B, then log in. Try: hf auth login"
        in refused.stderr
    )
    assert "Traceback" not in refused.stderr
