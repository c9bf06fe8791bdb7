#!/bin/bash -eu
# Compile the target with the flags of ClusterFuzzLite, and give it the golden files as its first inputs.
# shellcheck disable=SC2086  # several flags
$CXX $CXXFLAGS $LIB_FUZZING_ENGINE -std=c++17 -ffp-contract=off -Idask_tfrecord/native \
  dask_tfrecord/native/tests/fuzz_target.cpp -o "$OUT/fuzz_target"
zip --quiet --junk-paths "$OUT/fuzz_target_seed_corpus.zip" tests/data/golden/*.tfrecord
