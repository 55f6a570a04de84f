import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from dpft.data.sources import fetch, load_examples
from dpft.errors import InputError
from dpft.tasks.e2e import E2ETask

CSV = b'mr,ref\n"name[Aromi], area[riverside]",Aromi is by the river.\n'


class Handler(BaseHTTPRequestHandler):
    requests: list[str] = []

    def do_GET(self):
        self.requests.append(self.path)
        if "missing" in self.path:
            self.send_error(404)
            return
        self.send_response(200)
        # a server that dies halfway announces more than it sends
        self.send_header("Content-Length", str(len(CSV) + 10 * ("cut" in self.path)))
        self.end_headers()
        self.wfile.write(CSV)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch) -> Iterator[str]:
    monkeypatch.setenv("DPFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    Handler.requests = []
    http = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{http.server_port}"
    http.shutdown()
    http.server_close()


def test_a_file_is_fetched_once_and_then_read_from_the_cache(server):
    for _ in range(2):
        assert fetch(f"{server}/train.csv", cache=True) == CSV
    assert Handler.requests == ["/train.csv"]


def test_the_url_source_reads_the_official_column_names(server):
    task = E2ETask(
        name="e2e",
        source="url",
        urls={"train": f"{server}/trainset.csv"},
        column_aliases={"mr": "meaning_representation", "ref": "human_reference"},
    )
    (example,) = load_examples(task, "train")
    assert example.target == "Aromi is by the river."


@pytest.mark.parametrize("file", ["missing.csv", "cut.csv"])
def test_a_failed_download_is_said_with_the_ways_out_and_leaves_nothing(server, file, tmp_path):
    with pytest.raises(InputError, match=r"task\.data_dir.*task\.source=embedded model=tiny"):
        fetch(f"{server}/{file}", cache=True)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_an_unreachable_address_is_said_with_the_ways_out(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFT_CACHE", str(tmp_path))
    with pytest.raises(InputError, match=r"127\.0\.0\.1:1/train\.csv .*task\.data_dir"):
        fetch("http://127.0.0.1:1/train.csv", cache=True)


def test_a_file_address_is_refused():
    with pytest.raises(InputError, match=r"task\.urls must be http.*task\.data_dir"):
        fetch("file:///etc/hosts", cache=True)


def test_without_a_writable_cache_the_file_is_still_read(server, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DPFT_CACHE", str(tmp_path / "file"))
    assert fetch(f"{server}/train.csv", cache=True) == CSV


def test_a_users_own_file_is_kept_in_no_cache(server, tmp_path, monkeypatch):
    monkeypatch.setenv("DPFT_CACHE", str(tmp_path / "cache"))
    assert fetch(f"{server}/train.csv", cache=False) == CSV
    assert not (tmp_path / "cache").exists()
