"""A feature class of another package: the samples of WAV files."""

from __future__ import annotations

import io
import wave
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

import dask_tfrecord as dtf
from dask_tfrecord.features import ArrayFeature
from dask_tfrecord.features.tfds_entries import class_entry, shape_entry


@dtf.register_feature
@dataclass(frozen=True, repr=False)
class WaveFeature(ArrayFeature):
    """Samples of 16 bits of one channel, at one rate; records differ in length."""

    rate: int = 16_000
    count: int | None = None
    shape: ClassVar[Any] = (-1,)
    dtype: ClassVar[Any] = "int16"

    def tfds_entry(self, name: str, labels: Any, format: str) -> Any:
        audio = {
            "dtype": "int16",
            "encoding": "none",
            "fileFormat": "wav",
            "lazyDecode": True,
            "shape": shape_entry([-1]),
        }
        return class_entry("audio", {**audio, "sampleRate": str(self.rate)}) if self.count is None else None

    def decode_value(self, value: bytes) -> Any:
        with wave.open(io.BytesIO(value)) as file:
            if (file.getnchannels(), file.getsampwidth(), file.getframerate()) != (1, 2, self.rate):
                raise ValueError(f"{file.getparams()}; expected one channel of 16 bits at {self.rate} Hz")
            return np.frombuffer(file.readframes(file.getnframes()), "<i2")

    def encode_value(self, array: Any) -> bytes:
        out = io.BytesIO()
        with wave.open(out, "wb") as file:
            file.setparams((1, 2, self.rate, 0, "NONE", ""))
            file.writeframes(array.astype("<i2").tobytes())
        return out.getvalue()
