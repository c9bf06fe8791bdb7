"""Compare compressors on ten kinds of real data: size, and processor time to compress and to decompress.

    python benchmarks/compression.py [--corpus DIRECTORY] [--seconds 0.2]

Photos, masks and disparities are those of scikit-image, text is the source of Python's library; DNA is read from the
example of baskerville in the corpus of the tests. The defaults of `to_zarr` are chosen by the table.
"""

import argparse
import importlib.util
import os
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numcodecs.blosc
import numpy as np
from numcodecs import Blosc

DNA = "calico__baskerville/tests/data/tiny/mm10/tfrecords/train-0.tfr"
# Bytes of a chunk.
CHUNK = 1 << 20


def kinds(corpus: Path | None) -> Iterator[tuple[str, Any]]:
    """Yield arrays by kind."""
    from PIL import Image

    spec = importlib.util.find_spec("skimage")
    if spec is None or spec.origin is None:
        raise SystemExit("the data are those of scikit-image: pip install scikit-image")
    folder = Path(spec.origin).parent / "data"
    names = ("astronaut.png", "coffee.png", "chelsea.png", "rocket.jpg", "ihc.png", "retina.jpg")
    photos = [np.asarray(Image.open(folder / name).convert("RGB")) for name in names]
    grey = [photo.mean(axis=-1) for photo in photos]
    yield "images (uint8)", np.concatenate([photo.ravel() for photo in photos])
    classes = [np.digitize(each, [60, 120, 200]).astype("u1").ravel() for each in grey]
    yield "masks of classes (uint8)", np.concatenate(classes)
    if corpus is not None:
        yield "DNA, one-hot (uint8)", dna(corpus / DNA)
    yield "pixels minus 128 (int8)", (np.concatenate([each.ravel() for each in grey]) - 128).astype("i1")
    yield "masks (bool)", np.concatenate([each.ravel() > 128 for each in grey])
    with np.load(folder / "motorcycle_disp.npz") as found:
        depth = np.nan_to_num(found["arr_0"], posinf=0)
    yield "disparities (uint16)", (depth * 256).astype("u2").ravel()
    yield "disparities (float32)", depth.astype("f4").ravel()
    yield "faces (float32)", np.load(folder / "lfw_subset.npy").astype("f4").ravel()
    text = "".join(path.read_text("utf-8") for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:100])
    words = text.split()
    yield "tokens (int64)", np.unique(words, return_inverse=True)[1].astype("i8")
    yield "text (uint8)", np.frombuffer(text.encode(), "u1")
    lengths = np.array([len(word) for word in words])
    yield "row splits (int64)", np.append(0, lengths.cumsum())
    yield "row numbers (int64)", np.arange(1 << 17)
    yield "noise (float32)", np.random.default_rng(0).normal(size=1 << 18).astype("f4")


def dna(path: Path) -> Any:
    """Return the sequences of records of baskerville."""
    import dask_tfrecord as dtf

    first = dtf.read_tfrecord(path, {"sequence": dtf.FixedLenFeature((), "bytes")})["sequence"][:1].compute()[0]
    sequence = {"sequence": dtf.RawFeature((len(first),), "uint8")}
    found = dtf.read_tfrecord(path, sequence)["sequence"].compute().ravel()
    # Bases are numbered, and 4 is an unknown one.
    return np.eye(5, 4, dtype="u1")[found].ravel()


def seconds(call: Callable[[], object], least: float) -> float:
    """Return the least processor time of a call, repeated for some seconds."""
    found, end = list[float](), time.perf_counter() + least
    while not found or time.perf_counter() < end:
        start = time.process_time()
        call()
        found.append(time.process_time() - start)
    return min(found)


def measured(codec: Blosc, chunks: list[Any], nbytes: int, least: float) -> str:
    """Return a cell of the table."""
    stored = [codec.encode(chunk) for chunk in chunks]
    encode = seconds(lambda: [codec.encode(chunk) for chunk in chunks], least)
    decode = seconds(lambda: [codec.decode(each) for each in stored], least)
    return f"{nbytes / sum(map(len, stored)):>9.2f} {1e9 * encode / nbytes:>5.1f} {1e9 * decode / nbytes:>4.1f}"


def main() -> None:
    """Print a line for each kind of data, with three numbers for each compressor."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = os.environ.get("DASK_TFRECORD_CORPUS")
    parser.add_argument("--corpus", type=Path, default=None if known is None else Path(known))
    parser.add_argument("--seconds", type=float, default=0.2)
    arguments = parser.parse_args()
    numcodecs.blosc.use_threads = False
    codecs = {
        f"{cname}-{level} {name}": Blosc(cname, level, shuffle)
        for cname, level in (("lz4", 5), ("zstd", 1))
        for name, shuffle in (("none", Blosc.NOSHUFFLE), ("shuffle", Blosc.SHUFFLE), ("bits", Blosc.BITSHUFFLE))
    }
    print("times smaller, ms to compress and ms to decompress a MB")
    print(f"{'':26}" + "".join(f"{name:>20}" for name in codecs))
    for kind, array in kinds(arguments.corpus):
        rows = CHUNK // array.itemsize
        chunks = [np.ascontiguousarray(array[start : start + rows]) for start in range(0, len(array), rows)][:8]
        nbytes = sum(chunk.nbytes for chunk in chunks)
        line = f"{kind:26}"
        for codec in codecs.values():
            line += measured(codec, chunks, nbytes, arguments.seconds)
        print(line)


if __name__ == "__main__":
    main()
