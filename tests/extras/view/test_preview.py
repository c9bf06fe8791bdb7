"""`Dataset.preview`: pixels of the PNG and of the page, cells, width of the text, and hostile content."""

import base64
import io
import re
import shutil
import tracemalloc
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import dask
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle.strategies import NAMES
from PIL import Image
from rich.cells import cell_len
from rich.console import Console
from support.any_columns import any_features, dataset_of, rows_like
from support.images import by_pillow, noise
from support.notebooks import executed, needs_jupyter
from support.numbered_shards import damage
from support.wire import example

import dask_tfrecord as dtf
from dask_tfrecord.extras.preview import Preview

HOSTILE = "</td><script>x</script>\x1b[31m\x9b2J\u202e & 'é'"
VOID = {"img", "br", "meta"}


class Page(HTMLParser):
    """Balanced tags, texts outside of the style sheet, and decoded images of a page without control characters."""

    def __init__(self, shown: Any) -> None:
        super().__init__()
        self.html = shown._repr_html_()
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", self.html)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.images: list[np.ndarray[Any, Any]] = []
        self.feed(self.html)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open.append(tag)
        if tag == "img":
            kind, data = str(dict(attrs)["src"]).split(",")
            assert kind == "data:image/png;base64"
            self.images.append(np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))))
        if tag in VOID:
            self.open.pop()

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.texts.append(data)


def drawn(preview: Preview, path: Path) -> np.ndarray[Any, Any]:
    preview.to_png(path)
    return np.asarray(Image.open(path))


def lines_of(preview: Preview, monkeypatch: pytest.MonkeyPatch, width: int = 80) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = str(preview).splitlines()
    assert all(line.isprintable() for line in lines)
    assert max(map(cell_len, lines)) <= width
    return lines


def coloured(preview: Preview, width: int = 80) -> str:
    with io.StringIO() as file:
        Console(file=file, width=width, force_terminal=True, color_system="truecolor").print(preview)
        return file.getvalue()


