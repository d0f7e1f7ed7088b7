"""Hook of MkDocs: the order of pages is that of docs/README.md; reference pages are generated.

Documents stay plain Markdown of the repository. A link to a file outside of docs/ becomes its text,
since no address of the repository is known; CONTRIBUTING.md and CHANGELOG.md are pages of the site.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
OUTSIDE = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md",
           "AGENTS.md": "agents.md"}
"""Pages beside docs/, by their place in the site."""
LINK = re.compile(r"\[([^\]]*)\]\((?:\.\./)+([^)#\s]*)(#[^)\s]*)?\)")
API = {
    "Plans": ("plan", "plan_batches", "Planner", "evaluate", "explain", "simulate", "replan",
              "goodput", "Plan", "Replan", "Goodput", "Simulation"),
    "Descriptions": ("Model", "Cluster", "Level", "Device", "Job", "Stack", "SearchSpace",
                     "Configuration", "StageConfiguration", "Profile", "Failures"),
    "Loading": ("load_model", "load_cluster", "load_network", "load_job", "load_space",
                "load_configuration", "load_profile", "load_plan", "load_graph", "from_torch",
                "list_models", "list_clusters", "list_devices", "list_stacks"),
    "Jobs and runs": ("read", "improve", "export", "learn", "load_learned", "diagnose", "Reading",
                      "Improvement", "Diagnosis"),
    "Studies": ("sweep", "load_study"),
    "Errors": ("NestError", "InputError", "NoPlanError", "InfeasibleError", "LimitError",
               "UnsupportedError", "OutputError", "KernelError"),
}
"""Public names by subject; tests/docs/test_site.py compares them with ``nest.__all__``."""

# ---------------------------------------------------------------- generated pages

def api_page() -> str:
    """All public names, for mkdocstrings."""
    parts = ["# Python", "", "Everything here is imported as `import nest`; what is not here is "
             "private ([releases](../releases.md#public-names)).", ""]
    for subject, names in API.items():
        parts += [f"## {subject}", ""]
        for name in names:
            parts += [f"::: {home_of(name)}", ""]
    return "\n".join(parts)

def home_of(name: str) -> str:
    """The dotted name under which a public name is defined."""
    import nest

    made = getattr(nest, name)
    return f"{made.__module__}.{name}"

def commands_page() -> str:
    """Every command with its arguments and options, of the program itself."""
    from typer.main import get_command

    from nest.cli.main import app

    parts = ["# Commands", "", "What `nest COMMAND --help` prints, on one page.", ""]
    for words, command in _commands(get_command(app), ("nest",)):
        parts += [f"## {' '.join(words)}", "", _plain(command.help or ""), ""]
        rows = [(_named(one), _plain(getattr(one, "help", None) or ""),
                 _default(one)) for one in command.params if not getattr(one, "hidden", False)]
        parts += [*_table(("argument or option", "meaning", "default"), rows), ""]
    return "\n".join(parts)

def _commands(group: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if getattr(command, "commands", None):
            yield from _commands(command, (*words, name))
        else:
            yield (*words, name), command

def _named(one: Any) -> str:
    if one.param_type_name == "argument":
        return f"`{one.metavar or one.name.upper()}`"
    names = ", ".join(f"`{name}`" for name in (*one.opts, *one.secondary_opts))
    shown = "" if one.is_flag else f" `{one.metavar or one.type.name.upper()}`"
    return names + shown

def _default(one: Any) -> str:
    value = one.default
    plain = isinstance(value, (int, float, str)) and not isinstance(value, bool)
    return f"`{value}`" if plain and value != "" else ""

def files_page() -> str:
    """Fields of every document, of the schemas that `nest schema` prints."""
    from nest.cli.listing import DOCUMENTS, document
    from nest.measured.validation.cells import COLUMNS, NEEDED

    parts = ["# Fields", "", "Every field of every document, from the schemas that `nest schema "
             "NAME` prints. [File formats](../formats.md) has examples.", ""]
    for name in DOCUMENTS:
        schema: Any = document(name)
        parts += [f"## {name}", ""]
        seen: dict[str, None] = {}
        for title, one in (("", schema), *schema.get("$defs", {}).items()):
            if one.get("properties") and title not in seen:
                seen[title] = None
                parts += [*([f"**{title}**", ""] if title else []),
                          _plain(one.get("description", "")), ""]
                needed = one.get("required", ())
                parts += [*_table(("field", "type", "meaning", "default"), (
                    (f"`{field}`", _type(about), _plain(about.get("description", "")),
                     "required" if field in needed else _json(about.get("default")))
                    for field, about in one["properties"].items())), ""]
    columns = ((f"`{name}`", _plain(column.means), "required" if name in NEEDED else "")
               for name, column in COLUMNS.items())
    parts += ["## Table of runs", "", *_table(("column", "meaning", "default"), columns), ""]
    return "\n".join(parts)

def _type(about: Mapping[str, Any]) -> str:
    """The type of a field in a few words."""
    if "$ref" in about:
        return str(about["$ref"]).rpartition("/")[2]
    if "enum" in about:
        return ", ".join(f"`{value}`" for value in about["enum"])
    if "const" in about:
        return f"`{about['const']}`"
    for key in ("anyOf", "oneOf", "allOf"):
        if key in about:
            return " or ".join(dict.fromkeys(filter(None, map(_type, about[key]))))
    kind = about.get("type", "")
    if kind == "array" and isinstance(about.get("items"), dict):
        return f"list of {_type(about['items'])}"
    if kind == "object" and isinstance(about.get("additionalProperties"), dict):
        return f"mapping to {_type(about['additionalProperties'])}"
    return {"integer": "whole number", "null": "null", "string": "text"}.get(kind, str(kind))

def _json(value: Any) -> str:
    import json

    text = json.dumps(value)
    return f"`{text}`" if len(text) <= 40 else ""

def catalog_page() -> str:
    """Models, clusters, devices and stacks, as `nest list` shows them."""
    from nest.inputs.catalog import SECTIONS
    from nest.report.catalog_text import catalog_rows, catalog_text
    from nest.stacks.overview import overview

    parts = ["# Catalog entries", "", "What `nest list` prints; [how to read it](../catalog.md).",
             ""]
    for section in SECTIONS:
        parts += [f"## {section.capitalize()}", "", "```text",
                  catalog_text(section, width=120, colour=False, unicode=True).rstrip(), "```", "",
                  "Sources:", ""]
        parts += [f"- `{row['name']}`: {_plain(str(row.get('source') or ''))}"
                  for row in catalog_rows(section)]
        parts.append("")
    return "\n".join([*parts, "## What each stack can run", "", *map(_runs, overview()), ""])

def _runs(row: tuple[str, ...]) -> str:
    """What a stack can run, as `nest list stacks --details` shows it in full."""
    from nest.stacks.overview import HEADS

    software, stacks, *rest = row
    said = [f"{head} {value}" for head, value in zip(HEADS[2:], rest, strict=True) if value != "-"]
    names = ", ".join(f"`{name}`" for name in stacks.split(", "))
    return f"- {software} ({names}): {_plain('; '.join(said))}"

def support_page() -> str:
    """What prices of each stack, device and kind of model rest on, as `nest list support`."""
    from nest.report.catalog_text import support_text

    shown = support_text(width=98, colour=False, unicode=True).rstrip()
    return ("# Support matrix\n\nWhat prices of each stack, device and kind of model rest on, "
            "as `nest list support` prints it. [How to read it](../support.md).\n\n"
            f"```text\n{shown}\n```\n")

def errors_page() -> str:
    """Errors of prices by group of runs, as `nest validate` computes them."""
    from nest.measured import validation
    from nest.report.validation_text import validation_text

    report = validation.score(validation.price(validation.read()))
    shown = validation_text(report, "the runs of the catalog", width=98, colour=False,
                            unicode=True).rstrip()
    return ("# Errors by group\n\nPriced against measured step times of published runs, as `nest "
            "validate` prints them. [Accuracy](../accuracy.md) explains the columns.\n\n"
            f"```text\n{shown}\n```\n")

def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    found = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    if not found:
        return []
    return [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *found]

def _plain(text: str) -> str:
    """A text of the program as one line of Markdown."""
    words = " ".join(text.replace("\b", " ").split())
    parts = re.split(r"(`[^`]*`)", words)
    return "".join(part if n % 2 else escape(part, quote=False).replace("*", r"\*").replace(
        "_", r"\_").replace("[", r"\[") for n, part in enumerate(parts))

GENERATED = {
    "reference/support-matrix.md": ("Support matrix", support_page),
    "reference/errors.md": ("Errors by group", errors_page),
    "reference/api.md": ("Python", api_page),
    "reference/commands.md": ("Commands", commands_page),
    "reference/fields.md": ("Fields of files", files_page),
    "reference/entries.md": ("Catalog entries", catalog_page),
}
FRONT = 2
"""The first generated pages stand on the front."""

# ---------------------------------------------------------------- hook

def sections(index: str) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Headings of docs/README.md, and the pages that each lists, in their order."""
    for part in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        pages = [{title[:1].upper() + title[1:]: OUTSIDE.get(target.removeprefix("../"), target)}
                 for title, target in re.findall(r"\[([^\]]+)\]\(([^)#\s]+\.(?:md|ipynb))\)", part)]
        if pages:
            yield part.splitlines()[0].strip(), pages

