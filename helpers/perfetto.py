"""A button that opens a trace in Perfetto, the trace viewer that runs in a browser tab.

How it takes a file from another page is told in Perfetto's documentation, "Deep linking to the
Perfetto UI": after PING and PONG, {perfetto: {buffer, title, fileName}} is posted to its tab.
"""

import base64
import gzip
import hashlib
import html
import json
import re
from pathlib import Path
from urllib.parse import urlsplit

from helpers.display import in_notebook

# Jupyter's server drops an output of more than 3 MB; base64 makes three bytes into four.
LIMIT_BYTES = 2_000_000
WAIT_MS = 15_000  # Perfetto's page is some MB: on a slow line it needs a while

# The button is made by the script: where scripts don't run (GitHub) there is only the text.
PAGE = """<div data-perfetto="KEY">TEXT</div>
<script>
(() => {
  const {url, file, hand, wait, base64} = DATA;
  const origin = new URL(url).origin;
  const open = (say) => {
    const tab = window.open(url);
    if (!tab) {
      return say(`The browser blocked the new tab: allow pop-ups and press again. ${hand}`);
    }
    const stop = () => {
      clearInterval(pings);
      clearTimeout(end);
      window.removeEventListener("message", hear);
    };
    const hear = (event) => {
      if (event.source !== tab || event.data !== "PONG") return;
      stop();
      const {buffer} = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
      tab.postMessage({perfetto: {buffer, title: file, fileName: file}}, origin);
      say("Sent. If Perfetto asks whether it may trust this page, say yes.");
    };
    window.addEventListener("message", hear);
    const pings = setInterval(() => tab.postMessage("PING", origin), 200);
    const end = setTimeout(() => {
      stop();
      say(`No answer from the new tab in ${wait / 1000} seconds. ${hand}`);
    }, wait);
    say("Waiting for Perfetto in the new tab.");
  };
  for (const box of document.querySelectorAll('[data-perfetto="KEY"]')) {
    if (box.querySelector("button")) continue;
    const button = document.createElement("button");
    const line = document.createElement("div");
    button.textContent = "Open in Perfetto";
    button.onclick = () => open((text) => { line.textContent = text; });
    box.prepend(button, " ");
    box.append(line);
  }
})();
</script>
"""


def open_in_perfetto(path, url="https://ui.perfetto.dev"):
    """Show a button that opens a trace (.json or .json.gz) in Perfetto, in a tab of its own.

    It needs the internet. The file goes from this browser tab to the other one, not to a
    server. Outside Jupyter, and for more than LIMIT_BYTES zipped, it tells how to do it by
    hand. Raises FileNotFoundError, and ValueError if `url` is no web address.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no trace to open: there is no file {path}")
    if urlsplit(url).scheme not in ("http", "https"):
        raise ValueError(f"the address of Perfetto begins with https://, not {url!r}")
    hand = f"By hand: open {url} and drag the file {_shown(path)} onto that page."
    if not in_notebook():
        print(f"Perfetto shows this trace on a time axis; it needs the internet.\n{hand}")
        return
    may_fit = (
        path.stat().st_size <= 20 * LIMIT_BYTES
    )  # a trace shrinks by a factor of 17 or so
    packed = _zipped(path) if may_fit else None
    if packed is None or len(packed) > LIMIT_BYTES:
        limit = f"{LIMIT_BYTES / 1e6:.0f} MB zipped, too much for a button in a notebook"
        print(f"{path.name} has more than {limit}.\n{hand}")
    else:
        _display(path.name, url, hand, packed)


def _zipped(path):
    data = path.read_bytes()
    return data if data[:2] == b"\x1f\x8b" else gzip.compress(data, mtime=0)


def _shown(path):
    """Return the path as a reader of the notebook finds it: in the repository, or its name."""
    root = Path(__file__).resolve().parents[1]
    path = path.resolve()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name


def _display(name, url, hand, packed):
    from IPython.display import display

    about = (
        "Perfetto shows this trace on a time axis. It needs the internet; the file goes from "
        "this browser tab to the new one, not to a server."
    )
    data = {"url": url, "file": name, "hand": hand, "wait": WAIT_MS}
    data["base64"] = base64.b64encode(packed).decode()
    # "<" would end the script in a file name like </script>
    data = json.dumps(data).replace("<", "\\u003c")
    # the same trace twice on a page: each script makes the buttons that are not there yet
    key = hashlib.sha256(data.encode()).hexdigest()[:12]
    text = html.escape(f"{about} {hand}")
    parts = {"KEY": key, "TEXT": text, "DATA": data}
    page = re.sub("KEY|TEXT|DATA", lambda match: parts[match[0]], PAGE)
    display({"text/html": page, "text/plain": f"{about}\n{hand}"}, raw=True)
