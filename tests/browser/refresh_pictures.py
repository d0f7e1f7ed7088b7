"""Make the pictures of docs/report.md anew: python tests/browser/refresh_pictures.py PLAN.json.

PLAN.json is that of the README: `nest plan llama3-70b h100-spine-leaf --devices 1024 --global-batch
4096 --seq-len 4096 --top 5 -o PLAN.json`. Needs playwright, pillow and chromium, as .ci/browser.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

import nest

FOLDER = Path(__file__).parents[2] / "docs" / "report"
PICTURES = (("wide", 1440, 1000, "light", None), ("phone", 390, 844, "dark", None),
            ("timeline", 1440, 1000, "light", "#timeline"))
"""Name, width and height of the window, theme, and the part that is shown; None: the window."""


def main() -> None:
    """Write the pictures, in 128 colours."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as started:
        file = Path(folder) / "report.html"
        file.write_text(nest.load_plan(sys.argv[1]).to_html(), "utf-8")
        browser = started.chromium.launch(
            executable_path=os.environ.get("NEST_BROWSER") or shutil.which("chromium"),
            args=["--no-sandbox"])
        for name, width, height, theme, part in PICTURES:
            tab = browser.new_page(viewport={"width": width, "height": height},
                                   color_scheme=theme)
            tab.goto(file.as_uri())
            shot = tab.locator(part).screenshot() if part else tab.screenshot()
            picture = Image.open(io.BytesIO(shot)).convert("RGB").quantize(128)
            picture.save(FOLDER / f"{name}.png", optimize=True)
            tab.close()


if __name__ == "__main__":
    main()
