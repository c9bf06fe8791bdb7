"""A plan as text and as HTML, for people."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from dask.utils import format_bytes

from dask_tfrecord.stores.codecs import codec_names

if TYPE_CHECKING:
    from dask_tfrecord.stores.zarr_plan import ArrayPlan, ZarrPlan

__all__ = ["html_plan", "text_plan"]

_HEADER = ("array", "dtype", "shape", "dimensions", "chunks", "shards", "bytes", "codecs")
_RIGHT = {"bytes"}


def text_plan(plan: ZarrPlan) -> str:
    """Write a line on the whole, one per array, and what memory it takes."""
    table = [_HEADER, *map(_cells, plan.arrays)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if header in _RIGHT else cell.ljust(width)
            for header, cell, width in zip(_HEADER, row, widths, strict=True)
        )
        for row in table
    ]
    return "\n".join([_title(plan), *(f"  {line.rstrip()}" for line in lines), *_memory(plan)])


def html_plan(plan: ZarrPlan) -> str:
    """Say the same in an HTML table."""

    def row(cells: tuple[str, ...], tag: str) -> str:
        sides = ("right" if header in _RIGHT else "left" for header in _HEADER)
        styled = (
            f'<{tag} style="text-align: {side}">{escape(cell)}</{tag}>' for cell, side in zip(cells, sides, strict=True)
        )
        return f"<tr>{''.join(styled)}</tr>"

    body = "".join(row(_cells(array), "td") for array in plan.arrays)
    memory = "".join(f"<p>{escape(line)}</p>" for line in _memory(plan))
    return (
        f"<div><p>{escape(_title(plan))}</p><table><thead>{row(_HEADER, 'th')}</thead><tbody>{body}</tbody></table>"
        f"{memory}</div>"
    )


def _title(plan: ZarrPlan) -> str:
    parts = [
        _many(plan.nrecords, "record"),
        _many(len(plan.arrays), "array"),
        f"{'' if all(array.exact for array in plan.arrays) else 'about '}{format_bytes(plan.nbytes)} decoded",
        f"{_many(plan.write_units, 'write unit')}, those of rows {_many(plan.unit_rows, 'record')} each, "
        f"in {_many(plan.tasks, 'task')}",
    ]
    return f"<dask_tfrecord.ZarrPlan: {', '.join(parts)}>"


def _memory(plan: ZarrPlan) -> list[str]:
    limit = "no limit" if plan.memory_limit is None else f"limit {format_bytes(plan.memory_limit)}"
    lines = [f"peak memory of a worker ({limit}): {plan.memory.arithmetic()}"]
    lines += [f"RECHUNK: {each}" for each in plan.rechunks]
    excess = plan.memory.excess(plan.memory_limit)
    return lines if excess is None else [*lines, f"DOES NOT FIT: {excess}"]


def _cells(array: ArrayPlan) -> tuple[str, ...]:
    return (
        array.name,
        array.dtype,
        _shape(array.shape),
        ", ".join(array.dimensions),
        _shape(array.chunks),
        "-" if array.shards is None else _shape(array.shards),
        ("" if array.exact else "about ") + format_bytes(array.nbytes),
        codec_names((*array.filters, *array.compressors)),
    )


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(f"{size:,}" for size in shape)


def _many(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
