// Rows of a flat array, given by splits: select, pad and sort them.
#pragma once

#include <algorithm>
#include <vector>

#include "cursor.hpp"

namespace dtf {

// Return whether splits ascend, from 0 or more to at most `most`.
inline bool ascend(const std::int64_t* splits, std::size_t rows, std::size_t most) {
    std::int64_t before = 0;
    for (std::size_t i = 0; i <= rows; ++i) {
        if (splits[i] < before || static_cast<std::uint64_t>(splits[i]) > most) return false;
        before = splits[i];
    }
    return true;
}

// Copy the rows `index`, of items of `item` bytes, one after the other to `out`. False if a row does not exist, splits
// are invalid, or the rows do not fill `capacity` bytes.
inline bool take_rows(Cursor values, const std::int64_t* splits, std::size_t rows, std::size_t item,
                      const std::int64_t* index, std::size_t count, std::uint8_t* out, std::size_t capacity) {
    if (item == 0 || !ascend(splits, rows, values.left() / item)) return false;
    for (std::size_t i = 0; i < count; ++i) {
        const auto row = static_cast<std::uint64_t>(index[i]);
        if (row >= rows) return false;
        const std::size_t begin = static_cast<std::size_t>(splits[row]) * item;
        const std::size_t size = static_cast<std::size_t>(splits[row + 1]) * item - begin;
        if (size > capacity) return false;
        if (size > 0) std::memcpy(out, values.here() + begin, size);
        out += size;
        capacity -= size;
    }
    return capacity == 0;
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

// Copy each row to the beginning of its slot of `length` items and fill the rest of the slot. False if a row does not
// fit or splits are invalid. `out` has one slot per row.
inline bool pad_rows(Cursor values, const std::int64_t* splits, std::size_t rows, std::size_t item, std::size_t length,
                     const std::uint8_t* filler, std::uint8_t* out) {
    if (item == 0 || !ascend(splits, rows, values.left() / item)) return false;
    const std::uint8_t* from = values.here();
    for (std::size_t i = 0; i < rows; ++i) {
        const auto begin = static_cast<std::size_t>(splits[i]);
        const std::size_t count = static_cast<std::size_t>(splits[i + 1]) - begin;
        if (count > length) return false;
        std::memcpy(out, from + begin * item, count * item);
        out += count * item;
        fill_items(out, length - count, item, filler);
        out += (length - count) * item;
    }
    return true;
}

// Up to this length rows are sorted by insertion, without extra memory.
constexpr std::ptrdiff_t longest_inserted = 32;

// Write the order that sorts the items of each row by their indices, lexicographically; the sort is stable. False if
// splits are invalid. `order` has one entry per item.
inline bool sort_rows(const std::int64_t* indices, std::size_t items, std::size_t axes, const std::int64_t* splits,
                      std::size_t rows, std::int64_t* order) {
    if (!ascend(splits, rows, items) || splits[0] != 0 || static_cast<std::size_t>(splits[rows]) != items) return false;
    const auto less = [indices, axes](std::int64_t one, std::int64_t other) {
        const std::int64_t* left = indices + static_cast<std::size_t>(one) * axes;
        const std::int64_t* right = indices + static_cast<std::size_t>(other) * axes;
        return std::lexicographical_compare(left, left + axes, right, right + axes);
    };
    for (std::size_t i = 0; i < items; ++i) order[i] = static_cast<std::int64_t>(i);
    for (std::size_t i = 0; i < rows; ++i) {
        std::int64_t* first = order + splits[i];
        std::int64_t* last = order + splits[i + 1];
        if (last - first > longest_inserted) {
            if (!std::is_sorted(first, last, less)) std::stable_sort(first, last, less);
            continue;
        }
        for (std::int64_t* at = first; at < last; ++at) {
            // most items are already in order
            const std::int64_t one = *at;
            std::int64_t* to = at;
            for (; to > first && less(one, to[-1]); --to) *to = to[-1];
            *to = one;
        }
    }
    return true;
}

}  // namespace dtf
