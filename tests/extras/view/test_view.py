"""The server of `dask-tfrecord view`: answers, their limits, and the requests that it refuses."""

import contextlib
import http.client
import json
import re
import shlex
import shutil
import socket
import socketserver
import stat
import tempfile
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import url2pathname

import numpy as np
import pytest
from click.testing import CliRunner
from support import servers
from support.images import blank_png, many_scans_jpeg
from support.message_files import write_times
from support.waiting import wait_until

import dask_tfrecord as dtf
from dask_tfrecord.cli.main import tfrecord
from dask_tfrecord.extras.preview import value_as_json
from dask_tfrecord.extras.view.opened import BlockCache, open_path
from dask_tfrecord.extras.view.server import Server
from dask_tfrecord.features.images.pixels import encode_png
from dask_tfrecord.settings import Limits

MEMORY = 64 << 20
Serve = Callable[..., "Page"]


class Page:
    """Requests of a page to its server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        url = urlsplit(server.url)
        self.port, self.root = url.port, url.path

    def request(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=named)
        answer = connection.getresponse()
        found = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        connection.close()
        return found

    def get(self, name: str, status: int = 200, **parameters: Any) -> Any:
        query = urlencode(parameters, doseq=True)
        found, _, body = self.request(f"{self.root}api/{name}?{query}")
        assert found == status, body[:500]
        return json.loads(body, parse_constant=lambda text: pytest.fail(f"{text} is no JSON"))

    def counted(self, data: int = 0) -> Any:
        """Return the overview of a data set whose rows the server has counted."""
        wait_until(lambda: self.get("overview", data=data)["nrows"] is not None)
        return self.get("overview", data=data)

    @contextlib.contextmanager
    def changes(self) -> Iterator[http.client.HTTPResponse]:
        """Yield the answer that reports changes of the files."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", f"{self.root}api/changes")
        with contextlib.closing(connection):
            yield connection.getresponse()

    def events(self, name: str, **parameters: Any) -> list[Any]:
        query = urlencode(parameters, doseq=True)
        body = self.request(f"{self.root}api/{name}?{query}")[2].decode()
        return [json.loads(line[6:]) for line in body.split("\n") if line.startswith("data: ")]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers = []

    def start(*paths: Path | str | dtf.Dataset, **given: Any) -> Page:
        if isinstance(paths[0], dtf.Dataset):
            servers.append(paths[0].view(memory_limit=MEMORY))
        else:
            cache = BlockCache(MEMORY)
            sets = [open_path(str(path), cache, **given) for path in paths]
            servers.append(Server(sets))
        page = Page(servers[-1])
        for number in range(len(paths)):
            page.counted(number)
        return page

    yield start
    for server in servers:
        server.close()


@pytest.fixture(scope="module")
def scalars(golden: Path) -> Iterator[Page]:
    """The page of a golden file, which tests only read."""
    with Server([open_path(str(golden / "scalars.tfrecord"), BlockCache(MEMORY))]) as server:
        yield Page(server)


NAMES = ("scalars.tfrecord", "scalars_gzip.tfrecord.gz", "scalars_zlib.tfrecord.zlib")


@pytest.mark.parametrize("name", NAMES)
def test_rows_statistics_and_filters_agree_with_the_arrays_of_tensorflow(serve: Serve, golden: Path, name: str) -> None:
    page = serve(golden / name)
    numbers = dtf.read_tfrecord(golden / name)["i"].compute()
    overview = page.get("overview")
    assert {column["name"]: column["kind"] for column in overview["columns"]} == {
        "b": "bytes",
        "f": "number",
        "i": "number",
    }
    rows = page.get("rows", start=5, stop=25, column="i")
    assert rows["rows"] == list(range(5, 25))
    assert [int(cell["value"]) for cell in rows["cells"]["i"]] == numbers[5:25].tolist()
    last = page.events("statistics")[-1]
    assert last["done"] and last["rows"] == last["total"] == len(numbers)
    assert int(last["columns"]["i"]["max"]) == numbers.max()
    messages = page.events("filter", expression="i > 0")
    found = [row for message in messages for row in message["found"]]
    assert found == np.flatnonzero(numbers > 0).tolist()
    assert page.get("rows", start=2, stop=4, filter="i > 0")["rows"] == found[2:4]
    sample = page.get("rows", sample=10, seed=3)["rows"]
    assert sample == sorted(set(sample)) == page.get("rows", sample=10, seed=3)["rows"]


