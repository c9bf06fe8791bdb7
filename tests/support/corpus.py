"""Files of the corpus: real shards of public repositories, with their number of records or their payload type."""

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
    "google__nucleus/nucleus/testdata/test_sites.vcf.golden.tfrecord": "a nucleus Variant",
    "pytorch__data/test/_fakedata/tfrecord/sequence_example.tfrecord": "a SequenceExample",
    "tensorflow__ranking/tensorflow_ranking/examples/data/train_numerical_elwc.tfrecord": "an ExampleListWithContext",
    f"{TFX}/tfrecord_sequence/Split-eval/data_tfrecord_eval.gz": "a SequenceExample",
}

EMPTY = f"{BASKERVILLE}/train-7.tfr"

SEQUENCES = [name for name, payload_type in FOREIGN.items() if payload_type == "a SequenceExample"]

# Files that the tests read, write and read again.
ROUND_TRIPS = [*EXAMPLES, *SEQUENCES]
