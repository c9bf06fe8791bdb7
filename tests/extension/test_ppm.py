"""A format of images in one file outside of the package: decoded, inferred, described, displayed, converted."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import dask
import numpy as np
import pytest
from cases import OUTPUTS
from oracle import write_oracle
from support.images import noise
from support.wire import example

import dask_tfrecord as dtf
from dask_tfrecord.features.images.registry import FORMATS
from extension.ppm import PPM

FEATURES = {"image": dtf.ImageFeature((4, 6, 3)), "id": dtf.FixedLenFeature((), "int64")}
PIXELS = [noise(4, 6, 3, seed=number) for number in range(11)]


def ppm(pixels: Any) -> bytes:
    """Write a PPM."""
    return b"P6\n%d %d\n255\n" % pixels.shape[1::-1] + pixels.tobytes()


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    # Other tests of this process list the formats.
    monkeypatch.setattr(FORMATS, "added", {})
    dtf.register_image_format(PPM())


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    write_oracle(tmp_path / "a.tfrecord", [example(image=[ppm(each)], id=[n]) for n, each in enumerate(PIXELS)])
    return tmp_path / "a.tfrecord"


@pytest.mark.parametrize("output", OUTPUTS)
def test_every_output_has_the_pixels(shard: Path, output: str, tmp_path: Path) -> None:
    with dask.config.set(scheduler="sync"):
        ds = dtf.read_tfrecord(shard, FEATURES, chunks=4)
        OUTPUTS[output](ds, {"image": np.array(PIXELS), "id": np.arange(len(PIXELS))}, tmp_path)


def test_images_of_any_size_are_resized_and_scaled(tmp_path: Path) -> None:
    sizes = [noise(2, 3, 3), noise(5, 1, 3)]
    write_oracle(tmp_path / "a", [example(image=[ppm(each)]) for each in sizes])
    found = dtf.read_tfrecord(tmp_path / "a", {"image": dtf.ImageFeature()})["image"].compute()
    assert [np.array_equal(one, other) for one, other in zip(found, sizes, strict=True)] == [True, True]
    half = dtf.ImageFeature(size=(2, 2), channels=3, dtype="float32")
    assert dtf.read_tfrecord(tmp_path / "a", {"image": half})["image"].compute().shape == (2, 2, 2, 3)


def test_reports_and_displays_know_the_format(shard: Path) -> None:
    schema = dtf.infer_schema(shard)
    assert "PPM" in str(schema.report) and "ImageFeature" in str(schema.report)
    ds = dtf.read_tfrecord(shard)
    assert "PPM image of 4 x 6" in str(ds.preview(2)) or "<img" in ds.preview(2)._repr_html_()
    assert "image" in repr(dtf.read_tfrecord(shard, FEATURES).describe())
    with ds.view() as server, urlopen(f"{server.url}api/rows?stop=2") as answer:
        assert len(json.load(answer)["cells"]) == 2


def test_what_the_format_refuses_is_an_error_of_the_record(tmp_path: Path) -> None:
    good, cut = ppm(PIXELS[0]), ppm(PIXELS[1])[:-1]
    write_oracle(tmp_path / "a", [example(image=[each]) for each in (good, cut, b"P6\n6 4\n15\n")])
    ds = dtf.read_tfrecord(tmp_path / "a", {"image": FEATURES["image"]})
    with pytest.raises(
        dtf.FeatureError, match=r"record 1 .*'image' holds a PPM image that can't be decoded: cannot reshape"
    ):
        ds["image"][1].compute()
    with pytest.raises(dtf.FeatureError, match=r"record 2 .*expected 255 levels"):
        ds["image"][2].compute()
    gray = {"image": dtf.ImageFeature(channels=1)}
    with pytest.raises(dtf.FeatureError, match="a PPM image, which decodes to 3 channels; channels=1 was requested"):
        dtf.read_tfrecord(tmp_path / "a", gray).compute()


def test_displays_shrink_the_format(shard: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    from dask_tfrecord.features.images.pixels import shrink_image

    with image.open(io.BytesIO(shrink_image(ppm(PIXELS[0]), 3))) as drawn:
        assert (drawn.format, drawn.size) == ("PNG", (3, 2))


@pytest.mark.parametrize("name", ["JPEG", "tensor", "two words"])
def test_names_of_other_formats_are_refused(name: str) -> None:
    other = PPM()
    other.name = name
    with pytest.raises(ValueError, match="expected a word that is no name of another format"):
        dtf.register_image_format(other)