@pytest.mark.parametrize("name", ["scalars", "ragged", "sequence_example", "serialized_tensors", "varlen", "images"])
def test_every_row_of_a_golden_file_is_answered_with_its_record(serve: Serve, golden: Path, name: str) -> None:
    page = serve(golden / f"{name}.tfrecord")
    shard = page.get("shard", start=0, stop=1000)
    assert set(shard["states"]) == {0} and shard["records"] == len(shard["offsets"])
    for row in (0, shard["records"] - 1):
        found = page.get("row", row=row)
        assert found["location"]["offset"] == shard["offsets"][row]
        record = page.get("record", offset=shard["offsets"][row])
        assert (record["length"], record["state"]) == (shard["lengths"][row], 0)
        named = {field["name"] for field in record["fields"] if not field["depth"]}
        features = {key for each in dtf.inspect_records(golden / f"{name}.tfrecord").features for key in [each.name]}
        assert named and named <= features


def test_images_are_sent_at_the_size_that_is_shown(serve: Serve, golden: Path) -> None:
    page = serve(golden / "images.tfrecord")
    for column, kind in (("jpeg", "image/jpeg"), ("png_rgb", "image/png"), ("bmp", "image/png")):
        status, headers, body = page.request(f"{page.root}api/image?row=0&column={column}&width=16")
        assert (status, headers["content-type"]) == (200, kind)
        assert len(body) > 50
    page.get("image", 400, row=0, column="label")
    page.get("image", 404, row=0, column="jpeg", index=5)


@pytest.mark.parametrize("record", [0, 8])
def test_code_of_a_damaged_set_skips_what_the_view_skips(serve: Serve, tmp_path: Path, record: int) -> None:
    """Damage is known from the sample, from headers, or when a row of it was read."""
    path = tmp_path / "a.tfrecord"
    dtf.to_tfrecord({"label": np.arange(900, dtype=np.float32)}, path)
    whole = dtf.read_tfrecord(path)["label"].compute().tolist()
    data = bytearray(path.read_bytes())
    size = len(data) // 900
    data[record * 100 * size + 20] ^= 1
    path.write_bytes(data)
    page = serve(path)
    page.get("rows", start=800, stop=801)
    code = page.get("overview")["code"]
    assert code.endswith(f'ds = dtf.read_tfrecord({str(path)!r}, errors="skip")')
    names: dict[str, Any] = {}
    exec(code, names)
    whole.pop(record * 100)
    assert names["ds"]["label"].compute().tolist() == whole


# The map of a damaged golden file: states of its records that are not intact.
DAMAGED = {
    "payload_bit": [2],
    "payload_crc": [2],
    "length_bit": [1],
    "length_crc": [1],
    "huge_length": [1],
    "truncated_header": [3],
    "truncated_payload": [3],
    "truncated_footer": [3],
    "not_a_tfrecord": [1],
    "none": [],
}


@pytest.mark.parametrize("name", DAMAGED)
def test_the_map_and_the_rows_of_damaged_shards(serve: Serve, golden: Path, name: str) -> None:
    path = golden / f"damaged_{name}.tfrecord"
    page = serve(path)
    (expected,) = dtf.verify(path).files
    shard = page.get("shard", start=0, stop=1000)
    assert [state for state in shard["states"] if state] == DAMAGED[name] or name == "huge_length"
    assert [each["start"] for each in shard["damaged"]] == [each.start for each in expected.lost]
    repair = page.get("repair")
    assert (repair["kept"], repair["dropped"]) == (expected.records, expected.lost_records)
    page.get("overview")
    rows = page.get("rows", start=0, stop=100)
    failed = {at for cells in rows["cells"].values() for at, cell in enumerate(cells) if cell and "error" in cell}
    assert len(rows["rows"]) - len(failed) == expected.records


