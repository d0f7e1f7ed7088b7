"""The catalog, as rows for programs and as tables for people; also what prices of each stack,
device and kind of model rest on: measured, extrapolated, assumed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any, NamedTuple, Unpack

from nest.evaluation.evidence import missed, runs_of
from nest.inputs import Stack, catalog, load_cluster, load_device, load_model, load_stack
from nest.inputs.capabilities import FIGURES, Rule
from nest.inputs.catalog import Section
from nest.report.page import Page, PageOptions
from nest.stacks.overview import allows, tables
from nest.units import (
    format_bandwidth,
    format_bytes,
    format_count,
    format_flops,
    format_seconds,
)

Row = dict[str, Any]


def catalog_rows(section: Section) -> list[Row]:
    """One entry each, in SI units (bytes, seconds, bytes/s, FLOP/s)."""
    return [catalog_row(section, name) for name in catalog.names(section)]


def catalog_row(section: Section, name: str) -> Row:
    """One entry.

    Raises
    ------
    InputError : no such entry.
    """
    makers = {"models": _model, "clusters": _cluster, "devices": _device, "stacks": _stack}
    return makers[section](name)


def catalog_text(section: Section, **options: Unpack[PageOptions]) -> str:
    """The same as a table."""
    page = Page(**options)
    rows = catalog_rows(section)
    {"models": _models, "clusters": _clusters, "devices": _devices, "stacks": _stacks}[section](
        page, rows)
    return page.text()


def _model(name: str) -> Row:
    m = load_model(name)
    return {"name": m.name, "kind": m.kind, "layers": m.layers, "hidden": m.hidden,
            "heads": m.heads, "experts": m.moe.experts if m.moe else 0,
            "parameters": m.parameters(), "active_parameters": m.active_parameters(),
            "published_parameters": m.published_parameters, "source": m.source}


def _cluster(name: str) -> Row:
    c = load_cluster(name)
    open_ended = catalog.load("clusters", name)["levels"][-1]["size"] == "n"
    levels = [
        {"name": level.name, "size": level.size, "bandwidth": nominal,
         "resolved_bandwidth": resolved, "latency": level.latency}
        for level, nominal, resolved in
        zip(c.levels, c.nominal_bandwidth, c.resolved_bandwidth, strict=True)
    ]
    return {"name": c.name, "device": c.device.name, "devices": c.size,
            "any_number_of_devices": open_ended, "levels": levels, "source": c.source}


def _device(name: str) -> Row:
    d = load_device(name)
    return {"name": d.name, "memory": d.memory, "memory_bandwidth": d.memory_bandwidth,
            "peak_flops": dict(d.peak_flops), "source": d.source}


def _stack(name: str) -> Row:
    return load_stack(name).as_dict()


def _models(page: Page, rows: list[Row]) -> None:
    heads = ("model", "kind", "layers", "experts", "parameters", "active", "published")
    body = []
    for r in rows:
        sparse = r["active_parameters"] != r["parameters"]
        published = r["published_parameters"]
        body.append((
            r["name"], r["kind"], str(r["layers"]), str(r["experts"] or "-"),
            format_count(r["parameters"]),
            format_count(r["active_parameters"]) if sparse else "-",
            format_count(published) if published else "-"))
    page.table("", heads, body, (0, 1))


def _clusters(page: Page, rows: list[Row]) -> None:
    heads = ("cluster", "device", "devices", "level", "size", "bandwidth", "latency")
    body = []
    for r in rows:
        for number, level in enumerate(r["levels"]):
            last = number == len(r["levels"]) - 1
            size = f"n ({level['size']})" if last and r["any_number_of_devices"] else level["size"]
            own = (r["name"], r["device"], str(r["devices"])) if number == 0 else ("", "", "")
            body.append((*own, level["name"], str(size),
                         format_bandwidth(level["resolved_bandwidth"]),
                         format_seconds(level["latency"], 3)))
    page.table("", heads, body, (0, 1, 3))
    page.paragraph("bandwidth: of one device to a peer reached through the level; n: set by "
                   "--devices")


def _devices(page: Page, rows: list[Row]) -> None:
    heads = ("device", "memory", "bandwidth", "bf16", "fp16", "fp32", "fp8")
    body = [
        (r["name"], format_bytes(r["memory"]), format_bandwidth(r["memory_bandwidth"]),
         *(format_flops(r["peak_flops"][t]).removesuffix(" TFLOP/s") if t in r["peak_flops"]
           else "-" for t in heads[3:]))
        for r in rows
    ]
    page.table("", heads, body, (0,))
    page.paragraph("bf16 to fp8: dense peak of matrix products, TFLOP/s")
    for dtype in ("fp8-blockwise", "mxfp8", "nvfp4"):
        found = (f"{r['name']} {format_flops(r['peak_flops'][dtype]).removesuffix(' TFLOP/s')}"
                 for r in rows if dtype in r["peak_flops"])
        page.paragraph(f"{dtype}: {', '.join(found) or 'none'}")


def _stacks(page: Page, rows: list[Row]) -> None:
    heads = ("stack", "grads", "params", "ZeRO-3", "tp", "hand-over", "flash", "ZeRO with pp")
    body = []
    for r in rows:
        shares = ("overlap_grad_reduce", "overlap_param_gather", "overlap_zero3", "overlap_tp",
                  "overlap_p2p")
        body.append((r["name"], *(f"{100 * r[name]:.0f} %" for name in shares),
                     "yes" if r["flash_attention"] else "no",
                     ", ".join(map(str, r["zero_with_pipeline"]))))
    page.table("", heads, body, (0, 6, 7))
    page.paragraph("grads to hand-over: share of the traffic's time that can hide under compute; "
                   "flash: fused attention; ZeRO with pp: stages allowed with a pipeline")


# ---------------------------------------------------------------- what stacks can run


def capabilities_rows() -> list[Row]:
    """What the stacks of the catalog can run: each table once, with the stacks that it is for."""
    return [{"stacks": stacks, **known.as_dict()} for known, stacks in tables()]


def capabilities_text(**options: Unpack[PageOptions]) -> str:
    """The same: for each rule what it wants, when, why, and its source; the meaning of figures."""
    page = Page(**options)
    for known, stacks in tables():
        page.paragraph(f"{known.title} ({'stack' if len(stacks) == 1 else 'stacks'} "
                       f"{', '.join(stacks)})", "bold")
        _rules(page, "can run what keeps these rules:", known.rules)
        if known.needs:
            _rules(page, "and otherwise needs something to run:", known.needs)
        page.blank()
    page.paragraph("figures", "bold")
    for name, figure in FIGURES.items():
        page.fact("-", f"{name}: {figure.meaning}", 1)
    page.blank()
    page.paragraph("2..: 2 or more. Rules without `where` always hold.", "dim")
    return page.text()


def _rules(page: Page, title: str, rules: dict[str, Rule]) -> None:
    page.paragraph(title)
    for rule in rules.values():
        fields = ", ".join(rule.fields)
        where = f", where {rule.conditions}" if rule.conditions else ""
        page.fact("-", f"{fields}: {rule.wants}{where}", 1)
        page.fact("", rule.sentence, 1)
        page.fact("", rule.source, 1)


MEANING = """\
measured: configurations, and the median error of their prices; * where figures were fitted to some
of these runs, without it to none. extrapolated: the stack was measured on other devices or kinds of
model. assumed: no run of the stack was measured. refused: it cannot run this."""


class Support(NamedTuple):
    """What prices of a stack on a device rest on, for one kind of model."""

    stack: str
    device: str
    experts: bool
    word: str
    """measured, extrapolated, assumed or refused."""
    configurations: int
    """Measured ones."""
    error: float | None
    """Median of priced over measured seconds, less 1, without sign; None: nothing was measured."""
    fitted: bool
    """Figures were fitted to some of the runs whose error it is."""

    @property
    def text(self) -> str:
        """The word, with what was measured."""
        if self.error is None:
            return self.word
        return f"{self.configurations}: {100 * self.error:.1f} %{'*' if self.fitted else ''}"


def support_rows() -> list[Support]:
    """Every stack of the catalog on every device, first without experts, then with."""
    return [_support(name, load_stack(name), device, experts)
            for name in catalog.names("stacks") for device in _known_devices()
            for experts in (False, True)]


def _known_devices() -> list[str]:
    """Those of the catalog, and those that only measured runs have."""
    return sorted({*catalog.names("devices"), *(row["device"] for row in catalog.evidence())})


def _support(name: str, stack: Stack, device: str, experts: bool) -> Support:
    known = stack.capabilities
    measured = runs_of(stack.runs).measured if stack.runs is not None else ()
    own = [one for one in measured
           if (one.question.device, one.question.experts) == (device, experts)]
    if own:
        return Support(name, device, experts, "measured", len(own), *missed(own))
    excluded = known is not None and known.hardware is not None and known.hardware.excludes(device)
    if excluded or (experts and known is not None and not allows(
            known, "experts", {"experts": "yes"})):
        word = "refused"
    else:
        word = "extrapolated" if measured else "assumed"
    return Support(name, device, experts, word, 0, None, False)


def support_text(**options: Unpack[PageOptions]) -> str:
    """A table: stack, devices that have the same words, and these without and with experts."""
    page = Page(**options)
    rows = [row for _, of_stack in groupby(support_rows(), key=lambda row: row.stack)
            for row in _lines(list(of_stack))]
    page.table("", ("stack", "devices", "dense", "experts"), rows, (0, 1, 2, 3))
    page.paragraph(" ".join(MEANING.split()), "dim")
    return page.text()


def _lines(rows: list[Support]) -> Iterator[tuple[str, ...]]:
    """A line for each device with runs, then one for all other devices of equal words."""
    alike: dict[tuple[str, str], list[str]] = {}
    for dense, experts in zip(rows[::2], rows[1::2], strict=True):
        alike.setdefault((dense.text, experts.text), []).append(dense.device)
    most = max(map(len, alike.values()))
    # Numbers first, and the words that most devices have last, without their names.
    order = sorted(alike, key=lambda pair: (len(alike[pair]) == most, not pair[0][0].isdigit()))
    for number, pair in enumerate(order):
        named = ", ".join(alike[pair])
        if len(alike[pair]) == most:
            named = "all others"
        elif pair[0] == "refused":
            named = ", ".join(f"{start}*" for start in dict.fromkeys(
                device.split("-")[0].rstrip("0123456789") for device in alike[pair]))
        yield rows[0].stack if number == 0 else "", named, *pair