def on_config(config: Any) -> Any:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    made = [{title: name} for name, (title, _) in GENERATED.items()]
    config.nav = [{"NEST": [{"All pages": "README.md"}, *made[:FRONT]]}]
    for heading, pages in sections(index):
        config.nav.append({heading: [*pages, *(made[FRONT:] if heading == "Reference" else [])]})
    return config

def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for name, (_, make) in GENERATED.items():
        files.append(File.generated(config, name, content=make()))
    for name, place in OUTSIDE.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        text = re.sub(r"\]\(docs/", "](", text)
        files.append(File.generated(config, place, content=re.sub(
            r"\]\((?!https?:|#)([^)\s]*)\)", _from_root, text)))
    return files

def _from_root(found: re.Match[str]) -> str:
    """A link of a page beside docs/, in the site."""
    name, hash_, part = found[1].partition("#")
    place = OUTSIDE.get(name, name)
    if place.endswith((".md", ".ipynb")) and (place in OUTSIDE.values() or (
            ROOT / "docs" / place).exists()):
        return f"]({place}{hash_}{part})"
    return "](../" + name + ")"

def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    def linked(found: re.Match[str]) -> str:
        text, name, part = found.groups()
        if name in OUTSIDE:
            return f"[{text}]({OUTSIDE[name]}{part or ''})"
        if name == "README.md":
            return text
        return found[0] if page.file.src_uri.startswith("reference/") else text

    def plain(part: str) -> str:
        part = LINK.sub(linked, part)
        return re.sub(r"\[([^\]]*)\]\((?!https?:|#)([^)\s#]*)\)", local, part)

    def local(found: re.Match[str]) -> str:
        """A file that is no page, such as a folder or an example, becomes its name."""
        place = (ROOT / "docs" / page.file.src_uri).parent / found[2]
        kept = found[2].endswith((".md", ".ipynb", ".svg", ".png"))
        return found[0] if kept or not place.exists() else found[1]

    parts = re.split(r"(^```.*?^```)", markdown, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if n % 2 else plain(part) for n, part in enumerate(parts))