@pytest.mark.slow
def test_the_map_and_the_bytes_agree_on_every_record(serve: Serve, golden: Path, tmp_path: Path) -> None:
    sizes = [100, 1 << 20, 2 << 20, 8 << 20, 9 << 20]
    dtf.to_tfrecord({"x": [b"x" * size for size in sizes]}, tmp_path / "large.tfrecord")
    whole = (tmp_path / "large.tfrecord").read_bytes()
    starts = serve(tmp_path / "large.tfrecord").get("shard")["offsets"]
    damaged = bytearray(whole)
    for start in starts:
        damaged[start + 90] ^= 1
    (tmp_path / "flipped.tfrecord").write_bytes(damaged)
    (tmp_path / "cut.tfrecord").write_bytes(whole[:-5])
    (tmp_path / "header.tfrecord").write_bytes(whole[: starts[2] + 7])
    paths = [*sorted(tmp_path.glob("*.tfrecord")), *sorted(golden.glob("damaged_*.tfrecord"))]
    page = serve(*paths)
    for number, path in enumerate(paths):
        shard = page.get("shard", data=number)
        records = [page.get("record", data=number, offset=offset) for offset in shard["offsets"]]
        assert [record["state"] for record in records] == shard["states"], path.name
        for record, length, state in zip(records, shard["lengths"], shard["states"], strict=True):
            assert state in (1, 3) or record["length"] == length
            assert record["hex"]
        # Payloads above 8 MiB are not checked for a map.
        assert shard["states"] == [2, 2, 2, 0, 0] or path.name != "flipped.tfrecord"


def test_stores_and_shards_are_compared_side_by_side(serve: Serve, golden: Path, tmp_path: Path) -> None:
    dtf.read_tfrecord(golden / "scalars.tfrecord").to_zarr(tmp_path / "store.zarr")
    page = serve(golden / "scalars.tfrecord", tmp_path / "store.zarr")
    assert [page.get("overview", data=data)["kind"] for data in (0, 1)] == ["tfrecord", "zarr"]
    assert page.get("rows", data=0, stop=50)["cells"] == page.get("rows", data=1, stop=50)["cells"]
    page.get("shard", 400, data=1)


def run_code(code: str, **known: Any) -> Any:
    """Return the data set that copied code opens."""
    exec(code, known)
    return known["ds"]


def test_copied_code_opens_the_rows_that_are_shown(golden: Path, tmp_path: Path) -> None:
    numbers = [0, 1, -1_500_000_000, 10**18 + 120_000, 86_400 * 10**9]
    times, message = write_times(tmp_path, numbers)
    hostile = tmp_path / 'it\'s "quoted" \\n.tfrecord'
    dtf.to_tfrecord({"a == b": np.arange(9), "b": np.arange(9) % 2}, hostile)
    schema = dtf.Schema({"i": dtf.FixedLenFeature((), "int64")})
    (tmp_path / "i.json").write_text(schema.to_json())
    dtf.read_tfrecord(golden / "scalars.tfrecord").to_zarr(tmp_path / "store.zarr")
    cases: list[tuple[Path, dict[str, Any], str]] = [
        (times, {"message": message}, "at >= '1970-01-01T00:00:00.000000001Z' and took < '86400s'"),
        (times, {"message": message, "where": [[("took", ">", "0s")]]}, "at < '2000'"),
        (hostile, {}, "'a == b' >= 3 and b == 1 or 'a == b' == 0"),
        (hostile, {"compression": None, "where": [[("b", "==", 1)]]}, "'a == b' < 5"),
        (golden / "scalars.tfrecord", {"features": str(tmp_path / "i.json")}, "i > 0"),
        (tmp_path / "store.zarr", {"where": [[("i", ">", 0)]]}, "i < 100"),
    ]
    for path, options, expression in cases:
        with Server([open_path(str(path), BlockCache(MEMORY), **options)]) as server:
            page = Page(server)
            overview, messages = page.get("overview"), page.events("filter", expression=expression)
            named = "demo.Times" if path == times else "Example"
            assert overview["message"] == (named if overview["kind"] == "tfrecord" else None)
            found = page.get("rows", stop=100, filter=expression)
            for code, rows in ((overview["code"], page.get("rows", stop=100)), (messages[-1]["code"], found)):
                ds = run_code(code)
                assert list(ds) == [column["name"] for column in overview["columns"]]
                assert ds.nrows == len(rows["rows"]) > 0, code
                name = next(name for name in ds if rows["cells"][name] and "value" in rows["cells"][name][0])
                values = [str(value_as_json(value)) for value in ds[name].compute()]
                assert [str(cell["value"]) for cell in rows["cells"][name]] == values


