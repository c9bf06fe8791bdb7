"""Write the two small shards that the README and the pages of docs/ read: ten records each.

    python examples/sample_shards.py [DIRECTORY]

A record has an `image` (the bytes of an 8 by 8 by 3 array of uint8), a `label` from 0 to 4, a `text`, and as many
`tokens` as its number in the shard.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dask_tfrecord import RecordWriter, messages


def payloads(rng: np.random.Generator, shard: int) -> Iterator[bytes]:
    """Yield the records of one shard."""
    for record in range(10):
        example = messages.Example()
        features = example.features.feature
        features["image"].bytes_list.value.append(rng.integers(0, 256, (8, 8, 3), np.uint8).tobytes())
        features["label"].int64_list.value.append(record % 5)
        features["text"].bytes_list.value.append(f"record {10 * shard + record}".encode())
        features["tokens"].int64_list.value.extend(rng.integers(0, 1000, record).tolist())
        yield example.SerializeToString(deterministic=True)


def main(directory: Path) -> None:
    """Write both shards."""
    directory.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for shard in range(2):
        with RecordWriter(directory / f"train-{shard:05d}-of-00002.tfrecord") as writer:
            for payload in payloads(rng, shard):
                writer.write(payload)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
