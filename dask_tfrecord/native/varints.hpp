// Many varints at once. These functions do not check where the bytes end: the cursor passes blocks of a known size.
#pragma once

#include <algorithm>
#include <array>

#include "machine.hpp"

namespace dtf::varints {

// Bytes whose values are decoded together, and bytes beyond them that may be read.
constexpr std::size_t block = 64, beyond = 8;
// Maximum size of a value; bits past the 64th are discarded.
constexpr std::size_t longest = 10;

// The seven low bits of each of `size` bytes (1 to 4), joined.
inline std::uint64_t fold_short(std::uint32_t word, unsigned size) {
    word &= ~std::uint32_t{0} >> (32 - 8 * size);
    word = (word & 0x007f007fu) | (word & 0x7f007f00u) >> 1;
    return (word & 0x00003fffu) | (word & 0x3fff0000u) >> 2;
}

// The same for 1 to 8 bytes.
inline std::uint64_t fold(std::uint64_t word, unsigned size) {
    word &= ~std::uint64_t{0} >> (64 - 8 * size);
    word = (word & 0x007f007f007f007fu) | (word & 0x7f007f007f007f00u) >> 1;
    word = (word & 0x00003fff00003fffu) | (word & 0x3fff00003fff0000u) >> 2;
    return (word & 0x000000000fffffffu) | (word & 0x0fffffff00000000u) >> 4;
}

// The same for any number; false if a value cannot be that long.
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

// Decode the value in the `size` (1 to 8) highest bytes of a word; false if they are not one value.
DTF_INLINE bool fold_one(std::uint64_t word, unsigned size, std::uint64_t& value) {
    constexpr std::uint64_t last_bits = 0x8080808080808080u;
    word >>= 64 - 8 * size;
    if ((word & last_bits) != last_bits >> 8 >> (64 - 8 * size)) return false;
    value = fold(word, 8);
    return true;
}

// Return whether all values that end in a block have at most that many bytes; `inner` marks bytes that are not the last.
inline bool all_within(std::uint64_t inner, unsigned bytes) {
    for (unsigned more = 1; more < bytes; ++more) inner &= inner >> 1;
    return inner == 0;
}

// Decode the values that end at the bytes `ends` of a block; `inner` marks the bytes that are not the last of their
// value. False if one is malformed. Sets `used` to the bytes read.
inline bool decode_block(const std::uint8_t* from, std::uint64_t inner, std::uint64_t ends, std::int64_t* out,
                         std::size_t& written, unsigned& used) {
    // Positions are computed before any value is decoded, so that no value waits for the preceding one.
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
    return used != 0;  // a value is never as long as a block
}

// Whether runs of values of at most three bytes are decoded together, and by masks. They are set before a thread can call
// this library, and never again, except by tests of one thread.
inline bool decodes_short = has_sse42(), decodes_masked = has_avx512();

#if defined(DTF_X86)

// Four values of one to three bytes each: shuffle masks and total sizes.
constexpr std::size_t quad_bytes = 12, quads = 81;

struct QuadTables {
    std::array<std::array<std::uint8_t, 16>, quads> shuffles;
    std::array<std::uint8_t, 1 << quad_bytes> quad, used;  // indexed by the bits that mark the last byte of each value
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

// Input and output positions.
struct Stretch {
    const std::uint8_t* from;
    std::int64_t* out;

    bool has_block(const std::uint8_t* end) const { return end - from >= static_cast<std::ptrdiff_t>(block); }
    bool has_room(const std::int64_t* end) const { return end - out >= 16; }
};

// Decode the next 16 values, of one byte each.
DTF_SSE42 inline void widen(Stretch& next) {
    for (unsigned i = 0; i < 16; i += 2) {
        const __m128i pair = _mm_cvtsi32_si128(load<std::uint16_t>(next.from + i));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(next.out + i), _mm_cvtepu8_epi64(pair));
    }
    next.from += 16;
    next.out += 16;
}

// Decode the next 16 values, of at most three bytes; `ends` marks their last bytes.
DTF_SSE42 inline void shuffle(Stretch& next, std::uint64_t ends) {
    // Seven bits of each byte, and the weights that join bytes to pairs, and pairs to values.
    const __m128i seven = _mm_set1_epi8(0x7f), bytes = _mm_set1_epi16(static_cast<std::int16_t>(0x8001)),
                  pairs = _mm_set1_epi32(0x40000001);
    for (unsigned i = 0; i < 4; ++i) {
        const std::size_t quad = ends & ((1u << quad_bytes) - 1);
        const auto& places = quad_tables.shuffles[quad_tables.quad[quad]];
        __m128i values = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(next.from)),
                                          _mm_loadu_si128(reinterpret_cast<const __m128i*>(places.data())));
        values = _mm_madd_epi16(_mm_maddubs_epi16(bytes, _mm_and_si128(values, seven)), pairs);
        auto* place = reinterpret_cast<__m128i*>(next.out);
        _mm_storeu_si128(place, _mm_cvtepu32_epi64(values));
        _mm_storeu_si128(place + 1, _mm_cvtepu32_epi64(_mm_srli_si128(values, 8)));
        ends >>= quad_tables.used[quad];
        next.from += quad_tables.used[quad];
        next.out += 4;
    }
}

// Decode 16 values of a block; false if one of them has more than three bytes.
DTF_SSE42 inline bool advance(Stretch& next) {
    const std::uint64_t inner = highest_bits(next.from);
    if ((inner & 0xffff) == 0) {
        widen(next);
    } else if (all_within(inner, 3)) {
        shuffle(next, ~inner);
    } else {
        return false;
    }
    return true;
}