def test_the_code_of_a_filter_continues_that_of_a_view_in_python(serve: Serve) -> None:
    dataset = dtf.Dataset.from_arrays({"x": np.arange(10)})
    page = serve(dataset)
    assert run_code(page.events("filter", expression="x > 6")[-1]["code"], ds=dataset).nrows == 3


def test_the_command_of_repair_repairs(serve: Serve, golden: Path, tmp_path: Path) -> None:
    path = tmp_path / 'it\'s a "name".tfrecord'
    shutil.copy(golden / "damaged_payload_bit.tfrecord", path)
    plan = serve(path).get("repair")
    assert CliRunner().invoke(tfrecord, shlex.split(plan["command"])[1:]).exit_code == 0
    assert dtf.read_tfrecord(f"{path}.repaired").nrows == plan["kept"]


def test_records_without_features_tell_what_they_are(serve: Serve, tmp_path: Path) -> None:
    page = serve(write_times(tmp_path, [0, 1, 10**18])[0])
    overview = page.get("overview")
    assert overview["columns"] == [] and overview["message"] is None
    assert len(overview["hints"]) == 1 and "expected an Example, found" in overview["hints"][0]
    assert page.get("shard")["records"] == overview["nrows"] > 0


def test_features_that_are_given_have_no_hints(serve: Serve, tmp_path: Path) -> None:
    columns = {"name": ["alpha", "beta"], "other": ["gamma", "delta"], "flag": [0, 1]}
    dtf.to_tfrecord(columns, tmp_path / "s.tfrecord")
    features = dtf.Schema({"name": dtf.TextFeature(), "other": dtf.FixedLenFeature((), "bytes")})
    (tmp_path / "f.json").write_text(features.to_json())
    for given, hinted in (({}, ["flag", "name", "other"]), ({"features": str(tmp_path / "f.json")}, ["other"])):
        hints = serve(tmp_path / "s.tfrecord", **given).get("overview")["hints"]
        assert sorted({hint.partition(":")[0] for hint in hints}) == hinted


def test_errors_of_a_page_are_sentences_without_classes_of_python(serve: Serve, golden: Path, tmp_path: Path) -> None:
    page = serve(dtf.read_tfrecord(golden / "images.tfrecord"))
    for path in ("rows?filter=a+%26%26", "rows?filter=lable+%3D%3D+3", "rows?filter=", "image?column=x&row=0"):
        _, _, said = page.request(path)
        assert not re.search(r"\b\w+Error\b", said.decode()), said


def test_steps_of_an_episode(serve: Serve) -> None:
    steps = np.arange(12, dtype=np.float32)
    dataset = dtf.Dataset.from_arrays(
        {
            "steps/reward": [steps[:4], steps[4:9]],
            "steps/state": [steps[:8].reshape(4, 2), steps[:10].reshape(5, 2)],
            "steps/instruction": [["go"] * 4, ["stop"] * 5],
        }
    )
    episode = serve(dataset).get("episode", row=1, group="steps")
    assert (episode["length"], episode["instruction"]) == (5, "stop")
    assert episode["curves"]["steps/reward"] == [[4, 5, 6, 7, 8]]
    assert episode["curves"]["steps/state"] == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]


def test_rows_that_are_not_counted_and_rows_of_arrays(serve: Serve) -> None:
    dataset = dtf.Dataset.from_arrays({"x": np.arange(1000)}).where(lambda blocks: blocks["x"] % 3 == 0, ["x"])
    cells = serve(dataset).get("rows", start=10, stop=13)["cells"]["x"]
    assert [cell["value"] for cell in cells] == [30, 33, 36]


def test_hostile_names_and_values_are_json(serve: Serve) -> None:
    name = "<script>\"'&\u202e\x00/../../etc/passwd"
    values = [float("nan"), float("inf"), -float("inf"), 1e300]
    dataset = dtf.Dataset.from_arrays({name: np.array(values), "big": np.array([2**62, -1, 0, 1])})
    page = serve(dataset)
    cells = page.get("rows", stop=4)["cells"]
    assert [cell["value"] for cell in cells[name]] == ["NaN", "Infinity", "-Infinity", 1e300]
    assert cells["big"][0]["value"] == str(2**62)
    assert page.get("row", row=1)["cells"][name]["value"] == "Infinity"
    assert page.events("statistics")[-1]["columns"][name]["max"] == "Infinity"


