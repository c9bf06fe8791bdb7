"""Files of public repositories: inferred, read, and equal to the values that protobuf parses."""

from __future__ import annotations

from pathlib import Path

import pytest
from oracle import expected_columns, read_payloads
from oracle.messages import Example
from support.corpus import EMPTY, EXAMPLES, FOREIGN
from support.few import mostly_slow
from support.store_round_trip import assert_same

import dask_tfrecord as dtf
from dask_tfrecord.errors import FeatureError


def test_every_file_of_the_corpus_has_its_test(corpus: Path) -> None:
    sidecars = {".json", ".csv", ".pbtxt", ".md", ".txt"}
    files = {str(path.relative_to(corpus)) for path in corpus.rglob("*") if path.is_file()}
    records = {name for name in files if Path(name).suffix not in sidecars}
    # The features of an empty shard are unknown.
    assert records <= {*EXAMPLES, *FOREIGN, EMPTY}


@pytest.mark.parametrize("name", mostly_slow(EXAMPLES, 5))
def test_columns_equal_what_protobuf_parses(corpus: Path, name: str) -> None:
    path = corpus / name
    schema = dtf.infer_schema(path, sample=None)
    payloads = read_payloads(path)
    wanted = expected_columns(payloads, schema)
    keys = {key for payload in payloads for key in Example.FromString(payload).features.feature}
    assert keys == {*schema, *(schema.sampling.unset if schema.sampling else ())}, "a key was lost"
    rows = max(1, len(payloads) // 3 - 1)
    for counts, chunks in [("auto", "auto"), ("auto", rows), (None, "auto")]:
        ds = dtf.read_tfrecord(path, schema, counts=counts, chunks=chunks)
        assert ds.count() == len(payloads) == EXAMPLES[name]
        assert_same(ds.compute(), wanted)
    try:
        # The default sample describes the whole file, or the error names the record and the solution.
        assert_same(dtf.read_tfrecord(path).compute(), wanted)
    except FeatureError as error:
        assert error.place is not None and error.place.record is not None and error.place.record >= 256
        assert "infer_schema(urlpath, sample=None) reads all of them" in str(error)


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("counts", ["auto", None])
def test_other_payload_types_are_refused(corpus: Path, name: str, counts: str | None) -> None:
    path = corpus / name
    for features in (None, {"x": dtf.FixedLenFeature((), "int64")}, {"x": dtf.VarLenFeature("bytes")}):
        with pytest.raises(FeatureError, match=f"expected an Example, found {FOREIGN[name]} of") as caught:
            dtf.read_tfrecord(path, features, counts=counts).compute()
        assert caught.value.place is not None
        assert (caught.value.place.file, caught.value.place.record) == (str(path), 0)
        readers = ("read_bag(urlpath", "infer_schema(urlpath)", "example_features=")
        assert any(reader in str(caught.value) for reader in readers)
    assert list(dtf.read_records(path)) == read_payloads(path)
