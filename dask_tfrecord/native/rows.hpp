// Rows of a flat array, given by splits: select, pad and sort them.
#pragma once

#include <algorithm>
#include <vector>

#include "cursor.hpp"

namespace dtf {

// Read a split once. Arrays belong to the caller and are read without the GIL: another thread may change them, so that
// a split is checked where it is used, not only by `ascend`.
inline std::uint64_t split_at(const std::int64_t* splits, std::size_t i) {
    return static_cast<std::uint64_t>(*static_cast<const volatile std::int64_t*>(splits + i));
}

// Return whether splits ascend, from 0 or more to at most `most`.
inline bool ascend(const std::int64_t* splits, std::size_t rows, std::size_t most) {
    std::int64_t before = 0;
    for (std::size_t i = 0; i <= rows; ++i) {
        if (splits[i] < before || static_cast<std::uint64_t>(splits[i]) > most) return false;
        before = splits[i];
    }
    return true;
}

// Call ``take(row, begin, end)`` for each row until it returns false. False if it did, or if splits are invalid.
template <class Take>
bool each_row(const std::int64_t* splits, std::size_t rows, std::size_t most, Take take) {
    if (rows == 0) return true;
    std::uint64_t begin = split_at(splits, 0);
    for (std::size_t row = 0; row < rows; ++row) {
        const std::uint64_t end = split_at(splits, row + 1);
        if (begin > end || end > most) return false;
        if (!take(row, static_cast<std::size_t>(begin), static_cast<std::size_t>(end))) return false;
        begin = end;
    }
    return true;
}

// Rows of an array of at most `most` items. Without splits each row is one item.
struct RowSource {
    const std::uint8_t* values;
    std::size_t most;
    const std::int64_t* splits;
    std::size_t rows;
};

// Rows of several sources: row `index[i]` of the source `owners[i]`, or of the only source if there are no owners.
// Without an index these are the first rows.
struct Picked {
    const std::vector<RowSource>& sources;
    const std::int64_t* owners;
    const std::int64_t* index;
    std::size_t count;

    // Call ``take(source, begin, end)`` with the items of each row until it returns false. False if it did, if a row
    // does not exist, or if its splits are invalid. Other splits are not read: few rows of many are picked.
    template <class Take>
    bool each(Take take) const {
        for (std::size_t i = 0; i < count; ++i) {
            const std::uint64_t owner = owners == nullptr ? 0 : split_at(owners, i);
            const std::uint64_t row = index == nullptr ? i : split_at(index, i);
            if (owner >= sources.size() || row >= sources[owner].rows) return false;
            const RowSource& source = sources[owner];
            const bool divided = source.splits != nullptr;
            const std::uint64_t begin = divided ? split_at(source.splits, row) : row;
            const std::uint64_t end = divided ? split_at(source.splits, row + 1) : row + 1;
            if (begin > end || end > source.most) return false;
            if (!take(source, static_cast<std::size_t>(begin), static_cast<std::size_t>(end))) return false;
        }
        return true;
    }
};

// Write the offsets between picked rows to `out`, which has one more entry than rows; false as for `Picked::each`.
inline bool take_splits(const Picked& picked, std::int64_t* out) {
    std::size_t total = 0;
    *out = 0;
    return picked.each([&](const RowSource&, std::size_t begin, std::size_t end) {
        total += end - begin;
        *++out = static_cast<std::int64_t>(total);
        return total <= most_values;
    });
}

// Copy picked rows, of items of `item` bytes, one after the other to `out`. False if they do not fill `capacity` bytes,
// or as for `Picked::each`.
inline bool take_rows(const Picked& picked, std::size_t item, std::uint8_t* out, std::size_t capacity) {
    const bool done = picked.each([&](const RowSource& source, std::size_t begin, std::size_t end) {
        const std::size_t size = (end - begin) * item;
        if (size > capacity) return false;
        if (size > 0) std::memcpy(out, source.values + begin * item, size);
        out += size;
        capacity -= size;
        return true;
    });
    return done && capacity == 0;
}

// Repeat an item of `item` bytes. Each copy doubles what is filled: items are small, and a call for each is slow.
inline void fill_items(std::uint8_t* out, std::size_t count, std::size_t item, const std::uint8_t* filler) {
    if (count == 0) return;
    std::memcpy(out, filler, item);
    for (std::size_t done = item, all = count * item; done < all;) {
        const std::size_t next = done < all - done ? done : all - done;
        std::memcpy(out + done, out, next);
        done += next;
    }
}

// Copy each picked row to the beginning of its slot of `length` items and fill the rest of the slot. False if a row
// does not fit, or as for `Picked::each`. `out` has one slot per row.
inline bool pad_rows(const Picked& picked, std::size_t item, std::size_t length, const std::uint8_t* filler,
                     std::uint8_t* out) {
    return picked.each([&](const RowSource& source, std::size_t begin, std::size_t end) {
        const std::size_t count = end - begin;
        if (count > length) return false;
        if (count > 0) std::memcpy(out, source.values + begin * item, count * item);
        out += count * item;
        fill_items(out, length - count, item, filler);
        out += (length - count) * item;
        return true;
    });
}

// Up to this length rows are sorted without extra memory.
constexpr unsigned short_bits = 5;
constexpr std::size_t longest_short = 1 << short_bits;

// Sort a short row by the number of items before each, which no branch depends on. False if its indices are large, or in
// order already. Items of the row count from `begin`.
DTF_INLINE bool rank_row(const std::int64_t* indices, std::size_t count, std::int64_t begin, std::int64_t* order) {
    std::int32_t keys[longest_short] = {}, ranks[longest_short] = {};  // an index with the place of its item is unique
    std::uint64_t bits = 0;
    bool falls = false;
    for (std::size_t i = 0; i < count; ++i) {
        const auto index = static_cast<std::uint64_t>(indices[i]);
        keys[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(index) << short_bits | static_cast<std::uint32_t>(i));
        falls = falls || (i > 0 && keys[i] < keys[i - 1]);
        bits |= index;
    }
    if (!falls || bits >> (31 - short_bits) != 0) return false;
    for (std::size_t other = 0; other < count; ++other) {
        const std::int32_t key = keys[other];
        // all places: the processor would mispredict the length of a row
        for (std::size_t i = 0; i < longest_short; ++i) ranks[i] += keys[i] > key ? 1 : 0;
    }
    for (std::size_t i = 0; i < count; ++i) order[ranks[i]] = begin + static_cast<std::int64_t>(i);
    return true;
}

// The same, compiled for eight numbers at once.
DTF_AVX2 inline bool rank_row_wide(const std::int64_t* indices, std::size_t count, std::int64_t begin,
                                   std::int64_t* order) {
    return rank_row(indices, count, begin, order);
}

// An array of items of `item` bytes, and a copy in another order.
struct Reordered {
    const std::uint8_t* from;
    std::uint8_t* to;
    std::size_t item;