def test_each_bar_finds_as_many_rows_as_it_counts(serve: Serve) -> None:
    rng = np.random.default_rng(5)
    n = 100
    floats = rng.normal(0, 1, n)
    columns: dict[str, Any] = {
        "few": rng.integers(0, 4, n),
        "wide": rng.integers(-(2**63), 2**63 - 1, n),
        "ends": np.resize([-(2**63), 2**63 - 1, 0], n),
        "unsigned": rng.integers(2**63, 2**64 - 1, n, np.uint64),
        "small": rng.integers(-128, 127, n).astype(np.int8),
        "flag": rng.random(n) < 0.3,
        "float32": floats.astype(np.float32),
        "half": floats.astype(np.float16),
        "float64": floats,
        "holes": np.where(rng.random(n) < 0.1, np.nan, floats),
        "infinite": np.where(rng.random(n) < 0.1, np.inf, floats),
        "in 'quotes' and spaces": floats,
        "text": [["it's", 'a "b"', "\\n", "", "日本"][row % 5] for row in range(n)],
        "same": np.full(n, 7),
    }
    page = serve(dtf.Dataset.from_arrays(columns))
    found = page.events("statistics")[-1]["columns"]
    assert list(found) == list(columns)
    for name, statistics in found.items():
        bars = statistics["top"] or statistics["bins"]
        counts = [page.events("filter", expression=bar["expression"])[-1]["count"] for bar in bars]
        assert counts == [bar["count"] for bar in bars], name
        hidden = np.count_nonzero(~np.isfinite(columns[name])) if name in ("holes", "infinite") else 0
        assert sum(counts) == n - hidden, name


def test_sides_of_boxes_that_are_columns_draw_on_the_image(serve: Serve, tmp_path: Path) -> None:
    sides = {"ymin": [0.1, 0.5], "xmin": [0.2, 0.6], "ymax": [0.3, 0.7], "xmax": [0.4, 0.8]}
    picture = encode_png(np.zeros((8, 8, 3), np.uint8))
    rows = {f"image/object/bbox/{side}": [np.float32(values), np.float32([])] for side, values in sides.items()}
    rows |= {"image/object/class/text": [["cat", "dog"], []], "image/encoded": [picture, picture]}
    # The mask has a longer common prefix with the boxes than the image has.
    rows["image/object/mask"] = rows["image/encoded"]
    dtf.to_tfrecord(rows, str(tmp_path / "a.tfrecord"))
    features = {name: dtf.VarLenFeature("bytes" if "text" in name else "float32") for name in rows}
    features |= {name: dtf.FixedLenFeature((), "bytes") for name in ("image/encoded", "image/object/mask")}
    page = serve(dtf.read_tfrecord(tmp_path / "a.tfrecord", features))
    columns = {column["name"]: column for column in page.get("overview")["columns"]}
    boxes = columns["image/object/bbox"]
    assert (boxes["kind"], boxes["draws_on"], boxes["type"]) == ("boxes", "image/encoded", "float32 (?, 4)")
    assert boxes["group"] == columns["image/object/class/text"]["group"]
    assert columns["image/object/bbox/xmin"]["kind"] == "sequence"
    assert columns["image/object/mask"]["draws_on"] == "image/encoded"
    cells = page.get("rows", column=["image/object/bbox", "image/object/class/text"])["cells"]
    assert cells["image/object/bbox"] == [{"boxes": [[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8]]}, None]
    assert cells["image/object/class/text"][0]["values"] == ["cat", "dog"]
    assert page.get("row", row=0)["cells"]["image/object/bbox"] == cells["image/object/bbox"][0]
    page.get("image", 400, row=0, column="image/object/bbox")


def test_sides_of_boxes_with_different_lengths_are_an_error_of_the_cell(serve: Serve) -> None:
    pictures = [encode_png(np.zeros((8, 8, 3), np.uint8))] * 2
    rows = {side: [np.ones(2), np.ones(3)] for side in ("ymin", "xmin", "ymax")}
    page = serve(dtf.Dataset.from_arrays({**rows, "xmax": [np.ones(2), np.ones(1)], "image": pictures}))
    first, second = page.get("rows", column="boxes")["cells"]["boxes"]
    assert first == {"boxes": [[1, 1, 1, 1], [1, 1, 1, 1]]}
    assert "3, 3, 3, 1 values" in second["error"]