// Begin of the first value that ends after the middle; unchanged if a value is longer than three bytes.
DTF_SSE42 inline Stretch middle(Stretch begin, std::size_t size) {
    Stretch half = begin;
    std::uint64_t inner = 0;
    for (std::size_t at = 0; at + block <= size / 2; at += block) {
        inner = highest_bits(half.from);
        if (!all_within(inner, 3)) return begin;
        half.from += block;
        half.out += block - static_cast<std::size_t>(_mm_popcnt_u64(inner));
    }
    if (inner >> 63 == 0) return half;
    // a value that spans the middle belongs to the first half
    const std::uint64_t ends = ~highest_bits(half.from);
    if ((ends & 3) == 0) return begin;
    half.from += lowest_bit(ends) + 1;
    ++half.out;
    return half;
}

// Decode blocks while their values have at most three bytes; return the number of bytes used.
DTF_SSE42 inline std::size_t decode_quads(const std::uint8_t* from, std::size_t size, std::int64_t* out,
                                          std::size_t room, std::size_t& written) {
    constexpr std::size_t worth_halving = 4 * block;
    const std::uint8_t* const end = from + size;
    const std::int64_t* const out_end = out + room;
    Stretch next{from, out + written};
    if (size >= worth_halving && room - written >= size) {
        // A value starts where the preceding one ends. Decoding two halves at once halves the wait.
        const Stretch half = middle(next, size);
        Stretch behind = half;
        while (next.has_block(half.from) && behind.has_block(end) && advance(next) && advance(behind)) continue;
        while (next.from < half.from && advance(next)) continue;
        if (next.from >= half.from && next.from < behind.from) next = behind;
    }
    while (next.has_block(end) && next.has_room(out_end) && advance(next)) continue;
    written = static_cast<std::size_t>(next.out - out);
    return static_cast<std::size_t>(next.from - from);
}

#endif

#if defined(DTF_AVX512)
#if !defined(__clang__)  // GCC 12 warns of its own intrinsics
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

// The seven low bits of the bytes that are `there` in a block, zero for others; of these, the ones at `starts`.
DTF_AVX512 inline __m512i gather(const std::uint8_t* from, std::uint64_t there, std::uint64_t starts) {
    const __m512i bytes = _mm512_and_si512(_mm512_maskz_loadu_epi8(there, from), _mm512_set1_epi8(0x7f));
    return _mm512_maskz_compress_epi8(starts, bytes);
}

// Remove the first 16 bytes, and return them as integers.
DTF_AVX512 inline __m512i take_integers(__m512i& bytes) {
    const __m512i integers = _mm512_cvtepu8_epi32(_mm512_castsi512_si128(bytes));
    bytes = _mm512_alignr_epi32(bytes, bytes, 4);
    return integers;
}

// Decode blocks while their values have at most three bytes; return the number of bytes used. Masks keep reads within
// the bytes and writes within the room, so that the last values are decoded like the others.
DTF_AVX512 inline std::size_t decode_by_masks(const std::uint8_t* from, std::size_t size, std::int64_t* out,
                                              std::size_t room, std::size_t& written) {
    std::size_t at = 0;
    while (at < size) {
        const std::uint64_t there = ~std::uint64_t{0} >> (block - std::min(size - at, block));
        const std::uint64_t inner = _mm512_movepi8_mask(_mm512_maskz_loadu_epi8(there, from + at));
        const std::uint64_t ends = there & ~inner, starts = ends << 1 | 1;
        const auto count = static_cast<std::size_t>(_mm_popcnt_u64(ends));
        if (count == 0 || count > room - written || !all_within(inner, 3)) break;
        // A value has a second byte if its first is not the last. The rest of the block, if any, starts a value too.
        const std::uint64_t two = inner & there >> 1, three = two & two >> 1;
        __m512i first = gather(from + at, there, starts), second = gather(from + at + 1, two, starts),
                third = gather(from + at + 2, three, starts);
        for (std::size_t i = 0; i < count; i += 16) {
            const __m512i low = _mm512_or_si512(take_integers(first), _mm512_slli_epi32(take_integers(second), 7));
            const __m512i values = _mm512_or_si512(low, _mm512_slli_epi32(take_integers(third), 14));
            const std::uint32_t fit = 0xffffu >> (16 - std::min<std::size_t>(count - i, 16));
            std::int64_t* const place = out + written + i;
            _mm512_mask_storeu_epi64(place, static_cast<__mmask8>(fit),
                                     _mm512_cvtepu32_epi64(_mm512_castsi512_si256(values)));
            _mm512_mask_storeu_epi64(place + 8, static_cast<__mmask8>(fit >> 8),
                                     _mm512_cvtepu32_epi64(_mm512_extracti64x4_epi64(values, 1)));
        }
        written += count;
        at += highest_bit(ends) + 1;
    }
    return at;
}

#if !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif

// Decode the next values while they are short, if this machine does so; return the number of bytes used.
inline std::size_t decode_short(const std::uint8_t* from, std::size_t size, std::int64_t* out, std::size_t room,
                                std::size_t& written) {
#if defined(DTF_AVX512)
    if (decodes_masked) return decode_by_masks(from, size, out, room, written);
#endif
#if defined(DTF_X86)
    return decode_quads(from, size, out, room, written);
#else
    return (void)from, (void)size, (void)out, (void)room, (void)written, std::size_t{0};
#endif
}

}  // namespace dtf::varints
