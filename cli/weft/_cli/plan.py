"""What submitting would do, in words: roles, resources, upload, whether it fits, warnings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft._cli.output import width
from weft._cli.text import amounts, count, one_line, plain, size, wrapped

if TYPE_CHECKING:
    from weft._archive import Archive, Listing

_LEFT_OUT_SHOWN = 10
_FITS = {
    "now": "it fits now",
    "later": "it fits, but has to wait",
    "never": "it is larger than the whole cluster",
    "unknown": "whether it fits is not known",
}


def plan_text(plan: dict[str, Any], archive: Archive | None, code_file: str = "") -> str:
    """The plan for people; ``plan`` is what the platform's dry run answered (docs/api.md, "PLAN").

    ``code_file``: the file of the command because of which the spec's own folder is sent.
    """
    spec, framework = plan.get("spec") or {}, plan.get("framework") or {}
    lines = [
        f"{one_line(spec.get('name', 'job'))}: {count(plan.get('learners', 1), 'learner')}" + _framework(framework)
    ]
    resources = plan.get("resources") or {}
    for role, role_needs in (resources.get("roles") or {}).items():
        lines.append(f"  {one_line(role):<10}{role_needs.get('count', 1)} x {amounts(role_needs)}")
    if resources.get("total") and plan.get("learners", 1) > 1:
        lines.append(f"  {'in all':<10}{amounts(resources['total'])}")
    if archive is not None:
        stored = bool((plan.get("code") or {}).get("stored"))
        lines += _upload(archive, stored=stored)
        if code_file:
            lines.append(f"  {'':<10}(the spec's folder, because the command names {plain(code_file)}: `code: .`)")
        lines += left_out_lines(archive.listing)
    fits = str(plan.get("fits", ""))
    if fits in _FITS:
        message = one_line(plan.get("fits_message") or "")
        line = f"  {'cluster':<10}{_FITS[fits]}{f': {message}' if message else ''}"
        lines.append(wrapped(line, width(), indent=" " * 12))
    return "\n".join(lines)


def listing_lines(listing: Listing) -> list[str]:
    """The five largest files."""
    return [f"  {'':<10}{size(file.size):>8}  {plain(file.path)}" for file in listing.largest(5)]


def left_out_lines(listing: Listing) -> list[str]:
    """Keys, passwords and downloads that are not sent, if there are any."""
    if not listing.private:
        return []
    shown = ", ".join(plain(path) for path in listing.private[:_LEFT_OUT_SHOWN])
    more = f" and {len(listing.private) - _LEFT_OUT_SHOWN} more" if len(listing.private) > _LEFT_OUT_SHOWN else ""
    text = f"  {'left out':<10}{shown}{more} (`!NAME` in .weftignore sends it)"
    return [wrapped(text, width(), indent=" " * 12)]


def _upload(archive: Archive, *, stored: bool) -> list[str]:
    what = f"{count(len(archive.listing.files), 'file')}, {size(archive.listing.size)}"
    if stored:
        return [f"  {'code':<10}{what}; the platform has it already"]
    return [f"  {'upload':<10}{what}, {size(archive.size)} compressed", *listing_lines(archive.listing)]


def _framework(framework: dict[str, Any]) -> str:
    if not framework:
        return ""
    return one_line(f", {framework.get('name')} {framework.get('version')}")
