// CRC-32C (Castagnoli), with the instruction of the processor if it has one, else with tables.
#pragma once

#include <array>

#include "machine.hpp"

#if !defined(DTF_PORTABLE) && defined(__aarch64__) && (defined(__linux__) || defined(__APPLE__))
#define DTF_CRC_ARM 1
#include <arm_acle.h>
#if defined(__linux__)
#include <sys/auxv.h>
#endif
#endif

#if defined(DTF_X86)
#define DTF_TARGET_CRC DTF_SSE42
#elif defined(DTF_CRC_ARM) && defined(__clang__)
#define DTF_TARGET_CRC __attribute__((target("crc")))
#elif defined(DTF_CRC_ARM)
#define DTF_TARGET_CRC __attribute__((target("+crc")))
#endif

namespace dtf::crc {

constexpr std::uint32_t polynomial = 0x82f63b78;  // bits reversed

using Table = std::array<std::uint32_t, 256>;

// tables[k][b]: the state after byte b and then k zero bytes.
constexpr std::array<Table, 8> make_byte_tables() {
    std::array<Table, 8> tables{};
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
        std::uint32_t state = byte;
        for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ ((state & 1) != 0 ? polynomial : 0);
        tables[0][byte] = state;
    }
    for (std::size_t k = 1; k < 8; ++k) {
        for (std::size_t byte = 0; byte < 256; ++byte) {
            const std::uint32_t before = tables[k - 1][byte];
            tables[k][byte] = (before >> 8) ^ tables[0][before & 0xff];
        }
    }
    return tables;
}

inline constexpr std::array<Table, 8> byte_tables = make_byte_tables();

// Effect of 2^doublings zero bytes on a state. It is linear: four table lookups, one per byte of the state.
constexpr std::array<Table, 4> make_shift_tables(int doublings) {
    std::array<std::uint32_t, 32> basis{};
    for (std::size_t bit = 0; bit < 32; ++bit) {
        const std::uint32_t state = std::uint32_t{1} << bit;
        basis[bit] = (state >> 8) ^ byte_tables[0][state & 0xff];
    }
    for (int i = 0; i < doublings; ++i) {
        std::array<std::uint32_t, 32> twice{};
        for (std::size_t bit = 0; bit < 32; ++bit) {
            for (std::size_t set = 0; set < 32; ++set) {
                if ((basis[bit] >> set & 1) != 0) twice[bit] ^= basis[set];
            }
        }
        basis = twice;
    }
    std::array<Table, 4> tables{};
    for (std::size_t part = 0; part < 4; ++part) {
        for (std::size_t byte = 0; byte < 256; ++byte) {
            for (std::size_t bit = 0; bit < 8; ++bit) {
                if ((byte >> bit & 1) != 0) tables[part][byte] ^= basis[8 * part + bit];
            }
        }
    }
    return tables;
}

inline std::uint32_t shift(const std::array<Table, 4>& tables, std::uint32_t state) {
    return tables[0][state & 0xff] ^ tables[1][state >> 8 & 0xff] ^ tables[2][state >> 16 & 0xff] ^
           tables[3][state >> 24];
}

// State after more bytes, eight per step, with tables.
inline std::uint32_t advance_by_tables(std::uint32_t state, const std::uint8_t* data, std::size_t size) {
    for (; size >= 8; data += 8, size -= 8) {
        const std::uint64_t word = load<std::uint64_t>(data) ^ state;
        state = 0;
        for (unsigned i = 0; i < 8; ++i) state ^= byte_tables[7 - i][word >> (8 * i) & 0xff];
    }
    for (; size > 0; ++data, --size) state = (state >> 8) ^ byte_tables[0][(state ^ *data) & 0xff];
    return state;
}

inline std::uint32_t by_tables(const std::uint8_t* data, std::size_t size) {
    return ~advance_by_tables(~std::uint32_t{0}, data, size);
}

#if defined(DTF_TARGET_CRC)

DTF_TARGET_CRC inline std::uint32_t step(std::uint32_t state, std::uint64_t word) {
#if defined(DTF_X86)
    return static_cast<std::uint32_t>(_mm_crc32_u64(state, word));
#else
    return __crc32cd(state, word);
#endif
}

DTF_TARGET_CRC inline std::uint32_t step(std::uint32_t state, std::uint8_t byte) {
#if defined(DTF_X86)
    return _mm_crc32_u8(state, byte);
#else
    return __crc32cb(state, byte);
#endif
}

// The instruction takes three cycles but can start every cycle: three adjacent stretches run in parallel and are
// joined.
constexpr std::size_t long_stretch = 1024;
constexpr std::size_t short_stretch = 128;
inline constexpr std::array<Table, 4> long_shift = make_shift_tables(10);
inline constexpr std::array<Table, 4> short_shift = make_shift_tables(7);

struct Three {
    std::uint32_t first, second = 0, third = 0;
};

DTF_TARGET_CRC inline Three by_three(std::uint32_t state, const std::uint8_t* data, std::size_t stretch) {
    Three states{state};
    for (std::size_t i = 0; i < stretch; i += 8) {
        states.first = step(states.first, load<std::uint64_t>(data + i));
        states.second = step(states.second, load<std::uint64_t>(data + stretch + i));
        states.third = step(states.third, load<std::uint64_t>(data + 2 * stretch + i));
    }
    return states;
}

