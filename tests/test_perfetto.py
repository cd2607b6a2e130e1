"""The button for Perfetto: what it says and holds, and that a browser hands the file over.

The browser test needs Chromium. A stand-in page answers like ui.perfetto.dev and posts what it
got back to the test; a slow page that never answers shows what a reader without internet sees.
"""

import base64
import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue

import pytest

from helpers import perfetto
from helpers.perfetto import open_in_perfetto

pytest.importorskip("IPython")
TRACE = json.dumps({"traceEvents": [{"ph": "X", "name": "aten::mm", "ts": 1, "dur": 2}]})
NASTY = "a & b <img src=x onerror=document.title='hit'> <!--<script> KEY DATA 'q' é.json"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "03_chain.json.gz"
    path.write_bytes(gzip.compress(TRACE.encode(), mtime=0))
    return path


@pytest.fixture
def shown(monkeypatch):
    """What open_in_perfetto displays in a notebook, a dict for each call."""
    found = []
    monkeypatch.setattr(perfetto, "in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda data, raw: found.append(data))
    return found


def held(page):
    """Return what the page's script was given."""
    return json.loads(re.search(r"base64\} = (\{.*\});$", page, re.M)[1])


def test_without_jupyter_it_tells_how_by_hand(trace, capsys):
    open_in_perfetto(trace)
    printed = capsys.readouterr().out
    assert "internet" in printed
    assert "open https://ui.perfetto.dev and drag the file 03_chain.json.gz onto" in printed
    assert str(trace.parent) not in printed
    assert max(map(len, printed.splitlines())) <= 95


def test_a_missing_file_and_a_bad_address_are_told(trace, tmp_path, shown):
    with pytest.raises(FileNotFoundError, match="no file .*absent.json"):
        open_in_perfetto(tmp_path / "absent.json")
    with pytest.raises(FileNotFoundError):
        open_in_perfetto(tmp_path)
    with pytest.raises(ValueError, match="https://, not 'ui.perfetto.dev'"):
        open_in_perfetto(trace, "ui.perfetto.dev")
    assert not shown


def test_the_page_holds_the_zipped_file_and_says_where_it_goes(trace, shown):
    open_in_perfetto(str(trace))
    data = held(shown[0]["text/html"])
    assert base64.b64decode(data["base64"]) == trace.read_bytes()
    assert (data["file"], data["url"]) == ("03_chain.json.gz", "https://ui.perfetto.dev")
    for text in (shown[0]["text/html"], shown[0]["text/plain"]):
        assert "internet" in text and "not to a server" in text
        assert str(trace.parent) not in text
    assert "<" not in shown[0]["text/plain"]


def test_where_scripts_do_not_run_the_text_tells_the_way_by_hand(trace, shown):
    open_in_perfetto(trace)
    page = re.sub(r"<script>.*?</script>", "", shown[0]["text/html"], flags=re.S)
    assert "<button" not in page
    assert "drag the file 03_chain.json.gz onto that page" in page


def test_plain_json_is_zipped_on_the_way(tmp_path, shown):
    path = tmp_path / "plain.json"
    path.write_text(TRACE)
    open_in_perfetto(path)
    packed = base64.b64decode(held(shown[0]["text/html"])["base64"])
    assert packed[:2] == b"\x1f\x8b"
    assert gzip.decompress(packed).decode() == TRACE


def test_the_same_file_gives_the_same_page(trace, shown):
    open_in_perfetto(trace)
    open_in_perfetto(trace)
    open_in_perfetto(trace, "https://example.org")
    first, second, other = (page["text/html"] for page in shown)
    assert first == second
    key = re.compile(r'data-perfetto="(\w+)"')
    assert key.search(first)[1] != key.search(other)[1]


def test_names_cannot_leave_their_place(tmp_path, shown):
    path = tmp_path / NASTY
    path.write_text(TRACE)
    open_in_perfetto(path, "https://example.org/</script><b>")
    page = shown[0]["text/html"]
    assert page.count("</script") == page.count("<script") == 1
    assert "<img" not in page and "<b>" not in page and "<!--" not in page
    assert held(page)["file"] == NASTY


def test_a_file_of_this_repository_is_named_by_its_path(shown):
    open_in_perfetto(perfetto.Path(perfetto.__file__).with_name("course.mplstyle"))
    assert "drag the file helpers/course.mplstyle onto" in shown[0]["text/plain"]


def test_a_large_file_gets_no_button_but_a_reason(trace, shown, monkeypatch, capsys):
    monkeypatch.setattr(perfetto, "LIMIT_BYTES", trace.stat().st_size - 1)
    open_in_perfetto(trace)
    monkeypatch.setattr(perfetto, "LIMIT_BYTES", 1)
    open_in_perfetto(trace)
    printed = capsys.readouterr().out
    assert not shown
    assert printed.count("too much for a button in a notebook") == 2
    assert "03_chain.json.gz has more than 0 MB zipped" in printed
    assert "open https://ui.perfetto.dev and drag" in printed


# --- in a browser -----------------------------------------------------------------------

# Deaf for a while, as a page that loads; says nothing to what is neither PING nor a trace.
STAND_IN = """<script>
setTimeout(() => window.addEventListener("message", (event) => {
  if (event.data === "PING") return event.source.postMessage("PONG", "*");
  if (!event.data.perfetto) return;
  const {buffer, title, fileName} = event.data.perfetto;
  const head = JSON.stringify({title, fileName, isBuffer: buffer instanceof ArrayBuffer});
  fetch("/got", {method: "POST", body: new Blob([head, "\\n", buffer])});
}), 700);
</script>"""
# Presses the button; sends every new line under it, and the page's title, to the test.
PRESS = """<script>
const box = document.querySelector("[data-perfetto]");
new MutationObserver(() => fetch("/said", {method: "POST", body:
  `${document.title}|${document.querySelectorAll("button").length}|${box.lastChild.textContent}`
})).observe(box, {childList: true, subtree: true, characterData: true});
document.querySelector("button").click();
</script>"""


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        page = self.server.pages.get(self.path)
        self.send_response(200 if page else 404)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write((page or "").encode())

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()
        self.server.posted.put((self.path, body))

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.pages, server.posted = {}, Queue()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def browse(tmp_path):
    """Open an address in headless Chromium, which stays open until the end of the test."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    running = []

    def start(address, *flags):
        command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
        command += [f"--user-data-dir={tmp_path / 'profile'}", "--remote-debugging-port=0"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        started = subprocess.Popen(
            [*command, *flags, address], start_new_session=True, **quiet
        )
        running.append(started)

    yield start
    for process in running:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(20)


def pressed(server, shown, path, stand_in):
    """Serve a notebook's page with the button and the stand-in; return the page's address."""
    port = server.server_address[1]
    server.pages["/viewer"] = stand_in
    # localhost and 127.0.0.1 are different origins, as Jupyter and Perfetto are
    open_in_perfetto(path, f"http://127.0.0.1:{port}/viewer")
    twice = shown[0]["text/html"] * 2  # the cell shown twice, as when it ran again
    server.pages["/notebook"] = f"<!doctype html><title>nb</title>{twice}{PRESS}"
    return f"http://localhost:{port}/notebook"


def test_the_browser_hands_the_file_to_the_other_tab(server, browse, shown, tmp_path):
    path = tmp_path / NASTY
    path.write_text(TRACE)
    browse(pressed(server, shown, path, STAND_IN), "--disable-popup-blocking")
    posted = [server.posted.get(timeout=60) for _ in range(3)]
    [got] = [body for where, body in posted if where == "/got"]
    said = [body.decode() for where, body in posted if where == "/said"]
    head, _, buffer = got.partition(b"\n")
    assert json.loads(head) == {"title": NASTY, "fileName": NASTY, "isBuffer": True}
    assert buffer == base64.b64decode(held(shown[0]["text/html"])["base64"])
    assert gzip.decompress(buffer).decode() == TRACE
    assert said[0] == "nb|2|Waiting for Perfetto in the new tab."
    assert said[1].startswith("nb|2|Sent.")


def test_a_page_that_never_answers(server, browse, shown, trace, monkeypatch):
    monkeypatch.setattr(perfetto, "WAIT_MS", 1000)
    browse(pressed(server, shown, trace, "<p>silent</p>"), "--disable-popup-blocking")
    said = [server.posted.get(timeout=60)[1].decode() for _ in range(2)]
    assert "Waiting" in said[0]
    assert "No answer from the new tab in 1 seconds. By hand: open http://127" in said[1]


def test_a_browser_that_blocks_the_tab(server, browse, shown, trace):
    browse(pressed(server, shown, trace, STAND_IN))  # a press by script, not by a hand
    said = server.posted.get(timeout=60)[1].decode()
    assert "blocked the new tab: allow pop-ups and press again. By hand: open" in said