@pytest.mark.integration
def test_the_first_page_of_a_remote_set_reads_a_part_of_it(tmp_path: Path) -> None:
    rows = {"x": np.random.default_rng(0).bytes(1200 * 100_000), "number": np.arange(1200)}
    rows["x"] = [rows["x"][at : at + 100_000] for at in range(0, len(rows["x"]), 100_000)]
    dtf.to_tfrecord(rows, f"{tmp_path}/a-{{shard:05d}}-of-{{shards:05d}}.tfrecord", records_per_shard=150)
    dtf.build_index(tmp_path)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    names = sorted(name for name in files if name.endswith(".tfrecord"))
    with servers.running(servers.FileServer, files=files, etags={}) as (address, log):
        sets = [open_path([f"{address}/{name}" for name in names], BlockCache(MEMORY))]
        with Server(sets) as server:
            page = Page(server)
            assert len(page.get("overview")["columns"]) == 2
            cells = page.get("rows", stop=20)["cells"]["number"]
            assert [cell["value"] for cell in cells] == list(range(20))
            assert page.counted()["nrows"] == 1200
            assert log.sent < 10 << 20 < 100 << 20 < sum(map(len, files.values()))


HEADERS: list[tuple[dict[str, str], int]] = [
    ({}, 200),
    ({"Host": "localhost:9999"}, 200),
    ({"Host": "127.0.0.1"}, 200),
    ({"Host": "example.org"}, 421),
    ({"Host": "127.0.0.1.example.org:80"}, 421),
    ({"Host": "localhost:99@example.org"}, 421),
    ({"Host": "localhost:8000", "Origin": "http://localhost:8000"}, 200),
    ({"Host": "localhost:8000", "Origin": "http://localhost:8001"}, 403),
    ({"Origin": "null"}, 403),
    ({"Origin": "https://example.org"}, 403),
    ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}, 200),
    ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}, 403),
    ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}, 403),
]


def test_only_pages_of_this_server_get_answers(scalars: Page) -> None:
    page = scalars
    for headers, status in HEADERS:
        assert page.request(f"{page.root}api/overview", **headers)[0] == status, headers
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "HEAD"):
        assert page.request(f"{page.root}api/overview", method)[0] == 405
    token = page.root.strip("/")
    for wrong in ("", token[:-1], f"{token}x", token[::-1], token.upper(), "%00", "é"):
        assert page.request(f"/{quote(wrong, safe='%')}/api/overview")[0] == 404
    assert page.request(f"/{token}")[0] == 404


class Forward(socketserver.BaseRequestHandler):
    """Forward a connection to another port, as `ssh -L` does."""

    port: int

    def handle(self) -> None:
        with socket.create_connection(("127.0.0.1", self.port)) as other:
            back = threading.Thread(target=self.copy, args=(other, self.request))
            back.start()
            self.copy(self.request, other)
            back.join()

    @staticmethod
    def copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


def test_a_forwarded_port_answers_under_another_number(scalars: Page, golden: Path) -> None:
    page = Page(scalars.server)
    with servers.serving(type("Handler", (Forward,), {"port": page.port})) as port:
        page.port = port
        for name in ("127.0.0.1", "localhost"):
            origin = f"http://{name}:{port}"
            status, _, body = page.request(f"{page.root}api/overview", Host=f"{name}:{port}", Origin=origin)
            assert (status, json.loads(body)["name"]) == (200, str(golden / "scalars.tfrecord"))
        assert page.events("statistics")[-1]["done"]
        assert page.request(page.root)[0] == 200
        # A request through the port needs the token too.
        assert page.request("/api/overview")[0] == 404


