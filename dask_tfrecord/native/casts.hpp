// The narrower and wider types that int64 and float32 values are cast to: what would change an integer, or take a float
// to infinity, is refused; floats are rounded to the nearest, ties to even.
#pragma once

#include <limits>
#include <type_traits>

#include "buffer.hpp"

namespace dtf {

enum class Cast : int {
    none = 0,
    boolean = 1,
    int8 = 2,
    int16 = 3,
    int32 = 4,
    uint8 = 5,
    uint16 = 6,
    uint32 = 7,
    uint64 = 8,
    float16 = 9,
    bfloat16 = 10,
    float64 = 11,
};

inline std::size_t item_size(Cast cast) {
    switch (cast) {
        case Cast::boolean:
        case Cast::int8:
        case Cast::uint8: return 1;
        case Cast::int16:
        case Cast::uint16:
        case Cast::float16:
        case Cast::bfloat16: return 2;
        case Cast::int32:
        case Cast::uint32: return 4;
        default: return 8;
    }
}

namespace casts {

constexpr std::uint32_t float_infinity = 0x7f800000;

// The bits of a float without its sign, cut to their upper part: `dropped` bits go, and the rest is rounded.
inline std::uint32_t rounded(std::uint32_t bits, unsigned dropped) {
    const std::uint32_t kept = bits >> dropped;
    const std::uint32_t half = 1u << (dropped - 1);
    const std::uint32_t rest = bits & ((1u << dropped) - 1);
    return kept + (rest > half || (rest == half && (kept & 1) != 0) ? 1 : 0);
}

inline bool to_float16(std::uint32_t bits, std::uint16_t& half) {
    constexpr std::uint32_t overflows = 0x477ff000;  // 65520, halfway to what would be next
    constexpr std::uint32_t least_normal = 0x38800000, least_rounded = 0x33000000;
    const std::uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    std::uint32_t found;
    if (size > float_infinity) {
        const std::uint32_t payload = size >> 13 & 0x3ff;
        found = 0x7c00 | (payload != 0 ? payload : 1);
    } else if (size == float_infinity) {
        found = 0x7c00;
    } else if (size >= overflows) {
        return false;
    } else if (size >= least_normal) {
        found = rounded(size - 0x38000000, 13);
    } else if (size > least_rounded) {
        found = rounded((size & 0x007fffff) | 0x00800000, 126 - (size >> 23));
    } else {
        found = 0;
    }
    half = static_cast<std::uint16_t>(sign | found);
    return true;
}

inline bool to_bfloat16(std::uint32_t bits, std::uint16_t& half) {
    const std::uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    std::uint32_t found = size >> 16;
    if (size > float_infinity) {
        if ((found & 0x7f) == 0) found |= 1;
    } else {
        found = rounded(size, 16);
        if (found >= float_infinity >> 16 && size < float_infinity) return false;
    }
    half = static_cast<std::uint16_t>(sign | found);
    return true;
}

template <class T>
bool to_integer(std::int64_t value, T& out) {
    out = static_cast<T>(value);
    if constexpr (std::is_unsigned_v<T>) {
        if (value < 0) return false;
    }
    return static_cast<std::int64_t>(out) == value;
}

inline bool to_boolean(std::int64_t value, std::uint8_t& out) {
    out = value != 0;
    return value == out;
}

// False for an integer that the float cannot hold exactly.
template <class Float>
bool to_exact_float(std::int64_t value, Float& out) {
    constexpr auto beyond = static_cast<Float>(9223372036854775808.0);  // 2^63, which int64 cannot represent
    out = static_cast<Float>(value);
    return out < beyond && static_cast<std::int64_t>(out) == value;
}

inline bool to_float64(std::uint32_t bits, double& out) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    out = static_cast<double>(value);
    return true;
}

// All values of `wide`, appended to `out`; the first that does not fit is left in `refused`.
template <class From, class To, class Convert>
bool convert(Buffer& wide, Buffer& out, std::uint64_t& refused, Convert one) {
    const std::size_t count = wide.size() / sizeof(From);
    std::uint8_t* place = out.grow(count * sizeof(To));
    if (place == nullptr) return false;
    for (std::size_t i = 0; i < count; ++i) {
        const From value = wide.at<From>(i);
        To narrow{};
        if (!one(value, narrow)) {
            refused = static_cast<std::uint64_t>(value);
            return false;
        }
        std::memcpy(place + i * sizeof(To), &narrow, sizeof narrow);
    }
    return true;
}

template <class To>
bool integers(Buffer& wide, Buffer& out, std::uint64_t& refused) {
    return convert<std::int64_t, To>(wide, out, refused, to_integer<To>);
}

}  // namespace casts

// Converts integers to float64, or to float32 without a cast; the first that it cannot hold exactly is left in `refused`.
inline bool cast_to_exact_floats(Cast cast, Buffer& wide, Buffer& out, std::uint64_t& refused) {
    using namespace casts;
    if (cast == Cast::float64) return convert<std::int64_t, double>(wide, out, refused, to_exact_float<double>);
    return convert<std::int64_t, float>(wide, out, refused, to_exact_float<float>);
}

// Casts what `wide` holds, 64-bit integers or the bits of floats, to the end of `out`.
inline bool cast_values(Cast cast, Buffer& wide, Buffer& out, std::uint64_t& refused) {
    using namespace casts;
    switch (cast) {
        case Cast::boolean: return convert<std::int64_t, std::uint8_t>(wide, out, refused, to_boolean);
        case Cast::int8: return integers<std::int8_t>(wide, out, refused);
        case Cast::int16: return integers<std::int16_t>(wide, out, refused);
        case Cast::int32: return integers<std::int32_t>(wide, out, refused);
        case Cast::uint8: return integers<std::uint8_t>(wide, out, refused);
        case Cast::uint16: return integers<std::uint16_t>(wide, out, refused);
        case Cast::uint32: return integers<std::uint32_t>(wide, out, refused);
        case Cast::uint64: return integers<std::uint64_t>(wide, out, refused);
        case Cast::float16: return convert<std::uint32_t, std::uint16_t>(wide, out, refused, to_float16);
        case Cast::bfloat16: return convert<std::uint32_t, std::uint16_t>(wide, out, refused, to_bfloat16);
        case Cast::float64: return convert<std::uint32_t, double>(wide, out, refused, to_float64);
        case Cast::none: break;
    }
    return false;
}

}  // namespace dtf
