// Many varints at once. Nothing here looks where the bytes end: the cursor does, and gives blocks of a known size.
#pragma once

#include <array>

#include "machine.hpp"

namespace dtf::varints {

// The bytes whose values are decoded together, and those beyond that may be read with them.
constexpr std::size_t block = 64, beyond = 8;
// The most bytes that a value takes; bits past the 64th are dropped.
constexpr std::size_t longest = 10;

// The seven low bits of each of `size` bytes (1 to 4), joined.
inline std::uint64_t fold_short(std::uint32_t word, unsigned size) {
    word &= ~std::uint32_t{0} >> (32 - 8 * size);
    word = (word & 0x007f007fu) | (word & 0x7f007f00u) >> 1;
    return (word & 0x00003fffu) | (word & 0x3fff0000u) >> 2;
}

// The same of 1 to 8 bytes.
inline std::uint64_t fold(std::uint64_t word, unsigned size) {
    word &= ~std::uint64_t{0} >> (64 - 8 * size);
    word = (word & 0x007f007f007f007fu) | (word & 0x7f007f007f007f00u) >> 1;
    word = (word & 0x00003fff00003fffu) | (word & 0x3fff00003fff0000u) >> 2;
    return (word & 0x000000000fffffffu) | (word & 0x0fffffff00000000u) >> 4;
}

// The same of any number; false of more than a value takes.
inline bool fold_long(const std::uint8_t* from, unsigned size, std::uint64_t& value) {
    if (size <= 8) {
        value = fold(load<std::uint64_t>(from), size);
        return true;
    }
    if (size > longest) return false;
    const std::uint64_t high = fold(load<std::uint64_t>(from + 2), size - 2);
    value = high << 14 | (from[1] & 0x7fu) << 7 | (from[0] & 0x7fu);
    return true;
}

// Whether all values that end in a block have that many bytes at the most, of which `inner` says which are not the last.
inline bool all_within(std::uint64_t inner, unsigned bytes) {
    for (unsigned more = 1; more < bytes; ++more) inner &= inner >> 1;
    return inner == 0;
}

// Decodes the values that end at the bytes `ends` of a block, of which `inner` has those that are not the last of their
// values; false if one is malformed. `used` are the bytes that they take.
inline bool decode_block(const std::uint8_t* from, std::uint64_t inner, std::uint64_t ends, std::int64_t* out,
                         std::size_t& written, unsigned& used) {
    // Each value's place is known before any is decoded, so that none waits for the one before.
    const bool all_short = all_within(inner, 4);
    used = 0;
    while (ends != 0) {
        const unsigned next = lowest_bit(ends) + 1;
        ends &= ends - 1;
        std::uint64_t value;
        if (all_short) {
            value = fold_short(load<std::uint32_t>(from + used), next - used);
        } else if (!fold_long(from + used, next - used, value)) {
            return false;
        }
        out[written++] = static_cast<std::int64_t>(value);
        used = next;
    }
    return used != 0;  // no value is as long as a block
}

#if defined(DTF_X86)

// Four values of one to three bytes each: where the bytes go, and how many they are.
constexpr std::size_t quad_bytes = 12, quads = 81;

struct QuadTables {
    std::array<std::array<std::uint8_t, 16>, quads> shuffles;
    std::array<std::uint8_t, 1 << quad_bytes> quad, used;  // by which of the next bytes are the last of their values
};

constexpr QuadTables make_quad_tables() {
    QuadTables tables{};
    for (unsigned quad = 0; quad < quads; ++quad) {
        const unsigned sizes[4] = {quad % 3 + 1, quad / 3 % 3 + 1, quad / 9 % 3 + 1, quad / 27 + 1};
        unsigned at = 0, ends = 0;
        for (unsigned value = 0; value < 4; ++value) {
            for (unsigned byte = 0; byte < 4; ++byte) {
                constexpr unsigned zero = 0x80;
                tables.shuffles[quad][4 * value + byte] =
                    static_cast<std::uint8_t>(byte < sizes[value] ? at + byte : zero);
            }
            at += sizes[value];
            ends |= 1u << (at - 1);
        }
        for (unsigned rest = 0; rest < 1u << (quad_bytes - at); ++rest) {
            tables.quad[ends | rest << at] = static_cast<std::uint8_t>(quad);
            tables.used[ends | rest << at] = static_cast<std::uint8_t>(at);
        }
    }
    return tables;
}

inline constexpr QuadTables quad_tables = make_quad_tables();

inline const bool decodes_short = has_sse42();

// Decodes blocks for as long as their values have three bytes at the most; gives how many bytes it used.
DTF_SSE42 inline std::size_t decode_short(const std::uint8_t* from, std::size_t size, std::int64_t* out,
                                          std::size_t room, std::size_t& written) {
    const __m128i first = _mm_set1_epi32(0x7f), second = _mm_set1_epi32(0x3f80), third = _mm_set1_epi32(0x1fc000);
    std::size_t at = 0;
    while (size - at >= block && room - written >= 16) {
        const std::uint64_t inner = highest_bits(from + at);
        if ((inner & 0xffff) == 0) {
            for (unsigned i = 0; i < 16; i += 2) {
                const __m128i pair = _mm_cvtsi32_si128(load<std::uint16_t>(from + at + i));
                _mm_storeu_si128(reinterpret_cast<__m128i*>(out + written + i), _mm_cvtepu8_epi64(pair));
            }
            at += 16;
            written += 16;
            continue;
        }
        if (!all_within(inner, 3)) break;
        std::uint64_t ends = ~inner;
        for (unsigned i = 0; i < 4; ++i) {
            const std::size_t next = ends & ((1u << quad_bytes) - 1);
            const auto& shuffle = quad_tables.shuffles[quad_tables.quad[next]];
            __m128i values = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at)),
                                              _mm_loadu_si128(reinterpret_cast<const __m128i*>(shuffle.data())));
            values = _mm_or_si128(_mm_or_si128(_mm_and_si128(values, first),
                                               _mm_and_si128(_mm_srli_epi32(values, 1), second)),
                                  _mm_and_si128(_mm_srli_epi32(values, 2), third));
            auto* place = reinterpret_cast<__m128i*>(out + written);
            _mm_storeu_si128(place, _mm_cvtepu32_epi64(values));
            _mm_storeu_si128(place + 1, _mm_cvtepu32_epi64(_mm_srli_si128(values, 8)));
            ends >>= quad_tables.used[next];
            at += quad_tables.used[next];
            written += 4;
        }
    }
    return at;
}

#else

inline constexpr bool decodes_short = false;

inline std::size_t decode_short(const std::uint8_t*, std::size_t, std::int64_t*, std::size_t, std::size_t&) {
    return 0;
}

#endif

}  // namespace dtf::varints
