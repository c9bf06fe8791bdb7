// Shared by the native tests and the fuzzer: all ways to decode packed varints, and their reference.
#pragma once

#include <tuple>
#include <utility>

#include "support.hpp"

namespace support {

// Reference implementation of `varints`, value by value.
inline bool one_by_one(dtf::Cursor& cursor, std::size_t room, std::vector<std::int64_t>& values) {
    while (values.size() < room && !cursor.empty()) {
        std::uint64_t value;
        if (!cursor.varint(value)) return false;
        values.push_back(static_cast<std::int64_t>(value));
    }
    return true;
}

// Varints of up to `longest` bytes; padded ones are longer than they need be.
inline std::string random_varints(Random& random, std::size_t count, std::size_t longest, bool padded) {
    std::string packed;
    for (std::size_t i = 0; i < count; ++i) {
        const std::size_t size = 1 + random.below(longest);
        const std::uint64_t value = random.next() >> (size == 10 ? 0 : 64 - 7 * size);
        packed += varint(padded ? value >> random.below(64) : value, padded ? size : 1);
    }
    return packed;
}

// Return whether every way that this machine has decodes and counts like the reference, and keeps to the room. `holds`
// is what the reference returns.
inline bool varints_agree(const std::string& packed, std::size_t room, bool& holds) {
    const Exact block(packed);
    dtf::Cursor slow = block.cursor();
    std::vector<std::int64_t> expected;
    holds = one_by_one(slow, room, expected);
    bool agree = true;
    const bool short_ones = dtf::has_sse42(), masked = dtf::has_avx512();
    for (const std::pair<bool, bool>& way : {std::pair(false, false), {short_ones, false}, {short_ones, masked}}) {
        std::tie(dtf::varints::decodes_short, dtf::varints::decodes_masked) = way;
        constexpr std::int64_t untouched = 0x5555555555555555;  // ASan does not see stores by masks
        std::vector<std::int64_t> out(room + 16, untouched);
        dtf::Cursor fast = block.cursor();
        std::size_t written = 0;
        agree = agree && fast.varints(out.data(), room, written) == holds && written <= room;
        for (std::size_t i = room; i < out.size(); ++i) agree = agree && out[i] == untouched;
        if (!holds || !agree) continue;
        agree = written == expected.size() && fast.left() == slow.left() &&
                std::equal(expected.begin(), expected.end(), out.begin());
    }
    if (room < packed.size()) return agree;
    dtf::Cursor counted = block.cursor();
    std::size_t count = 0;
    return agree && counted.count_varints(count) == holds && (!holds || count == expected.size());
}

}  // namespace support
