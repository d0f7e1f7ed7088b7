"""Make the pictures of docs/report.md and docs/explorer.md anew.

python tests/browser/refresh_pictures.py PLAN.json DIAGNOSIS.json http://127.0.0.1:8316

PLAN.json is that of the README: `nest plan llama3-70b h100-spine-leaf --devices 1024 --global-batch
4096 --seq-len 4096 --top 5 -o PLAN.json`. DIAGNOSIS.json is of `nest diagnose --json`; the address
is that of `nest serve`, which is asked. Needs playwright, pillow and chromium, as .ci/browser.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

from PIL import Image
from playwright.sync_api import sync_playwright

import nest
from nest.measured.diagnosis.result import Diagnosis
from nest.report.web.diagnosed import diagnosis_document
from nest.report.web.pages import page

FOLDER = Path(__file__).parents[2] / "docs" / "report"
ONE: dict[str, Any] = {"model": "llama3-70b", "cluster": "dgx-h100", "devices": 1024}
PICTURES = (
    ("plan", "wide", 1440, 1000, "light", None), ("plan", "phone", 390, 844, "dark", None),
    ("plan", "timeline", 1440, 1000, "light", "#timeline"),
    ("diagnosis", "diagnosis", 1440, 1000, "light", "#answer"),
    ("explorer", "explorer", 1440, 940, "light", None),
    ("explorer", "explorer-phone", 390, 844, "dark", None),
    ("pair", "explorer-pair", 1440, 940, "dark", None))
"""Page, name, width and height of the window, theme, the part that is shown; None: the window."""
WHOLE = {"explorer": "#timeline canvas", "pair": "#why .bar"}
"""What stands on a page of the explorer once it has its answer."""


def main() -> None:
    """Write the pictures, in 96 colours."""
    plan, diagnosis, server = sys.argv[1:]
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as started:
        found = Diagnosis.parse(json.loads(Path(diagnosis).read_text("utf-8")))
        texts = {"plan": nest.load_plan(plan).to_html(),
                 "diagnosis": page(diagnosis_document(found, "train.log"))}
        states = {"explorer": {"a": ONE}, "pair": {"a": ONE, "b": {**ONE, "cluster": "dgx-b200"}}}
        places = {name: f"{server}/#q={quote(json.dumps(state))}" for name, state in states.items()}
        for name, text in texts.items():
            (Path(folder) / f"{name}.html").write_text(text or "", "utf-8")
            places[name] = (Path(folder) / f"{name}.html").as_uri()
        browser = started.chromium.launch(
            executable_path=os.environ.get("NEST_BROWSER") or shutil.which("chromium"),
            args=["--no-sandbox"])
        for source, name, width, height, theme, part in PICTURES:
            tab = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)
            tab.goto(places[source])
            if source in WHOLE:
                tab.locator(WHOLE[source]).first.wait_for(timeout=120_000)
            shot = tab.locator(part).screenshot() if part else tab.screenshot()
            picture = Image.open(io.BytesIO(shot)).convert("RGB").quantize(96)
            picture.save(FOLDER / f"{name}.png", optimize=True)
            tab.close()


if __name__ == "__main__":
    main()
