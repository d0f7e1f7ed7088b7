"""Print the oldest versions that pyproject.toml allows, as constraints for pip."""

import re
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
wanted = [*project["dependencies"], *sum(project["optional-dependencies"].values(), [])]
for name, version in re.findall(r"([\w.-]+)>=([\w.]+)", "\n".join(wanted)):
    print(f"{name}=={version}")
