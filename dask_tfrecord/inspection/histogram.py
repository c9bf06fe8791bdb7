"""Histogram of numbers in bounded memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

__all__ = ["Histogram"]

# Limit of the distinct numbers.
_MAX_NUMBERS = 64


@dataclass(slots=True)
class Histogram:
    """Frequencies of numbers: exact for up to 64 distinct numbers, then by powers of two.

    Attributes
    ----------
    exact : dict of int to int, or None
        Frequency by number; None after the 65th distinct number.
    ranges : dict of int to int
        Frequency by bit length after that: key 3 counts the numbers 4 to 7.
    low, high, divisor : int
        Minimum, maximum and greatest common divisor of the numbers counted in `ranges`.
    """

    exact: dict[int, int] | None = field(default_factory=dict)
    ranges: dict[int, int] = field(default_factory=dict)
    low: int = 0
    high: int = 0
    divisor: int = 0

    def add(self, number: int, times: int = 1) -> None:
        """Count a number `times` times."""
        exact = self.exact
        if exact is None:
            self._add_to_ranges(number, times)
        elif number in exact:
            exact[number] += times
        else:
            exact[number] = times
            if len(exact) > _MAX_NUMBERS:
                self._switch_to_ranges()

    def merge(self, other: Histogram) -> None:
        """Add the frequencies of another histogram."""
        if other.exact is not None:
            for number, times in other.exact.items():
                self.add(number, times)
            return
        if self.exact == {}:
            self.low = other.low
        if self.exact is not None:
            self._switch_to_ranges()
        for bits, times in other.ranges.items():
            self.ranges[bits] = self.ranges.get(bits, 0) + times
        self._widen(other.low, other.high, other.divisor)

    def extent(self) -> tuple[int, int]:
        """Return the minimum and the maximum."""
        return (min(self.exact), max(self.exact)) if self.exact else (self.low, self.high)

    def common_divisor(self) -> int:
        """Return the greatest common divisor, or 1 if fewer than three distinct non-zero numbers were counted."""
        if self.exact is None:
            return self.divisor
        return math.gcd(*self.exact) if len(self.exact.keys() - {0}) >= 3 else 1

    def bins(self) -> tuple[tuple[int, int, int], ...]:
        """Return (first number, last number, frequency) of each bin in ascending order."""
        if self.exact is not None:
            return tuple((number, number, times) for number, times in sorted(self.exact.items()))
        return tuple((1 << bits >> 1, (1 << bits) - 1, times) for bits, times in sorted(self.ranges.items()))

    def _switch_to_ranges(self) -> None:
        exact, self.exact = self.exact or {}, None
        if exact:
            self.low = self.high = next(iter(exact))
        for number, times in exact.items():
            self._add_to_ranges(number, times)

    def _add_to_ranges(self, number: int, times: int) -> None:
        bits = number.bit_length()
        self.ranges[bits] = self.ranges.get(bits, 0) + times
        self._widen(number, number, number)

    def _widen(self, low: int, high: int, divisor: int) -> None:
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.divisor = math.gcd(self.divisor, divisor)
