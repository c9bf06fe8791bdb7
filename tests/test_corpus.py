"""Real files of other people's programs: inferred, read, and equal to what protobuf makes of every value."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from numpy.typing import NDArray

import dask_tfrecord as dtf
from dask_tfrecord.errors import CorruptRecordError, FeatureError, Place, SchemaError
from dask_tfrecord.messages import Example
from dask_tfrecord.testing import expected_columns, read_payloads

TRAX = "google__trax/trax/data/testdata"
YGGDRASIL = "google__yggdrasil-decision-forests/yggdrasil_decision_forests/test_data/dataset"
BASKERVILLE = "calico__baskerville/tests/data/tiny/mm10/tfrecords"
TFX = "tensorflow__tfx/tfx/components/testdata"
# Number of records, as INDEX.md has them.
EXAMPLES = {
    "NVIDIA__go-tfdata/test/data/tf-train-medium.record": 7,
    f"{BASKERVILLE}/test-3.tfr": 1,
    f"{BASKERVILLE}/train-0.tfr": 4,
    f"{TRAX}/para_crawl/ende/1.2.0/para_crawl-train.tfrecord-00000-of-00001": 10,
    f"{TRAX}/squad/v1.1/3.0.0/squad-train.tfrecord-00000-of-00001": 10,
    f"{TRAX}/squad/v1.1/3.0.0/squad-validation.tfrecord-00000-of-00001": 10,
    f"{YGGDRASIL}/adult_test.recordio.gz": 9769,
    f"{YGGDRASIL}/sentences.tfe-tfrecord": 2,
    f"{YGGDRASIL}/toy.nocompress-tfe-tfrecord-00000-of-00002": 3,
    f"{YGGDRASIL}/toy.nocompress-tfe-tfrecord-00001-of-00002": 1,
    f"{YGGDRASIL}/toy.tfe-tfrecord-00000-of-00002": 3,
    f"{YGGDRASIL}/toy.tfe-tfrecord-00001-of-00002": 1,
    "octo-models__octo/tests/debug_dataset/bridge_dataset/1.0.0/bridge_dataset-train.tfrecord-00000-of-00001": 25,
    "pytorch__data/test/_fakedata/tfrecord/example.tfrecord": 4,
    "tensorflow__ecosystem/hadoop/src/test/resources/tf-records/part-m-00000": 5,
    "tensorflow__ecosystem/hadoop/src/test/resources/zipped-tf-records/part-m-00000.gz": 5,
    **{
        f"{TFX}/csv_example_gen/Split-train/data_tfrecord-{number:05d}-of-00012.gz": 825
        if number in (3, 5, 11)
        else 826
        for number in range(12)
    },
}
FOREIGN = {
    "google__nucleus/nucleus/testdata/test_sites.vcf.golden.tfrecord": "a protobuf message of another kind",
    "pytorch__data/test/_fakedata/tfrecord/sequence_example.tfrecord": "a SequenceExample",
    "tensorflow__ranking/tensorflow_ranking/examples/data/train_numerical_elwc.tfrecord": "an ExampleListWithContext",
    f"{TFX}/tfrecord_sequence/Split-eval/data_tfrecord_eval.gz": "a SequenceExample",
}
EMPTY = f"{BASKERVILLE}/train-7.tfr"


def check(found: Mapping[str, NDArray[Any]], wanted: Mapping[str, NDArray[Any]]) -> None:
    assert set(found) == set(wanted)
    for name, array in wanted.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        assert bits(found[name]) == bits(array), name


def bits(array: NDArray[Any]) -> Any:
    if array.dtype != object:
        return array.tobytes()
    return [bits(item) if isinstance(item, np.ndarray) else item for item in array.ravel()]


def test_every_file_of_the_corpus_has_its_test(corpus: Path) -> None:
    sidecars = {".json", ".csv", ".pbtxt", ".md", ".txt"}
    files = {str(path.relative_to(corpus)) for path in corpus.rglob("*") if path.is_file()}
    records = {name for name in files if Path(name).suffix not in sidecars}
    assert records <= {*EXAMPLES, *FOREIGN, EMPTY}


@pytest.mark.parametrize("name", EXAMPLES)
def test_inferred_columns_equal_what_protobuf_parses(corpus: Path, name: str) -> None:
    path = corpus / name
    schema = dtf.infer_schema(path, sample=None)
    payloads = read_payloads(path)
    wanted = expected_columns(payloads, schema)
    keys = {key for payload in payloads for key in keys_of(payload)}
    assert keys == {*schema, *(schema.sampling.unset if schema.sampling else ())}, "a key was lost"
    rows = max(1, len(payloads) // 3 - 1)
    for counts, chunks in [("auto", "auto"), ("auto", rows), (None, "auto")]:
        ds = dtf.read_tfrecord(path, schema, counts=counts, chunks=chunks)
        assert ds.count() == len(payloads) == EXAMPLES[name]
        check(ds.compute(), wanted)
        check(dask.compute(ds)[0], wanted)
    together = ds[tuple(schema)]
    check(dict(zip(schema, dask.compute(*together), strict=True)), wanted)


def keys_of(payload: bytes) -> set[str]:
    return set(Example.FromString(payload).features.feature)


@pytest.mark.parametrize("name", EXAMPLES)
def test_files_read_with_nothing_said(corpus: Path, name: str) -> None:
    """The default sample either describes the whole file, or the record that breaks it is named, and the way out."""
    path = corpus / name
    try:
        found = dtf.read_tfrecord(path).compute()
    except FeatureError as error:
        assert error.place is not None
        assert error.place.record is not None
        assert error.place.record >= 256
        assert "infer_schema(urlpath, sample=None) reads all of them" in str(error)
        found = dtf.read_tfrecord(path, dtf.infer_schema(path, sample=None)).compute()
    check(found, expected_columns(read_payloads(path), dtf.infer_schema(path, sample=None)))


def test_shards_of_one_collection_are_one(corpus: Path) -> None:
    pattern = corpus / f"{TFX}/csv_example_gen/Split-train/data_tfrecord-*.gz"
    paths = sorted(pattern.parent.glob(pattern.name))
    schema = dtf.infer_schema(pattern, sample=None)
    wanted = expected_columns((payload for path in paths for payload in read_payloads(path)), schema)
    ds = dtf.read_tfrecord(pattern, schema, chunks=1000)
    assert (ds.nrecords, ds.npartitions) == (9909, 10)
    check(ds.compute(), wanted)
    picked = [9908, 0, 825, 826, 5000]
    check(ds.rows[picked].compute(), {name: array[picked] for name, array in wanted.items()})
    check(ds.rows[-3:].compute(), {name: array[-3:] for name, array in wanted.items()})


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("counts", ["auto", None])
def test_other_kinds_are_refused(corpus: Path, name: str, counts: str | None) -> None:
    path = corpus / name
    for features in (None, {"x": dtf.FixedLenFeature((), "int64")}, {"x": dtf.VarLenFeature("bytes")}):
        with pytest.raises(FeatureError, match=f"expected an Example, found {FOREIGN[name]} of") as caught:
            dtf.read_tfrecord(path, features, counts=counts).compute()
        assert caught.value.place is not None
        assert (caught.value.place.file, caught.value.place.record) == (str(path), 0)
        assert "to_bag(urlpath" in str(caught.value) or "infer_schema(urlpath)" in str(caught.value)


@pytest.mark.parametrize("name", FOREIGN)
def test_records_of_other_kinds_are_there_as_they_are(corpus: Path, name: str) -> None:
    assert list(dtf.read_records(corpus / name)) == read_payloads(corpus / name)


def test_a_shard_without_records(corpus: Path) -> None:
    with pytest.raises(SchemaError, match="no record to infer features from"):
        dtf.read_tfrecord(corpus / EMPTY)
    full = corpus / f"{BASKERVILLE}/train-0.tfr"
    # Beside others it is no obstacle, wherever it stands.
    for paths in ([corpus / EMPTY, full], [full, corpus / EMPTY], [corpus / EMPTY, full, corpus / EMPTY]):
        ds = dtf.read_tfrecord(paths)
        assert (ds.nrecords, ds.chunks) == (4, (4,))
        check(ds.compute(), dtf.read_tfrecord(full).compute())
        assert dtf.read_tfrecord(paths, counts=None)["sequence"].compute().shape == (4,)


def test_a_file_that_is_no_tfrecord_says_so(corpus: Path) -> None:
    path = corpus / "INDEX.md"
    with pytest.raises(CorruptRecordError, match=r"no TFRecord file.* begins with text") as caught:
        dtf.read_tfrecord(path)
    assert caught.value.place == Place(str(path), 0, 0)