template <std::size_t stretch>
DTF_TARGET_CRC inline std::uint32_t three_stretches(
    const std::uint8_t* data, std::uint32_t state, const std::array<Table, 4>& tables) {
    const Three states = by_three(state, data, stretch);
    return shift(tables, shift(tables, states.first) ^ states.second) ^ states.third;
}

// Process stretches while they fit; the remainder is shorter than three short ones.
DTF_TARGET_CRC inline std::uint32_t by_stretches(std::uint32_t state, const std::uint8_t*& data, std::size_t& size) {
    for (; size >= 3 * long_stretch; data += 3 * long_stretch, size -= 3 * long_stretch) {
        state = three_stretches<long_stretch>(data, state, long_shift);
    }
    for (; size >= 3 * short_stretch; data += 3 * short_stretch, size -= 3 * short_stretch) {
        state = three_stretches<short_stretch>(data, state, short_shift);
    }
    return state;
}

DTF_TARGET_CRC inline std::uint32_t by_words(std::uint32_t state, const std::uint8_t* data, std::size_t size) {
    for (; size >= 8; data += 8, size -= 8) state = step(state, load<std::uint64_t>(data));
    for (; size > 0; ++data, --size) state = step(state, *data);
    return state;
}

DTF_TARGET_CRC inline std::uint32_t advance_by_instruction(
    std::uint32_t state, const std::uint8_t* data, std::size_t size) {
    state = by_stretches(state, data, size);
    return by_words(state, data, size);
}

DTF_TARGET_CRC inline std::uint32_t by_instruction(const std::uint8_t* data, std::size_t size) {
    return ~advance_by_instruction(~std::uint32_t{0}, data, size);
}

#endif

#if defined(DTF_X86)

// x^(64 words - 33) modulo the polynomial, bits reversed. The product with a state has 63 bits. Continuing from zero
// with those bits multiplies by x^33, which yields the effect of `words` words of zeros.
constexpr std::size_t most_words = std::size_t{6} * short_stretch / 24;
constexpr std::array<std::uint32_t, most_words + 1> make_powers() {
    std::array<std::uint32_t, most_words + 1> powers{};
    std::uint32_t power = std::uint32_t{1} << 31;  // 1
    for (std::size_t bits = 1; bits + 33 <= 64 * most_words; ++bits) {
        power = (power >> 1) ^ ((power & 1) != 0 ? polynomial : 0);
        if ((bits + 33) % 64 == 0) powers[(bits + 33) / 64] = power;
    }
    return powers;
}

inline constexpr std::array<std::uint32_t, most_words + 1> powers = make_powers();

// State after `words` words of zeros.
DTF_CLMUL inline std::uint32_t after_zeros(std::uint32_t state, std::size_t words) {
    const __m128i power = _mm_cvtsi32_si128(static_cast<int>(powers[words]));
    const __m128i product = _mm_clmulepi64_si128(_mm_cvtsi32_si128(static_cast<int>(state)), power, 0);
    return static_cast<std::uint32_t>(_mm_crc32_u64(0, static_cast<std::uint64_t>(_mm_cvtsi128_si64(product))));
}

// Bytes that are too few for stretches of a fixed size are split into three stretches of a third each.
DTF_CLMUL inline std::uint32_t advance_by_product(std::uint32_t state, const std::uint8_t* data, std::size_t size) {
    constexpr std::size_t worth_it = 96;
    state = by_stretches(state, data, size);
    if (size < worth_it) return by_words(state, data, size);
    const std::size_t words = size / 24, stretch = 8 * words;
    const Three states = by_three(state, data, stretch);
    state = after_zeros(states.first, 2 * words) ^ after_zeros(states.second, words) ^ states.third;
    return by_words(state, data + 3 * stretch, size - 3 * stretch);
}

DTF_CLMUL inline std::uint32_t by_product(const std::uint8_t* data, std::size_t size) {
    return ~advance_by_product(~std::uint32_t{0}, data, size);
}

#endif

inline bool has_instruction() {
#if defined(DTF_CRC_ARM) && defined(__linux__)
    return (getauxval(AT_HWCAP) >> 7 & 1) != 0;  // HWCAP_CRC32
#elif defined(DTF_CRC_ARM)
    return true;  // every arm64 Mac
#else
    return has_sse42();
#endif
}

using Function = std::uint32_t (*)(const std::uint8_t*, std::size_t);

inline Function best() {
#if defined(DTF_X86)
    if (has_clmul()) return by_product;
#endif
#if defined(DTF_TARGET_CRC)
    if (has_instruction()) return by_instruction;
#endif
    return by_tables;
}

using Advance = std::uint32_t (*)(std::uint32_t, const std::uint8_t*, std::size_t);

inline Advance best_advance() {
#if defined(DTF_X86)
    if (has_clmul()) return advance_by_product;
#endif
#if defined(DTF_TARGET_CRC)
    if (has_instruction()) return advance_by_instruction;
#endif
    return advance_by_tables;
}

// TFRecord masks its CRCs, because the CRC of bytes that contain CRCs is weak.
inline std::uint32_t mask(std::uint32_t crc) { return (crc >> 15 | crc << 17) + 0xa282ead8u; }

inline std::uint32_t unmask(std::uint32_t masked) {
    masked -= 0xa282ead8u;
    return masked << 15 | masked >> 17;
}

}  // namespace dtf::crc
