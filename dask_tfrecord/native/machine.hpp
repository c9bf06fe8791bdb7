// Differences between compilers and processors: inlining, optional instructions, bits and words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "dask_tfrecord's native core supports little-endian machines only"
#endif
#if defined(_MSC_VER)
#include <intrin.h>
#endif
// DTF_PORTABLE disables code for specific processors, so that tests cover the portable code.
#if !defined(DTF_PORTABLE) && (defined(__x86_64__) || defined(_M_X64))
#define DTF_X86 1
#include <immintrin.h>
#endif

// Most tags and lengths have one byte. Reading those is inlined, reading longer ones is not.
#if defined(_MSC_VER)
#define DTF_INLINE __forceinline
#define DTF_APART __declspec(noinline)
#define DTF_INLINED
#else
#define DTF_INLINE inline __attribute__((always_inline))
#define DTF_APART __attribute__((noinline))
#define DTF_INLINED __attribute__((always_inline))
#endif

// Marks functions that are called only if has_sse42(), has_clmul() (carry-less multiplication), has_avx2() or
// has_avx512() (with VBMI2) is true. Processors with SSE 4.2 also have popcnt. Without DTF_AVX512, the compiler lacks it.
#if defined(DTF_X86) && !defined(_MSC_VER)
#define DTF_SSE42 __attribute__((target("sse4.2,popcnt")))
#define DTF_CLMUL __attribute__((target("sse4.2,popcnt,pclmul")))
#define DTF_AVX2 __attribute__((target("avx2")))
#define DTF_AVX512 __attribute__((target("avx512bw,avx512vbmi2,popcnt")))
#else
#define DTF_SSE42
#define DTF_CLMUL
#define DTF_AVX2
#endif

namespace dtf {

// A packed list may hold 2^31 values, of eight bytes each once decoded.
static_assert(sizeof(std::size_t) == 8, "dask_tfrecord's native core supports 64-bit machines only");

inline bool has_sse42() {
#if defined(DTF_X86) && defined(_MSC_VER)
    int registers[4];
    __cpuid(registers, 1);
    return (registers[2] >> 20 & 1) != 0 && (registers[2] >> 23 & 1) != 0;
#elif defined(DTF_X86)
    return __builtin_cpu_supports("sse4.2") != 0 && __builtin_cpu_supports("popcnt") != 0;
#else
    return false;
#endif
}

inline bool has_clmul() {
#if defined(DTF_X86) && defined(_MSC_VER)
    int registers[4];
    __cpuid(registers, 1);
    return has_sse42() && (registers[2] >> 1 & 1) != 0;
#elif defined(DTF_X86)
    return has_sse42() && __builtin_cpu_supports("pclmul") != 0;
#else
    return false;
#endif
}

inline bool has_avx2() {
#if defined(DTF_X86) && !defined(_MSC_VER)
    return __builtin_cpu_supports("avx2") != 0;
#else
    return false;
#endif
}

inline bool has_avx512() {
#if defined(DTF_AVX512)
    return __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512vbmi2") != 0 &&
           __builtin_cpu_supports("popcnt") != 0;
#else
    return false;
#endif
}

template <class T>
inline T load(const std::uint8_t* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

inline unsigned lowest_bit(std::uint64_t bits) {  // of bits != 0
#if defined(_MSC_VER)
    unsigned long at;
    _BitScanForward64(&at, bits);
    return static_cast<unsigned>(at);
#else
    return static_cast<unsigned>(__builtin_ctzll(bits));
#endif
}

inline unsigned highest_bit(std::uint64_t bits) {  // of bits != 0
#if defined(_MSC_VER)
    unsigned long at;
    _BitScanReverse64(&at, bits);
    return static_cast<unsigned>(at);
#else
    return 63u - static_cast<unsigned>(__builtin_clzll(bits));
#endif
}

// Bit i: the highest bit of byte i of the 64 bytes at `from`.
inline std::uint64_t highest_bits(const std::uint8_t* from) {
    std::uint64_t bits = 0;
#if defined(DTF_X86)
    for (std::size_t part = 0; part < 4; ++part) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16 * part));
        bits |= static_cast<std::uint64_t>(static_cast<unsigned>(_mm_movemask_epi8(bytes))) << (16 * part);
    }
#else
    for (unsigned part = 0; part < 8; ++part) {
        const std::uint64_t high = (load<std::uint64_t>(from + 8 * part) & 0x8080808080808080u) >> 7;
        bits |= (high * 0x0102040810204080u) >> 56 << (8 * part);
    }
#endif
    return bits;
}

// Compare two byte ranges. Keys are short: overlapping words beat a call to memcmp.
DTF_INLINE bool same(const std::uint8_t* one, const std::uint8_t* other, std::size_t size) {
    const auto differ = [one, other](std::size_t at) {
        return load<std::uint64_t>(one + at) ^ load<std::uint64_t>(other + at);
    };
    if (size > 32) return std::memcmp(one, other, size) == 0;
    if (size > 16) return (differ(0) | differ(8) | differ(size - 16) | differ(size - 8)) == 0;
    if (size >= 8) return (differ(0) | differ(size - 8)) == 0;
    if (size >= 4) {
        const std::size_t last = size - 4;
        return load<std::uint32_t>(one) == load<std::uint32_t>(other) &&
               load<std::uint32_t>(one + last) == load<std::uint32_t>(other + last);
    }
    for (std::size_t i = 0; i < size; ++i) {
        if (one[i] != other[i]) return false;
    }
    return true;
}

}  // namespace dtf