def test_the_browser_is_opened_without_the_token_among_its_arguments(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, golden: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    pages: list[str] = []

    def load(server: Server) -> None:
        [path] = map(url2pathname, [urlsplit(opened[0]).path])
        assert server.url.rstrip("/").rpartition("/")[2] not in opened[0]
        assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
        [target] = re.findall(r'content="0;url=(.*?)"', Path(path).read_text("utf-8"))
        # A browser comes from a local file, which counts as another site.
        status, _, body = Page(server).request(
            urlsplit(target).path, sec_fetch_site="cross-site", sec_fetch_mode="navigate"
        )
        assert status == 200
        pages.append(body.decode())

    monkeypatch.setattr(Server, "wait", load)
    result = CliRunner().invoke(tfrecord, ["view", str(golden / "scalars.tfrecord")])
    assert result.exit_code == 0, result.output
    assert "<html" in pages[0] and len(opened) == 1
    assert not [*tmp_path.iterdir()]


def test_images_of_many_pixels_in_few_bytes_are_not_decoded(serve: Serve, tmp_path: Path) -> None:
    images = [blank_png(8, 8), blank_png(6000, 6000), blank_png(100, 400_000), many_scans_jpeg(16, 101)]
    dtf.to_tfrecord({"image": images}, tmp_path / "x.tfrecord")
    page = serve(tmp_path / "x.tfrecord")
    page.get("rows")
    query = f"{page.root}api/image?column=image&width=4&row="
    assert page.request(f"{query}0")[0] == 200
    for row, said in {1: "6,000 x 6,000 pixels", 2: "100 x 400,000 pixels", 3: "106 scans"}.items():
        status, _, body = page.request(f"{query}{row}")
        assert status == 422 and said in body.decode(), body
    preview = dtf.read_tfrecord(tmp_path / "x.tfrecord").preview()
    assert preview._repr_html_().count("<img") == 1
    assert "PNG image of 6,000 x 6,000, 35,…" in repr(preview)


def test_no_path_of_a_request_reaches_the_file_system(scalars: Page) -> None:
    for path in ("../server.py", "..%2fserver.py", "%2e%2e/server.py", "/etc/passwd", "page", "index.html%00", "a/b"):
        assert scalars.request(f"{scalars.root}{path}")[0] == 404, path


def test_headers_of_every_answer(scalars: Page) -> None:
    for path in ("api/overview", "api/rows?start=x", "nothing", "api/statistics"):
        headers = scalars.request(scalars.root + path)[1]
        policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'" and policy["frame-ancestors"] == "'none'"
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("rows", {"start": -1}),
        ("rows", {"start": 0, "stop": 10**6}),
        ("rows", {"start": "9" * 30}),
        ("rows", {"column": "absent"}),
        ("rows", {"sample": 10**9}),
        ("rows", {"filter": "i == 1 or " * 1000}),
        ("row", {}),
        ("row", {"row": 10**9}),
        ("overview", {"data": 7}),
        ("image", {"row": 0, "column": "i", "width": 10**9}),
        ("shard", {"shard": 1}),
        ("episode", {"row": 0, "group": "absent"}),
        ("filter", {"expression": "x" * 5000}),
    ],
)
def test_parameters_out_of_bounds(scalars: Page, name: str, parameters: dict[str, Any]) -> None:
    assert scalars.get(name, 400, **parameters)["error"]


@pytest.mark.parametrize("expression", ["", "i", "i == __import__('os')", "absent == 1", "i == 'text'"])
def test_expressions_that_cannot_be_used(scalars: Page, expression: str) -> None:
    assert scalars.get("filter", 422, expression=expression)["error"]


def test_blocks_stay_within_their_memory(serve: Serve, tmp_path: Path) -> None:
    columns = {"x": np.arange(200_000).reshape(2000, 100), "text": ["t" * 1000] * 2000}
    dtf.to_tfrecord(columns, str(tmp_path / "a.tfrecord"))
    cache = BlockCache(MEMORY)
    cache.limit = 1 << 20
    with Server([open_path(str(tmp_path / "a.tfrecord"), cache)]) as server:
        page, rng = Page(server), np.random.default_rng(0)
        for start in rng.integers(0, 1990, 40).tolist():
            cells = page.get("rows", start=start, stop=start + 3)["cells"]["x"]
            assert cells[0]["values"][0] == start * 100
            assert cache.nbytes <= cache.limit


def test_closed_pages_end_their_work(serve: Serve, tmp_path: Path) -> None:
    before = {*threading.enumerate()}
    dtf.to_tfrecord({"x": np.arange(300_000)}, str(tmp_path / "a.tfrecord"))
    page = serve(tmp_path / "a.tfrecord")
    with page.changes() as answer:
        assert answer.readline().startswith(b"data: ")
    page.server.close()
    left = {*threading.enumerate()} - before
    assert not [thread for thread in left if thread.name.startswith(("view", "count-"))]