    void copy(const std::int64_t* order, std::size_t begin, std::size_t end) const {
        for (std::size_t i = begin; i < end; ++i) {
            const std::uint8_t* const source = from + static_cast<std::size_t>(order[i]) * item;
            // sizes that the compiler knows need no call
            if (item == 8) {
                std::memcpy(to + 8 * i, source, 8);
            } else if (item == 4) {
                std::memcpy(to + 4 * i, source, 4);
            } else {
                std::memcpy(to + item * i, source, item);
            }
        }
    }
};

// Write the order that sorts the items of each row by their indices, lexicographically; the sort is stable. Copy arrays
// of the items in this order. False if splits are invalid. `order` has one entry per item. The caller owns `indices` and
// `order` alone: a comparison whose result changes while it sorts could leave the row.
inline bool sort_rows(const std::int64_t* indices, std::size_t items, std::size_t axes, const std::int64_t* splits,
                      std::size_t rows, std::int64_t* order, const std::vector<Reordered>& arrays = {}) {
    if (!ascend(splits, rows, items) || split_at(splits, 0) != 0 || split_at(splits, rows) != items) return false;
    const auto less = [indices, axes](std::int64_t one, std::int64_t other) {
        const std::int64_t* left = indices + static_cast<std::size_t>(one) * axes;
        const std::int64_t* right = indices + static_cast<std::size_t>(other) * axes;
        return std::lexicographical_compare(left, left + axes, right, right + axes);
    };
    const bool wide = has_avx2();
    for (std::size_t i = 0; i < items; ++i) order[i] = static_cast<std::int64_t>(i);
    const auto sort = [&](std::size_t begin, std::size_t end) {
        std::int64_t* first = order + begin;
        std::int64_t* last = order + end;
        if (end - begin > longest_short) {
            if (!std::is_sorted(first, last, less)) std::stable_sort(first, last, less);
            return;
        }
        const auto place = static_cast<std::int64_t>(begin);
        if (axes == 1 && (wide ? rank_row_wide(indices + begin, end - begin, place, first)
                               : rank_row(indices + begin, end - begin, place, first))) {
            return;
        }
        for (std::int64_t* at = first; at < last; ++at) {
            // most items are already in order
            const std::int64_t one = *at;
            std::int64_t* to = at;
            for (; to > first && less(one, to[-1]); --to) *to = to[-1];
            *to = one;
        }
    };
    return each_row(splits, rows, items, [&](std::size_t, std::size_t begin, std::size_t end) {
        sort(begin, end);
        for (const Reordered& array : arrays) array.copy(order, begin, end);
        return true;
    });
}

}  // namespace dtf