def test_pixels_labels_and_class_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = noise(6, 8, 8, 3)
    columns = {
        "photo": photos,
        "label": np.arange(6) % 2,
        "wave": np.sin(np.arange(600, dtype=np.float32).reshape(6, 100)),
    }
    dtf.to_tfrecord(columns, tmp_path / "a.tfrecord")
    features = {
        "photo": dtf.FixedLenFeature((8, 8, 3), "uint8"),
        "label": dtf.FixedLenFeature((), "int64"),
        "wave": dtf.FixedLenFeature((100,), "float32"),
    }
    schema = dtf.Schema(features, classes={"label": ["cat", "dog"]})
    found = dtf.read_tfrecord(tmp_path / "a.tfrecord", schema).preview(4)
    page, wave = Page(found), columns["wave"][1]
    np.testing.assert_array_equal(page.images, photos[:4])
    assert {"0 cat", "1 dog", "8 x 8 x 3", f"100 values, {wave.min():.4g} to {wave.max():.4g}"} <= {
        text.strip() for text in page.texts
    }
    lines = re.findall(r'points="(.*?)"', page.html)
    assert [len(line.split()) for line in lines] == [64] * 4  # of 100 values each
    sheet = drawn(found, tmp_path / "a.png")
    for row in range(4):
        # Each pixel of 8 x 8 becomes 16 x 16 of a tile.
        tile = sheet[70 : 70 + 128, 16 + row * 144 : 16 + row * 144 + 128]
        np.testing.assert_array_equal(tile, photos[row].repeat(16, axis=0).repeat(16, axis=1))
    assert (sheet[70:198, 16 + 4 * 144 :] == 255).all()
    for width in range(30, 90, 7):
        # Every table has the numbers of all rows. The title above has a path, which may have any words.
        lines = lines_of(found, monkeypatch, width)
        tables = lines[next(number for number, line in enumerate(lines) if line and {*line} <= {" ", "─"}) :]
        starts = [line.split(maxsplit=1)[0] for line in tables if line[:1].isdecimal()]
        assert starts[:4] == ["0", "1", "2", "3"]
        assert starts == starts[:4] * (len(starts) // 4)
    lines = lines_of(found, monkeypatch)
    assert lines[0] == f"First 4 of 6 records of {tmp_path}/a.tfrecord"[: len(lines[0])]
    assert re.fullmatch(r"1 +8 x 8 x 3 +1 dog +[▁▂▃▄▅▆▇█]{16} 100 values, .*", lines[-3])
    assert "1 1 dog" in coloured(found)
    red, green, blue = photos[0, 0, 0].tolist()
    assert f"38;2;{red};{green};{blue}" in coloured(found)
    found.to_html(tmp_path / "a.html")
    whole = (tmp_path / "a.html").read_text("utf-8")
    assert whole.startswith("<!doctype html>") and page.html in whole


def test_lines_have_gaps_and_hold_the_largest_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {
        "equal": np.array([[1.0, 1, np.nan, 1, np.inf, 1]]),
        "large": np.array([[-1.7e308, 1.7e308, 0, 0, 0, 0]]),
    }
    found = dtf.Dataset.from_arrays(columns).preview()
    line = lines_of(found, monkeypatch)[-1]
    assert "▅▅ ▅ ▅ 6 values, 1, 2 not finite" in line and "▁█▅▅▅▅ 6 values, " in line
    html = Page(found).html
    points = [point for line in re.findall(r'points="(.*?)"', html) for point in line.split()]
    heights = {float(point.partition(",")[2]) for point in points[-6:]}
    assert html.count("<circle") == 2 and heights == {3.0, 12.0, 21.0}
    assert drawn(found, tmp_path / "a.png").size


def test_images_of_every_kind_are_scaled(tmp_path: Path) -> None:
    ramp = np.arange(64, dtype=np.float64).reshape(8, 8)
    levels = np.rint(ramp / 63 * 255)
    holes = np.where(ramp == 9, np.nan, np.where(ramp == 10, np.inf, ramp - 20)).astype(np.float32)
    alpha = np.repeat(ramp[..., None], 4, axis=2).astype(np.uint8)
    brain = (ramp / 63).astype(ml_dtypes.bfloat16)
    images: dict[str, tuple[Any, Any]] = {
        "a_gray": (ramp.astype(np.uint8), ramp),
        "b_alpha": (alpha, alpha),
        "c_deep": ((ramp * 1000).astype(np.uint16), levels),
        "d_float": ((ramp / 63).astype(np.float32), levels),
        "e_holes": (holes, np.where(ramp == 9, 0, np.where(ramp == 10, 255, levels))),
        "f_wide": (ramp.astype(np.int64), ramp),
        "g_bool": (ramp > 30, (ramp > 30) * 255),
        "h_brain": (brain, np.rint(brain.astype(np.float64) * 255)),
    }
    found = dtf.Dataset.from_arrays({name: pixels[None] for name, (pixels, _) in images.items()}).preview()
    page = Page(found)
    for name, image in zip(images, page.images, strict=True):
        np.testing.assert_array_equal(image, images[name][1], name)
    about = " ".join(page.texts)
    assert "c_deep: uint16 (8, 8), black to white: 0 to 6.3e+04" in about
    assert "e_holes: float32 (8, 8), black to white: -20 to 43" in about
    drawn(found, tmp_path / "a.png")


def test_encoded_images_of_own_size_and_of_inferred_bytes(tmp_path: Path) -> None:
    photos = noise(3, 8, 8, 3)
    large = np.kron(photos[0], np.ones((64, 48, 1), np.uint8))
    images = np.empty(3, object)
    images[:] = [photos[1], large, photos[2, :4]]
    path = tmp_path / "a.tfrecord"
    dtf.to_tfrecord({"image": images}, path, features={"image": dtf.ImageFeature()})
    for features in ({"image": dtf.ImageFeature()}, None):
        page = Page(dtf.read_tfrecord(path, features).preview())
        np.testing.assert_array_equal(page.images[0], photos[1])
        np.testing.assert_array_equal(page.images[2], photos[2, :4])
        # 512 x 384 pixels are averaged to 256 x 192.
        np.testing.assert_array_equal(page.images[1], large[::2, ::2])
        assert "512 x 384 x 3" in page.texts
    # Several images per record, also none; a damaged image is described.
    with dtf.RecordWriter(tmp_path / "b.tfrecord") as writer:
        for row in ([photos[0], photos[1]], [], [photos[2]]):
            writer.write(
                example(views=[*(by_pillow(each, "png") for each in row)], broken=[b"\xff\xd8\xff\xe0" + bytes(50)])
            )
    spec = {"views": dtf.ImageFeature((-1, 8, 8, 3)), "broken": dtf.FixedLenFeature((), "bytes")}
    page = Page(dtf.read_tfrecord(tmp_path / "b.tfrecord", spec).preview())
    np.testing.assert_array_equal(page.images, photos[:3])
    assert "no image" in page.texts
    assert "JPEG image, 54 bytes" in page.texts


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six records of an image of 16 MB: PNG with alpha, and JPEG of three channels."""
    ramp = np.broadcast_to(np.arange(2000, dtype=np.uint16)[:, None, None] // 8, (2000, 2000, 4)).astype(np.uint8)
    path = tmp_path_factory.mktemp("large") / "large.tfrecord"
    images = {"png": [by_pillow(ramp, "png", compress_level=1)], "jpeg": [by_pillow(ramp[..., :3], "jpeg")]}
    with dtf.RecordWriter(path) as writer:
        for number in range(6):
            writer.write(example(label=[number], **images))
    return path


@pytest.mark.parametrize(
    ("feature", "limit"),
    [(dtf.ImageFeature(), "auto"), pytest.param(dtf.FixedLenFeature((), "bytes"), "20 MB", marks=pytest.mark.slow)],
    ids=str,
)
def test_large_images_are_reduced_one_by_one(large: Path, feature: Any, limit: str) -> None:
    features = {"png": feature, "jpeg": feature, "label": dtf.FixedLenFeature((), "int64")}
    ds = dtf.read_tfrecord(large, features)
    with dask.config.set({"tfrecord.decode.memory-limit": limit, "scheduler": "sync"}):
        ds[["label"]].preview()
        tracemalloc.start()
        try:
            found = ds.preview()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    # The pixels of one column alone are 96 MB and 72 MB.
    assert peak < 70e6
    page = Page(found)
    assert len(page.images) == 12
    assert {"png 2,000 x 2,000 x 4", "jpeg 2,000 x 2,000 x 3"} <= set(page.texts)
    expected = np.arange(256)[:, None] * 250 / 256 + 0.4
    for image in page.images:
        np.testing.assert_allclose(image[..., 0], np.broadcast_to(expected, (256, 256)), atol=2)
    with dask.config.set({"tfrecord.decode.memory-limit": "14 MB"}):
        page = Page(ds.preview())
    assert len(page.images) == 6  # the JPEG of 12 MB
    described = [text for text in page.texts if "16,000,000 bytes" in text or "PNG image of 2,000 x 2,000 x 4" in text]
    assert len(described) == 6
    assert "5" in page.texts


def test_captions_have_the_ends_of_nested_names() -> None:
    pictures = np.zeros((1, 8, 8, 3), np.uint8)
    names = {"steps/left/image": "left/image", "steps/right/image": "right/image", "steps/top": "top", "image": "image"}
    html = Page(dtf.Dataset.from_arrays({**dict.fromkeys(names, pictures), "meta/label": [3]}).preview()).html
    assert re.findall(r"<small>(.*?) 8 x 8 x 3</small>", html) == list(names.values())
    assert "<small>label</small> 3" in html and 'alt="steps/left/image of row 0"' in html


def test_hostile_text_is_escaped_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {
        HOSTILE: np.array([HOSTILE, "plain"], np.dtypes.StringDType()),
        "bytes": np.array([HOSTILE.encode(), b"\x00\xff\x1b[31m"], object),
        "many": np.array([np.array([b"\x1b[2J", b"two"], object), np.array([], object)], object),
        "label": np.arange(2),
        "image": np.zeros((2, 8, 8), np.uint8),
    }
    ds = dtf.Dataset.from_arrays(columns).assign(zero=np.zeros(2, np.float32))
    schema = dtf.Schema(ds.schema, classes={"label": [HOSTILE, "b"]})
    dtf.to_tfrecord(ds, tmp_path / "a.tfrecord", features={HOSTILE: dtf.TextFeature()})
    found = dtf.read_tfrecord(tmp_path / "a.tfrecord", schema).preview()
    page = Page(found)
    assert "script" not in page.tags
    assert any("</td><script>x</script>\\x1b[31m\\x9b2J\\u202e & 'é'" in text for text in page.texts)
    lines = lines_of(found, monkeypatch)
    assert any("5 bytes" in line or "bytes: 00 ff 1b" in line for line in lines)
    assert not re.search(r"\x1b(?!\[[\d;]*m)|\x9b", coloured(found))
    drawn(found, tmp_path / "a.png")


ROWS = 40


@pytest.mark.parametrize("counts", ["auto", None])
def test_only_the_first_records_are_read(shards: Path, counts: Any) -> None:
    damage(shards / "part-0.tfrecord", -6)
    opened = dtf.read_tfrecord(shards, {"label": dtf.FixedLenFeature((), "int64")}, counts=counts)
    assert opened.preview(3).nrows == 3
    with pytest.raises(dtf.CorruptRecordError):
        opened.preview(ROWS // 4)


@settings(max_examples=settings().max_examples // 2)
@given(st.data())
def test_any_columns(data: st.DataObject) -> None:
    features = data.draw(st.dictionaries(NAMES, any_features(), min_size=1, max_size=4))
    count = data.draw(st.integers(0, 5))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    blocks = {name: rows_like(feature, count, rng) for name, feature in features.items()}
    with dask.config.set(scheduler="sync"):
        found = dataset_of(blocks, features, [count]).preview(3)
    assert found.nrows == min(count, 3)
    Page(found)
    with pytest.MonkeyPatch.context() as patch:
        for width in (80, 30):
            lines_of(found, patch, width)
    assert coloured(found)


@pytest.mark.integration
@needs_jupyter
def test_a_notebook_displays_a_preview_once(tmp_path: Path) -> None:
    opened = """
import rich, dask_tfrecord as dtf
p = dtf.Dataset.from_arrays({"label": [3, 4]}).preview()
"""
    _, displayed, printed, text, drawn = executed(
        tmp_path, opened, "p", "print(p)", "assert '3' in str(p) and '4' in repr(p)", "rich.print(p)"
    )
    (output,) = displayed
    assert output["msg_type"] == "execute_result"
    assert "<table>" in output["content"]["data"]["text/html"]
    lines = output["content"]["data"]["text/plain"].splitlines()
    assert lines[0] == "First 2 of 2 records" and lines[-1].split() == ["1", "4"]
    assert "".join(message["content"]["text"] for message in printed).splitlines() == lines
    assert text == []
    assert [message["msg_type"] for message in drawn] == ["display_data"]


def test_a_report_has_bars_and_histograms(tmp_path: Path) -> None:
    with dtf.RecordWriter(tmp_path / "a.tfrecord") as writer:
        for number in range(8):
            rare = {"rare": [float(number)]} if number < 2 else {}
            writer.write(example(**{HOSTILE: list(range(1 + number % 3))}, **rare))
    page = Page(dtf.infer_schema(tmp_path / "a.tfrecord").report)
    assert "script" not in page.tags
    assert any("\\x1b[31m\\x9b2J" in text for text in page.texts)
    assert re.findall(r'<i style="width: ([\d.]+)%">', page.html) == ["100", "25"]
    assert {"1: 3", "2: 3", "3: 2", "2 of 8"} <= set(page.texts)  # numbers of values, and of records with them
    heights = [float(height) for height in re.findall(r'<rect [^>]*height="([\d.]+)"', page.html)]
    assert heights[0] == heights[1] > heights[2]


def test_a_schema_and_a_report_on_damage_are_tables(tmp_path: Path) -> None:
    dtf.to_tfrecord({HOSTILE: np.arange(4), "label": np.arange(4) % 2}, tmp_path / "a.tfrecord")
    schema = dtf.Schema(dtf.infer_schema(tmp_path / "a.tfrecord"), classes={"label": ["cat", "dog"]})
    shutil.copy(tmp_path / "a.tfrecord", tmp_path / "<b>.tfrecord")
    damage(tmp_path / "<b>.tfrecord", 40)
    for shown, texts in (
        (
            dtf.infer_schema(tmp_path / "a.tfrecord"),
            {"Schema of 2 features, inferred from 4 records of 1 shard", "4 of 4"},
        ),
        (schema, {"Schema of 2 features", "label", "FixedLenFeature", "int64"}),
        (dtf.verify(tmp_path / "a.tfrecord"), {"1 file, 4 records, no damage", str(tmp_path / "a.tfrecord"), "4"}),
        (dtf.verify(str(tmp_path / "*.tfrecord")), {"2 files, 7 records, damage in 1: 1 record lost", "3"}),
    ):
        page = Page(shown)
        assert not {"b", "script"} & {*page.tags}
        assert texts <= {*page.texts}, page.texts
    assert any(str(dtf.verify(tmp_path / "<b>.tfrecord").files[0].lost[0]) in text for text in page.texts)


def test_a_data_set_displays_its_chunks(ds: dtf.Dataset) -> None:
    page = Page(ds)
    assert page.tags.count("svg") == len(ds)
    assert "polygon" in page.tags
    for without in (ds.rows[:0], ds[[]]):
        assert "svg" not in Page(without).tags
    many = dtf.Dataset.from_arrays({str(number): np.zeros((4, number % 3)) for number in range(30)})
    page = Page(many)
    assert page.tags.count("svg") == 16  # of the first 24 columns, 8 have no values
    assert "6 more columns" in page.texts


def test_a_wide_data_set_has_a_line_per_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables side by side would take 240 lines, and their header would have left the screen."""
    rng = np.random.default_rng(0)
    columns = {f"steps/observation/sensor_{number}": rng.random((8, 5)) for number in range(60)}
    preview = dtf.Dataset.from_arrays(columns).preview()
    lines = lines_of(preview, monkeypatch, 100)
    assert len(lines) == 63 and lines[1].split() == ["column", "row", "0"]
    assert lines[3].startswith("steps/observation/sensor_0    float64 (5)   ") and "5 values, 0." in lines[3]
    # In a terminal, the lines that fit.
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("LINES", "24")
    lines = lines_of(preview, monkeypatch, 100)
    assert len(lines) == 23 and lines[-1] == "… 41 more columns: preview a selection of columns"