def test_closing_a_view_ends_the_streams_of_open_pages(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dtf.to_tfrecord({"x": np.arange(3)}, str(tmp_path / "a.tfrecord"))
    page = serve(tmp_path / "a.tfrecord")
    with page.changes() as answer:
        assert answer.readline().startswith(b"data: ")
        page.server.close()
        answer.read()
    assert not [record.getMessage() for record in caplog.records if record.name.startswith("uvicorn")]


def test_files_that_grow_or_are_removed_are_reported(
    serve: Serve, golden: Path, tmp_path: Path, set_limits: Callable[..., Limits]
) -> None:
    set_limits(look_again=0.2)
    path = tmp_path / "a.tfrecord"
    shutil.copy(golden / "scalars.tfrecord", path)
    page = serve(path)
    changes: list[Callable[[], Any]] = [lambda: path.write_bytes(path.read_bytes() * 2), path.unlink]
    with page.changes() as answer:
        for change, expected in zip(changes, ("grew", "missing"), strict=True):
            change()
            until, found = time.monotonic() + 60, []
            while found != [expected] and time.monotonic() < until:
                line = answer.readline()
                if line.startswith(b"data: "):
                    found = [each["what"] for each in json.loads(line[6:])["changed"]]
            assert found == [expected]


def test_damaged_rows_are_left_out_where_errors_are_skipped(tmp_path: Path) -> None:
    dtf.to_tfrecord({"label": np.arange(9)}, tmp_path / "torn.tfrecord")
    torn = bytearray((tmp_path / "torn.tfrecord").read_bytes())
    torn[-6] ^= 1
    (tmp_path / "torn.tfrecord").write_bytes(torn)
    for where, rows in (([], 8), ([[("label", ">", 2)]], 5)):
        opened = open_path(str(tmp_path / "torn.tfrecord"), BlockCache(MEMORY), where=where, errors="skip")
        with Server([opened]) as server:
            page = Page(server)
            assert page.counted()["nrows"] == rows
            assert "errors='skip'" in page.get("overview")["code"]


def test_steps_of_components_are_curves_or_heat_maps(serve: Serve, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    few, many = [rng.random((n, 7)) for n in (3, 200)], [rng.random((n, 512)) for n in (3, 200)]
    columns = {"steps/state": few, "steps/words": many, **{f"steps/camera_{n}": [[n] * 3, [n] * 200] for n in (10, 9)}}
    page = serve(
        dtf.Dataset.from_arrays(
            {name: [each.astype("f4") for each in map(np.array, rows)] for name, rows in columns.items()}
        )
    )
    cells = page.get("rows", start=1, stop=2)["cells"]
    (state,), (words,) = cells["steps/state"], cells["steps/words"]
    assert (len(state["rows"]), len(state["rows"][0]), state["shape"], state["length"]) == (64, 7, [200, 7], 200)
    assert (len(words["rows"]), len(words["rows"][0]), words["shape"], words["length"]) == (64, 64, [200, 512], 200)
    whole = page.get("row", row=1)["cells"]["steps/state"]
    np.testing.assert_allclose(whole["rows"], few[1].astype("f4"), rtol=1e-6)
    episode = page.get("episode", row=1, group="steps")
    assert len(episode["curves"]["steps/state"]) == 7 and episode["maps"]["steps/words"]["shape"] == [512, 200]
    overview = page.get("overview")
    assert 'dtf.VarLenFeature("float32", shape=(-1, 7))' in overview["schema"]
    assert overview["columns"][0]["code"] == '"steps/state": dtf.VarLenFeature("float32", shape=(-1, 7)),'


def test_cameras_are_in_natural_order(serve: Serve, tmp_path: Path) -> None:
    frames = [np.zeros((2, 8, 8, 3), np.uint8)] * 2
    names = [f"steps/camera_{number}" for number in (10, 9, 1)]
    features = {name: dtf.ImageFeature((-1, 8, 8, 3)) for name in names}
    dtf.to_tfrecord(dict.fromkeys(names, frames), tmp_path / "a.tfrecord", features=features)
    page = serve(dtf.read_tfrecord(tmp_path / "a.tfrecord", features))
    assert page.get("episode", row=0, group="steps")["images"] == [f"steps/camera_{number}" for number in (1, 9, 10)]
